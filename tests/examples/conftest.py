# SPDX-License-Identifier: Apache-2.0
"""The examples, imported as they are, on real workspaces."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from support.machine import with_machine

# Torch's threads wait for each other by spinning, which two busy processors do not take well; read when it is imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Nothing may be looked up outside.
os.environ.update(HF_HUB_OFFLINE="1", HF_HUB_DISABLE_TELEMETRY="1", RAY_USAGE_STATS_ENABLED="0")


@pytest.fixture(scope="session", autouse=True)
def _machine() -> Iterator[None]:
    with with_machine("browser", make="image"):
        yield
