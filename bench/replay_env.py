# SPDX-License-Identifier: Apache-2.0
"""An env that answers from recorded attempts, taking as long as they took, on a modelled machine.

What is real: the wrappers, the threads, the predictor, every wait. What is modelled: the workspace.
A call holds one of the machine's cores for its recorded time; a guess yields to real calls, as a
low CPU weight makes it. A workspace owns memory at its fork, and more with each call it runs.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Self

import gymnasium
from gymnasium import spaces
from recordings import Record, call_of

from bunshin_gym.cache.keys import Context
from bunshin_gym.errors import WorkspaceDied
from bunshin_gym.speculate.state import call_key
from bunshin_gym.surfaces.browser import BROWSER_TOOLS
from bunshin_gym.surfaces.spaces import Unicode
from bunshin_gym.types import ToolCall, ToolEffect

__all__ = ["Costs", "Machine", "ReplayEnv", "ReplaySnapshot", "Script"]

_SLICE_NS: Final = 20_000_000
_SNAPSHOT_BYTES: Final = 4 << 20
_KEYS: Final = ("axtree_txt", "goal", "url", "focused_element_bid", "last_action_error")


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """What the modelled workspace costs; docs/speculation.md says where the numbers are from.

    Attributes:
        reset_ns: a branch of the booted base, and the task's page opened in it.
        frozen_ns: how long a snapshot keeps its source waiting.
        branch_ns: making a branch of it.
        base_bytes: what all workspaces share.
        fork_bytes: what a branch owns at once.
        call_bytes: what each call adds, up to `most_bytes`.
    """

    reset_ns: int = 450_000_000
    frozen_ns: int = 50_000_000
    branch_ns: int = 100_000_000
    base_bytes: int = 430 << 20
    fork_bytes: int = 12 << 20
    call_bytes: int = 6 << 20
    most_bytes: int = 74 << 20


class Machine:
    """Cores that calls hold, memory that workspaces own, and a clock that may run faster."""

    def __init__(self, *, cores: int = 2, speed: float = 1.0, costs: Costs | None = None) -> None:
        self.costs = costs if costs is not None else Costs()
        self.speed = speed
        self._free = cores
        self._wanted = 0
        self._changed = threading.Condition()
        self.used_bytes = self.peak_bytes = self.costs.base_bytes
        self.busy_ns = self.guess_ns = 0
        self.open = 0

    def own(self, more_bytes: int) -> None:
        """A workspace grew, or shrank."""
        with self._changed:
            self.used_bytes += more_bytes
            self.peak_bytes = max(self.peak_bytes, self.used_bytes)

    def sleep(self, wall_ns: float) -> None:
        """Lets recorded time pass."""
        time.sleep(wall_ns / 1e9 / self.speed)

    def work(self, wall_ns: int, env: ReplayEnv) -> None:
        """Holds a core for so long; a confined env does it in slices that yield to others."""
        left_ns = wall_ns
        while left_ns > 0:
            slice_ns = min(left_ns, _SLICE_NS)
            guess = env.confined
            with self._changed:
                self._wanted += not guess
                while not self._free or (guess and self._wanted):
                    self._changed.wait()
                self._wanted -= not guess
                self._free -= 1
            self.sleep(slice_ns)
            with self._changed:
                self._free += 1
                self.busy_ns += slice_ns
                self.guess_ns += slice_ns if guess else 0
                self._changed.notify_all()
            if env.aborted:
                raise WorkspaceDied("the guess was given up")
            left_ns -= slice_ns


@dataclass(slots=True)
class Script:
    """All that is known of one task with one seed: what each recorded sequence of calls led to."""

    task: str
    seed: int
    start: Mapping[str, Any]
    after: dict[tuple[str, ...], Record] = field(default_factory=dict)
    typical_ns: int = 100_000_000

    @classmethod
    def of(cls, records: Sequence[Record]) -> Script:
        """Of all attempts at one task and seed."""
        script = cls(records[0]["task"], records[0]["seed"], records[0]["steps"][0]["observation"])
        for record in records:
            path: tuple[str, ...] = ()
            steps = record["steps"]
            for place, step in enumerate(steps):
                path = (*path, call_key(call_of(step)))
                shown = steps[place + 1]["observation"] if place + 1 < len(steps) else step["observation"]
                entry = {"observation": shown, **{key: step[key] for key in ("reward", "terminated", "run_ns")}}
                script.after.setdefault(path, entry)
        times = sorted(entry["run_ns"] for entry in script.after.values())
        script.typical_ns = times[len(times) // 2]
        return script


class ReplayEnv(gymnasium.Env[dict[str, Any], Any]):
    """Steps along recorded sequences; a call that nobody made there changes nothing but takes its time."""

    effects: Mapping[str, ToolEffect] = {name: tool.effect for name, tool in BROWSER_TOOLS.items()}

    def __init__(self, machine: Machine, script: Script) -> None:
        self.machine, self.script = machine, script
        self.action_space = Unicode(8192, min_length=1)
        self.observation_space = spaces.Dict({key: Unicode(1 << 16) for key in _KEYS})
        self.confined = self.aborted = False
        self._path: tuple[str, ...] = ()
        self._shown = dict(script.start)
        self._owned_bytes = 0

    def plan(self, *, seed: int | None, options: dict[str, Any] | None) -> tuple[Context, dict[str, Any]]:
        """What a reset starts."""
        return Context(image="recorded", task=self.script.task, seed=self.script.seed), options or {}

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        super().reset(seed=seed)
        self.close()
        self._open()
        self._path, self._shown = (), dict(self.script.start)
        self.machine.work(self.machine.costs.reset_ns, self)
        return dict(self._shown), {"task": self.script.task}

    def step(self, action: ToolCall) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        path = (*self._path, call_key(action))
        entry = self.script.after.get(path)
        self.machine.work(entry["run_ns"] if entry is not None else self.script.typical_ns, self)
        costs = self.machine.costs
        self._own(min(costs.call_bytes, costs.most_bytes - self._owned_bytes))
        self._path = path
        if entry is None:
            return dict(self._shown), 0.0, False, False, {"task": self.script.task}
        self._shown = dict(entry["observation"])
        return dict(self._shown), float(entry["reward"]), bool(entry["terminated"]), False, {"task": self.script.task}

    def snapshot(self) -> ReplaySnapshot:
        """Holds this env up; branches of it do not."""
        self.machine.work(self.machine.costs.frozen_ns, self)
        return ReplaySnapshot(self)

    def fork(self, n: int = 1) -> list[Self]:
        """Branches, one after the other."""
        held = self.snapshot()
        return [held.branch() for _ in range(n)]  # type: ignore[misc]  # made by type(self)

    def confine(self) -> None:
        """Yields to real calls from now on."""
        self.confined = True

    def hurry(self) -> None:
        """Does not any more."""
        self.confined = False

    def unconfine(self) -> None:
        """Does not any more."""
        self.confined = False

    def abort(self) -> None:
        """The running call raises soon."""
        self.aborted = True

    @property
    def unique_bytes(self) -> int:
        """What it owns."""
        return self._owned_bytes

    def close(self) -> None:
        """Gives its memory back; reset makes another workspace."""
        if self._owned_bytes:
            self._own(-self._owned_bytes)
            self.machine.open -= 1

    def _twin(self) -> Self:
        twin = type(self)(self.machine, self.script)
        twin._path, twin._shown = self._path, dict(self._shown)
        return twin

    def _open(self) -> None:
        self._own(self.machine.costs.fork_bytes)
        self.machine.open += 1

    def _own(self, more_bytes: int) -> None:
        self._owned_bytes += more_bytes
        self.machine.own(more_bytes)


class ReplaySnapshot:
    """An env as it was, with what it owns beside what it shares."""

    def __init__(self, source: ReplayEnv) -> None:
        self._memory = source._twin()
        self._memory._own(_SNAPSHOT_BYTES)
        self._making: set[ReplayEnv] = set()

    @property
    def unique_bytes(self) -> int:
        """What closing it would give back."""
        return self._memory._owned_bytes

    def branch(self) -> ReplayEnv:
        """An env that goes on from here."""
        return self._branch(confined=False)

    def branch_confined(self) -> ReplayEnv:
        """One that yields to all others, already while it is made."""
        return self._branch(confined=True)

    def hurry(self) -> None:
        """Those that are being made yield no more."""
        for branch in list(self._making):
            branch.confined = False

    def _branch(self, *, confined: bool) -> ReplayEnv:
        branch = self._memory._twin()
        branch.confined = confined
        branch._open()
        self._making.add(branch)
        try:
            branch.machine.work(branch.machine.costs.branch_ns, branch)
        finally:
            self._making.discard(branch)
        return branch

    def close(self) -> None:
        """Gives its memory back; idempotent."""
        self._memory._own(-self._memory._owned_bytes)
