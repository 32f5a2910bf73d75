# SPDX-License-Identifier: Apache-2.0
"""The wrapper: the env's own results at every step, and nothing left behind."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import pytest
from fake_guest import FakeTask
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv
from gymnasium.wrappers import OrderEnforcing, PassiveEnvChecker, RecordEpisodeStatistics, TimeLimit
from speculate_fakes import FakeEnv, Memory, as_text

from bunshin_gym.bases import BasePool
from bunshin_gym.cache.tree import SnapshotTree
from bunshin_gym.env_snapshot import EnvSnapshot
from bunshin_gym.envs import BunshinEnv
from bunshin_gym.errors import UsageError, WorkspaceDied
from bunshin_gym.speculate.costs import CostModel
from bunshin_gym.speculate.governor import Budget, Governor
from bunshin_gym.testing import FakeHost, FakeWorkspace
from bunshin_gym.types import ToolCall
from bunshin_gym.wrappers.speculative_step import SpeculativeStep
from bunshin_gym.wrappers.tool_sequence_cache import ToolSequenceCache

Result = tuple[Any, float, bool, bool]


@pytest.fixture
def governor() -> Iterator[Governor]:
    governor = Governor(budget=Budget(branches=8, running=8, cores=16), costs=CostModel(fork_ns=1_000_000))
    yield governor
    assert governor.held == 0
    governor.close()


def script(seed: int) -> list[ToolCall]:
    """The calls that solve the env's world after reset(seed=seed)."""
    env = FakeEnv()
    env.reset(seed=seed)
    assert env.workspace is not None
    calls = list(env.workspace.solution())
    env.close()
    return calls


def play(env: gymnasium.Env[Any, Any], seed: int, actions: Sequence[Any], *, pause_s: float = 0.0) -> list[Result]:
    pause = threading.Event()
    observation, _ = env.reset(seed=seed)
    results: list[Result] = [(observation, 0.0, False, False)]
    for action in actions:
        pause.wait(pause_s)
        *result, info = env.step(action)
        results.append(tuple(result))  # type: ignore[arg-type]
        assert info.get("speculation", "hit") in ("hit", "miss", "none")
    return results


@pytest.mark.parametrize("seed", range(8))
def test_same_results_as_the_env_alone(governor: Governor, seed: int) -> None:
    calls = script(seed)
    actions = [as_text(call) for call in calls]
    plain = FakeEnv()
    expected = play(plain, seed, actions)
    plain.close()
    host = FakeHost(boot_ns=0, fork_ns=0)
    wrong = [calls[0], ToolCall(name="look"), *calls[2:]]
    env = SpeculativeStep(FakeEnv(host), Memory(calls, wrong), governor=governor)
    assert play(env, seed, actions, pause_s=0.02) == expected
    assert env.stats.hits > 0
    assert play(env, seed, actions, pause_s=0.02) == expected
    env.close()
    assert host.open == 0
    assert env.stats.hits + env.stats.misses + env.stats.none == 2 * len(actions)


WRAPPERS: list[Callable[[Any], gymnasium.Env[Any, Any]]] = [
    partial(TimeLimit, max_episode_steps=3),
    OrderEnforcing,
    PassiveEnvChecker,
    RecordEpisodeStatistics,
]


@pytest.mark.parametrize("wrapper", WRAPPERS)
@pytest.mark.parametrize("outside", [False, True])
def test_with_stock_wrappers_inside_and_outside(governor: Governor, wrapper: Any, outside: bool) -> None:
    actions = [as_text(call) for call in script(1)]
    plain = wrapper(FakeEnv())
    expected = play(plain, 1, actions)
    plain.close()
    host = FakeHost(boot_ns=0, fork_ns=0)
    memory = Memory(script(1))
    if outside:
        speculative = SpeculativeStep(FakeEnv(host), memory, governor=governor)
        env: Any = wrapper(speculative)
    else:
        env = speculative = SpeculativeStep(wrapper(FakeEnv(host)), memory, governor=governor)
    assert play(env, 1, actions, pause_s=0.02) == expected
    assert speculative.stats.hits > 0
    env.close()
    assert host.open == 0


