# SPDX-License-Identifier: Apache-2.0
"""Named points at which a test can have this process killed, to see what is left of the store.

`BUNSHIN_STORE_FAULT=name` or `name:n` kills the process (SIGKILL) at the n-th passage, the first by default.
"""

from __future__ import annotations

import os
import signal
from typing import Final

__all__ = ["DURABLE_FAULTS", "FAULTS", "VARIABLE", "point"]

VARIABLE: Final = "BUNSHIN_STORE_FAULT"

FAULTS: Final = (
    "blob.temporary_open",
    "blob.temporary_written",
    "blob.renamed",
    "node.blobs_stored",
    "node.before_commit",
    "node.committed",
    "visits.before_commit",
    "disk.before_rename",
    "disk.before_row",
    "disk.row_committed",
    "memory.before_row",
    "memory.row_committed",
)
"""Every point, in the order in which a stored call and its snapshot pass them."""

DURABLE_FAULTS: Final = (
    "durable.begun",
    "durable.saved",
    "durable.hashed",
    "durable.manifest_unsynced",
    "durable.manifest_written",
    "durable.before_rename",
    "durable.renamed",
)
"""Those of a snapshot's way to the disk, in order."""

_passed: dict[str, int] = {}


def point(name: str) -> None:
    """Ends the process here if the environment asks for it."""
    wanted = os.environ.get(VARIABLE)
    if wanted is None:
        return
    if name not in FAULTS and name not in DURABLE_FAULTS:
        raise AssertionError(f"fault point {name!r} is not listed")
    wanted_name, _, count = wanted.partition(":")
    if wanted_name != name:
        return
    _passed[name] = _passed.get(name, 0) + 1
    if _passed[name] == int(count or 1):
        os.kill(os.getpid(), signal.SIGKILL)
