# SPDX-License-Identifier: Apache-2.0
"""Gymnasium's own wrappers around an env, and what copying and pickling say."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium
import pytest
from fake_guest import FakeTask
from gymnasium import wrappers
from gymnasium.vector import SyncVectorEnv
from gymnasium.wrappers import vector as vector_wrappers

from bunshin_gym.bases import BasePool
from bunshin_gym.envs import BunshinEnv
from bunshin_gym.errors import UsageError
from bunshin_gym.vector import BunshinVectorEnv

WRAPPERS: dict[str, Callable[[Any], gymnasium.Env[Any, Any]]] = {
    "Autoreset": wrappers.Autoreset,
    "ClipReward": lambda env: wrappers.ClipReward(env, min_reward=-0.5, max_reward=0.5),
    "FilterObservation": lambda env: wrappers.FilterObservation(env, filter_keys=["screenshot", "goal"]),
    "FlattenScreenshot": lambda env: wrappers.FlattenObservation(wrappers.FilterObservation(env, ["screenshot"])),
    "FrameStackObservation": lambda env: wrappers.FrameStackObservation(env, 2),
    "OrderEnforcing": wrappers.OrderEnforcing,
    "NormalizeReward": wrappers.NormalizeReward,
    "PassiveEnvChecker": wrappers.PassiveEnvChecker,
    "RecordEpisodeStatistics": wrappers.RecordEpisodeStatistics,
    "RenderCollection": wrappers.RenderCollection,
    "TimeAwareObservation": lambda env: wrappers.TimeAwareObservation(wrappers.TimeLimit(env, 5)),
    "TimeLimit": lambda env: wrappers.TimeLimit(env, 2),
    "TransformReward": lambda env: wrappers.TransformReward(env, lambda reward: 2 * reward),
}


@pytest.fixture
def make(pool: BasePool) -> Iterator[Callable[[], BunshinEnv]]:
    made: list[BunshinEnv] = []

    def make_one() -> BunshinEnv:
        made.append(BunshinEnv(FakeTask(), bases=pool, render_mode="rgb_array"))
        return made[-1]

    yield make_one
    for env in made:
        env.close()


@pytest.mark.parametrize("name", WRAPPERS)
def test_around_an_env(make: Callable[[], BunshinEnv], name: str) -> None:
    env = WRAPPERS[name](make())
    seen, _ = env.reset(seed=1)
    assert env.observation_space.contains(seen)
    seen, reward, terminated, _, info = env.step("keyboard_type('done')")
    assert env.observation_space.contains(seen)
    assert reward > 0
    assert terminated
    assert info["text"] == "done"
    seen, _ = env.reset()
    assert env.observation_space.contains(seen)
    env.close()


def test_frames_are_stacked_in_their_order(make: Callable[[], BunshinEnv]) -> None:
    env = wrappers.FrameStackObservation(make(), 3)
    env.reset(seed=1)
    env.step("keyboard_type('a')")
    seen = env.step("keyboard_type('b')")[0]
    assert seen["screenshot"].shape == (3, 16, 32, 3)
    assert [("a" in text, "b" in text) for text in (t.split("'")[1] for t in seen["axtree_txt"])] == [
        (False, False),
        (True, False),
        (True, True),
    ]


def test_statistics_and_limits_add_up(make: Callable[[], BunshinEnv]) -> None:
    env = wrappers.RecordEpisodeStatistics(wrappers.TimeLimit(make(), 2))
    env.reset(seed=1)
    env.step("noop(0)")
    _, _, terminated, truncated, info = env.step("noop(0)")
    assert (terminated, truncated) == (False, True)
    assert info["episode"]["l"] == 2


def test_a_film_is_recorded(make: Callable[[], BunshinEnv], tmp_path: Path) -> None:
    env = wrappers.RecordVideo(make(), str(tmp_path / "film"), episode_trigger=lambda _: True, disable_logger=True)
    env.reset(seed=1)
    for _ in range(3):
        env.step("noop(0)")
    env.close()
    (film,) = (tmp_path / "film").glob("*.mp4")
    assert film.stat().st_size > 0


def test_vector_wrappers_around_ours(make_vector: Callable[..., BunshinVectorEnv]) -> None:
    ours: Any = make_vector(2, autoreset_mode="SameStep")
    envs = vector_wrappers.DictInfoToList(vector_wrappers.RecordEpisodeStatistics(ours))
    envs.reset(seed=1)
    _, _, _, _, infos = envs.step(["keyboard_type('done')", "noop(0)"])
    assert infos[0]["episode"]["r"] == 1.0


def test_a_stock_vector_env_of_wrapped_envs(make: Callable[[], BunshinEnv]) -> None:
    batch = SyncVectorEnv([lambda: wrappers.TimeLimit(make(), 1)] * 2)
    batch.reset(seed=1)
    assert batch.step(["noop(0)"] * 2)[3].tolist() == [True, True]
    batch.close()


@pytest.mark.parametrize("wrap", [lambda env: env, lambda env: wrappers.TimeLimit(env, 3)])
def test_copies_say_what_to_do_instead(make: Callable[[], BunshinEnv], wrap: Callable[[Any], Any]) -> None:
    env = wrap(make())
    env.reset(seed=1)
    for copying in (copy.copy, copy.deepcopy):
        with pytest.raises(UsageError, match=r"fork\(n\) makes branches"):
            copying(env.unwrapped)
    with pytest.raises(UsageError, match="fork"):
        copy.deepcopy(env)
    with pytest.raises(UsageError, match="build the env in the process that uses it"):
        pickle.dumps(env)


def test_a_vector_env_says_so_too(make_vector: Callable[..., BunshinVectorEnv]) -> None:
    envs = make_vector(2)
    with pytest.raises(UsageError, match="workspaces"):
        copy.deepcopy(envs)
    with pytest.raises(UsageError, match="process that uses it"):
        pickle.dumps(envs)
