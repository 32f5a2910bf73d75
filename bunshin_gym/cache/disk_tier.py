# SPDX-License-Identifier: Apache-2.0
"""Snapshots on disk: written whole or not at all, anyone's to read, the least worthy removed first."""

from __future__ import annotations

import logging
import secrets
import shutil
from collections.abc import Callable
from pathlib import Path

from bunshin_gym import faults
from bunshin_gym.cache.snapshots import DurableHandle, Loader, SnapshotHandle
from bunshin_gym.cache.store.index import Node, NodeIndex
from bunshin_gym.cache.store.ledger import Ledger, SnapshotRow
from bunshin_gym.cache.store.locks import NamedLocks
from bunshin_gym.cache.worth import Estimates, worth_ns
from bunshin_gym.errors import BunshinError

__all__ = ["DiskTier"]

_log = logging.getLogger(__name__)


class DiskTier:
    """The durable snapshots of a tree; without a loader there are none.

    Writers and removers hold the tree's admission lock; readers hold a shared lock on what they read.
    """

    def __init__(
        self,
        directory: Path,
        index: NodeIndex,
        ledger: Ledger,
        locks: NamedLocks,
        *,
        budget_bytes: int,
        load: Loader | None,
        estimates: Estimates,
        clock: Callable[[], int],
    ) -> None:
        self.directory = directory
        self.budget_bytes = budget_bytes
        self._index, self._ledger, self._locks, self._load = index, ledger, locks, load
        self._estimates, self._clock = estimates, clock
        directory.mkdir(parents=True, exist_ok=True)

    @property
    def readable(self) -> bool:
        """Whether this process can read snapshots from disk."""
        return self._load is not None

    def offer_loader(self, load: Loader) -> None:
        """Taken if there is none."""
        if self._load is None:
            self._load = load

    @property
    def start_ns(self) -> int:
        """What a branch from disk takes, in ns; twice one from memory as long as none was made."""
        estimate = self._estimates.load_ns
        return int(estimate.value if estimate.measured else 2 * self._estimates.branch_ns.value)

    def starts(self, *, inside: set[int]) -> dict[int, int]:
        """What a branch takes from each of these nodes that is on disk."""
        if self._load is None:
            return {}
        return {row.node: self.start_ns for row in self._ledger.snapshots("disk") if row.node in inside}

    def worth_writing(self, node: Node, handle: SnapshotHandle) -> bool:
        """Whether reading it back is expected to save more than writing it costs."""
        if self.budget_bytes <= 0 or self._load is None or not isinstance(handle, DurableHandle):
            return False
        return self._worth_ns(node.id, node.context) > self._estimates.persist_ns.value

    def write(self, node: Node, handle: SnapshotHandle) -> None:
        """Writes a copy, unless there is one or it is larger than the budget, and removes what is worth less.

        What `persist` raises is passed on, with nothing left behind.
        """
        rows = self._ledger.snapshots_of([node.id])
        if not isinstance(handle, DurableHandle) or any(row.tier == "disk" for row in rows):
            return
        temporary = self.directory / f".{secrets.token_hex(8)}"
        path = self.directory / f"{node.digest.hex()}-{secrets.token_hex(4)}"
        begun_ns = self._clock()
        try:
            handle.persist(temporary)
            size = _tree_bytes(temporary)
            if size > self.budget_bytes:
                _log.info("snapshot of node %s: %d bytes are more than the disk budget", node.digest.hex(), size)
                _remove_tree(temporary)
                return
            faults.point("disk.before_rename")
            temporary.rename(path)
            faults.point("disk.before_row")
            self._ledger.add_snapshot(node.id, "disk", size, path=path)
        except BaseException:
            _remove_tree(temporary)
            _remove_tree(path)
            raise
        faults.point("disk.row_committed")
        self._estimates.persist_ns.add(self._clock() - begun_ns)
        self._shrink()

    def read(self, node: Node) -> SnapshotHandle | None:
        """The node's snapshot in memory again, the caller's to close; None when there is none to be read."""
        if self._load is None:
            return None
        for row in self._ledger.snapshots_of([node.id]):
            if row.tier != "disk" or row.path is None:
                continue
            try:
                with self._locks.held(_name(row), shared=True):
                    handle = self._load(row.path)
            except (BunshinError, OSError) as error:
                _log.warning("snapshot %s cannot be read and is removed: %s", row.path, error)
                self._remove(row)
                continue
            self._ledger.snapshot_used(row.id)
            return handle
        return None

    def drop(self, node: Node) -> None:
        """Removes the node's snapshot."""
        for row in self._ledger.snapshots_of([node.id]):
            if row.tier == "disk":
                self._remove(row)

    def sweep(self) -> int:
        """Removes files that no row names (their writer died); returns the bytes freed."""
        named = {row.path for row in self._ledger.snapshots("disk")}
        freed = 0
        for path in self.directory.iterdir():
            if path not in named:
                freed += _tree_bytes(path)
                _remove_tree(path)
        return freed

    def _shrink(self) -> None:
        rows = self._ledger.snapshots("disk")
        excess = sum(row.unique_bytes for row in rows) - self.budget_bytes
        if excess <= 0:
            return
        for row in sorted(rows, key=self._per_byte):
            if excess <= 0:
                return
            if not self._index.counts(row.node).pinned and self._remove(row):
                excess -= row.unique_bytes

    def _per_byte(self, row: SnapshotRow) -> float:
        return self._worth_ns(row.node, self._index.get(row.node).context) / max(1, row.unique_bytes)

    def _worth_ns(self, node: int, context: int) -> float:
        """Beside the others on disk alone: what is in memory now may be evicted next."""
        uses = self._index.uses(context)
        others = self.starts(inside={use.id for use in uses} - {node})
        return worth_ns(uses, node, self.start_ns, others)

    def _remove(self, row: SnapshotRow) -> bool:
        """Removes a snapshot unless someone reads it now; the row goes first."""
        lock = self._locks.try_acquire(_name(row))
        if lock is None:
            return False
        with lock:
            self._ledger.remove_snapshot(row.id)
            if row.path is not None:
                _remove_tree(row.path)
        return True


def _name(row: SnapshotRow) -> bytes:
    return f"disk {row.id}".encode()


def _tree_bytes(path: Path) -> int:
    if not path.is_dir():
        return path.lstat().st_size
    return sum(file.lstat().st_size for file in path.rglob("*") if not file.is_dir())


def _remove_tree(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
