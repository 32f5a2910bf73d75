# SPDX-License-Identifier: Apache-2.0
"""`ToolSequenceCache` around envs: nobody can tell the difference, except by the time."""

from __future__ import annotations

import copy
import threading
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from cached_envs import DONE, A, B, cached, plain, same, walk
from fake_guest import FakeMachine, FakeTask
from gymnasium.utils.env_checker import check_env
from gymnasium.wrappers import TimeLimit
from speculate_fakes import FakeEnv, Memory, as_text

from bunshin_gym.cache import CachePolicy
from bunshin_gym.envs import BunshinEnv
from bunshin_gym.errors import UsageError
from bunshin_gym.speculate.costs import CostModel
from bunshin_gym.speculate.governor import Budget, Governor
from bunshin_gym.testing import FAKE_TOOLS, FakeHost, FakeWorkspace
from bunshin_gym.types import ToolCall
from bunshin_gym.wrappers.speculative_step import SpeculativeStep
from bunshin_gym.wrappers.tool_sequence_cache import ToolSequenceCache


def test_a_known_episode_runs_nothing(machine, pool, tree) -> None:
    with cached(pool, tree) as first, cached(pool, tree) as second, plain(pool) as bare:
        _, sources = walk(first, A, DONE)
        assert sources == ["boot", "run", "run"]
        guests = machine.guests
        shown, sources = walk(second, A, DONE)
        assert sources == ["hit"] * 3
        assert machine.guests == guests, "a hit made a workspace"
        same(shown, walk(bare, A, DONE)[0])


def test_the_first_new_step_makes_a_workspace_in_the_right_state(machine, pool, tree) -> None:
    with cached(pool, tree) as first, cached(pool, tree) as second, plain(pool) as bare:
        walk(first, A, A)
        shown, sources = walk(second, A, B, A)
        assert sources == ["hit", "hit", "run", "run"]
        same(shown, walk(bare, A, B, A)[0])


def test_spellings_of_one_step_are_one_step_and_each_sees_its_own_words(pool, tree) -> None:
    spellings = [A, "keyboard_type(text='a')", ToolCall(name="keyboard_type", args={"text": "a"}), [
        {"name": "keyboard_type", "args": {"text": "a"}}]]  # fmt: skip
    for i, spelling in enumerate(spellings):
        with cached(pool, tree) as env, plain(pool) as bare:
            shown, sources = walk(env, spelling)
            assert sources == (["boot", "run"] if i == 0 else ["hit", "hit"])
            same(shown, walk(bare, spelling)[0])


def test_actions_that_are_no_call_or_several(pool, tree) -> None:
    actions = ["nonsense(", "click('99')", f"{A}\n{B}", "unknown_tool()", DONE]
    for i in range(2):
        with cached(pool, tree) as env, plain(pool) as bare:
            shown, sources = walk(env, *actions)
            assert set(sources[1:]) == ({"run"} if i == 0 else {"hit"})
            same(shown, walk(bare, *actions)[0])


def test_seeds_options_and_screens_are_apart(pool, tree) -> None:
    with cached(pool, tree) as env:
        walk(env, A, seed=1)
        assert walk(env, A, seed=2)[1] == ["boot", "run"]
        env.reset(options={"task_seed": 7})
        assert env.reset(options={"task_seed": 7})[1]["cache"].source == "hit"
        assert env.reset(options={"task_seed": 8})[1]["cache"].source == "boot"
        with pytest.raises(UsageError, match="unknown reset options"):
            env.reset(options={"tusk": 1})
    with cached(pool, tree, screen=(40, 20)) as env:
        assert walk(env, A, seed=1)[1] == ["boot", "run"]


def test_later_resets_draw_the_seeds_that_the_env_would(pool, tree) -> None:
    for _ in range(2):
        with cached(pool, tree) as env, plain(pool) as bare:
            for seed in (3, None, None):
                same(walk(env, A, seed=seed)[0], walk(bare, A, seed=seed)[0])


def test_a_timed_task_is_not_reused(machine, pool, tree) -> None:
    for _ in range(2):
        with ToolSequenceCache(BunshinEnv(FakeTask(timed=True), bases=pool), tree) as env:
            assert walk(env, A)[1][1] == "off_tree"


def test_wrappers_outside_see_every_step(pool, tree) -> None:
    for i in range(2):
        with ToolSequenceCache(TimeLimit(plain(pool), max_episode_steps=2), tree) as env:
            assert isinstance(env.env, TimeLimit)
            env.reset(seed=5)
            assert env.step(A)[3] is False
            *_, truncated, info = env.step(A)
            assert truncated
            assert info["cache"].source == ("run" if i == 0 else "hit")


