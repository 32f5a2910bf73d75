# SPDX-License-Identifier: Apache-2.0
"""Every kind of kernel resource, forked: source and branches find what was there, and then only their own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import guesthouse
import pytest
from support import engines

from bunshin_gym.workspace import Workspace

Start = Callable[..., Workspace]


@pytest.mark.parametrize("engine", engines())
@pytest.mark.parametrize("kind", guesthouse.KINDS)
def test_guest(kind: str, engine: str, start: Start, rootfs: Path) -> None:
    source = start(argv=[guesthouse.build(rootfs, kind)])
    guesthouse.wait_ready(source)
    assert guesthouse.tell(source, "before") == "ok"
    first, second = source.fork(2, engine=engine)
    with first, second:
        sides = {"source": source, "first": first, "second": second}
        for round_number in range(2):
            for name, side in sides.items():
                assert guesthouse.tell(side, f"{name}-{round_number}") == "ok", name
        (grandchild,) = first.fork(1, engine=engine)
        with grandchild:
            assert guesthouse.tell(grandchild, "grandchild") == "ok"
            assert guesthouse.tell(first, "parent") == "ok"
            assert guesthouse.tell(grandchild, "once more") == "ok"
            assert guesthouse.tell(source, "once more") == "ok"
