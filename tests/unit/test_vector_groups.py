# SPDX-License-Identifier: Apache-2.0
"""Groups of a vector env: envs that begin as branches of one start."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from fake_guest import FakeMachine, FakeTask

from bunshin_gym.bases import BasePool
from bunshin_gym.envs import BunshinEnv
from bunshin_gym.errors import SnapshotLost, UsageError, WorkspaceDied
from bunshin_gym.surfaces import Screen
from bunshin_gym.vector import BunshinVectorEnv, make_group

NOOP = "noop(0)"
DONE = "keyboard_type('done')"


def test_a_group_begins_alike_and_goes_its_own_ways(make_vector: Callable[..., BunshinVectorEnv]) -> None:
    env = make_vector(6, group_size=3, autoreset_mode="SameStep")
    seen, infos = env.reset(seed=7)
    seeds = infos["task_seed"].tolist()
    assert seeds[:3] == seeds[:1] * 3
    assert seeds[3:] == seeds[3:4] * 3
    assert seeds[0] != seeds[3]
    assert len(set(seen["axtree_txt"])) == 2
    actions = [f"keyboard_type('{letter}')" for letter in "abcdef"]
    seen = env.step(actions)[0]
    assert len(set(seen["axtree_txt"])) == 6
    seen, rewards, *_ = env.step([DONE, *[NOOP] * 5])
    assert rewards[0] == 1.0
    assert seen["axtree_txt"][0] == f"textbox '' tabs 0 — seed {seeds[0]}", "an autoreset goes to the group's start"
    seen, infos = env.reset(options={"reset_mask": np.array([False] * 4 + [True] * 2)})
    assert seen["axtree_txt"][4] == f"textbox '' tabs 0 — seed {seeds[3]}"
    assert "'d'" in seen["axtree_txt"][3]
    with pytest.raises(UsageError, match="whole groups"):
        env.reset(seed=1, options={"reset_mask": np.array([True] + [False] * 5)})
    _, infos = env.reset(seed=[1, 2])
    again = infos["task_seed"].tolist()
    assert again == env.reset(seed=[1, 1, 1, 2, 2, 2])[1]["task_seed"].tolist()
    with pytest.raises(UsageError, match="another seed"):
        env.reset(seed=[1, 2, 1, 2, 2, 2])


def test_a_group_is_set_up_once(
    machine: FakeMachine, pool: BasePool, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    setups: list[int] = []
    setup = FakeTask.setup
    monkeypatch.setattr(FakeTask, "setup", lambda self, page, seed: (setups.append(seed), setup(self, page, seed))[1])
    env = make_group(FakeTask(), 8, max_episode_steps=2, bases=pool)
    request.addfinalizer(env.close)
    for seed in range(3):
        env.reset(seed=seed)
        env.wait_for_spares()
        assert machine.guests == 9, "eight branches and the start they can go back to"
        env.step([NOOP] * 8)
        assert env.step([NOOP] * 8)[3].all(), "every member has its own TimeLimit"
    assert len(setups) == 3


def test_a_start_that_is_lost_is_set_up_anew(
    make_vector: Callable[..., BunshinVectorEnv], monkeypatch: pytest.MonkeyPatch
) -> None:
    env = make_vector(2, group_size=2, autoreset_mode="SameStep")
    _, infos = env.reset(seed=1)
    monkeypatch.setattr(env._starts[0].snapshot, "branch", lambda: (_ for _ in ()).throw(SnapshotLost("killed")))
    _, _, _, _, again = env.step([DONE, NOOP])
    assert again["task_seed"][0] == infos["task_seed"][0]


def test_several_tasks_are_dealt_out(make_vector: Callable[..., BunshinVectorEnv]) -> None:
    env = make_vector(4, task=[FakeTask(id="fake.a"), FakeTask(id="fake.b")], group_size=2)
    assert env.reset()[1]["task"].tolist() == ["fake.a", "fake.a", "fake.b", "fake.b"]
    with pytest.raises(UsageError, match="other spaces"):
        make_vector(2, task=[FakeTask(), FakeTask(screen=Screen(width=8, height=8))])


def test_a_workspace_that_dies_while_its_group_is_set_up_is_replaced(
    make_vector: Callable[..., BunshinVectorEnv], machine: FakeMachine
) -> None:
    env = make_vector(2, group_size=2)
    machine.fail_branch = WorkspaceDied("in the midst")
    env.reset(seed=1)
    assert env.step([DONE] * 2)[1].tolist() == [1.0, 1.0]


def test_a_leader_that_dies_before_its_snapshot_is_set_up_again(
    make_vector: Callable[..., BunshinVectorEnv], machine: FakeMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    env = make_vector(4, group_size=2)
    snapshot, deaths = BunshinEnv.snapshot, [WorkspaceDied("before it was kept")]

    def unlucky(self: BunshinEnv) -> Any:
        if deaths:
            raise deaths.pop()
        return snapshot(self)

    monkeypatch.setattr(BunshinEnv, "snapshot", unlucky)
    env.reset(seed=1)
    assert env.step([DONE] * 4)[1].tolist() == [1.0] * 4
    deaths.extend(WorkspaceDied("always") for _ in range(9))
    with pytest.raises(WorkspaceDied, match="always"):
        env.reset(seed=1)
    deaths.clear()
    env.reset(seed=1)
    assert env.step([DONE] * 4)[1].tolist() == [1.0] * 4
