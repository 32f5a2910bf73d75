# SPDX-License-Identifier: Apache-2.0
"""What the tree knows of a snapshot: branch from it, close it, ask its size; maybe write it to disk."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from bunshin_gym.types import Forkable

__all__ = [
    "DurableHandle",
    "ForkSnapshot",
    "Loader",
    "PatientHandle",
    "SnapshotHandle",
    "Snapshotting",
    "take_snapshot",
]


@runtime_checkable
class SnapshotHandle(Protocol):
    """A frozen state in memory, from which any number of branches are made, also by several threads at once."""

    @property
    def unique_bytes(self) -> int:
        """Memory that would be free without it, as measured now."""
        ...

    def branch(self) -> Forkable:
        """A workspace in this state; the caller closes it."""
        ...

    def close(self) -> None:
        """Gives the memory back; branches live on; idempotent."""
        ...


@runtime_checkable
class DurableHandle(SnapshotHandle, Protocol):
    """A snapshot that can go to disk."""

    def persist(self, path: Path) -> None:
        """Writes the whole state under `path`, which does not exist yet; returns once it is all there."""
        ...


@runtime_checkable
class PatientHandle(SnapshotHandle, Protocol):
    """A snapshot whose branches can be made at leisure."""

    def branch_confined(self) -> Forkable:
        """A workspace that yields to all others, already while it is made."""
        ...

    def hurry(self) -> None:
        """Workspaces that are being made, in other threads, yield no more."""
        ...


Loader = Callable[[Path], SnapshotHandle]
"""Reads what `persist` wrote, in any process. Raises BunshinError or OSError when it is damaged."""


@runtime_checkable
class Snapshotting(Protocol):
    """A workspace that offers snapshots, and not only forks."""

    def snapshot(self) -> SnapshotHandle:
        """Its state now; it runs on."""
        ...


class ForkSnapshot:
    """A snapshot of a workspace that can but fork: a fork that is never run."""

    def __init__(self, source: Forkable) -> None:
        self._held: Any = source.fork()

    @property
    def unique_bytes(self) -> int:
        """The idle fork's own memory, or 0 where it does not say."""
        return int(getattr(self._held, "unique_bytes", 0))

    def branch(self) -> Forkable:
        """A fork of the fork."""
        branch: Forkable = self._held.fork()
        return branch

    def close(self) -> None:
        """Ends the idle fork."""
        self._held.close()


def take_snapshot(workspace: Forkable) -> SnapshotHandle:
    """A snapshot by the best means that the workspace offers."""
    if isinstance(workspace, Snapshotting):
        return workspace.snapshot()
    return ForkSnapshot(workspace)
