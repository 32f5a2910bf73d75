# SPDX-License-Identifier: Apache-2.0
"""A fake workspace for tests of whatever works over the `Forkable` protocol.

`FakeWorkspace` is a small text world: a row of rooms, things to carry, a chest to open. It needs
no root and no native code, its calls cost virtual (or, on request, real) time, and it has a tool of
each effect: most are deterministic, `roll` is stochastic, `pay` acts outside and cannot be undone.
A `FakeHost` is what all its forks share: the virtual clock, the counters, the outside world.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final, Self

import numpy as np

from bunshin_gym.errors import ClosedError, WorkspaceDied
from bunshin_gym.types import ToolCall, ToolEffect, ToolResult

__all__ = ["FAKE_TOOLS", "FakeHost", "FakeWorkspace"]

_MS: Final = 1_000_000

FAKE_TOOLS: Final[Mapping[str, ToolEffect]] = MappingProxyType(
    {
        "look": "deterministic",
        "move": "deterministic",
        "take": "deterministic",
        "write": "deterministic",
        "open": "deterministic",
        "wait": "deterministic",
        "die": "deterministic",
        "roll": "stochastic",
        "pay": "external",
    }
)
"""The fake's tools and what running each again means."""


@dataclass(slots=True, kw_only=True)
class FakeHost:
    """What every fork of a fake workspace shares; all counters are exact under threads.

    Attributes:
        real_time: whether a call's cost is slept as well as counted.
        memory_bytes: memory that one workspace owns for itself.
        clock_ns: virtual time spent in calls, forks and boots by all of them together.
        runs: calls run, by tool name.
        boots: workspaces made from nothing.
        forks: workspaces made from another.
        open: workspaces not closed yet.
        open_max: the most that were open at once.
        paid: the outside world: every `pay`, in order; no fork and no close takes one back.
        fail_forks: this many of the next forks raise `WorkspaceDied`.
    """

    real_time: bool = False
    boot_ns: int = 2_000 * _MS
    fork_ns: int = 50 * _MS
    memory_bytes: int = 12 << 20
    clock_ns: int = 0
    runs: dict[str, int] = field(default_factory=dict)
    boots: int = 0
    forks: int = 0
    open: int = 0
    open_max: int = 0
    paid: list[int] = field(default_factory=list)
    fail_forks: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    @property
    def total_runs(self) -> int:
        """Calls run, of all tools."""
        return sum(self.runs.values())

    def spend(self, cost_ns: int) -> None:
        """Counts the time and, with `real_time`, sleeps it outside the lock."""
        with self.lock:
            self.clock_ns += cost_ns
        if self.real_time:
            time.sleep(cost_ns / 1e9)

    def entered(self, *, forked: bool) -> int:
        """One more workspace is open; returns its number."""
        with self.lock:
            if forked:
                self.forks += 1
            else:
                self.boots += 1
            self.open += 1
            self.open_max = max(self.open_max, self.open)
            return self.boots + self.forks

    def left(self) -> None:
        """One workspace was closed."""
        with self.lock:
            self.open -= 1


@dataclass(slots=True)
class _World:
    """The part of a fake workspace that a fork copies."""

    rooms: tuple[tuple[str, ...], ...]
    chest_room: int
    steps_max: int
    dice: np.random.Generator
    room: int = 0
    carried: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    waited_ms: int = 0
    steps: int = 0
    done: bool = False
    dead: bool = False

    def copy(self) -> _World:
        twin = np.random.Generator(type(self.dice.bit_generator)())
        twin.bit_generator.state = self.dice.bit_generator.state
        return _World(
            rooms=self.rooms,
            chest_room=self.chest_room,
            steps_max=self.steps_max,
            dice=twin,
            room=self.room,
            carried=self.carried,
            notes=self.notes,
            waited_ms=self.waited_ms,
            steps=self.steps,
            done=self.done,
            dead=self.dead,
        )

    def text(self) -> str:
        """All that can be seen: equal texts mean equal worlds, dice apart."""
        here = [thing for thing in self.rooms[self.room] if thing not in self.carried]
        chest = ", a chest" if self.room == self.chest_room else ""
        return (
            f"room {self.room} of {len(self.rooms)}: {', '.join(here) or 'nothing'}{chest}; "
            f"carrying {', '.join(self.carried) or 'nothing'}; notes {list(self.notes)}; "
            f"waited {self.waited_ms} ms"
        )


