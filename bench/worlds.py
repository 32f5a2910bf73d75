# SPDX-License-Identifier: Apache-2.0
"""Where an epoch takes place: in real workspaces, or in modelled ones that answer from recordings."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator, Sequence, Set
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final, Protocol

from recordings import Record
from replay_env import Costs, Machine, ReplayEnv, Script

from bunshin_gym.accounting import account_ids
from bunshin_gym.bases import shared_bases
from bunshin_gym.envs import BunshinEnv
from bunshin_gym.records import list_snapshots, list_workspaces
from bunshin_gym.speculate.costs import CostModel

__all__ = ["Modelled", "Real", "World"]

_SAMPLE_S: Final = 2.0


class World(Protocol):
    """Makes envs and lets time pass. `speed` is how many times faster than recorded that goes."""

    speed: float

    def env(self, record: Record) -> Any:
        """An env for an attempt, and how to reset it to the attempt's start."""
        ...

    def think(self, seconds: float) -> None:
        """The agent thinks."""
        ...

    def costs(self, think_s: float) -> CostModel:
        """What speculation assumes before it has measured anything."""
        ...

    def measured(self, setting: str) -> Any:
        """A block of a setting; gives an object with `peak_bytes`, `busy_ns` and `guess_ns` of it.

        What blocks of other settings have left, such as the snapshots of their trees, is not counted.
        """
        ...

    def left(self) -> int:
        """Workspaces that are open though every env is closed."""
        ...

    def close(self) -> None:
        """Ends it."""
        ...


class Modelled:
    """Two modelled cores; see `replay_env`."""

    def __init__(self, records: Sequence[Record], *, speed: float, slower: float = 1.0) -> None:
        self.speed, self._slower = speed, slower
        costs = Costs()
        self._machine = Machine(speed=speed, costs=replace(costs, reset_ns=int(costs.reset_ns * slower)))
        groups: dict[tuple[str, int], list[Record]] = {}
        for record in records:
            steps = [{**step, "run_ns": int(step["run_ns"] * slower)} for step in record["steps"]]
            groups.setdefault((record["task"], record["seed"]), []).append({**record, "steps": steps})
        self._scripts = {key: Script.of(group) for key, group in groups.items()}
        self._left: dict[str, int] = {}

    def env(self, record: Record) -> ReplayEnv:
        return ReplayEnv(self._machine, self._scripts[record["task"], record["seed"]])

    def think(self, seconds: float) -> None:
        self._machine.sleep(seconds * 1e9)

    def costs(self, think_s: float) -> CostModel:
        scale = 1e9 / self.speed
        return CostModel(
            branch_bytes=18 << 20,
            run_ns=int(0.15 * scale * self._slower),
            think_ns=int(think_s * scale),
            fork_ns=int(0.15 * scale),
            hold_ns=int(0.05 * scale),
        )

    @contextmanager
    def measured(self, setting: str) -> Iterator[Machine]:
        before = self._machine.peak_bytes = self._machine.used_bytes
        yield self._machine
        self._machine.peak_bytes -= sum(self._left.values()) - self._left.get(setting, 0)
        self._left[setting] = self._left.get(setting, 0) + self._machine.used_bytes - before

    def left(self) -> int:
        return self._machine.open

    def close(self) -> None:
        """Nothing is left to close."""


class _Watch:
    """The most memory that this process's workspaces and snapshots but `others` had together, each page counted once.

    Processor time is not watched: 0.
    """

    def __init__(self, others: Set[str]) -> None:
        self.peak_bytes = 0
        self._others = others
        self.busy_ns = self.guess_ns = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        while not self._stop.wait(_SAMPLE_S):
            ids = _own_ids() - self._others
            self.peak_bytes = max(self.peak_bytes, account_ids(sorted(ids)).total.machine_bytes)

    def end(self) -> None:
        self._stop.set()
        self._thread.join()


def _own_ids() -> set[str]:
    return {record.id for record in [*list_workspaces(), *list_snapshots()] if record.owner_pid == os.getpid()}


class Real:
    """Workspaces of this machine, all branches of one booted desktop."""

    speed = 1.0

    def __init__(self, records: Sequence[Record]) -> None:
        self._left: dict[str, set[str]] = {}
        for task, seed in sorted({(record["task"], record["seed"]) for record in records}):
            with BunshinEnv(task) as env:  # whoever resets first boots: that is nobody's time, and the pool everybody's
                env.reset(options={"task_seed": seed})

    def env(self, record: Record) -> BunshinEnv:
        return BunshinEnv(record["task"])

    def think(self, seconds: float) -> None:
        time.sleep(seconds)

    def costs(self, think_s: float) -> CostModel:
        return CostModel(branch_bytes=18 << 20, run_ns=150_000_000, think_ns=int(think_s * 1e9), fork_ns=250_000_000)

    @contextmanager
    def measured(self, setting: str) -> Iterator[_Watch]:
        before = _own_ids()
        watch = _Watch({one for other, left in self._left.items() if other != setting for one in left})
        try:
            yield watch
        finally:
            watch.end()
        after = _own_ids()
        self._left[setting] = (self._left.get(setting, set()) & after) | (after - before)

    def left(self) -> int:
        return sum(record.owner_pid == os.getpid() for record in list_workspaces())

    def close(self) -> None:
        """Gives the booted desktops up."""
        shared_bases().close()
