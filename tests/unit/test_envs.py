# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import asyncio
import copy
import os
import pickle
import shutil
import threading
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import gymnasium
import numpy as np
import pytest
from fake_guest import BRANCH, SNAPSHOT, FakeGuest, FakeMachine, FakeTask
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import SyncVectorEnv
from gymnasium.wrappers import TimeLimit

from bunshin_gym.bases import BaseKey
from bunshin_gym.env_state import read_state, stored_state, write_state
from bunshin_gym.envs import BunshinEnv
from bunshin_gym.errors import (
    BunshinError,
    EngineError,
    SnapshotDamaged,
    SnapshotLost,
    ToolError,
    UsageError,
    WorkspaceDied,
)
from bunshin_gym.forkable import ForkableEnv
from bunshin_gym.surfaces import Screen
from bunshin_gym.testing import check_fork
from bunshin_gym.types import ToolCall


@pytest.fixture
def machine() -> FakeMachine:
    return FakeMachine()


@pytest.fixture
def env(machine: FakeMachine, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.delenv("DISPLAY", raising=False)
    pool = machine.pool()
    made = BunshinEnv(FakeTask(), bases=pool)
    yield made
    made.close()
    pool.close()
    assert (machine.guests, machine.bases) == (0, 0), "something was left open"


def test_gymnasium_accepts_it(env: BunshinEnv) -> None:
    check_env(env, skip_render_check=True)


@dataclass(frozen=True)
class AskingFakeTask(FakeTask):
    question: str = "judge"


def test_what_a_task_asks_is_asked_with_the_look(machine: FakeMachine) -> None:
    pool = machine.pool()
    env = BunshinEnv(AskingFakeTask(), bases=pool)
    env.reset(seed=0)
    guest = cast("FakeGuest", env._guest)
    guest.asked.clear()
    assert env.step("keyboard_type('do')")[1:3] == (0.0, False)
    assert env.step("keyboard_type('ne')")[1:3] == (1.0, True)
    assert guest.asked == ["judge", "judge"]
    env.step("keyboard_type('more')")
    assert guest.asked == ["judge", "judge"], "asked though the episode was over"
    env.close()
    broken = BunshinEnv(AskingFakeTask(question="broken"), bases=pool)
    broken.reset(seed=0)
    assert broken.step("keyboard_type('done')")[1] == 1.0, "another question was answered with what was asked"
    broken.close()
    pool.close()


def test_gymnasium_accepts_it_by_id(machine: FakeMachine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DISPLAY", raising=False)
    pool = machine.pool()
    gymnasium.register(
        id="test/FakeTyping-v0",
        entry_point="bunshin_gym.envs:BunshinEnv",
        kwargs={"task": FakeTask(), "bases": pool},
    )
    try:
        made = gymnasium.make("test/FakeTyping-v0")
        check_env(made.unwrapped)
        made.close()
    finally:
        del gymnasium.registry["test/FakeTyping-v0"]
        pool.close()
    assert (machine.guests, machine.bases) == (0, 0)


def test_it_forks_as_promised(env: BunshinEnv) -> None:
    check_fork(env)
    check_fork(env, actions=["keyboard_type('abc')"], branches=3)
    check_fork(TimeLimit(env, max_episode_steps=10))


def test_check_fork_wants_an_env_that_forks() -> None:
    with gymnasium.make("CartPole-v1") as other, pytest.raises(UsageError, match="no fork"):
        check_fork(other)


def test_check_fork_finds_a_shared_page(env: BunshinEnv, monkeypatch: pytest.MonkeyPatch) -> None:
    real = type(env)._adopt

    def leaky(self: BunshinEnv, guest: Any) -> BunshinEnv:
        guest.page = self._guest.page  # type: ignore[union-attr]
        return real(self, guest)

    monkeypatch.setattr(type(env), "_adopt", leaky)
    with pytest.raises(AssertionError, match="changed its sibling"):
        check_fork(env)


def test_check_fork_finds_a_shared_generator(env: BunshinEnv, monkeypatch: pytest.MonkeyPatch) -> None:
    real = type(env)._adopt

    def leaky(self: BunshinEnv, guest: Any) -> BunshinEnv:
        branch = real(self, guest)
        branch._np_random = self._np_random
        return branch

    monkeypatch.setattr(type(env), "_adopt", leaky)
    with pytest.raises(AssertionError, match="shares its source's generator"):
        check_fork(env)


def test_one_boot_serves_all_resets(env: BunshinEnv, machine: FakeMachine) -> None:
    other = BunshinEnv(FakeTask(), bases=env._bases)
    for _ in range(3):
        env.reset(seed=1)
        other.reset(seed=2)
    env._wait_ended()
    other._wait_ended()
    assert (machine.boots, machine.guests) == (1, 2)
    other.close()


def test_a_step_is_parse_run_observe(env: BunshinEnv) -> None:
    env.reset(seed=1)
    seen, reward, terminated, truncated, info = env.step("keyboard_type('ab')\nkeyboard_press('Tab')")
    assert "'ab' tabs 1" in seen["axtree_txt"]
    assert (reward, terminated, truncated) == (0.0, False, False)
    assert seen["last_action"] == "keyboard_type('ab')\nkeyboard_press('Tab')"
    assert info["measured"].tool_ns == 2000
    seen, reward, terminated, *_ = env.step({"name": "keyboard_type", "args": {"text": "done"}})
    assert (reward, terminated) == (1.0, True)
    assert seen["last_action"] == "keyboard_type(text='done')"
    _, reward, terminated, *_ = env.step("noop(0)")
    assert (reward, terminated) == (0.0, True), "a reward is given once"


def test_wrong_actions_are_observations(env: BunshinEnv) -> None:
    env.reset(seed=1)
    for action, says in (("jump()", "unknown action"), (3, "not int"), ("click('9')", "no element with id '9'")):
        seen, reward, terminated, *_ = env.step(action)  # type: ignore[arg-type]
        assert says in seen["last_action_error"]
        assert (reward, terminated) == (0.0, False)
    seen, *_ = env.step("keyboard_press('Tab')")
    assert seen["last_action_error"] == ""


def test_a_failing_call_drops_the_rest(env: BunshinEnv) -> None:
    env.reset(seed=1)
    action = "keyboard_type('x')\nsend_msg_to_user('one')\nclick('9')\nkeyboard_type('y')\nsend_msg_to_user('two')"
    seen, *_ = env.step(action)
    assert "'x' tabs 0" in seen["axtree_txt"]
    assert [message.text for message in env._run.messages] == ["one"]  # type: ignore[union-attr]


def test_giving_up_is_the_tasks_to_judge(env: BunshinEnv) -> None:
    env.reset(seed=1)
    _, reward, terminated, _, info = env.step("report_infeasible('no way')")
    assert (reward, terminated, info["message"]) == (0.0, True, "no way")


def test_seeds(env: BunshinEnv) -> None:
    _, first = env.reset(seed=5)
    _, second = env.reset()
    _, again = env.reset(seed=5)
    assert first["task_seed"] == again["task_seed"] != second["task_seed"]
    _, given = env.reset(seed=5, options={"task_seed": 77})
    assert given["task_seed"] == 77
    drawn = env.np_random.integers(1 << 30)
    env.reset(seed=5)
    assert env.np_random.integers(1 << 30) == drawn, "a given task_seed must not shift the random numbers"


@pytest.mark.parametrize("options", [{"seed": 1}, {"task_seed": -1}, {"task_seed": True}, {"task_seed": "1"}])
def test_wrong_options(env: BunshinEnv, options: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        env.reset(options=options)


def test_infos_say_what_it_cost(env: BunshinEnv) -> None:
    _, info = env.reset(seed=1)
    assert info["extra"] == [1, 2]
    measured = info["measured"]
    assert (measured.snapshot, measured.branch, measured.frozen_ns) == (SNAPSHOT, BRANCH, 5)
    assert measured.unique_bytes is None
    (branch,) = env.fork(1)
    costs = branch.fork_costs()
    branch.close()
    assert (costs.unique_bytes, costs.shared_bytes) == (4, 6)
    assert measured == costs, "what was measured does not make infos differ"


def test_a_fork_copies_the_task_and_the_messages(env: BunshinEnv, machine: FakeMachine) -> None:
    env.reset(seed=1)
    env.step("send_msg_to_user('before')")
    (branch,) = env.fork(1)
    branch.step("send_msg_to_user('after')")
    branch._run.setup.state["seen"].append(2)  # type: ignore[union-attr]
    assert [message.text for message in env._run.messages] == ["before"]  # type: ignore[union-attr]
    assert env._run.setup.state["seen"] == [1]  # type: ignore[union-attr]
    assert branch.spec is env.spec
    env.close()
    assert branch.step("keyboard_type('done')")[1] == 1.0
    branch.reset(seed=1)
    branch.close()


def test_a_failed_fork_leaves_the_source_and_no_branch(env: BunshinEnv, machine: FakeMachine) -> None:
    env.reset(seed=1)
    machine.fail_fork = EngineError("fork ws 1: out of luck")
    with pytest.raises(EngineError):
        env.fork(2)
    assert machine.guests == 1
    env.step("noop(0)")
    with pytest.raises(UsageError, match="1 branch or more"):
        env.fork(0)


def test_a_failed_reseed_closes_the_branches(env: BunshinEnv, machine: FakeMachine) -> None:
    class Unlucky(FakeTask):
        def reseed(self, page: Any, seed: int) -> None:
            raise ToolError("no")

    env.task = Unlucky()
    env.reset(seed=1)
    with pytest.raises(ToolError):
        env.fork(3, reseed=True)
    assert machine.guests == 1


def test_reseeding_is_reproducible_and_differs_by_fork(env: BunshinEnv) -> None:
    draws = []
    for _ in range(2):
        env.reset(seed=1)
        branches = env.fork(2, reseed=True) + env.fork(2, reseed=True)
        draws.append([int(branch.np_random.integers(1 << 62)) for branch in branches])
        for branch in branches:
            branch.close()
    assert draws[0] == draws[1]
    assert len(set(draws[0])) == 4


def test_copying_and_pickling_say_what_to_do(env: BunshinEnv) -> None:
    env.reset(seed=1)
    for copier in (copy.copy, copy.deepcopy):
        with pytest.raises(UsageError, match=r"fork\(n\)"):
            copier(env)
    with pytest.raises(UsageError, match="build the env in the process that uses it"):
        pickle.dumps(env)


def test_nothing_works_before_reset_and_after_close(env: BunshinEnv) -> None:
    for use in (lambda: env.step("noop(0)"), env.fork, env.observe, env.stats):
        with pytest.raises(gymnasium.error.ResetNeeded):
            use()
    env.reset(seed=1)
    env.close()
    env.close()
    with pytest.raises(gymnasium.error.ResetNeeded):
        env.step("noop(0)")


def test_a_dead_workspace_raises_and_reset_replaces_it(env: BunshinEnv, machine: FakeMachine) -> None:
    env.reset(seed=1)
    with pytest.raises(WorkspaceDied):
        env.step("keyboard_type('die')")
    env.task.torn_down.clear()  # type: ignore[attr-defined]
    seen, _ = env.reset(seed=1)
    assert "textbox ''" in seen["axtree_txt"]
    env._wait_ended()
    assert machine.guests == 1


@pytest.mark.parametrize("kind", [WorkspaceDied, SnapshotLost])
def test_a_dead_base_is_booted_again(kind: type[BunshinError], env: BunshinEnv, machine: FakeMachine) -> None:
    env.reset(seed=1)
    machine.fail_branch = kind("the base is gone")
    env.reset(seed=1)
    env._wait_ended()
    assert (machine.boots, machine.bases, machine.guests) == (2, 1, 1)


def test_a_failed_setup_leaves_no_guest(machine: FakeMachine) -> None:
    pool = machine.pool()
    broken = BunshinEnv(FakeTask(broken=True), bases=pool)
    with pytest.raises(ToolError):
        broken.reset(seed=1)
    assert machine.guests == 0
    broken.close()
    pool.close()


def test_teardown_is_called_once_an_episode(env: BunshinEnv) -> None:
    env.reset(seed=1)
    env.reset(seed=2)
    env.close()
    assert len(env.task.torn_down) == 2  # type: ignore[attr-defined]


def test_rendering(env: BunshinEnv, machine: FakeMachine) -> None:
    shown = BunshinEnv(FakeTask(), bases=env._bases, render_mode="rgb_array")
    shown.reset(seed=9)
    shown.step("keyboard_type('abc')")
    frame = shown.render()
    assert frame is not None
    assert frame.shape == (16, 32, 3)
    assert frame.any()
    frame[:] = 0
    assert shown.render().any(), "a frame is a copy"  # type: ignore[union-attr]
    shown.close()
    with pytest.raises(UsageError, match="render_mode"):
        BunshinEnv(FakeTask(), bases=env._bases, render_mode="ansi")


def test_a_live_view_without_a_display_is_a_file(env: BunshinEnv, caplog: pytest.LogCaptureFixture) -> None:
    shown = BunshinEnv(FakeTask(), bases=env._bases, render_mode="human")
    shown.reset(seed=9)
    path = Path(caplog.records[-1].args[-1])  # type: ignore[index,arg-type]
    assert path.read_bytes().startswith(b"\x89PNG")
    shown.close()
    assert not path.exists()


def test_timed_tasks_have_no_deterministic_tool(machine: FakeMachine) -> None:
    timed = BunshinEnv(FakeTask(timed=True), bases=machine.pool())
    assert set(timed.effects.values()) == {"stochastic"}


def test_elapsed_time_on_request(env: BunshinEnv) -> None:
    timed = BunshinEnv(FakeTask(), bases=env._bases, elapsed_time=True)
    seen, _ = timed.reset(seed=1)
    assert seen in timed.observation_space
    assert timed.step("noop(0)")[0]["elapsed_time"][0] > seen["elapsed_time"][0]
    timed.close()


def test_without_the_tree_nobody_reads_it(env: BunshinEnv, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    wanted = []
    act = FakeGuest.act

    def noting(self: FakeGuest, calls: Any, *, tree: bool = True, question: str = "") -> Any:
        wanted.append(tree)
        return act(self, calls, tree=tree, question=question)

    monkeypatch.setattr(FakeGuest, "act", noting)
    blind = BunshinEnv(FakeTask(), bases=env._bases, tree=False)
    check_fork(blind)
    seen, _ = blind.reset(seed=1)
    assert seen in blind.observation_space
    assert set(env.observation_space.spaces) - set(seen) == {"axtree_txt"}  # type: ignore[attr-defined]
    (branch,) = blind.fork()
    assert branch.observe() in blind.observation_space
    write_state(tmp_path / "state", stored_state(branch))
    assert read_state(tmp_path / "state")["made"]["tree"] is False
    assert not any(wanted)
    branch.close()
    blind.close()


def test_it_works_in_a_running_loop(env: BunshinEnv) -> None:
    async def main() -> float:
        env.reset(seed=1)
        (branch,) = env.fork(1)
        reward = branch.step("keyboard_type('done')")[1]
        branch.close()
        return float(reward)

    assert asyncio.run(main()) == 1.0


def test_branches_run_in_threads(env: BunshinEnv) -> None:
    env.reset(seed=1)
    rewards: dict[int, float] = {}

    def run(index: int, branch: BunshinEnv) -> None:
        rewards[index] = branch.step("keyboard_type('done')" if index % 2 else "keyboard_type('bad')")[1]
        branch.close()

    threads = [threading.Thread(target=run, args=item) for item in enumerate(env.fork(8))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert rewards == {index: 1.0 if index % 2 else -1.0 for index in range(8)}


def test_first_resets_from_threads_boot_once(machine: FakeMachine) -> None:
    pool = machine.pool()
    envs = [BunshinEnv(FakeTask(), bases=pool) for _ in range(8)]
    threads = [threading.Thread(target=made.reset, kwargs={"seed": 1}) for made in envs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (machine.boots, machine.guests) == (1, 8)
    for made in envs:
        made.close()
    pool.close()


def test_a_stock_vector_env(machine: FakeMachine) -> None:
    pool = machine.pool()
    vector = SyncVectorEnv([lambda: BunshinEnv(FakeTask(), bases=pool)] * 3)
    vector.reset(seed=[1, 2, 3])
    _, rewards, terminated, *_ = vector.step(["keyboard_type('done')", "noop(0)", "keyboard_type('bad')"])
    assert rewards.tolist() == [1.0, 0.0, -1.0]
    assert terminated.tolist() == [True, False, True]
    vector.close()
    pool.close()
    assert (machine.guests, machine.bases) == (0, 0)


def test_a_forked_process_leaves_its_parents_bases_alone(machine: FakeMachine) -> None:
    pool = machine.pool()
    key = BaseKey(home="/nowhere", image="fake", screen=Screen(width=8, height=8), surface="browser")
    pool.branch(key).guest.close()
    pid = os.fork()
    if pid == 0:
        pool.close()
        kept = machine.bases == 1
        pool.branch(key)
        os._exit(0 if kept and machine.boots == 2 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    pool.branch(key).guest.close()
    assert machine.boots == 1
    pool.close()
    pool.close()
    assert machine.bases == 0


def test_a_forkable_of_an_env(env: BunshinEnv) -> None:
    env.reset(seed=1)
    source = ForkableEnv(env)
    branch = source.fork()
    result = branch.run(ToolCall(name="keyboard_type", args={"text": "done"}))
    assert (result.reward, result.terminated, result.truncated) == (1.0, True, False)
    assert isinstance(result.observation["screenshot"], np.ndarray)
    branch.close()
    assert source.run(ToolCall(name="noop", args={"wait_ms": 0})).reward == 0.0


def test_wrong_arguments() -> None:
    with pytest.raises(UsageError, match="no task family"):
        BunshinEnv("nothing.at-all")

    with pytest.raises(UsageError, match="surface 'sky'"):
        BunshinEnv(FakeTask(surface="sky"))


def test_a_snapshot_on_disk_has_all_of_the_episode(env: BunshinEnv, tmp_path: Path) -> None:
    env.reset(seed=5)
    env.step("keyboard_type('abc')")
    env.step("send_msg_to_user('hello')")
    env.action_space.seed(3)
    snapshot = env.snapshot()
    snapshot.persist(tmp_path / "state")
    snapshot.close()
    expected = (env.np_random.integers(1 << 30, size=4), env.action_space.sample(), env.observe()["last_action"])
    loaded = env.load_snapshot(tmp_path / "state")
    for _ in range(2):
        branch = loaded.branch()
        found = (branch.np_random.integers(1 << 30, size=4), branch.action_space.sample())
        np.testing.assert_equal(found, expected[:2])
        assert branch.observe()["last_action"] == expected[2]
        assert branch._run is not None
        assert env._run is not None
        assert branch._run.messages == env._run.messages
        assert (branch._run.setup, branch._run.steps) == (env._run.setup, 2)
        assert branch.step("keyboard_type('done')")[1:3] == (1.0, True)
        branch.close()
    loaded.close()


def test_a_snapshot_on_disk_that_is_not_whole_is_refused(env: BunshinEnv, tmp_path: Path) -> None:
    env.reset(seed=5)
    snapshot = env.snapshot()
    for number in range(3):
        snapshot.persist(tmp_path / f"{number}")
    with pytest.raises(UsageError, match="cannot be made"):
        snapshot.persist(tmp_path / "0")
    snapshot.close()
    (tmp_path / "0" / "episode").unlink()
    shutil.rmtree(tmp_path / "1" / "workspace")
    raw = bytearray((tmp_path / "2" / "episode").read_bytes())
    raw[-1] ^= 1
    (tmp_path / "2" / "episode").write_bytes(raw)
    for number in range(3):
        with pytest.raises(SnapshotDamaged, match=f"{tmp_path / str(number)}"):
            env.load_snapshot(tmp_path / f"{number}")


def test_a_state_that_cannot_be_stored_leaves_nothing(machine: FakeMachine, tmp_path: Path) -> None:
    pool = machine.pool()
    env = BunshinEnv(FakeTask(), bases=pool)
    env.reset(seed=1)
    assert env._run is not None
    env._run.setup = replace(env._run.setup, state={"lock": threading.Lock()})
    with pytest.raises(UsageError, match=r"value\.setup\.state\.lock"):
        write_state(tmp_path / "episode", stored_state(env))
    assert list(tmp_path.iterdir()) == []
    env.close()
    pool.close()


def test_hooks_of_speculation_reach_the_workspace(env: BunshinEnv) -> None:
    env.reset(seed=1)
    snapshot = env.snapshot()
    branch, plain = snapshot.branch_confined(), snapshot.branch()
    guests = [cast("FakeGuest", one._guest) for one in (branch, plain)]
    assert [guest.confined for guest in guests] == [True, False]
    branch.hurry()
    plain.confine()
    assert [guest.confined for guest in guests] == [False, True]
    plain.unconfine()
    assert not guests[1].confined
    assert not plain.tried_to_leave()
    guests[1].page["out"] = 1
    assert plain.tried_to_leave()
    digest = branch.state_digest()
    assert branch.state_digest() == digest
    branch.step("keyboard_type('x')")
    assert branch.state_digest() != digest
    for one in (branch, plain, snapshot):
        one.close()
    with pytest.raises(gymnasium.error.ResetNeeded):
        branch.confine()
