# SPDX-License-Identifier: Apache-2.0
"""A machine that runs real workspaces, for a test session; and a look for what the session leaves."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from bunshin_gym.errors import ImageError
from bunshin_gym.images import ImageStore
from bunshin_gym.paths import criu_path
from bunshin_gym.records import list_snapshots, list_workspaces
from support import need

__all__ = ["image_is_built", "owned_here", "with_machine"]


def image_is_built(name: str) -> bool:
    try:
        ImageStore().get(name)
    except ImageError:
        return False
    return True


def owned_here() -> list[str]:
    """Workspaces and snapshots that this process still has."""
    records = [*list_workspaces(), *list_snapshots()]
    return [f"{record.kind} {record.id}" for record in records if record.owner_pid == os.getpid()]


@contextmanager
def with_machine(image: str, make: str) -> Iterator[None]:
    """Checks what is needed; at the end gives the shared bases up, and nothing may be left.

    Args:
        image: must be built.
        make: the rule that builds it.
    """
    need(os.geteuid() == 0, "root is needed")
    need(criu_path().exists(), "our CRIU is not built: make criu")
    need(image_is_built(image), f"the image `{image}` is not built: make {make}")
    from bunshin_gym.bases import shared_bases

    yield
    shared_bases().close()
    assert owned_here() == []
