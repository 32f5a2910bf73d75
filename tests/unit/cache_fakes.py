# SPDX-License-Identifier: Apache-2.0
"""Fakes for the tests of the tree and the cache: a world that snapshots to memory and, really, to disk."""

from __future__ import annotations

import dataclasses
import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from bunshin_gym.cache.keys import Context, specs_from_effects
from bunshin_gym.cache.materialise import Booted
from bunshin_gym.cache.sequence import CachePolicy, SequenceCache
from bunshin_gym.cache.snapshots import Loader
from bunshin_gym.cache.store.codec import fingerprint
from bunshin_gym.cache.tiers import Budgets
from bunshin_gym.cache.tree import SnapshotTree
from bunshin_gym.errors import BunshinError, ResourceError
from bunshin_gym.testing import FAKE_TOOLS, FakeHost, FakeWorkspace
from bunshin_gym.types import ToolCall, ToolResult

CONTEXT = Context(image="sha256:1", task="fake.chest", seed=3)


def call(name: str, **args: Any) -> ToolCall:
    return ToolCall(name=name, args=args)


class World(FakeWorkspace):
    """A fake workspace that offers snapshots and says in what state it is."""

    def snapshot(self) -> MemorySnapshot:
        return MemorySnapshot(self.fork())

    def state_digest(self) -> bytes:
        return fingerprint(self._world.text())


class MemorySnapshot:
    """A snapshot that can go to disk, as JSON."""

    def __init__(self, held: World) -> None:
        self.held = held

    @property
    def unique_bytes(self) -> int:
        return self.held.unique_bytes

    def branch(self) -> World:
        return self.held.fork()

    def close(self) -> None:
        self.held.close()

    def persist(self, path: Path) -> None:
        path.mkdir()
        world = self.held._world
        fields = {f.name: getattr(world, f.name) for f in dataclasses.fields(world) if f.name != "dice"}
        body = {"seed": self.held.seed, "world": fields, "dice": world.dice.bit_generator.state}
        (path / "world.json").write_text(json.dumps(body))
        (path / "pages").write_bytes(b"p" * 10_000)


def loader(host: FakeHost) -> Loader:
    def load(path: Path) -> MemorySnapshot:
        try:
            body = json.loads((path / "world.json").read_text())
        except ValueError as error:
            raise BunshinError(f"{path} is damaged: {error}") from error
        held = World(seed=body["seed"], host=host)
        fields = body["world"]
        fields["rooms"] = tuple(tuple(room) for room in fields["rooms"])
        fields["carried"], fields["notes"] = tuple(fields["carried"]), tuple(fields["notes"])
        dice = np.random.default_rng()
        dice.bit_generator.state = body["dice"]
        held._world = type(held._world)(dice=dice, **fields)
        return MemorySnapshot(held)

    return load


class Rig:
    """A tree, a cache over it, and worlds to walk in."""

    def __init__(
        self,
        directory: Path,
        *,
        policy: CachePolicy | None = None,
        budgets: Budgets | None = None,
        host: FakeHost | None = None,
        disk: bool = False,
        kind: type[FakeWorkspace] = World,
        **cache: Any,
    ) -> None:
        self.host = host if host is not None else FakeHost()
        self.kind = kind
        self.fail_boots = 0
        self._lock = threading.Lock()
        load = loader(self.host) if disk else None
        self.tree = SnapshotTree(directory, budgets=budgets, load=load, clock=self.clock)
        self.cache = SequenceCache(self.tree, specs_from_effects(FAKE_TOOLS), policy=policy, **cache)

    def clock(self) -> int:
        """The fakes' virtual time on top of the real one."""
        return self.host.clock_ns + time.perf_counter_ns()

    def boot(self, seed: int = 3) -> Booted:
        with self._lock:
            failing = self.fail_boots > 0
            self.fail_boots -= failing
        if failing:
            raise ResourceError("no memory for a boot")
        live = self.kind(seed=seed, host=self.host)
        return Booted(live=live, result=ToolResult(observation={"text": live._world.text(), "last_action_error": ""}))

    def attempt(self, context: Context = CONTEXT, boot: Callable[[], Booted] | None = None) -> Any:
        seed = context.seed if context.seed is not None else 0
        return self.cache.attempt(context, boot if boot is not None else lambda: self.boot(seed))

    def walk(self, *calls: ToolCall, context: Context = CONTEXT) -> list[str]:
        """Sources of an attempt's steps, the start's first."""
        with self.attempt(context) as attempt:
            return [attempt.start().source, *(attempt.step(one).source for one in calls)]

    def close(self) -> None:
        self.tree.close(persist=False)


MakeRig = Callable[..., Rig]
"""Makes a rig out of a rig's options, in a directory of the test's unless it is given one."""


def solution(seed: int = 3) -> tuple[ToolCall, ...]:
    with FakeWorkspace(seed=seed) as world:
        return world.solution()


def plain(calls: tuple[ToolCall, ...], seed: int = 3) -> list[ToolResult]:
    """What the calls bring without any cache."""
    with FakeWorkspace(seed=seed) as world:
        return [world.run(one) for one in calls]
