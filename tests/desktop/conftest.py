# SPDX-License-Identifier: Apache-2.0
"""A real desktop for the tests, and a look for what they leave."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from support.desktop import key
from support.machine import with_machine

from bunshin_gym.bases import shared_bases


@pytest.fixture(scope="session", autouse=True)
def _machine() -> Iterator[None]:
    with with_machine("desktop", make="desktop"):
        yield


@pytest.fixture
def desktop() -> Iterator[Any]:
    """A fresh desktop."""
    guest = shared_bases().branch(key()).guest
    yield guest
    guest.close()
