# SPDX-License-Identifier: Apache-2.0
"""Waits until a desktop has done what an action set off: until no thread wants to run any more, within bounds.

A thread that waits for the processor counts as well as one that has it, and the main bound is on the processor time
that the threads take, not on the clock's: a busy machine makes the wait longer, never the picture older.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass

__all__ = ["Stillness", "Threads", "Watch", "settle", "threads_of"]

_LOOK_S = 0.006
_LOOKS = 3
_MOMENT_S = 0.001
_WALL_PER_CPU = 15.0
_RUNNING = frozenset(b"RD")
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class _Look:
    runs: bool
    ticks: int


class Watch:
    """One wait: look again and again, a few milliseconds apart, until it is `over`.

    Args:
        longest_cpu_s: the main bound.
        threads: folders in /proc of those to look at; all of other processes if None.
    """

    def __init__(self, longest_cpu_s: float, threads: Collection[str] | None = None) -> None:
        self._threads = threads
        self._ticks_max = longest_cpu_s * _TICKS_PER_S
        self._end = time.monotonic() + longest_cpu_s * _WALL_PER_CPU
        self._first: _Look | None = None
        self.quiet = 0
        self.settled = False
        self.pause_s = _LOOK_S

    def over(self) -> bool:
        """Looks; whether nothing has run for a few looks in a row, or a bound was reached."""
        look = _look_at_all() if self._threads is None else _look_at(self._threads)
        self._first = self._first or look
        self.quiet = 0 if look.runs else self.quiet + 1
        self.settled = self.quiet >= _LOOKS
        return self.settled or look.ticks - self._first.ticks > self._ticks_max or time.monotonic() > self._end


class Stillness:
    """Whether threads do nothing at all, not even between two looks: the kernel counts how often each had a processor.

    Args:
        longest_cpu_s: how much processor time they may take before it is given up.
        threads: folders in /proc of those to look at.
    """

    def __init__(self, longest_cpu_s: float, threads: Collection[str]) -> None:
        self._threads = threads
        self._ticks_max = longest_cpu_s * _TICKS_PER_S
        self._ticks = _look_at(threads).ticks
        # All processors at once could take it by then.
        self._early = time.monotonic() + longest_cpu_s / (os.cpu_count() or 1)
        self._end = time.monotonic() + longest_cpu_s * _WALL_PER_CPU

    async def wait(self) -> bool:
        """Returns when none of them ran for a moment, or wants to; False when a bound was reached first."""
        pause_s = _MOMENT_S
        while not self.spent():
            before = self._resting()
            await asyncio.sleep(_MOMENT_S)
            if before is not None and self._resting() == before:
                return True
            # Looking takes processor time too.
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _LOOK_S)
        return False

    def spent(self) -> bool:
        """Whether a bound was reached."""
        now = time.monotonic()
        return now > self._end or (now > self._early and _look_at(self._threads).ticks - self._ticks > self._ticks_max)

    def _resting(self) -> list[bytes] | None:
        """Another list whenever one of them has run; None while one does."""
        found = []
        for path in self._threads:
            try:
                with open(f"{path}/status", "rb", buffering=0) as file:
                    status = file.read(4096)
            except (FileNotFoundError, ProcessLookupError):
                continue  # it has just ended
            if status[status.find(b"\nState:\t") + 8] in _RUNNING:
                return None
            found.append(status[status.rfind(b"\nvoluntary_ctxt_switches") :])
        return found


class Threads:
    """The threads of some programs; looked for anew only if any thread has come or gone.

    Args:
        programs: see `threads_of`.
    """

    def __init__(self, programs: Mapping[bytes, Collection[bytes]]) -> None:
        self._programs = programs
        self._all: dict[str, list[str]] = {}
        self._found: list[str] = []

    def find(self) -> list[str]:
        """Folders in /proc."""
        now = {}
        for name in filter(str.isdigit, os.listdir("/proc")):
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has just ended
                now[name] = os.listdir(f"/proc/{name}/task")
        if now != self._all:
            self._all, self._found = now, threads_of(self._programs)
        return self._found


async def settle(longest_cpu_s: float, threads: Collection[str] | None = None) -> bool:
    """Returns when the desktop, or these threads, have come to rest; False when a bound was reached first."""
    watch = Watch(longest_cpu_s, threads)
    await asyncio.sleep(watch.pause_s)
    while not watch.over():
        await asyncio.sleep(watch.pause_s)
    return watch.settled


def threads_of(programs: Mapping[bytes, Collection[bytes]]) -> list[str]:
    """Folders in /proc of the threads of these names, or of all for no names, of programs known by their command line.

    A process belongs to the first program whose key is in its command line.
    """
    found = []
    for entry in os.scandir("/proc"):
        if not entry.name.isdigit():
            continue
        try:
            line = _beginning(f"{entry.path}/cmdline")
            program = next((program for program in programs if program in line), None)
            if program is None:
                continue
            names = programs[program]
            threads = [task.path for task in os.scandir(f"{entry.path}/task")]
            found += [path for path in threads if not names or _beginning(f"{path}/comm").rstrip() in names]
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has just ended
    return found


def _look_at(threads: Collection[str]) -> _Look:
    """As for all, of some threads."""
    runs, ticks = False, 0
    for path in threads:
        try:
            running, used = _read(f"{path}/stat")
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has just ended
        runs, ticks = runs or running, ticks + used
    return _Look(runs, ticks)


def _look_at_all() -> _Look:
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


def _beginning(path: str) -> bytes:
    with open(path, "rb", buffering=0) as file:
        return file.read(512)


def _read(path: str) -> tuple[bool, int]:
    """Of a task: whether it runs, and the processor time it has used."""
    line = _beginning(path)
    # The name, in brackets, may hold anything; the state follows its end.
    fields = line[line.rfind(b")") + 2 :].split()
    return fields[0][0] in _RUNNING, int(fields[11]) + int(fields[12])
