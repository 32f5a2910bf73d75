# SPDX-License-Identifier: Apache-2.0
"""What several test folders share; importable as `support` (see `pythonpath` in pyproject.toml)."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from bunshin_gym.native import engine_names

__all__ = ["engines", "need"]


def need(condition: bool, reason: str) -> None:
    """Skips where something is missing; fails where everything must work."""
    if condition:
        return
    if os.environ.get("BUNSHIN_MUST_WORK") == "1":
        pytest.fail(f"BUNSHIN_MUST_WORK=1, but {reason}")
    pytest.skip(reason)


def engines() -> list[str]:
    """The engines that differ on this machine: without its module `kmod` does what `pool` does, and says so."""
    return [name for name in engine_names() if name != "kmod" or Path("/dev/bunshin").exists()]
