# SPDX-License-Identifier: Apache-2.0
"""Resets that are announced to a `ToolSequenceCache`, and got ready meanwhile."""

from __future__ import annotations

from typing import Any

import pytest
from cached_envs import DONE, A, cached, plain, same, walk
from fake_guest import FakeMachine

from bunshin_gym.errors import EngineError, UsageError


def test_a_start_that_was_announced_is_ready(pool: Any, tree: Any, machine: FakeMachine) -> None:
    env = cached(pool, tree)
    env.prefetch(seed=5)
    fetched = env._core._fetched
    assert fetched is not None
    fetched.join()
    assert machine.guests > 0, "nothing was got ready"
    shown = walk(env, A, DONE)
    assert shown[1] == ["boot", "run", "run"]
    bare = plain(pool)
    same(shown[0], walk(bare, A, DONE)[0])
    bare.close()
    env.close()


def test_an_announcement_is_no_obligation(pool: Any, tree: Any) -> None:
    env, bare = cached(pool, tree), plain(pool)
    for one in (env, bare):
        one.reset(seed=1)
        one.step(DONE)
    env._core.release()
    env.prefetch(options={"task_seed": 9})
    for seed in (None, 3):
        env.prefetch(options={"task_seed": 9})
        observation, info = env.reset(seed=seed)
        expected, wanted = bare.reset(seed=seed)
        same(observation, expected)
        assert info["task_seed"] == wanted["task_seed"]
        env._core.release()
    env.prefetch(seed=4)
    env.close()
    bare.close()


def test_what_cannot_be_announced(pool: Any, tree: Any, machine: FakeMachine) -> None:
    env = cached(pool, tree)
    with pytest.raises(UsageError, match="without a seed"):
        env.prefetch()
    machine.fail_branch = EngineError("no memory")
    env.prefetch(seed=5)
    assert env.reset(seed=5)[1]["cache"].source == "boot", "the reset tries again"
    with pytest.raises(UsageError, match="an episode is under way"):
        env.prefetch(seed=6)
    env.close()
