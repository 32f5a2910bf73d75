# SPDX-License-Identifier: Apache-2.0
"""The examples, imported as they are, on real workspaces."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from support import need

from bunshin_gym.errors import ImageError
from bunshin_gym.images import ImageStore
from bunshin_gym.paths import criu_path
from bunshin_gym.records import list_snapshots, list_workspaces

# Torch's threads wait for each other by spinning, which two busy processors do not take well; read when it is imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Nothing may be looked up outside.
os.environ.update(HF_HUB_OFFLINE="1", HF_HUB_DISABLE_TELEMETRY="1", RAY_USAGE_STATS_ENABLED="0")


def image_is_built() -> bool:
    try:
        ImageStore().get("browser")
    except ImageError:
        return False
    return True


@pytest.fixture(scope="session", autouse=True)
def _machine() -> Iterator[None]:
    """Checks what is needed; in the end this process may have nothing left."""
    need(os.geteuid() == 0, "root is needed")
    need(criu_path().exists(), "our CRIU is not built: make criu")
    need(image_is_built(), "the image `browser` is not built: make image")
    from bunshin_gym.bases import shared_bases

    yield
    shared_bases().close()
    records = [*list_workspaces(), *list_snapshots()]
    assert [f"{record.kind} {record.id}" for record in records if record.owner_pid == os.getpid()] == []
