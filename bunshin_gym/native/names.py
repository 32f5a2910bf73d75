# SPDX-License-Identifier: Apache-2.0
"""What this build of the core has by name: its engines, and where it can be made to fail."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bunshin_gym._native import ffi, lib
from bunshin_gym.native.call import call, text

__all__ = ["arm_fault", "engine_names", "fault_points"]


def engine_names() -> list[str]:
    """The engines that this build has, the default first."""
    return _names(lib.bsh_engine_name)


def fault_points() -> list[str]:
    """Where `arm_fault` can make an operation fail; for tests."""
    return _names(lib.bsh_fault_name)


def arm_fault(name: str | None) -> None:
    """The next operation of this process that comes to the point fails there, once; None disarms."""
    call(lib.bsh_fault_arm, ffi.NULL if name is None else text(name, "fault point"))


def _names(name_of: Callable[[int], Any]) -> list[str]:
    names: list[str] = []
    while (name := name_of(len(names))) != ffi.NULL:
        names.append(ffi.string(name).decode())
    return names
