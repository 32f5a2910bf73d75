# SPDX-License-Identifier: Apache-2.0
"""What happens, as records of standard logging with named fields; `telemetry` turns them into JSON lines and metrics.

The logger is `bunshin_gym.events`, silent unless its level is INFO or lower. A record's message is the event's name
and its attribute `bunshin` has the fields: durations end in `_s`, sizes in `_bytes`.
"""

from __future__ import annotations

import logging
from typing import Final

__all__ = ["LOGGER", "emit"]

LOGGER: Final = logging.getLogger("bunshin_gym.events")


def emit(event: str, **fields: str | int | float | None) -> None:
    """Logs an event, if anybody listens."""
    LOGGER.info(event, extra={"bunshin": fields})
