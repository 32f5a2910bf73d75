# SPDX-License-Identifier: Apache-2.0
"""Real workspaces for the tests of the envs, and a look for what they leave."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import gymnasium
import pytest
from support.machine import with_machine

import bunshin_gym
from bunshin_gym.records import list_workspaces


@pytest.fixture(scope="session", autouse=True)
def _machine() -> Iterator[None]:
    with with_machine("browser", make="image"):
        yield


@pytest.fixture
def make() -> Iterator[Callable[..., Any]]:
    """gymnasium.make for the length of a test; afterwards no branch may be left."""
    bunshin_gym.register_envs()
    made = []

    def make_one(name: str, **options: Any) -> Any:
        env = gymnasium.make(f"bunshin/MiniWoB-{name}-v0", **options)
        made.append(env)
        return env

    yield make_one
    for env in made:
        env.close()
    mine = [record for record in list_workspaces() if record.owner_pid == os.getpid()]
    left = [record.id for record in mine if record.label.get("kind") == "branch"]
    assert left == [], "workspaces are left after all envs were closed"
