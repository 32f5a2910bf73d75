# SPDX-License-Identifier: Apache-2.0
"""Pictures by matplotlib, which is optional."""

from __future__ import annotations

from typing import Any

from bunshin_gym.errors import UsageError

__all__ = ["pyplot"]


def pyplot() -> Any:
    """matplotlib.pyplot, drawing to files only.

    Raises:
        UsageError: matplotlib is not installed.
    """
    try:
        import matplotlib
    except ImportError as error:
        raise UsageError("pictures need matplotlib: pip install 'bunshin-gym[plot]'") from error
    matplotlib.use("Agg")
    import matplotlib.pyplot

    return matplotlib.pyplot