class FakeWorkspace:
    """A deterministic text world that behaves as a `Forkable`.

    Tools: `look()`, `move(step)` by -1 or 1, `take(thing)`, `write(text)`, `open()` (the chest, with
    the key: reward 1 and terminated), `wait(ms)`, `die()`, `roll(sides)`, `pay(amount)`. A wrong
    name or argument is an observation with an error, as in a real workspace; `die` raises.

    The world follows from `seed` alone; the dice follow from the boot, so that the same calls in
    a workspace booted anew roll other numbers, while a fork starts with its source's dice.
    """

    def __init__(self, *, seed: int = 0, host: FakeHost | None = None, steps_max: int = 100) -> None:
        self.host = host if host is not None else FakeHost()
        self.seed = seed
        rng = np.random.default_rng(seed)
        things = [f"{colour} stone" for colour in ("red", "green", "blue", "grey")] + ["key"]
        places = rng.integers(0, 4, size=len(things))
        rooms = tuple(
            tuple(thing for thing, place in zip(things, places, strict=True) if place == room) for room in range(4)
        )
        self.number = self.host.entered(forked=False)
        self._world = _World(
            rooms=rooms,
            chest_room=int(rng.integers(0, 4)),
            steps_max=steps_max,
            dice=np.random.default_rng([seed, self.number]),
        )
        self._lock = threading.RLock()
        self._closed = False
        self.host.spend(self.host.boot_ns)

    @property
    def unique_bytes(self) -> int:
        """Memory that this workspace owns alone."""
        return 0 if self._closed else self.host.memory_bytes

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return self._closed

    def solution(self) -> tuple[ToolCall, ...]:
        """Calls that, from a fresh world of this seed, end it with reward 1."""
        world = self._world
        key_room = next(i for i, things in enumerate(world.rooms) if "key" in things)
        walk = [ToolCall(name="move", args={"step": 1})] * key_room
        step = 1 if world.chest_room > key_room else -1
        back = [ToolCall(name="move", args={"step": step})] * abs(world.chest_room - key_room)
        take = ToolCall(name="take", args={"thing": "key"})
        return (*walk, take, *back, ToolCall(name="open"))

    def fork(self) -> Self:
        """A branch with this world's state, dice included.

        Raises:
            ClosedError: this workspace was closed.
            WorkspaceDied: it died, or the host was told to fail the fork; it is as it was.
        """
        with self._lock:
            self._check_usable()
            with self.host.lock:
                failing = self.host.fail_forks > 0
                self.host.fail_forks -= failing
            if failing:
                raise WorkspaceDied(f"fork of fake workspace {self.number}: told to fail")
            branch = object.__new__(type(self))
            branch.host, branch.seed = self.host, self.seed
            branch._world = self._world.copy()
            branch._lock = threading.RLock()
            branch._closed = False
            branch.number = self.host.entered(forked=True)
        self.host.spend(self.host.fork_ns)
        return branch

    def run(self, call: ToolCall) -> ToolResult:
        """Runs one call.

        Returns:
            A result whose observation is `{"text": str, "last_action_error": str}` and whose info
            has `cost_ns` and `effect`.

        Raises:
            ClosedError: this workspace was closed.
            WorkspaceDied: it died, before or by this call.
        """
        with self._lock:
            self._check_usable()
            with self.host.lock:
                self.host.runs[call.name] = self.host.runs.get(call.name, 0) + 1
            world = self._world
            world.steps += 1
            before = world.done
            cost_ns, error, extra = self._apply(call)
            self.host.spend(cost_ns)
            text = f"{extra}{world.text()}"
            return ToolResult(
                observation={"text": text, "last_action_error": error},
                reward=1.0 if world.done and not before else 0.0,
                terminated=world.done,
                truncated=not world.done and world.steps >= world.steps_max,
                info={"cost_ns": cost_ns, "effect": FAKE_TOOLS.get(call.name, "deterministic")},
            )

    def close(self) -> None:
        """Ends this workspace alone; idempotent."""
        with self._lock:
            if not self._closed:
                self._closed = True
                self.host.left()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _check_usable(self) -> None:
        if self._closed:
            raise ClosedError(f"fake workspace {self.number} was closed")
        if self._world.dead:
            raise WorkspaceDied(f"fake workspace {self.number} died")

    def _apply(self, call: ToolCall) -> tuple[int, str, str]:
        """Returns the cost in ns, the error text and what to say before the world's text."""
        tools: dict[str, Callable[..., tuple[int, str, str]]] = {
            name: getattr(self, f"_tool_{name}") for name in FAKE_TOOLS
        }
        tool = tools.get(call.name)
        if tool is None:
            return 1 * _MS, f"unknown tool {call.name!r}; there are {', '.join(FAKE_TOOLS)}", ""
        try:
            return tool(**call.args)
        except (TypeError, ValueError) as error:
            return 1 * _MS, f"{call.name}: {error}", ""

    def _tool_look(self) -> tuple[int, str, str]:
        return 2 * _MS, "", ""

    def _tool_move(self, *, step: int) -> tuple[int, str, str]:
        world = self._world
        if step not in (-1, 1):
            raise ValueError(f"step is -1 or 1, not {step!r}")
        if not 0 <= world.room + step < len(world.rooms):
            return 5 * _MS, "there is a wall", ""
        world.room += step
        return 20 * _MS, "", ""

    def _tool_take(self, *, thing: str) -> tuple[int, str, str]:
        world = self._world
        if thing not in world.rooms[world.room] or thing in world.carried:
            return 5 * _MS, f"no {thing} here", ""
        world.carried = (*world.carried, thing)
        return 30 * _MS, "", ""

    def _tool_write(self, *, text: str) -> tuple[int, str, str]:
        self._world.notes = (*self._world.notes, str(text))
        return 10 * _MS, "", ""

    def _tool_open(self) -> tuple[int, str, str]:
        world = self._world
        if world.room != world.chest_room:
            return 5 * _MS, "no chest here", ""
        if "key" not in world.carried:
            return 5 * _MS, "the chest is locked", ""
        world.done = True
        return 200 * _MS, "", "the chest opens; "

    def _tool_wait(self, *, ms: int) -> tuple[int, str, str]:
        if ms < 0:
            raise ValueError("ms is negative")
        self._world.waited_ms += ms
        return ms * _MS, "", ""

    def _tool_die(self) -> tuple[int, str, str]:
        self._world.dead = True
        raise WorkspaceDied(f"fake workspace {self.number}: told to die")

    def _tool_roll(self, *, sides: int = 6) -> tuple[int, str, str]:
        if sides < 1:
            raise ValueError("sides is below 1")
        return 10 * _MS, "", f"rolled {int(self._world.dice.integers(1, sides + 1))}; "

    def _tool_pay(self, *, amount: int) -> tuple[int, str, str]:
        with self.host.lock:
            self.host.paid.append(amount)
        return 100 * _MS, "", f"paid {amount}; "
