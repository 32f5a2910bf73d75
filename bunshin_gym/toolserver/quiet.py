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

__all__ = ["Watch", "settle"]

_LOOK_S = 0.006
_LOOKS = 3
_WALL_PER_CPU = 15.0
_RUNNING = frozenset(b"RD")
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class _Look:
    runs: bool
    ticks: int


class Watch:
    """One wait: look again and again, a few milliseconds apart, until it is `over`."""

    def __init__(self, longest_cpu_s: float) -> None:
        self._ticks_max = longest_cpu_s * _TICKS_PER_S
        self._end = time.monotonic() + longest_cpu_s * _WALL_PER_CPU
        self._first: _Look | None = None
        self._quiet = 0
        self.settled = False
        self.pause_s = _LOOK_S

    def over(self) -> bool:
        """Looks; whether nothing has run for a few looks in a row, or a bound was reached."""
        look = _look()
        self._first = self._first or look
        self._quiet = 0 if look.runs else self._quiet + 1
        self.settled = self._quiet >= _LOOKS
        return self.settled or look.ticks - self._first.ticks > self._ticks_max or time.monotonic() > self._end


async def settle(longest_cpu_s: float) -> bool:
    """Returns when the desktop has come to rest; False when a bound was reached first."""
    watch = Watch(longest_cpu_s)
    await asyncio.sleep(watch.pause_s)
    while not watch.over():
        await asyncio.sleep(watch.pause_s)
    return watch.settled


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
