# SPDX-License-Identifier: Apache-2.0
"""Where resets begin: what is kept for them, how much of it, and that nobody can tell."""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from fake_guest import FakeGuest, FakeMachine, FakeTask

from bunshin_gym.bases import BasePool
from bunshin_gym.envs import BunshinEnv
from bunshin_gym.errors import BunshinError, ClosedError, EngineError, SnapshotLost, ToolError, WorkspaceDied
from bunshin_gym.tasks import Page, PreparedTask, Setup
from bunshin_gym.testing import check_fork
from bunshin_gym.wrappers.workspace_ahead import WorkspaceAhead


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared(FakeTask):
    """Counts how often it is prepared and set up."""

    seeded: bool = True
    done: Counter[str] = field(default_factory=Counter, compare=False)
    torn_down: list[Mapping[str, Any]] = field(default_factory=list, compare=False)

    def prepare(self, page: Page) -> None:
        self.done["prepare"] += 1
        page.open("fake://page")

    def setup(self, page: Page, seed: int) -> Setup:
        self.done["setup"] += 1
        if self.seeded:
            page.evaluate("broken" if self.broken else "seed", seed)
        return Setup(goal="Type done — «fertig»", state={"seen": [1]}, info={"extra": [1, 2]})


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    counted: Counter[str] = Counter()
    act = FakeGuest.act

    def counting(self: FakeGuest, calls: Any, **wanted: Any) -> Any:
        counted["looks"] += 1
        return act(self, calls, **wanted)

    monkeypatch.setattr(FakeGuest, "act", counting)
    return counted


@pytest.fixture
def make(pool: BasePool, machine: FakeMachine) -> Any:
    made: list[BunshinEnv] = []

    def env(task: FakeTask, **options: Any) -> BunshinEnv:
        made.append(BunshinEnv(task, **{"bases": pool, **options}))
        return made[-1]

    yield env
    for one in made:
        one.close()
    pool.close()
    assert (machine.guests, machine.bases) == (0, 0), "something was left open"


def shown(env: BunshinEnv, seed: int) -> tuple[Any, ...]:
    """All that an agent and a trainer see of a short episode."""
    seen, info = env.reset(options={"task_seed": seed})
    stepped, reward, terminated, _, after = env.step("keyboard_type('done')")
    screens = [picture.pop("screenshot").tobytes() for picture in (seen, stepped)]
    return seen, info, screens, stepped, reward, terminated, after


def test_it_is_a_prepared_task() -> None:
    assert isinstance(Prepared(), PreparedTask)
    assert not isinstance(FakeTask(), PreparedTask)


@pytest.mark.parametrize("seeded", [True, False])
def test_episodes_are_the_same_whatever_is_kept(make: Callable[..., BunshinEnv], seeded: bool) -> None:
    env = make(Prepared(seeded=seeded))
    episodes = [shown(env, seed) for seed in (3, 3, 3, 4, 3, 3)]
    for seed, episode in zip((3, 3, 3, 4, 3, 3), episodes, strict=True):
        alone = FakeMachine().pool()
        fresh = BunshinEnv(Prepared(seeded=seeded), bases=alone)
        assert shown(fresh, seed) == episode
        fresh.close()
        alone.close()


def test_a_task_that_no_seed_changes_is_set_up_and_seen_once(
    make: Callable[..., BunshinEnv], looks: Counter[str]
) -> None:
    task = Prepared(seeded=False)
    envs = [make(task), make(task)]
    for seed in range(4):
        for env in envs:
            env.reset(seed=seed)
    assert task.done == {"prepare": 1, "setup": 1}
    assert looks["looks"] == 1
    assert make(Prepared(seeded=False)).reset(seed=9)[1]["measured"].look_ns == 0


def test_a_seed_that_comes_again_is_set_up_and_seen_twice(
    make: Callable[..., BunshinEnv], machine: FakeMachine, looks: Counter[str]
) -> None:
    task = Prepared()
    env = make(task)
    for seed in (1, 2):
        env.reset(options={"task_seed": seed})
    env._wait_ended()
    assert machine.guests == 2, "the episode's, and the prepared one's snapshot: seeds that came once are not kept"
    for _ in range(5):
        env.reset(options={"task_seed": 1})
    assert task.done == {"prepare": 1, "setup": 3}
    assert looks["looks"] == 3


def test_nothing_is_shared_by_episodes_that_begin_alike(make: Callable[..., BunshinEnv]) -> None:
    task = Prepared(seeded=False)
    left, right = make(task), make(task)
    seen, info = left.reset(seed=1)
    seen["screenshot"][:] = 7
    info["extra"].append(3)
    assert left._run is not None
    left._run.setup.state["seen"].append(2)
    left.step("keyboard_type('left')")
    seen, info = right.reset(seed=1)
    assert not np.any(seen["screenshot"] == 7)
    assert info["extra"] == [1, 2]
    assert right._run is not None
    assert right._run.setup.state == {"seen": [1]}
    assert "textbox ''" in right.observe()["axtree_txt"]


@pytest.mark.parametrize("seeded", [True, False])
def test_it_forks_as_promised(make: Callable[..., BunshinEnv], seeded: bool) -> None:
    env = make(Prepared(seeded=seeded))
    for _ in range(3):
        check_fork(env)


