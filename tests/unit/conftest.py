# SPDX-License-Identifier: Apache-2.0
"""Fake workspaces, of which none may be left."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cache_fakes import MakeRig, Rig
from fake_guest import FakeMachine, FakeTask

from bunshin_gym.bases import BasePool
from bunshin_gym.cache.tree import SnapshotTree
from bunshin_gym.vector import BunshinVectorEnv


@pytest.fixture
def machine() -> Iterator[FakeMachine]:
    machine = FakeMachine()
    yield machine
    assert machine.guests == 0, "workspaces are left"


@pytest.fixture
def pool(machine: FakeMachine) -> Iterator[BasePool]:
    pool = machine.pool()
    yield pool
    pool.close()


@pytest.fixture
def tree(tmp_path: Path) -> Iterator[SnapshotTree]:
    with SnapshotTree(tmp_path / "tree") as tree:
        yield tree


@pytest.fixture
def make_rig(tmp_path: Path) -> Iterator[MakeRig]:
    made: list[Rig] = []

    def make(directory: Path = tmp_path, **options: Any) -> Rig:
        made.append(Rig(directory, **options))
        return made[-1]

    yield make
    for rig in made:
        rig.close()
        assert rig.host.open == 0, "workspaces were left open"


@pytest.fixture
def rig(make_rig: MakeRig) -> Rig:
    return make_rig()


@pytest.fixture
def make_vector(machine: FakeMachine, pool: BasePool) -> Iterator[Callable[..., BunshinVectorEnv]]:
    """Makes vector envs; afterwards waits for their threads, also for those that are stuck in a call."""
    made: list[BunshinVectorEnv] = []
    before = set(threading.enumerate())

    def make_one(num_envs: int = 3, **options: Any) -> BunshinVectorEnv:
        made.append(BunshinVectorEnv(num_envs, bases=pool, **{"task": FakeTask(), **options}))
        return made[-1]

    yield make_one
    for env in made:
        env.close()
    machine.stall.set()
    for thread in set(threading.enumerate()) - before:
        if thread.name.startswith("bunshin-"):
            thread.join()
