# SPDX-License-Identifier: Apache-2.0
"""A real desktop for the tests, and a look for what they leave."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
from support import need
from support.desktop import key

from bunshin_gym.bases import shared_bases
from bunshin_gym.errors import ImageError
from bunshin_gym.images import ImageStore
from bunshin_gym.paths import criu_path
from bunshin_gym.records import list_snapshots, list_workspaces


def image_is_built() -> bool:
    try:
        ImageStore().get("desktop")
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
    need(image_is_built(), "the image `desktop` is not built: make desktop")
    yield
    shared_bases().close()
    assert owned_here() == []


@pytest.fixture
def desktop() -> Iterator[Any]:
    """A fresh desktop."""
    guest = shared_bases().get(key()).branch()
    yield guest
    guest.close()
