# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import numpy as np
import pytest
from fake_guest import FakeMachine, FakeTask
from gymnasium.vector import SyncVectorEnv

from bunshin_gym.envs import BunshinEnv
from bunshin_gym.errors import UsageError, WorkspaceDied
from bunshin_gym.wrappers.truncate_on_death import TruncateOnDeath


def test_a_death_is_a_truncated_step_and_the_next_reset_a_new_workspace() -> None:
    machine = FakeMachine()
    pool = machine.pool()
    env = TruncateOnDeath(BunshinEnv(FakeTask(), bases=pool))
    before, _ = env.reset(seed=1)
    seen, reward, terminated, truncated, info = env.step("keyboard_type('die')")
    assert (reward, terminated, truncated) == (0.0, False, True)
    assert np.array_equal(seen["screenshot"], before["screenshot"])
    assert "died" in info["workspace_died"]
    env.reset()
    assert env.step("keyboard_type('done')")[1] == 1.0
    env.close()
    pool.close()
    assert (machine.guests, machine.bases) == (0, 0)


def test_the_others_of_a_batch_go_on() -> None:
    machine = FakeMachine()
    pool = machine.pool()
    batch = SyncVectorEnv([lambda: TruncateOnDeath(BunshinEnv(FakeTask(), bases=pool))] * 2)
    batch.reset(seed=1)
    _, _, _, truncated, _ = batch.step(["keyboard_type('die')", "keyboard_type('x')"])
    assert truncated.tolist() == [True, False]
    batch.step(["noop(0)", "noop(0)"])
    _, rewards, _, truncated, _ = batch.step(["keyboard_type('done')", "keyboard_type('done')"])
    assert rewards.tolist() == [1.0, 1.0]
    batch.close()
    pool.close()


def test_a_reset_is_tried_again_then_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = FakeMachine()
    pool = machine.pool()
    inner = BunshinEnv(FakeTask(), bases=pool)
    deaths = [WorkspaceDied("one"), WorkspaceDied("two")]
    real = inner.reset

    def unlucky(**options: object) -> object:
        if deaths:
            raise deaths.pop()
        return real(**options)  # type: ignore[arg-type]

    monkeypatch.setattr(inner, "reset", unlucky)
    TruncateOnDeath(inner).reset(seed=1)
    deaths.extend([WorkspaceDied("one"), WorkspaceDied("two")])
    with pytest.raises(WorkspaceDied, match="one"):
        TruncateOnDeath(inner, reset_attempts=2).reset(seed=1)
    inner.close()
    pool.close()
    with pytest.raises(UsageError):
        TruncateOnDeath(inner, reset_attempts=0)