@pytest.mark.filterwarnings("ignore:.*different from the unwrapped version")
def test_gymnasiums_checker_is_content(pool, tree) -> None:
    for _ in range(2):
        with cached(pool, tree, render_mode="rgb_array") as env:
            check_env(env, skip_render_check=True)


def test_render_of_a_hit_shows_the_stored_screen(machine, pool, tree) -> None:
    with cached(pool, tree, render_mode="rgb_array") as env:
        walk(env, A)
    with cached(pool, tree, render_mode="rgb_array") as env, plain(pool, render_mode="rgb_array") as bare:
        walk(env, A)
        walk(bare, A)
        guests = machine.guests
        same(env.render(), bare.render())
        assert machine.guests == guests


def test_materialise_gives_the_env_in_the_episodes_state(pool, tree) -> None:
    with cached(pool, tree) as first, cached(pool, tree) as env:
        walk(first, A, B)
        walk(env, A)
        inside: Any = env.materialise()
        assert "'a'" in inside.observe()["axtree_txt"]
        assert env.unwrapped is inside
        with pytest.raises(gymnasium.error.ResetNeeded):
            cached(pool, tree).materialise()


def test_forks_go_on_from_here_and_leave_each_other_alone(machine, pool, tree) -> None:
    with cached(pool, tree) as env, plain(pool) as bare:
        walk(env, A)
        branches = env.fork(2)
        texts = []
        for branch, action in zip((*branches, env), (A, B, DONE), strict=True):
            texts.append(branch.step(action)[0]["axtree_txt"])
        wanted = [walk(bare, A, action)[0][-1][0]["axtree_txt"] for action in (A, B, DONE)]
        assert texts == wanted
        for branch in branches:
            same(walk(branch, A, B)[0], walk(bare, A, B)[0])
            branch.close()
        with pytest.raises(UsageError):
            env.fork(0)


def test_a_dead_workspace_raises_and_the_episode_can_go_on(machine, pool, tree) -> None:
    from bunshin_gym.errors import WorkspaceDied

    with cached(pool, tree) as env, plain(pool) as bare:
        walk(env, A)
        with pytest.raises(WorkspaceDied):
            env.step("keyboard_type('die')")
        got = env.step(B)[0]
        same(got, walk(bare, A, B)[0][-1][0])


def test_a_reset_that_fails_leaves_nothing_and_can_be_tried_again(machine, pool, tree) -> None:
    from bunshin_gym.errors import ResourceError

    with cached(pool, tree) as env:
        machine.fail_branch = ResourceError("no memory")
        with pytest.raises(ResourceError):
            env.reset(seed=1)
        with pytest.raises(gymnasium.error.ResetNeeded):
            env.step(A)
        env.reset(seed=1)


def test_wrappers_over_one_tree_keep_to_one_share_of_the_time(pool, tree) -> None:
    for i in range(6):
        with cached(pool, tree, policy=CachePolicy(snapshot_share=1e-9)) as env:
            walk(env, A, seed=i)
    assert len(tree.ledger.snapshots()) <= 1, "each wrapper had a first snapshot of its own"


def test_known_says_what_would_run_nothing(pool, tree) -> None:
    a, b = (ToolCall(name="keyboard_type", args={"text": text}) for text in "ab")
    with cached(pool, tree) as env:
        assert not env.known(a)
        walk(env, A)
        env.reset(seed=5)
        assert env.known(a)
        assert not env.known(b)


def test_the_random_numbers_are_the_episodes_own(pool, tree) -> None:
    """A workspace made from another attempt's snapshot must not bring that one's random numbers along."""
    with cached(pool, tree, policy=CachePolicy(snapshot_share=1.0)) as env:
        for seed in (1, 2):
            env.reset(seed=seed, options={"task_seed": 7})
            env.step(A)
            wanted = np.random.default_rng()
            wanted.bit_generator.state = copy.deepcopy(env._core.home.unwrapped.np_random.bit_generator.state)
            inside: Any = env.materialise()
            assert inside.np_random.bit_generator.state == wanted.bit_generator.state


def test_a_directory_will_do_and_is_closed_with_the_env(pool, tmp_path: Path) -> None:
    env = ToolSequenceCache(plain(pool), tmp_path / "own")
    walk(env, A)
    env.close()
    env.close()
    with ToolSequenceCache(plain(pool), tmp_path / "own") as again:
        assert walk(again, A)[1] == ["hit", "hit"]


