# SPDX-License-Identifier: Apache-2.0
"""Workspaces that a vector env makes ahead."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from fake_guest import FakeMachine

from bunshin_gym.errors import ResourceError, UsageError
from bunshin_gym.vector import BunshinVectorEnv

DONE = "keyboard_type('done')"


def ready(env: BunshinVectorEnv) -> list[Any]:
    """Its spares, when as many as can be are made."""
    env.wait_for_spares()
    return [spare.guest for spares in env._nursery._ready.values() for spare in spares]


def test_resets_take_workspaces_that_were_made_ahead(
    make_vector: Callable[..., BunshinVectorEnv], machine: FakeMachine
) -> None:
    env = make_vector(2, spares=2, autoreset_mode="SameStep")
    env.reset(seed=1)
    for _ in range(3):
        spares = {id(guest) for guest in ready(env)}
        assert (len(spares), machine.guests) == (2, 4)
        assert env.step([DONE, DONE])[1].tolist() == [1.0, 1.0]
        assert {id(slot.inner._guest) for slot in env._slots} == spares
    pages = [env.reset(seed=1)[0]["axtree_txt"] for _ in range(2)]
    assert pages[0] == pages[1]


def test_a_spare_that_died_is_replaced(make_vector: Callable[..., BunshinVectorEnv]) -> None:
    env = make_vector(1, spares=1)
    env.reset(seed=1)
    (spare,) = ready(env)
    spare.dead = True
    env.reset(seed=2)
    assert spare.closed
    assert env.step([DONE])[1].tolist() == [1.0]


@pytest.mark.parametrize("failure", [ResourceError("too many processes"), ZeroDivisionError("a task's bug")])
def test_spares_that_cannot_be_made_hinder_nobody(
    make_vector: Callable[..., BunshinVectorEnv],
    machine: FakeMachine,
    caplog: pytest.LogCaptureFixture,
    failure: Exception,
) -> None:
    env = make_vector(1, spares=1)
    env.reset(seed=1)
    assert len(ready(env)) == 1
    machine.fail_branch = failure
    env.reset(seed=2)
    assert ready(env) == [], "after a failure it waits for the next reset"
    assert "was not made ahead" in caplog.text
    assert str(failure) in caplog.text
    assert machine.guests == 1, "the used one is ended all the same"
    assert env.step([DONE])[1].tolist() == [1.0]
    env.reset(seed=3)
    assert len(ready(env)) == 1


def test_a_reset_that_is_refused_leaves_the_making_of_spares_going(
    make_vector: Callable[..., BunshinVectorEnv],
) -> None:
    env = make_vector(1, spares=1)
    env.reset(seed=1)
    with pytest.raises(UsageError):
        env.reset(seed=[1, 2, 3])
    assert not env._nursery._paused
    assert len(ready(env)) == 1
