# SPDX-License-Identifier: Apache-2.0
"""The vector env over fake workspaces: beside Gymnasium's own, and when slots break."""

from __future__ import annotations

import copy
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import gymnasium
import numpy as np
import pytest
from fake_guest import FakeMachine, FakeTask
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import TimeLimit

from bunshin_gym.envs import BunshinEnv
from bunshin_gym.errors import BunshinError, CallTimeout, ResourceError, SnapshotLost, UsageError, WorkspaceDied
from bunshin_gym.surfaces import Screen
from bunshin_gym.vector import Admission, BunshinVectorEnv, make_group
from bunshin_gym.vector.admission import available_bytes

NOOP = "noop(0)"
DONE = "keyboard_type('done')"


@pytest.fixture
def machine() -> Iterator[FakeMachine]:
    machine = FakeMachine()
    before = set(threading.enumerate())
    yield machine
    machine.stall.set()
    for thread in set(threading.enumerate()) - before:
        if thread.name.startswith("bunshin-"):
            thread.join()
    assert machine.guests == 0, "workspaces are left"


@pytest.fixture
def make(machine: FakeMachine) -> Iterator[Callable[..., BunshinVectorEnv]]:
    pool, made = machine.pool(), []

    def make_one(num_envs: int = 3, **options: Any) -> BunshinVectorEnv:
        made.append(BunshinVectorEnv(num_envs, bases=pool, **{"task": FakeTask(), **options}))
        return made[-1]

    yield make_one
    for env in made:
        env.close()
    pool.close()


def wait_for(condition: Callable[[], bool]) -> None:
    """For what announces itself to nobody."""
    end_s = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < end_s, "it did not come about"
        time.sleep(0.001)


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
    make: Callable[..., BunshinVectorEnv], machine: FakeMachine, mode: AutoresetMode, seed: Any
) -> None:
    pool = machine.pool()
    ours = make(3, autoreset_mode=mode, max_episode_steps=3)
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


def test_samples_of_its_action_space_are_actions(make: Callable[..., BunshinVectorEnv]) -> None:
    env = make(2)
    env.reset(seed=1)
    env.action_space.seed(1)
    for _ in range(5):
        assert env.observation_space.contains(env.step(env.action_space.sample())[0])
    env.step([{"name": "noop", "args": {"wait_ms": 0}}, NOOP])


@pytest.mark.parametrize("mode", list(AutoresetMode))
@pytest.mark.parametrize("fate", ["die", "hang"])
def test_a_lost_workspace_costs_its_slot_alone(
    make: Callable[..., BunshinVectorEnv], machine: FakeMachine, mode: AutoresetMode, fate: str
) -> None:
    env = make(3, autoreset_mode=mode, step_timeout_s=0.5)
    first, _ = env.reset(seed=1)
    seen, rewards, terminated, truncated, infos = env.step([NOOP, f"keyboard_type('{fate}')", "keyboard_type('x')"])
    assert truncated.tolist() == [False, True, False]
    assert not terminated.any()
    assert not rewards.any()
    told = infos["final_info"] if mode is AutoresetMode.SAME_STEP else infos
    assert told["_workspace_died"].tolist() == [False, True, False]
    assert ("died" if fate == "die" else "no answer in 0.5 s") in told["workspace_died"][1]
    if mode is AutoresetMode.SAME_STEP:
        assert infos["final_obs"][1]["axtree_txt"] == first["axtree_txt"][1]
    else:
        assert seen["axtree_txt"][1] == first["axtree_txt"][1]
    assert "'x'" in seen["axtree_txt"][2]
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
    make: Callable[..., BunshinVectorEnv], machine: FakeMachine
) -> None:
    env = make(2, step_timeout_s=0.2)
    env._slots[0].grace_s = 0.2
    env.reset(seed=1)
    _, _, _, truncated, _ = env.step(["keyboard_type('stall')", NOOP])
    assert truncated.tolist() == [True, False]
    env.step([NOOP, NOOP])
    assert env.step([DONE, NOOP])[1].tolist() == [1.0, 0.0]
    machine.stall.set()


