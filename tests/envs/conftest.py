# SPDX-License-Identifier: Apache-2.0
"""Real workspaces for the tests of the envs, and a look for what they leave."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import gymnasium
import pytest
from support import need

import bunshin_gym
from bunshin_gym.errors import ImageError
from bunshin_gym.images import ImageStore
from bunshin_gym.paths import criu_path
from bunshin_gym.records import list_snapshots, list_workspaces


def image_is_built() -> bool:
    try:
        ImageStore().get("browser")
    except ImageError:
        return False
    return True


def owned_here() -> list[str]:
    """Workspaces and snapshots that this process still has."""
    records = [*list_workspaces(), *list_snapshots()]
    return [f"{record.kind} {record.id}" for record in records if record.owner_pid == os.getpid()]


@pytest.fixture(scope="session", autouse=True)
def _machine() -> Iterator[None]:
    """Checks what is needed; at the end gives the shared bases up, and nothing may be left."""
    need(os.geteuid() == 0, "root is needed")
    need(criu_path().exists(), "our CRIU is not built: make criu")
    need(image_is_built(), "the image `browser` is not built: make image")
    from bunshin_gym.bases import shared_bases

    yield
    shared_bases().close()
    assert owned_here() == []


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
