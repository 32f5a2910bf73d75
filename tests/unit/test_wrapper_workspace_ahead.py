# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import gymnasium
import pytest
from fake_guest import FakeMachine, FakeTask

from bunshin_gym.bases import BasePool
from bunshin_gym.envs import BunshinEnv
from bunshin_gym.errors import ResourceError, UsageError
from bunshin_gym.wrappers.workspace_ahead import WorkspaceAhead


@pytest.fixture
def env(pool: BasePool) -> Iterator[WorkspaceAhead]:
    env = WorkspaceAhead(BunshinEnv(FakeTask(), bases=pool))
    yield env
    env.close()


def guest_of(env: WorkspaceAhead) -> Any:
    inner: Any = env.unwrapped
    return inner._guest


def spare_of(env: WorkspaceAhead) -> Any:
    """The workspace that is ready."""
    env.wait_ready()
    (spare,) = [spare for spares in env._nursery._ready.values() for spare in spares]
    return spare.guest


def test_a_reset_begins_in_the_workspace_that_was_made_ahead(env: WorkspaceAhead, machine: FakeMachine) -> None:
    env.reset(seed=1)
    for _ in range(3):
        spare, used = spare_of(env), guest_of(env)
        env.reset()
        assert guest_of(env) is spare
        env.wait_ready()
        assert used.closed
        assert machine.guests == 2, "one in use and one ready"


def test_episodes_are_those_of_the_env_alone(env: WorkspaceAhead, pool: BasePool) -> None:
    alone = BunshinEnv(FakeTask(), bases=pool)
    for seed in (4, None, None):
        seen, info = env.reset(seed=seed)
        wanted, wanted_info = alone.reset(seed=seed)
        assert (seen["axtree_txt"], info["task_seed"]) == (wanted["axtree_txt"], wanted_info["task_seed"])
        env.wait_ready()
    alone.close()


def test_a_spare_that_died_makes_no_difference(env: WorkspaceAhead, pool: BasePool) -> None:
    alone = BunshinEnv(FakeTask(), bases=pool)
    env.reset(seed=4)
    alone.reset(seed=4)
    spare_of(env).dead = True
    assert env.reset()[1]["task_seed"] == alone.reset()[1]["task_seed"]
    alone.close()


def test_a_spare_that_cannot_be_made_hinders_nobody(env: WorkspaceAhead, machine: FakeMachine) -> None:
    env.reset(seed=1)
    spare_of(env)
    machine.fail_branch = ResourceError("too many processes")
    env.reset(seed=2)
    env.wait_ready()
    assert env.step("keyboard_type('done')")[1] == 1.0


def test_other_envs_are_refused() -> None:
    with pytest.raises(UsageError, match="BunshinEnv"):
        WorkspaceAhead(gymnasium.make("CartPole-v1"))
