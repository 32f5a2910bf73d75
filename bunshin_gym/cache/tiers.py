# SPDX-License-Identifier: Apache-2.0
"""Where snapshots are: in memory, on disk, nowhere. What to keep follows from `worth`, within budgets.

Snapshots in memory belong to the process that took them; the books in the database show all of them, so
that the processes of a host keep to one budget together. Those on disk are anyone's.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bunshin_gym import faults
from bunshin_gym.cache.disk_tier import DiskTier
from bunshin_gym.cache.snapshots import Loader, SnapshotHandle
from bunshin_gym.cache.store.index import Node, NodeIndex
from bunshin_gym.cache.store.ledger import Ledger, SnapshotRow, Tier
from bunshin_gym.cache.store.locks import NamedLocks
from bunshin_gym.cache.worth import Estimates, worth_ns

__all__ = ["Budgets", "SnapshotKeeper"]

_ADMIT: Final = b"admit"


@dataclass(frozen=True, slots=True, kw_only=True)
class Budgets:
    """What all snapshots of a tree may take, by all processes of the host together.

    Each is exceeded by one snapshot at most, for as long as it takes to evict another.
    """

    memory_bytes: int = 2 << 30
    disk_bytes: int = 0


@dataclass(slots=True)
class _Held:
    row: SnapshotRow
    node: Node
    handle: SnapshotHandle
    leases: int = 0


class SnapshotKeeper:
    """Admits, evicts, demotes and promotes snapshots; safe for threads and processes."""

    def __init__(
        self,
        directory: Path,
        index: NodeIndex,
        ledger: Ledger,
        locks: NamedLocks,
        *,
        budgets: Budgets,
        load: Loader | None,
        clock: Callable[[], int],
    ) -> None:
        self.budgets = budgets
        self.estimates = Estimates()
        self.disk = DiskTier(
            directory,
            index,
            ledger,
            locks,
            budget_bytes=budgets.disk_bytes,
            load=load,
            estimates=self.estimates,
            clock=clock,
        )
        self._index, self._ledger, self._locks, self._clock = index, ledger, locks, clock
        self._pid = os.getpid()
        self._held: dict[int, _Held] = {}
        self._lock = threading.Lock()
        ledger.reap()

    # -- asking

    def tiers(self, nodes: list[Node]) -> dict[int, Tier]:
        """For each node that this process can branch from: the fastest tier that has it."""
        found: dict[int, Tier] = {}
        held = self._mine()
        for row in self._ledger.snapshots_of([node.id for node in nodes]):
            if row.tier == "disk" and self.disk.readable:
                found.setdefault(row.node, "disk")
        found.update({node.id: "memory" for node in nodes if node.id in held})
        return found

    def starts(self, tiers: dict[int, Tier]) -> dict[int, int]:
        """What a branch takes from each of them, in ns."""
        cost = {"memory": int(self.estimates.branch_ns.value), "disk": self.disk.start_ns}
        return {node: cost[tier] for node, tier in tiers.items()}

    def worth_ns(self, node: Node) -> float:
        """What a snapshot of the node in memory is expected to save, beside those there are."""
        uses = self._index.uses(node.context)
        branch_ns = int(self.estimates.branch_ns.value)
        inside = {use.id for use in uses}
        others = self.disk.starts(inside=inside)
        others.update({id_: branch_ns for id_ in self._mine() if id_ in inside and id_ != node.id})
        return worth_ns(uses, node.id, branch_ns, others)

    # -- memory

    def admit(self, node: Node, take: Callable[[], SnapshotHandle]) -> bool:
        """Takes a snapshot of the node if it fits the budget, or is worth more than what must go for it.

        `take` is not called otherwise. What it raises is passed on, with nothing left behind.
        """
        with self._locks.held(_ADMIT):
            self._tidy()
            if node.id in self._mine() or not self._make_room(node):
                return False
            begun_ns = self._clock()
            handle = take()
            self.estimates.snapshot_ns.add(self._clock() - begun_ns)
            self._enter(node, handle)
            self._shrink()
        return node.id in self._mine()

    @contextmanager
    def lease(self, node: Node, *, lasting: bool = False) -> Iterator[SnapshotHandle | None]:
        """The node's snapshot for the length of a block, in which nobody evicts it; None when it is gone.

        One that is on disk is kept in memory if it is worth it; otherwise others wait with their admissions until the
        block ends, so that what is read is never more than one beyond the budget. With `lasting`, for
        blocks that take long, None is given instead.
        """
        with ExitStack() as stack:
            held = self._take_lease(node)
            if held is None:
                admission = stack.enter_context(self._locks.acquire(_ADMIT))
                handle = self._from_disk(node, lasting=lasting)
                held = self._take_lease(node)
                if held is None:
                    if handle is not None:
                        stack.callback(handle.close)
                    yield handle
                    return
                admission.release()
            stack.callback(self._end_lease, held)
            yield held.handle

    def _from_disk(self, node: Node, *, lasting: bool) -> SnapshotHandle | None:
        """Reads the node's snapshot from disk. None if it went to memory, where it may have been already."""
        self._tidy()
        if node.id in self._mine() or node.id not in self.tiers([node]):
            return None
        room = self.worth_ns(node) > 0 and self._make_room(node)
        if lasting and not room:
            return None
        handle = self.disk.read(node)
        if handle is None or not room:
            return handle
        self._enter(node, handle)
        self._shrink(keep=node)
        return None

    def _end_lease(self, held: _Held) -> None:
        with self._lock:
            held.leases -= 1

    def drop(self, node: Node) -> None:
        """Lets go of the node's snapshots that this process can: a branch from them failed."""
        with self._lock:
            held = self._mine().pop(node.id, None)
        if held is not None:
            self._close(held)
        self.disk.drop(node)

    def tidy(self) -> None:
        """Does what other processes asked for, and clears the books of dead ones."""
        with self._locks.held(_ADMIT):
            self._tidy()

    def close(self, *, persist: bool = True) -> None:
        """Writes what is worth it to disk, within the budget, and closes all of this process's; idempotent."""
        with self._locks.held(_ADMIT):
            if persist and self.budgets.disk_bytes > 0:
                for held in sorted(self._mine().values(), key=lambda held: self.worth_ns(held.node), reverse=True):
                    if self.disk.worth_writing(held.node, held.handle):
                        self.disk.write(held.node, held.handle)
            with self._lock:
                mine = list(self._mine().values())
                self._held = {}
            for held in mine:
                self._close(held)

    def _mine(self) -> dict[int, _Held]:
        if self._pid != os.getpid():  # a forked child: the handles stay its parent's, unclosed
            _inherited.append(self._held)
            self._held, self._pid, self._lock = {}, os.getpid(), threading.Lock()
        return self._held

    def _take_lease(self, node: Node) -> _Held | None:
        mine = self._mine()
        with self._lock:
            held = mine.get(node.id)
            if held is not None:
                held.leases += 1
        if held is not None:
            self._ledger.snapshot_used(held.row.id)
        return held

    def _tidy(self) -> None:
        self._ledger.reap()
        unwanted = {row.id for row in self._ledger.snapshots("memory") if not row.wanted}
        for held in list(self._mine().values()):
            if held.row.id in unwanted and held.leases == 0:
                self._evict(held)

    def _make_room(self, node: Node) -> bool:
        """Evicts what is worth less than the node, byte for byte, until a snapshot of usual size fits."""
        usual = self.estimates.snapshot_bytes
        budget = self.budgets.memory_bytes
        if budget <= 0:
            return False
        if usual.value > budget:
            usual.add(usual.value / 2)  # one that did not fit does not shut out all that come after
            return False
        worth = self.worth_ns(node) / max(1.0, usual.value)
        while self._ledger.tier_bytes("memory") + usual.value > budget:
            victim = self._cheapest()
            if victim is None or self._per_byte(victim) >= worth:
                self._ask_others(worth)
                return False
            self._evict(victim)
        return True

    def _enter(self, node: Node, handle: SnapshotHandle) -> None:
        try:
            unique_bytes = handle.unique_bytes
            faults.point("memory.before_row")
            row = self._ledger.add_snapshot(node.id, "memory", unique_bytes)
        except BaseException:
            handle.close()
            raise
        faults.point("memory.row_committed")
        self.estimates.snapshot_bytes.add(unique_bytes)
        with self._lock:
            self._mine()[node.id] = _Held(row, node, handle)

    def _shrink(self, *, keep: Node | None = None) -> None:
        while self._ledger.tier_bytes("memory") > self.budgets.memory_bytes:
            victim = self._cheapest(keep=keep)
            if victim is None:
                return
            self._evict(victim)

    def _cheapest(self, *, keep: Node | None = None) -> _Held | None:
        """The one of ours that is worth least for its bytes and may go."""
        others = [held for held in self._mine().values() if keep is None or held.node.id != keep.id]
        free = [held for held in others if held.leases == 0 and not self._pinned(held.node)]
        return min(free, key=self._per_byte, default=None)

    def _ask_others(self, worth: float) -> None:
        """Another process's snapshot may be worth less than ours; it goes when its owner looks next."""
        mine = {held.row.id for held in self._mine().values()}
        for row in self._ledger.snapshots("memory"):
            if row.id in mine or not row.wanted:
                continue
            node = self._index.get(row.node)
            if not self._pinned(node) and self.worth_ns(node) / max(1, row.unique_bytes) < worth:
                self._ledger.unwant(row.id)
                return

    def _evict(self, held: _Held) -> None:
        if self.disk.worth_writing(held.node, held.handle):
            self.disk.write(held.node, held.handle)
        with self._lock:
            if held.leases > 0:
                return
            self._mine().pop(held.node.id, None)
        self._close(held)
        self._measure_kin(held.node)

    def _measure_kin(self, node: Node) -> None:
        """Pages that a closed snapshot shared with another are the other's own now."""
        for held in list(self._mine().values()):
            if held.node.context == node.context:
                self._ledger.set_snapshot_bytes(held.row.id, held.handle.unique_bytes)

    def _close(self, held: _Held) -> None:
        try:
            held.handle.close()
        finally:
            self._ledger.remove_snapshot(held.row.id)

    def _pinned(self, node: Node) -> bool:
        return self._index.counts(node.id).pinned

    def _per_byte(self, held: _Held) -> float:
        return self.worth_ns(held.node) / max(1, held.row.unique_bytes)

    def sweep(self) -> int:
        """Removes files on disk that no row names (their writer died); returns the bytes freed."""
        with self._locks.held(_ADMIT):
            return self.disk.sweep()


_inherited: list[dict[int, _Held]] = []
"""Handles of a parent process, kept so that no finaliser closes them here."""