def test_a_slot_that_cannot_be_refilled_stays_truncated_until_it_can(
    make: Callable[..., BunshinVectorEnv], machine: FakeMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    env = make(2, admission=Admission(makers=1))
    env.reset(seed=1)
    env.step(["keyboard_type('die')", NOOP])

    def fail(*_: Any, **__: Any) -> Any:
        raise ResourceError("no memory for it")

    monkeypatch.setattr(BunshinEnv, "_fresh_guest", fail)
    _, _, _, truncated, infos = env.step([NOOP, NOOP])
    assert truncated.tolist() == [True, False]
    assert "no memory for it" in infos["workspace_died"][0]
    monkeypatch.undo()
    assert not env.step([NOOP, NOOP])[3].any()
    assert env.step([DONE, NOOP])[1].tolist() == [1.0, 0.0]


def test_when_all_are_lost_it_raises(make: Callable[..., BunshinVectorEnv]) -> None:
    env = make(2)
    env.reset(seed=1)
    with pytest.raises(BunshinError, match=r"every workspace is lost.*died"):
        env.step(["keyboard_type('die')"] * 2)
    env.reset(seed=1)
    assert env.step([DONE] * 2)[1].tolist() == [1.0, 1.0]


def test_a_reset_that_hangs_names_its_slot(
    make: Callable[..., BunshinVectorEnv], machine: FakeMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    env = make(2, reset_timeout_s=0.2)
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
    env.reset(seed=1)
    assert env.step([DONE] * 2)[1].tolist() == [1.0, 1.0]


def test_a_reset_is_tried_again(make: Callable[..., BunshinVectorEnv], machine: FakeMachine) -> None:
    env = make(2)
    machine.fail_branch = ResourceError("for a moment")
    env.reset(seed=1)
    assert env.step([DONE] * 2)[1].tolist() == [1.0, 1.0]


# ---- groups --------------------------------------------------------------------------------------


def test_a_group_begins_alike_and_goes_its_own_ways(make: Callable[..., BunshinVectorEnv]) -> None:
    env = make(6, group_size=3, autoreset_mode="SameStep")
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
    machine: FakeMachine, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    setups: list[int] = []
    setup = FakeTask.setup
    monkeypatch.setattr(FakeTask, "setup", lambda self, page, seed: (setups.append(seed), setup(self, page, seed))[1])
    pool = machine.pool()
    env = make_group(FakeTask(), 8, max_episode_steps=2, bases=pool)
    request.addfinalizer(pool.close)
    request.addfinalizer(env.close)
    for seed in range(3):
        env.reset(seed=seed)
        wait_for(lambda: machine.guests == 9)  # eight branches and the start they can go back to
        env.step([NOOP] * 8)
        assert env.step([NOOP] * 8)[3].all(), "every member has its own TimeLimit"
    assert len(setups) == 3


def test_a_start_that_is_lost_is_set_up_anew(
    make: Callable[..., BunshinVectorEnv], monkeypatch: pytest.MonkeyPatch
) -> None:
    env = make(2, group_size=2, autoreset_mode="SameStep")
    _, infos = env.reset(seed=1)
    monkeypatch.setattr(env._starts[0].snapshot, "branch", lambda: (_ for _ in ()).throw(SnapshotLost("killed")))
    _, _, _, _, again = env.step([DONE, NOOP])
    assert again["task_seed"][0] == infos["task_seed"][0]


def test_several_tasks_are_dealt_out(make: Callable[..., BunshinVectorEnv]) -> None:
    env = make(4, task=[FakeTask(id="fake.a"), FakeTask(id="fake.b")], group_size=2)
    assert env.reset()[1]["task"].tolist() == ["fake.a", "fake.a", "fake.b", "fake.b"]
    with pytest.raises(UsageError, match="other spaces"):
        make(2, task=[FakeTask(), FakeTask(screen=Screen(width=8, height=8))])


# ---- usage ---------------------------------------------------------------------------------------


def test_wrong_use_is_refused(make: Callable[..., BunshinVectorEnv]) -> None:
    for options in ({"num_envs": 0}, {"num_envs": 3, "group_size": 2}, {"step_timeout_s": 0}):
        with pytest.raises(UsageError):
            make(**options)
    env = make(2)
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


def test_attributes_and_calls(make: Callable[..., BunshinVectorEnv]) -> None:
    env = make(2, render_mode="rgb_array")
    env.reset(seed=1)
    assert [task.id for task in env.get_attr("task")] == ["fake.typing"] * 2
    assert [frame.shape for frame in env.render()] == [(16, 32, 3)] * 2
    env.set_attr("note", [1, 2])
    assert env.get_attr("note") == (1, 2)
    branch = env.envs[0].unwrapped.fork(1)[0]
    branch.close()


def test_a_bug_in_one_slot_is_raised_and_the_others_are_whole(
    make: Callable[..., BunshinVectorEnv], monkeypatch: pytest.MonkeyPatch
) -> None:
    env = make(2)
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


# ---- admission -----------------------------------------------------------------------------------


def test_there_is_room_for_so_many_only(make: Callable[..., BunshinVectorEnv]) -> None:
    admission = Admission(envs_max=3)
    env = make(2, admission=admission)
    with pytest.raises(ResourceError, match="2 of at most 3"):
        make(2, admission=admission)
    env.close()
    make(3, admission=admission)
    assert admission.admitted == 3


def test_memory_is_counted_before_it_is_taken() -> None:
    free = [1000]
    admission = Admission(env_bytes=100, reserve_bytes=200, available=lambda: free[0])
    one = admission.admit(5)
    with pytest.raises(ResourceError, match="9 to come"):
        admission.admit(4)
    one.settle()
    free[0] = 500
    with admission.admit(3), pytest.raises(ResourceError, match="reserve"):
        admission.admit(1)
    one.close()
    one.close()
    assert admission.admitted == 0


def test_who_waits_comes_in_turn() -> None:
    admission = Admission(envs_max=1, wait_s=None)
    held, order, threads = admission.admit(1), [], []

    def wait_and_go(number: int) -> None:
        with admission.admit(1):
            order.append(number)

    for number in range(3):
        threads.append(threading.Thread(target=wait_and_go, args=(number,)))
        threads[-1].start()
        wait_for(lambda number=number: len(admission._queue) > number)  # type: ignore[misc]
    assert order == []
    held.close()
    for thread in threads:
        thread.join()
    assert order == [0, 1, 2]


def test_waiting_ends(make: Callable[..., BunshinVectorEnv]) -> None:
    admission = Admission(envs_max=1, wait_s=0.05)
    admission.admit(1)
    with pytest.raises(ResourceError, match="no room"):
        admission.admit(1)
    with pytest.raises(UsageError):
        Admission(makers=0)


def test_what_a_cgroup_leaves_counts(tmp_path: Any) -> None:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/meminfo").write_text("MemTotal: 9 kB\nMemAvailable: 1000 kB\n")
    (tmp_path / "proc/self/cgroup").write_text("4:cpu,memory:/a/b\n1:name=systemd:/\n0::/c\n")
    assert available_bytes(tmp_path) == 1000 * 1024
    for folder, name, most, used in (
        ("sys/fs/cgroup/memory/a", "memory.limit_in_bytes memory.usage_in_bytes", "9000", "2000"),
        ("sys/fs/cgroup/c", "memory.max memory.current", "max", "0"),
        ("sys/fs/cgroup", "memory.max memory.current", "6000", "1000"),
    ):
        (tmp_path / folder).mkdir(parents=True, exist_ok=True)
        limit, usage = name.split()
        (tmp_path / folder / limit).write_text(most)
        (tmp_path / folder / usage).write_text(used)
    assert available_bytes(tmp_path) == 5000


def test_a_workspace_that_dies_while_its_group_is_set_up_is_replaced(
    make: Callable[..., BunshinVectorEnv], machine: FakeMachine
) -> None:
    env = make(2, group_size=2)
    machine.fail_branch = WorkspaceDied("in the midst")
    env.reset(seed=1)
    assert env.step([DONE] * 2)[1].tolist() == [1.0, 1.0]


# ---- spares --------------------------------------------------------------------------------------


def test_resets_take_workspaces_that_were_made_ahead(
    make: Callable[..., BunshinVectorEnv], machine: FakeMachine
) -> None:
    env = make(2, spares=2, autoreset_mode="SameStep")
    env.reset(seed=1)
    for _ in range(3):
        wait_for(lambda: sum(map(len, env._nursery._ready.values())) == 2 and machine.guests == 4)
        spares = {id(guest) for ready in env._nursery._ready.values() for guest in ready}
        assert env.step([DONE, DONE])[1].tolist() == [1.0, 1.0]
        assert {id(slot.inner._guest) for slot in env._slots} == spares
    same(env.reset(seed=1)[0], env.reset(seed=1)[0])


def test_a_spare_that_died_is_replaced(make: Callable[..., BunshinVectorEnv], machine: FakeMachine) -> None:
    env = make(1, spares=1)
    env.reset(seed=1)
    wait_for(lambda: bool(env._nursery._ready.get("fake.typing")))
    env._nursery._ready["fake.typing"][0].dead = True  # type: ignore[attr-defined]
    env.reset(seed=2)
    assert env.step([DONE])[1].tolist() == [1.0]


def test_spares_that_cannot_be_made_hinder_nobody(
    make: Callable[..., BunshinVectorEnv], machine: FakeMachine, caplog: pytest.LogCaptureFixture
) -> None:
    env = make(1, spares=3)
    env.reset(seed=1)
    machine.fail_branch = ResourceError("too many processes")
    env.reset(seed=2)
    assert env.step([DONE])[1].tolist() == [1.0]


def test_a_leader_that_dies_before_its_snapshot_is_set_up_again(
    make: Callable[..., BunshinVectorEnv], machine: FakeMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    env = make(4, group_size=2)
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
