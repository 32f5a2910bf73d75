# SPDX-License-Identifier: Apache-2.0
"""The vector env over fake workspaces: beside Gymnasium's own, and when slots break."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest
from fake_guest import FakeMachine, FakeTask
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import TimeLimit

from bunshin_gym.envs import BunshinEnv
from bunshin_gym.errors import BunshinError, CallTimeout, ResourceError, UsageError
from bunshin_gym.vector import Admission, BunshinVectorEnv

NOOP = "noop(0)"
DONE = "keyboard_type('done')"


def plain(value: Any) -> Any:
    """Arrays of objects as lists: NumPy compares no dictionaries in them."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, tuple) or (isinstance(value, np.ndarray) and value.dtype == object):
        return [plain(item) for item in value]
    return value


def same(one: Any, other: Any) -> None:
    np.testing.assert_equal(plain(one), plain(other))


@pytest.mark.parametrize("mode", list(AutoresetMode))
@pytest.mark.parametrize("seed", [5, [3, None, 9], None])
def test_it_is_as_gymnasiums_own(
    make_vector: Callable[..., BunshinVectorEnv], machine: FakeMachine, mode: AutoresetMode, seed: Any
) -> None:
    pool = machine.pool()
    ours = make_vector(3, autoreset_mode=mode, max_episode_steps=3)
    peer = SyncVectorEnv([lambda: TimeLimit(BunshinEnv(FakeTask(), bases=pool), 3)] * 3, autoreset_mode=mode)
    assert ours.metadata == peer.metadata
    assert (ours.observation_space, ours.action_space) == (peer.observation_space, peer.action_space)
    same(ours.reset(seed=[1, 2, 3]), peer.reset(seed=[1, 2, 3]))
    if seed is not None and None not in np.atleast_1d(seed):
        same(ours.reset(seed=seed), peer.reset(seed=seed))
    for number in range(6):
        actions = [DONE if (number, index) in ((0, 1), (3, 2)) else f"keyboard_type('{index}')" for index in range(3)]
        got, want = ours.step(actions), peer.step(actions)
        same(got, want)
        over = got[2] | got[3]
        if mode is AutoresetMode.DISABLED and over.any():
            for options in (None, {"task_seed": 8}):
                mask = {"reset_mask": over.copy()}
                same(
                    ours.reset(options={**mask, **(options or {})}),
                    peer.reset(options={**mask, **(options or {})}),
                )
    same(ours.np_random_seed, peer.np_random_seed)
    peer.close()
    pool.close()


def test_samples_of_its_action_space_are_actions(make_vector: Callable[..., BunshinVectorEnv]) -> None:
    env = make_vector(2)
    env.reset(seed=1)
    env.action_space.seed(1)
    for _ in range(5):
        assert env.observation_space.contains(env.step(env.action_space.sample())[0])
    env.step([{"name": "noop", "args": {"wait_ms": 0}}, NOOP])


@pytest.mark.parametrize("mode", list(AutoresetMode))
@pytest.mark.parametrize("fate", ["die", "hang"])
def test_a_lost_workspace_costs_its_slot_alone(
    make_vector: Callable[..., BunshinVectorEnv], machine: FakeMachine, mode: AutoresetMode, fate: str
) -> None:
    env = make_vector(3, autoreset_mode=mode, step_timeout_s=1.0)
    first, _ = env.reset(seed=1)
    seen, rewards, terminated, truncated, infos = env.step([NOOP, f"keyboard_type('{fate}')", "keyboard_type('x')"])
    assert truncated.tolist() == [False, True, False]
    assert not terminated.any()
    assert not rewards.any()
    told = infos["final_info"] if mode is AutoresetMode.SAME_STEP else infos
    assert told["_workspace_died"].tolist() == [False, True, False]
    assert ("died" if fate == "die" else "no answer in 1 s") in told["workspace_died"][1]
    if mode is AutoresetMode.SAME_STEP:
        assert infos["final_obs"][1]["axtree_txt"] == first["axtree_txt"][1]
    else:
        assert seen["axtree_txt"][1] == first["axtree_txt"][1]
    assert "'x'" in seen["axtree_txt"][2]
    env._step_timeout_s = 60.0
    if mode is AutoresetMode.DISABLED:
        with pytest.raises(gymnasium.error.ResetNeeded, match=r"\[1\]"):
            env.step([NOOP] * 3)
        env.reset(options={"reset_mask": np.array([False, True, False])})
    if mode is AutoresetMode.NEXT_STEP:
        _, _, _, truncated, infos = env.step([NOOP] * 3)
        assert not truncated.any()
        assert infos["_task_seed"].tolist() == [False, True, False]
    seen, rewards, terminated, _, _ = env.step([NOOP, DONE, NOOP])
    assert (rewards.tolist(), terminated.tolist()) == ([0.0, 1.0, 0.0], [False, True, False])
    assert "'x'" in seen["axtree_txt"][2]
    assert machine.boots == 1


