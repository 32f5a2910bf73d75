# SPDX-License-Identifier: Apache-2.0
"""Waits until a desktop has done what an action set off: until no thread wants to run any more, within bounds.

A thread that waits for the processor counts as well as one that has it, and the main bound is on the processor time
that the desktop takes, not on the clock's: a busy machine makes the wait longer, never the picture older.
"""

from __future__ import annotations

import asyncio
import os
import time
from dataclasses import dataclass

__all__ = ["settle"]

_LOOK_S = 0.006
_LOOKS = 3
_WALL_S = 20.0
_RUNNING = frozenset(b"RD")
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class _Look:
    runs: bool
    ticks: int


async def settle(longest_cpu_s: float) -> bool:
    """Returns when nothing has run for a few looks in a row; False when a bound was reached first."""
    end = time.monotonic() + _WALL_S
    first = None
    quiet = 0
    while quiet < _LOOKS:
        await asyncio.sleep(_LOOK_S)
        look = _look()
        first = first or look
        if look.ticks - first.ticks > longest_cpu_s * _TICKS_PER_S or time.monotonic() > end:
            return False
        quiet = 0 if look.runs else quiet + 1
    return True


def _look() -> _Look:
    """Whether any thread of another process runs, or waits for the processor or the disk; and what all have used."""
    own = os.getpid()
    runs, ticks = False, 0
    for entry in os.scandir("/proc"):
        if not entry.name.isdigit() or int(entry.name) == own:
            continue
        try:
            ticks += _read(f"{entry.path}/stat")[1]
            runs = runs or any(_read(f"{task.path}/stat")[0] for task in os.scandir(f"{entry.path}/task"))
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has just ended
    return _Look(runs, ticks)


def _read(path: str) -> tuple[bool, int]:
    """Of a task: whether it runs, and the processor time it has used."""
    with open(path, "rb", buffering=0) as file:
        line = file.read(512)
    # The name, in brackets, may hold anything; the state follows its end.
    fields = line[line.rfind(b")") + 2 :].split()
    return fields[0][0] in _RUNNING, int(fields[11]) + int(fields[12])