class Chest(gymnasium.Env[dict[str, Any], ToolCall]):
    """An env over the fake workspace that offers but `fork`: the least that the cache can do with."""

    observation_space = gymnasium.spaces.Dict({"text": gymnasium.spaces.Text(10_000)})

    def __init__(self, host: FakeHost, world: FakeWorkspace | None = None) -> None:
        self.host, self.world = host, world

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        super().reset(seed=seed)
        self.close()
        self.world = FakeWorkspace(seed=seed if seed is not None else 0, host=self.host)
        return {"text": self.world._world.text()}, {}

    def step(self, action: ToolCall) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        assert self.world is not None
        result = self.world.run(action)
        text = {"text": result.observation["text"]}
        return text, result.reward, result.terminated, result.truncated, dict(result.info)

    def fork(self) -> Chest:
        assert self.world is not None
        return Chest(self.host, self.world.fork())

    def close(self) -> None:
        if self.world is not None:
            self.world.close()
            self.world = None


def test_an_env_that_offers_but_fork(tree) -> None:
    host = FakeHost()
    with FakeWorkspace(seed=3) as world:
        solution = world.solution()
    for i in range(3):
        with ToolSequenceCache(Chest(host), tree, effects=FAKE_TOOLS, policy=CachePolicy(snapshot_share=1.0)) as env:
            env.reset(seed=3)
            sources = [env.step(call)[4]["cache"].source for call in solution]
            assert set(sources) == ({"run"} if i == 0 else {"hit"})
        with ToolSequenceCache(Chest(host), tree, effects=FAKE_TOOLS) as env:
            env.reset(seed=3)
            env.step(solution[0])
            assert "paid 3" in env.step(ToolCall(name="pay", args={"amount": 3}))[0]["text"]
    tree.close()
    assert host.open == 0
    assert host.paid == [3, 3, 3]


@pytest.fixture
def governor():
    governor = Governor(budget=Budget(branches=8, running=8), costs=CostModel(fork_ns=1_000_000))
    yield governor
    assert governor.held == 0
    governor.close()


def world_script(seed: int) -> tuple[ToolCall, ...]:
    with FakeWorkspace(seed=seed) as world:
        return world.solution()


@pytest.mark.parametrize("order", ["cache outside", "cache inside"])
def test_with_speculation_over_and_under_it(tree, governor, order: str) -> None:
    host = FakeHost(boot_ns=0, fork_ns=0)
    calls = world_script(2)
    pause = threading.Event()

    def make() -> gymnasium.Env[Any, Any]:
        if order == "cache inside":
            inner = ToolSequenceCache(FakeEnv(host), tree)
            return SpeculativeStep(inner, Memory(calls), governor=governor)
        return ToolSequenceCache(SpeculativeStep(FakeEnv(host), Memory(calls), governor=governor), tree)

    bare = FakeEnv()
    for actions in (
        calls,
        calls,
        (calls[0], ToolCall(name="look"), *calls[1:]),
        (ToolCall(name="pay", args={"amount": 2}),),
    ):
        texts = [as_text(action) for action in actions]
        wanted = [bare.reset(seed=2)[0], *(bare.step(text)[:4] for text in texts)]
        env = make()
        got = [env.reset(seed=2)[0]]
        for text in texts:
            pause.wait(0.02)
            got.append(env.step(text)[:4])
        assert got == wanted
        env.close()
    bare.close()
    assert host.paid == [2], "an outside effect was repeated"
    tree.close()
    assert host.open == 0


@pytest.mark.parametrize("vector", [gymnasium.vector.SyncVectorEnv, gymnasium.vector.AsyncVectorEnv])
def test_in_vector_envs_that_share_a_directory(tmp_path: Path, vector: Any) -> None:
    def make() -> gymnasium.Env[Any, Any]:
        return ToolSequenceCache(BunshinEnv(FakeTask(), bases=FakeMachine().pool()), tmp_path / "tree")

    for i in range(2):
        envs = vector([make] * 3)
        envs.reset(seed=[5, 5, 5])
        sources = []
        for action in (A, B):
            observations, _, _, _, info = envs.step((action,) * 3)
            assert len(set(observations["axtree_txt"])) == 1
            sources += [entry.source for entry in info["cache"]]
        envs.close()
        ran = sources.count("run")
        assert ran == (2 if i == 0 else 0), f"three attempts ran two calls {ran} times: {sources}"


def test_an_env_without_fork_or_effects_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be forked"):
        ToolSequenceCache(gymnasium.make("CartPole-v1"), tmp_path)
    with pytest.raises(UsageError, match="effects"):
        ToolSequenceCache(Chest(FakeHost()), tmp_path)
