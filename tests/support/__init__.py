# SPDX-License-Identifier: Apache-2.0
"""What several test folders share; importable as `support` (see `pythonpath` in pyproject.toml)."""

from __future__ import annotations

import os

import pytest

__all__ = ["need"]


def need(condition: bool, reason: str) -> None:
    """Skips where something is missing; fails where everything must work."""
    if condition:
        return
    if os.environ.get("BUNSHIN_MUST_WORK") == "1":
        pytest.fail(f"BUNSHIN_MUST_WORK=1, but {reason}")
    pytest.skip(reason)
