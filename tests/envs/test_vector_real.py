# SPDX-License-Identifier: Apache-2.0
"""The vector env over real workspaces: kills, hangs, groups, and nothing left."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any

import gymnasium
import numpy as np
import pytest

from bunshin_gym.tasks.scripted import solve
from bunshin_gym.vector import BunshinVectorEnv, make_group

CLICK = "bunshin_gym:bunshin/MiniWoB-ClickTest-v0"
LOGIN = "bunshin_gym:bunshin/MiniWoB-LoginUser-v0"


@pytest.fixture
def make_vec() -> Iterator[Callable[..., Any]]:
    made = []

    def make_one(env_id: str, **options: Any) -> Any:
        made.append(gymnasium.make_vec(env_id, **options))
        return made[-1]

    yield make_one
    for env in made:
        env.close()


def at(batch: dict[str, Any], index: int) -> dict[str, Any]:
    return {key: values[index] for key, values in batch.items()}


def pids(env: BunshinVectorEnv) -> list[int]:
    return [slot.inner._guest.workspace.pid for slot in env._slots]  # type: ignore[union-attr,attr-defined]


def test_a_killed_workspace_of_eight_leaves_seven_undisturbed(make_vec: Callable[..., Any]) -> None:
    env = make_vec(LOGIN, num_envs=8)
    assert isinstance(env, BunshinVectorEnv)
    seen, _ = env.reset(seed=1)
    plans = [solve("miniwob.login-user", at(seen, index)) for index in range(8)]
    env.step([plan[0] for plan in plans])
    before = pids(env)
    os.kill(before[3], signal.SIGKILL)
    _, _, _, truncated, infos = env.step([plan[1] for plan in plans])
    assert truncated.tolist() == [index == 3 for index in range(8)]
    assert infos["_workspace_died"].tolist() == truncated.tolist()
    seen, rewards, terminated, truncated, _ = env.step([plan[2] for plan in plans])
    assert rewards.tolist() == [0.0 if index == 3 else 1.0 for index in range(8)], "seven finish what they had begun"
    assert terminated.tolist() == [index != 3 for index in range(8)]
    assert not truncated.any(), "the slot is back within one step"
    fresh = solve("miniwob.login-user", at(seen, 3))
    for action in fresh:
        _, rewards, *_ = env.step([action if index == 3 else "noop(0)" for index in range(8)])
    assert rewards[3] == 1.0


def test_a_hung_workspace_is_ended_and_replaced(make_vec: Callable[..., Any]) -> None:
    env = make_vec(CLICK, num_envs=3, step_timeout_s=3.0, autoreset_mode="SameStep")
    first, _ = env.reset(seed=1)
    env._slots[1].inner._guest.workspace.freeze()
    begun = time.monotonic()
    seen, _, _, truncated, infos = env.step(["noop(0)"] * 3)
    assert time.monotonic() - begun >= 3.0
    assert truncated.tolist() == [False, True, False]
    assert "no answer in 3 s" in infos["final_info"]["workspace_died"][1]
    assert infos["final_obs"][1]["goal"] == first["goal"][1]
    actions = [solve("miniwob.click-test", at(seen, index))[0] for index in range(3)]
    assert env.step(actions)[1].tolist() == [1.0, 1.0, 1.0]


def test_a_group_is_one_set_up_and_branches() -> None:
    group = make_group("miniwob.enter-text", 4)
    seen, infos = group.reset(seed=5)
    assert len(set(infos["task_seed"].tolist())) == 1
    assert len(set(seen["goal"])) == 1
    fill, submit = solve("miniwob.enter-text", at(seen, 0))
    box = fill.split("'")[1]
    group.step([fill, f"fill({box!r}, 'wrong')", fill, "noop(0)"])
    assert group.step([submit] * 4)[1].tolist() == [1.0, -1.0, 1.0, -1.0]
    os.kill(pids(group)[2], signal.SIGKILL)
    seen, _ = group.reset(options={"reset_mask": np.ones(4, dtype=bool)})
    assert group.step(["noop(0)"] * 4)[3].any() is np.False_
    group.close()