def test_what_was_not_used_for_longest_is_given_up(make: Callable[..., BunshinEnv], machine: FakeMachine) -> None:
    tasks = [Prepared(id=f"fake.{name}", seeded=False) for name in "abc"]
    envs = [make(task) for task in tasks]
    for number in (0, 1, 0, 2, 0):
        envs[number].reset(seed=1)
        envs[number]._wait_ended()
    assert [task.done["prepare"] for task in tasks] == [1, 1, 1]
    assert machine.guests == 3 + 2, "the fake pool keeps two"
    envs[1].reset(seed=1)
    envs[0].reset(seed=1)
    assert [task.done["prepare"] for task in tasks] == [1, 2, 1]


@pytest.mark.parametrize("kind", [WorkspaceDied, SnapshotLost, ClosedError])
@pytest.mark.parametrize("seeded", [True, False])
def test_a_kept_state_that_is_lost_is_made_again(
    make: Callable[..., BunshinEnv], monkeypatch: pytest.MonkeyPatch, pool: BasePool, kind: Any, seeded: bool
) -> None:
    task = Prepared(seeded=seeded)
    env = make(task)
    before = [shown(env, 1) for _ in range(3)][-1]
    (key,) = [key for key in pool._kept if key.task is not None and (key.seed is not None) == seeded]
    lost = pool._kept[key]

    def fail() -> Any:
        raise kind("it is gone")

    monkeypatch.setattr(lost.base, "branch", fail)
    assert shown(env, 1) == before
    assert pool._kept.get(key) is not lost


def test_a_state_that_cannot_be_kept_hinders_nobody(
    make: Callable[..., BunshinEnv],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    machine: FakeMachine,
) -> None:
    env = make(Prepared())
    first = shown(env, 1)

    def fail(_: FakeGuest) -> Any:
        raise EngineError("no room for a snapshot")

    monkeypatch.setattr(FakeGuest, "snapshot", fail)
    assert shown(env, 1) == first
    assert "seed 1 of fake.typing is set up anew every time: no room for a snapshot" in caplog.text


def test_a_task_that_cannot_be_prepared_leaves_nothing(
    make: Callable[..., BunshinEnv], machine: FakeMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    env = make(Prepared(broken=True))
    for _ in range(2):
        with pytest.raises(ToolError):
            env.reset(seed=1)
        assert machine.guests == 1, "the prepared state alone"


def test_a_first_observation_with_the_tree_is_not_one_without(make: Callable[..., BunshinEnv]) -> None:
    task = Prepared(seeded=False)
    blind, seeing = make(task, tree=False), make(task)
    for _ in range(2):
        assert "axtree_txt" not in blind.reset(seed=1)[0]
        assert "textbox" in seeing.reset(seed=1)[0]["axtree_txt"]


def test_threads_prepare_once(make: Callable[..., BunshinEnv]) -> None:
    task = Prepared()
    envs = [make(task) for _ in range(8)]
    gate = threading.Barrier(8)

    def run(env: BunshinEnv) -> list[tuple[Any, ...]]:
        gate.wait()
        return [shown(env, seed) for seed in (1, 1, 2, 1)]

    with ThreadPoolExecutor(8) as threads:
        episodes = list(threads.map(run, envs))
    assert all(episode == episodes[0] for episode in episodes)
    assert task.done["prepare"] == 1


def test_a_spare_has_its_first_observation(pool: BasePool, looks: Counter[str]) -> None:
    env = WorkspaceAhead(BunshinEnv(Prepared(seeded=False), bases=pool))
    first = env.reset(seed=1)[0]
    for seed in range(2, 5):
        env.wait_ready()
        seen = env.reset(seed=seed)[0]
        assert seen["axtree_txt"] == first["axtree_txt"]
    assert looks["looks"] == 1
    env.close()
    pool.close()


# ---- the one before ---------------------------------------------------------------------------------


def test_a_reset_does_not_wait_for_the_end_of_the_workspace_before(
    make: Callable[..., BunshinEnv], machine: FakeMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    env = make(FakeTask())
    env.reset(seed=1)
    used, may_end = env._guest, threading.Event()
    assert isinstance(used, FakeGuest)
    close = used.close

    def slow() -> None:
        may_end.wait()
        close()

    monkeypatch.setattr(used, "close", slow)
    env.reset(seed=2)
    assert not used.closed
    assert env.step("keyboard_type('done')")[1] == 1.0
    pid = os.fork()
    if pid == 0:
        env._wait_ended()  # it is not the child's to end, and not to wait for
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    may_end.set()
    env.close()
    assert used.closed
    assert machine.guests == 0


def test_that_it_cannot_be_ended_is_told_by_the_next_call(
    make: Callable[..., BunshinEnv], monkeypatch: pytest.MonkeyPatch
) -> None:
    env = make(FakeTask())
    env.reset(seed=1)
    used = env._guest
    assert isinstance(used, FakeGuest)
    close = used.close

    def fail() -> None:
        close()
        raise EngineError("a mount is busy")

    monkeypatch.setattr(used, "close", fail)
    env.reset(seed=2)
    with pytest.raises(BunshinError, match="a mount is busy"):
        env.reset(seed=3)
    env.reset(seed=3)


def test_it_is_ended_too_when_no_other_can_be_made(make: Callable[..., BunshinEnv], machine: FakeMachine) -> None:
    env = make(FakeTask())
    env.reset(seed=1)
    machine.fail_branch = EngineError("no memory")
    with pytest.raises(EngineError):
        env.reset(seed=2)
    env._wait_ended()
    assert machine.guests == 0