def test_a_call_that_never_comes_back_is_left_alone(
    make_vector: Callable[..., BunshinVectorEnv], machine: FakeMachine
) -> None:
    env = make_vector(2, step_timeout_s=0.2)
    env._slots[0].grace_s = 0.2
    env.reset(seed=1)
    _, _, _, truncated, _ = env.step(["keyboard_type('stall')", NOOP])
    assert truncated.tolist() == [True, False]
    env._step_timeout_s = 60.0
    env.step([NOOP, NOOP])
    assert env.step([DONE, NOOP])[1].tolist() == [1.0, 0.0]
    machine.stall.set()


def test_a_slot_that_cannot_be_refilled_stays_truncated_until_it_can(
    make_vector: Callable[..., BunshinVectorEnv], machine: FakeMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    env = make_vector(2, admission=Admission(makers=1))
    env.reset(seed=1)
    env.step(["keyboard_type('die')", NOOP])

    def fail(*_: Any, **__: Any) -> Any:
        raise ResourceError("no memory for it")

    monkeypatch.setattr(BunshinEnv, "_begin", fail)
    _, _, _, truncated, infos = env.step([NOOP, NOOP])
    assert truncated.tolist() == [True, False]
    assert "no memory for it" in infos["workspace_died"][0]
    monkeypatch.undo()
    assert not env.step([NOOP, NOOP])[3].any()
    assert env.step([DONE, NOOP])[1].tolist() == [1.0, 0.0]


def test_when_all_are_lost_it_raises(make_vector: Callable[..., BunshinVectorEnv]) -> None:
    env = make_vector(2)
    env.reset(seed=1)
    with pytest.raises(BunshinError, match=r"every workspace is lost.*died"):
        env.step(["keyboard_type('die')"] * 2)
    env.reset(seed=1)
    assert env.step([DONE] * 2)[1].tolist() == [1.0, 1.0]


def test_a_reset_that_hangs_names_its_slot(
    make_vector: Callable[..., BunshinVectorEnv], machine: FakeMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    env = make_vector(2, reset_timeout_s=0.2)
    for slot in env._slots:
        slot.grace_s = 0.1
    setup = FakeTask.setup

    def hang(self: FakeTask, page: Any, seed: int) -> Any:
        if page.machine.guests == 2:
            page.machine.stall.wait()
        return setup(self, page, seed)

    monkeypatch.setattr(FakeTask, "setup", hang)
    with pytest.raises(CallTimeout, match=r"slot \d"):
        env.reset(seed=1)
    machine.stall.set()
    monkeypatch.undo()
    env._reset_timeout_s = 60.0
    env.reset(seed=1)
    assert env.step([DONE] * 2)[1].tolist() == [1.0, 1.0]


def test_a_reset_that_comes_back_too_late_finds_nothing_to_break(
    make_vector: Callable[..., BunshinVectorEnv], machine: FakeMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    env = make_vector(1, reset_timeout_s=0.2)
    env._slots[0].grace_s = 0.1
    setup, late = FakeTask.setup, [thread for thread in threading.enumerate() if thread.name == "bunshin-slot-0"]

    def hang(self: FakeTask, page: Any, seed: int) -> Any:
        machine.stall.wait()
        return setup(self, page, seed)

    def let_it_come_back(self: FakeTask, page: Any, seed: int) -> Any:
        machine.stall.set()
        for thread in late:
            thread.join(30)
        return setup(self, page, seed)

    monkeypatch.setattr(FakeTask, "setup", hang)
    with pytest.raises(CallTimeout, match="slot 0"):
        env.reset(seed=1)
    env._reset_timeout_s = 60.0
    monkeypatch.setattr(FakeTask, "setup", let_it_come_back)
    env.reset(seed=1)
    assert not any(thread.is_alive() for thread in late)
    assert env.step([DONE])[1].tolist() == [1.0]
    assert (machine.boots, machine.guests) == (1, 1)


def test_a_reset_is_tried_again(make_vector: Callable[..., BunshinVectorEnv], machine: FakeMachine) -> None:
    env = make_vector(2)
    machine.fail_branch = ResourceError("for a moment")
    env.reset(seed=1)
    assert env.step([DONE] * 2)[1].tolist() == [1.0, 1.0]


def test_wrong_use_is_refused(make_vector: Callable[..., BunshinVectorEnv]) -> None:
    for options in ({"num_envs": 0}, {"num_envs": 3, "group_size": 2}, {"step_timeout_s": 0}):
        with pytest.raises(UsageError):
            make_vector(**options)
    env = make_vector(2)
    with pytest.raises(gymnasium.error.ResetNeeded):
        env.step([NOOP] * 2)
    for wrong in (np.array([True]), [True, False], np.zeros(2, dtype=bool)):
        with pytest.raises(UsageError, match="reset_mask"):
            env.reset(options={"reset_mask": wrong})
    with pytest.raises(UsageError, match="seeds"):
        env.reset(seed=[1, 2, 3])
    assert env.reset(options={"task_seed": [4, 5]})[1]["task_seed"].tolist() == [4, 5]
    with pytest.raises(UsageError, match="1 actions"):
        env.step([NOOP])
    with pytest.raises(UsageError, match="without"):
        env.step_wait()
    env.step_async([NOOP] * 2)
    with pytest.raises(UsageError, match="under way"):
        env.reset()
    env.step_wait()
    with pytest.raises(UsageError, match="pickled"):
        copy.deepcopy(env.envs[0].unwrapped.__reduce_ex__(2))
    env.close()
    env.close()
    with pytest.raises(gymnasium.error.ClosedEnvironmentError):
        env.reset()


def test_attributes_and_calls(make_vector: Callable[..., BunshinVectorEnv]) -> None:
    env = make_vector(2, render_mode="rgb_array")
    env.reset(seed=1)
    assert [task.id for task in env.get_attr("task")] == ["fake.typing"] * 2
    assert [frame.shape for frame in env.render()] == [(16, 32, 3)] * 2
    env.set_attr("note", [1, 2])
    assert env.get_attr("note") == (1, 2)
    branch = env.envs[0].unwrapped.fork(1)[0]
    branch.close()


def test_a_bug_in_one_slot_is_raised_and_the_others_are_whole(
    make_vector: Callable[..., BunshinVectorEnv], monkeypatch: pytest.MonkeyPatch
) -> None:
    env = make_vector(2)
    env.reset(seed=1)
    validate = FakeTask.validate

    def buggy(self: FakeTask, page: Any, state: Any, messages: Any) -> Any:
        if page.page["text"] == "bug":
            raise ZeroDivisionError("a bug of the task")
        return validate(self, page, state, messages)

    monkeypatch.setattr(FakeTask, "validate", buggy)
    with pytest.raises(ZeroDivisionError):
        env.step(["keyboard_type('bug')", "keyboard_type('y')"])
    assert "'y'" in env.step(["keyboard_type('!')", NOOP])[0]["axtree_txt"][1]