@pytest.mark.parametrize(
    "action", ["look()\nmove(1)", "no such thing", "move('x')", {"name": "look", "args": {}}, ToolCall(name="look")]
)
def test_actions_of_every_form(governor: Governor, action: Any) -> None:
    plain = FakeEnv()
    expected = play(plain, 2, [action, "look()"])
    plain.close()
    env = SpeculativeStep(FakeEnv(), Memory([ToolCall(name="look")]), governor=governor)
    assert play(env, 2, [action, "look()"], pause_s=0.01) == expected
    env.close()


def test_external_actions_among_several_are_not_guessed(governor: Governor) -> None:
    host = FakeHost(boot_ns=0, fork_ns=0)
    both = "look()\npay(3)"
    memory = Memory([ToolCall(name="", args={"action": both})])
    env = SpeculativeStep(FakeEnv(host), memory, governor=governor)
    play(env, 2, [both], pause_s=0.05)
    assert host.paid == [3]
    env.close()
    assert host.forks == 0


def test_death_is_raised_and_reset_brings_a_new_one(governor: Governor) -> None:
    host = FakeHost(boot_ns=0, fork_ns=0)
    env = SpeculativeStep(FakeEnv(host), Memory([ToolCall(name="look")]), governor=governor)
    env.reset(seed=1)
    with pytest.raises(WorkspaceDied):
        env.step("die()")
    env.reset(seed=1)
    env.step("look()")
    env.close()
    env.close()
    assert host.open == 0


def test_step_before_reset(governor: Governor) -> None:
    env = SpeculativeStep(FakeEnv(), Memory(), governor=governor)
    with pytest.raises(gymnasium.error.ResetNeeded):
        env.step("look()")
    with pytest.raises(gymnasium.error.ResetNeeded):
        env.fork()


def test_envs_that_cannot_be_speculated_on(governor: Governor) -> None:
    with pytest.raises(UsageError, match="cannot be forked"):
        SpeculativeStep(gymnasium.make("CartPole-v1"), Memory(), governor=governor)

    class Undeclared(FakeEnv):
        effects = None  # type: ignore[assignment]

    with pytest.raises(UsageError, match="effects"):
        SpeculativeStep(Undeclared(), Memory(), governor=governor)
    env = SpeculativeStep(Undeclared(), Memory(), governor=governor, effects={"look": "deterministic"})
    assert env.effects == {"look": "deterministic"}


def test_forks_go_their_own_ways(governor: Governor) -> None:
    host = FakeHost(boot_ns=0, fork_ns=0)
    env = SpeculativeStep(FakeEnv(host), Memory(script(4)), governor=governor)
    env.reset(seed=4)
    env.step("write('a')")
    with pytest.raises(UsageError):
        env.fork(0)
    left, right = env.fork(2)
    assert "['a', 'l']" in left.step("write('l')")[0]["text"]
    assert "['a', 'r']" in right.step("write('r')")[0]["text"]
    assert "['a']" in env.step("look()")[0]["text"]
    for each in (left, env, right):
        each.close()
    assert host.open == 0


def test_a_group_is_forked_from_one_snapshot(pool: BasePool, governor: Governor) -> None:
    taken = 0

    class Counted(BunshinEnv):
        def snapshot(self) -> EnvSnapshot:
            nonlocal taken
            taken += 1
            return super().snapshot()

    env = SpeculativeStep(Counted(FakeTask(), bases=pool), Memory(()), governor=governor)
    env.reset(seed=4)
    branches = env.fork(6)
    assert taken == 1
    assert [branch.step("keyboard_type('done')")[1] for branch in branches] == [1.0] * 6
    for each in (env, *branches):
        each.close()


def test_speculation_over_speculation(governor: Governor) -> None:
    """As it is when a cache in between materialises speculating envs: nothing breaks, nothing is left."""
    host = FakeHost(boot_ns=0, fork_ns=0)
    calls = script(5)
    inner = SpeculativeStep(FakeEnv(host), Memory(calls), governor=governor)
    env = SpeculativeStep(inner, Memory(calls), governor=governor)
    plain = FakeEnv()
    actions = [as_text(call) for call in calls]
    expected = play(plain, 5, actions)
    plain.close()
    assert play(env, 5, actions, pause_s=0.01) == expected
    env.close()
    assert host.open == 0


