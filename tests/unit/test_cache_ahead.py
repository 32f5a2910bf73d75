# SPDX-License-Identifier: Apache-2.0
"""Workspaces that are made while the agent thinks."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cache_fakes import MemorySnapshot, Rig, World, call, plain, solution

from bunshin_gym.cache import Budgets, CachePolicy
from bunshin_gym.cache.pace import Pace
from bunshin_gym.errors import EngineError
from bunshin_gym.testing import FakeHost
from bunshin_gym.types import ToolCall, ToolResult

THOUGHT_NS = 10**10
NO_SNAPSHOTS = Budgets(memory_bytes=0)


def think(rig: Rig) -> None:
    """An agent thinks for long; what is made meanwhile gets done."""
    rig.host.spend(THOUGHT_NS)
    for thread in threading.enumerate():
        if thread.name == "bunshin-cache":
            thread.join(timeout=30)
            assert not thread.is_alive()


def walk(rig: Rig, calls: list[Any]) -> tuple[list[Any], Any]:
    """An attempt that thinks before each call; its steps, and itself, still open."""
    attempt = rig.attempt()
    steps = [attempt.start()]
    for one in calls:
        think(rig)
        steps.append(attempt.step(one))
    return steps, attempt


def test_the_first_new_step_finds_its_workspace_made(tmp_path: Path) -> None:
    rig = Rig(tmp_path, budgets=NO_SNAPSHOTS, policy=CachePolicy(ahead=0.1))
    known = list(solution())
    walk(rig, known[:2])[1].close()
    new = call("wait", ms=3)
    steps, attempt = walk(rig, [known[0], known[1], new])
    assert [step.source for step in steps] == ["hit", "hit", "hit", "run"]
    last = steps[-1]
    assert last.spent.replayed_ns == 0
    assert last.spent.ahead_ns > 0, "nothing was made ahead"
    assert last.result.observation == plain((*known[:2], new))[-1].observation
    attempt.close()
    rig.tree.flush()  # the counts may still be pending
    row = rig.tree.index.counts(rig.tree.find(steps[2].key).id)  # type: ignore[union-attr]
    assert (row.visits, row.misses) == (2, 1), "who leaves the tree counts, whoever made its workspace when"
    assert rig.host.open == 0
    rig.close()


@pytest.mark.parametrize("reason", ["switched off", "nobody leaves", "nobody thinks", "the episode is over"])
def test_nothing_is_made_when(tmp_path: Path, reason: str) -> None:
    rig = Rig(tmp_path, budgets=NO_SNAPSHOTS, policy=CachePolicy(ahead=0.0 if reason == "switched off" else 0.3))
    calls = list(solution())
    walk(rig, calls)[1].close()
    for _ in range(8 if reason == "nobody leaves" else 0):
        rig.walk(*calls)
    boots = rig.host.boots
    if reason == "nobody thinks":
        rig.tree.thinking.add(-rig.tree.thinking.value * 4)
        attempt = rig.attempt()
        for step in (attempt.start, *(lambda one=one: attempt.step(one) for one in calls[:1])):
            step()
    else:
        attempt = walk(rig, calls)[1]
        if reason == "the episode is over":
            boots = rig.host.boots
            think(rig)
    think(rig)
    assert rig.host.boots == boots
    attempt.close()
    assert rig.host.open == 0
    rig.close()


def test_what_was_made_for_a_step_that_was_known_is_used_later(tmp_path: Path) -> None:
    rig = Rig(tmp_path, budgets=NO_SNAPSHOTS, policy=CachePolicy(ahead=0.1))
    calls = list(solution())
    walk(rig, calls[:3])[1].close()
    boots = rig.host.boots
    steps, attempt = walk(rig, [*calls[:3], call("wait", ms=3)])
    assert steps[-1].source == "run"
    assert rig.host.boots == boots + 1, "one workspace went along"
    attempt.close()
    rig.close()


def test_a_way_that_fails_ahead_of_its_need_hurts_nobody(tmp_path: Path) -> None:
    rig = Rig(tmp_path, budgets=NO_SNAPSHOTS, policy=CachePolicy(ahead=0.1))
    known = list(solution())
    walk(rig, known[:1])[1].close()
    rig.fail_boots = 1
    steps, attempt = walk(rig, [known[0]])
    assert steps[-1].source == "hit"
    think(rig)
    assert rig.fail_boots == 0, "nothing was tried ahead of its need"
    assert attempt.step(call("wait", ms=3)).source == "run"
    attempt.close()
    assert rig.host.open == 0
    rig.close()


class Patient(MemorySnapshot):
    """Makes confined branches only once it is hurried."""

    started = threading.Event()
    hurried = threading.Event()

    def branch_confined(self) -> World:
        self.started.set()
        assert self.hurried.wait(30), "whoever needs it does not hurry it"
        branch: PatientWorld = self.held.fork()  # type: ignore[assignment]
        branch.confined = True
        return branch

    def hurry(self) -> None:
        self.hurried.set()


class PatientWorld(World):
    confined = False

    def snapshot(self) -> MemorySnapshot:
        return Patient(self.fork())

    def confine(self) -> None:
        self.confined = True

    def unconfine(self) -> None:
        self.confined = False


def test_who_needs_it_before_it_is_made_hurries_it(tmp_path: Path) -> None:
    Patient.started.clear()
    Patient.hurried.clear()
    policy = CachePolicy(ahead=0.1, snapshot_share=1.0, snapshots="at_once")
    rig = Rig(tmp_path, kind=PatientWorld, policy=policy)
    rig.tree.thinking.add(THOUGHT_NS)
    known = list(solution())
    rig.walk(known[0])
    assert rig.tree.keeper.estimates.snapshot_ns.measured
    with rig.attempt() as attempt:
        attempt.start()
        assert Patient.started.wait(30)
        rig.host.spend(THOUGHT_NS)
        step = attempt.step(call("wait", ms=3))
        assert (step.source, step.spent.replayed_ns) == ("run", 0)
        assert not attempt.workspace.confined
    assert rig.host.open == len(rig.tree.keeper._mine())
    rig.close()
    assert rig.host.open == 0


def test_a_pace_confines_until_it_is_hurried() -> None:
    world = PatientWorld(seed=3)
    pace = Pace(leisurely=True)
    pace.uses(world)
    assert world.confined
    pace.hurry()
    assert not world.confined
    pace.uses(world)
    assert not world.confined
    Patient.hurried.set()
    snapshot = world.snapshot()
    late = Pace(leisurely=True)
    branch = late.branch(snapshot)
    late.lost()
    branch.close()
    late.hurry()  # of one that is closed nothing is asked
    snapshot.close()
    world.close()


def test_a_snapshot_that_breaks_is_dropped_whatever_the_pace(tmp_path: Path) -> None:
    class Broken(Patient):
        def branch_confined(self) -> World:
            raise EngineError("the pool is gone")

    class BrokenWorld(PatientWorld):
        def snapshot(self) -> MemorySnapshot:
            return Broken(self.fork())

    policy = CachePolicy(ahead=0.1, snapshot_share=1.0, snapshots="at_once")
    rig = Rig(tmp_path, kind=BrokenWorld, policy=policy)
    rig.tree.thinking.add(THOUGHT_NS)
    known = list(solution())
    rig.walk(known[0])
    steps, attempt = walk(rig, [known[0], call("wait", ms=3)])
    assert steps[-1].source == "run"
    attempt.close()
    rig.close()
    assert rig.host.open == 0


def test_a_workspace_that_dies_before_it_can_be_slowed_down_is_not_left(tmp_path: Path) -> None:
    class Dying(PatientWorld):
        def confine(self) -> None:
            raise EngineError("it died")

    rig = Rig(tmp_path, budgets=NO_SNAPSHOTS, kind=Dying, policy=CachePolicy(ahead=0.1))
    known = list(solution())
    walk(rig, known[:1])[1].close()
    boots = rig.host.boots
    steps, attempt = walk(rig, [known[0], call("wait", ms=3)])
    assert steps[-1].source == "run"
    assert rig.host.boots > boots + 1, "nothing was tried ahead of its need"
    attempt.close()
    assert rig.host.open == 0
    rig.close()


def test_a_branch_that_dies_before_it_can_be_hurried_is_not_left() -> None:
    class Dying(PatientWorld):
        def unconfine(self) -> None:
            raise EngineError("it died")

    host = FakeHost()
    world = Dying(seed=3, host=host)
    snapshot, pace = world.snapshot(), Pace(leisurely=True)
    Patient.started.clear()
    Patient.hurried.clear()
    with ThreadPoolExecutor(1) as pool:
        making = pool.submit(pace.branch, snapshot)
        assert Patient.started.wait(30)
        pace.hurry()
        with pytest.raises(EngineError, match="it died"):
            making.result(30)
    snapshot.close()
    world.close()
    assert host.open == 0


class LateWorld(World):
    """Shows what a call did only at the second look."""

    late = False
    looks = 0

    def run(self, call: ToolCall) -> ToolResult:
        result = super().run(call)
        return replace(result, observation={**result.observation, "text": "not drawn yet"}) if self.late else result

    def look(self) -> dict[str, str]:
        type(self).looks += 1
        text = self._world.text() if self.looks > 1 else "not drawn yet"
        return {"text": text, "last_action_error": ""}


def test_a_screen_that_is_drawn_late_is_looked_at_again(tmp_path: Path) -> None:
    rig = Rig(tmp_path, budgets=NO_SNAPSHOTS, kind=LateWorld, policy=CachePolicy(ahead=0))
    known = list(solution())
    rig.walk(known[0])
    with rig.attempt() as attempt:
        attempt.start()
        LateWorld.late = True
        assert attempt.step(known[0]).source == "hit"
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(LateWorld, "looks", 0)
            attempt.live()
            assert LateWorld.looks == 2
        LateWorld.late = False
    rig.close()