@pytest.mark.parametrize("outermost", ["cache", "speculation"])
def test_with_the_sequence_cache(governor: Governor, tmp_path: Path, outermost: str) -> None:
    """Three attempts each: the first fills the tree, the second follows it, the third leaves it half-way."""
    host = FakeHost(boot_ns=0, fork_ns=0)
    calls = script(5)
    detour = [*calls[:2], ToolCall(name="write", args={"text": "x"}), *calls[2:]]
    scripts = [calls, calls, detour]
    plain = FakeEnv()
    expected = [play(plain, 5, [as_text(call) for call in each]) for each in scripts]
    plain.close()
    with contextlib.closing(SnapshotTree(tmp_path)) as tree:
        memory = Memory(calls, detour)
        env: Any = FakeEnv(host)
        if outermost == "cache":
            env = ToolSequenceCache(SpeculativeStep(env, memory, governor=governor), tree)
        else:
            env = SpeculativeStep(ToolSequenceCache(env, tree), memory, governor=governor)
        for each, results in zip(scripts, expected, strict=True):
            assert play(env, 5, [as_text(call) for call in each], pause_s=0.03) == results
        env.close()
    assert host.open == 0


def test_snapshots_make_speculating_branches(governor: Governor) -> None:
    host = FakeHost(boot_ns=0, fork_ns=0)
    env = SpeculativeStep(FakeEnv(host), Memory(script(4)), governor=governor)
    with pytest.raises(gymnasium.error.ResetNeeded):
        env.snapshot()
    env.reset(seed=4)
    env.step("write('a')")
    held = env.snapshot()
    env.step("write('b')")
    left, right = held.branch(), held.branch()
    held.close()
    assert "['a', 'l']" in left.step("write('l')")[0]["text"]
    assert "['a', 'r']" in right.step("write('r')")[0]["text"]
    for each in (left, env, right):
        each.close()
    assert host.open == 0


def test_in_threads_and_from_an_event_loop(governor: Governor) -> None:
    host = FakeHost(boot_ns=0, fork_ns=0, real_time=True)
    calls = script(3)
    plain = FakeEnv()
    expected = play(plain, 3, [as_text(call) for call in calls])
    plain.close()

    async def drive() -> list[Result]:
        env = SpeculativeStep(FakeEnv(host), Memory(calls), governor=governor)
        observation, _ = env.reset(seed=3)
        results: list[Result] = [(observation, 0.0, False, False)]
        for call in calls:
            await asyncio.sleep(0.01)
            *result, _ = await env.step_async(as_text(call))
            results.append(tuple(result))  # type: ignore[arg-type]
        env.close()
        return results

    async def drive_all() -> list[list[Result]]:
        return await asyncio.gather(*(drive() for _ in range(6)))

    assert all(results == expected for results in asyncio.run(drive_all()))
    assert host.open == 0


def _make(calls: Sequence[ToolCall]) -> gymnasium.Env[Any, Any]:
    return SpeculativeStep(FakeEnv(FakeHost(boot_ns=0, fork_ns=0)), Memory(calls))


@pytest.mark.parametrize("kind", [SyncVectorEnv, AsyncVectorEnv])
def test_in_vector_envs(kind: Any) -> None:
    calls = script(6)
    envs = kind([partial(_make, calls) for _ in range(3)])
    envs.reset(seed=[6, 6, 6])
    pause = threading.Event()
    rewards = []
    for call in calls:
        pause.wait(0.03)
        _, reward, terminated, _, infos = envs.step([as_text(call)] * 3)
        rewards.append(reward.sum())
    assert sum(rewards) == 3.0
    assert terminated.all()
    assert set(infos["speculation"]) <= {"hit", "miss", "none"}
    envs.close()


def test_learns_from_each_episode(governor: Governor) -> None:
    memory = Memory()
    env = SpeculativeStep(FakeEnv(), memory, governor=governor)
    play(env, 1, ["look()", "write('a')"])
    play(env, 2, ["look()"])
    env.close()
    governor._workers.shutdown(wait=True)
    assert sorted(len(attempt.steps) for attempt in memory.learnt) == [1, 2]
    assert {attempt.task for attempt in memory.learnt} == {"fake"}


def test_fake_worlds_differ_by_seed() -> None:
    """What the tests above rely on: two seeds that need different calls."""
    assert {tuple(map(as_text, script(seed))) for seed in range(8)} != {tuple(map(as_text, script(0)))}
    with FakeWorkspace(seed=0) as workspace:
        assert workspace.solution()
