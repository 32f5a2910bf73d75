# SPDX-License-Identifier: Apache-2.0
"""The snapshot tree: results by sequence of tool calls, and workspaces rebuilt in the state of any node.

A directory holds it: `index.sqlite` (nodes, books), `contents/` (observations by hash), `snapshots/` (the
disk tier), `locks`. Any number of threads and processes use it at once, and later runs find it again.
"""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Self

from bunshin_gym import faults
from bunshin_gym.cache.materialise import Materialiser
from bunshin_gym.cache.snapshots import Loader, take_snapshot
from bunshin_gym.cache.store import codec
from bunshin_gym.cache.store.blobs import BlobStore
from bunshin_gym.cache.store.database import Database
from bunshin_gym.cache.store.index import NewNode, Node, NodeIndex, Visit
from bunshin_gym.cache.store.ledger import Ledger
from bunshin_gym.cache.store.locks import HeldLock, NamedLocks
from bunshin_gym.cache.store.pending import Pending
from bunshin_gym.cache.tiers import Budgets, SnapshotKeeper
from bunshin_gym.cache.worth import Credit, Estimate, leave_share
from bunshin_gym.types import Forkable, ToolResult

__all__ = ["SnapshotTree"]

_FLUSH_AFTER: Final = 256
_STORING: Final = b"storing"


class SnapshotTree:
    """Nodes, their results and their snapshots."""

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        budgets: Budgets | None = None,
        load: Loader | None = None,
        contents_cache_bytes: int = 256 << 20,
        clock: Callable[[], int] = time.perf_counter_ns,
    ) -> None:
        """Opens the tree in a directory, which is made when it is absent.

        Args:
            budgets: what its snapshots may take.
            load: reads a durable snapshot; without it, and without one that is offered later, there is no disk tier.
            contents_cache_bytes: how much of the observations is kept decompressed in this process.
            clock: what costs are measured by, in ns.

        Raises:
            UsageError: the directory holds a tree of another version.
        """
        self.directory = Path(directory)
        self.directory.mkdir(parents=True, exist_ok=True)
        self.locks = NamedLocks(self.directory / "locks")
        with self.locks.held(b"open"):
            self.database = Database(self.directory / "index.sqlite")
        self.index = NodeIndex(self.database)
        self.ledger = Ledger(self.database)
        self.contents = BlobStore(self.directory / "contents", cache_bytes=contents_cache_bytes)
        self.budgets = budgets if budgets is not None else Budgets()
        self.clock = clock
        snapshots = self.directory / "snapshots"
        self.keeper = SnapshotKeeper(
            snapshots, self.index, self.ledger, self.locks, budgets=self.budgets, load=load, clock=clock
        )
        self.materialiser = Materialiser(self.index, self.keeper, clock)
        self.credit = Credit()
        self.thinking = Estimate(0.0)
        self._asked: Counter[int] = Counter()
        self._asked_lock = threading.Lock()
        self._pending = Pending()
        self.spare_cores = threading.BoundedSemaphore(len(os.sched_getaffinity(0)))
        self._closed = False

    # -- results

    def find(self, digest: bytes) -> Node | None:
        """The node of a key."""
        return self.index.find(digest)

    def result(self, node: Node) -> ToolResult:
        """The stored result, as fresh objects.

        Raises:
            BlobMissingError: its contents are damaged; `put(..., replace=True)` mends the node.
        """
        observation, info = codec.decode(node.skeleton, self.contents.get)
        return ToolResult(
            observation=observation,
            reward=node.reward,
            terminated=node.terminated,
            truncated=node.truncated,
            info=info,
        )

    def put(
        self, new: Callable[[bytes, int], NewNode], result: ToolResult, *, replace: bool = False
    ) -> tuple[Node, bool]:
        """Stores a result; whoever stores a key first wins.

        Args:
            new: makes the node when it is given the encoded result, and its size in bytes when decoded.

        Returns:
            The node that is stored now, and whether it is this one.

        Raises:
            UsageError: the result holds what cannot be stored.
            NodeGoneError: the node before was removed meanwhile.
        """
        # A sweep must not remove contents between their storing and the commit that names them.
        sizes: list[int] = []

        def store(content: bytes | memoryview) -> bytes:
            sizes.append(len(content))
            return self.contents.put(content)

        with self.locks.held(_STORING, shared=True):
            skeleton = codec.encode([result.observation, dict(result.info)], store)
            faults.point("node.blobs_stored")
            return self.index.insert(new(skeleton, len(skeleton) + sum(sizes)), replace=replace)

    def mend(self, node: Node, result: ToolResult, outcome: bytes) -> None:
        """The node takes over another result; raises as `put`."""
        parent = None if node.parent is None else self.index.get(node.parent)

        def new(skeleton: bytes, result_bytes: int) -> NewNode:
            return NewNode(
                digest=node.digest,
                parent=parent,
                context=node.context,
                call=node.call,
                canonical=node.canonical,
                sample=node.sample,
                effect=node.effect,
                skeleton=skeleton,
                outcome=outcome,
                reward=float(result.reward),
                terminated=bool(result.terminated),
                truncated=bool(result.truncated),
                wall_ns=node.wall_ns,
                result_bytes=result_bytes,
            )

        self.put(new, result, replace=True)

    # -- use

    def visit(self, node: Node, *, hit: bool) -> None:
        """An attempt comes by a node."""
        self._count(node, Visit(visits=1, hits=int(hit)), attempts=int(node.parent is None))

    def left(self, node: Node) -> None:
        """An attempt leaves the tree at a node, and needs a workspace for it."""
        self._count(node, Visit(misses=1), attempts=0)

    def step(self, *, saved_ns: int = 0, executed_ns: int = 0, hit: bool) -> None:
        """Counts a step for the rates over time."""
        self._pending.step(hit=hit, saved_ns=saved_ns, executed_ns=executed_ns)

    def count_tool(self, task: str, name: str, **added: int) -> None:
        """Adds to a tool's counts; see `Ledger.add_tool`."""
        self._pending.tool(task, name, added)

    def asked_for(self, node: Node) -> int:
        """Counts how often this process wanted a known node, this time included."""
        with self._asked_lock:
            self._asked[node.id] += 1
            return self._asked[node.id]

    def flush(self) -> None:
        """Writes pending counts; a killed process loses those, and nothing else."""
        visits, attempts, tools, rate = self._pending.take()
        for (task, name), added in tools.items():
            self.ledger.add_tool(task, name, **added)
        if visits:
            self.index.add_visits(visits.items(), attempts=attempts)
        if rate is not None:
            self.ledger.add_rate(rate)

    def claim(self, digest: bytes, *, wait: bool) -> HeldLock | None:
        """The right to run the call of that key; dies with its holder.

        Returns:
            The claim, to be released once the node is stored; None when another has it and `wait` is false.
        """
        name = b"flight " + digest
        return self.locks.acquire(name) if wait else self.locks.try_acquire(name)

    # -- states

    def keep(self, node: Node, live: Forkable) -> bool:
        """Takes a snapshot of a workspace in the node's state, if the budget has room for what it is worth."""
        self.flush()
        return self.keeper.admit(node, lambda: take_snapshot(live))

    def worth_ns(self, node: Node) -> float:
        """What a snapshot of the node is expected to save."""
        self.flush()
        return self.keeper.worth_ns(node)

    def anchored(self, node: Node) -> bool:
        """Whether this process can branch from the node's own snapshot."""
        return node.id in self.keeper.tiers([node])

    @contextmanager
    def pinned(self, node: Node) -> Iterator[None]:
        """Keeps the node's snapshot from eviction for the length of a block."""
        self.index.pin(node.id, True)
        try:
            yield
        finally:
            self.index.pin(node.id, False)

    def leave_chance(self, node: Node) -> float:
        """The share of attempts that need a workspace here, as far as can be told."""
        self.flush()
        counts = self.index.counts(node.id)
        return leave_share(counts.visits, counts.misses)

    def offer_loader(self, load: Loader) -> None:
        """A way to read snapshots from disk, taken if the tree was opened without one."""
        self.keeper.disk.offer_loader(load)

    # -- care

    def gc(self, *, contents_max_bytes: int | None = None) -> dict[str, int]:
        """Removes what dead processes left and, beyond a size, the nodes that are met least.

        Returns:
            Counts: `nodes` removed, `contents_bytes` and `snapshots_bytes` freed, `dead_snapshots`
            struck from the books.
        """
        self.flush()
        dead = self.ledger.reap()
        removed = 0
        if contents_max_bytes is not None:
            while (excess := self.contents.stored_bytes() - contents_max_bytes) > 0:
                leaves = self._cold_leaves(excess)
                if not leaves:
                    break
                removed += self.index.remove(leaves)
                self._sweep()
        freed = self._sweep()
        return {
            "nodes": removed,
            "contents_bytes": freed,
            "snapshots_bytes": self.keeper.sweep(),
            "dead_snapshots": dead,
        }

    def _sweep(self) -> int:
        with self.locks.held(_STORING):
            rows = self.database.read("SELECT skeleton FROM nodes")
            referenced: set[bytes] = set()
            for row in rows:
                referenced |= codec.references(row["skeleton"])
            return self.contents.sweep(referenced)

    def _cold_leaves(self, excess_bytes: int) -> list[int]:
        """Coldest nodes that have no children, no snapshot and no pin: about a tenth, at least one."""
        rows = self.database.read(
            "SELECT id FROM nodes WHERE pinned = 0 "
            "AND NOT EXISTS (SELECT 1 FROM nodes AS below WHERE below.parent = nodes.id) "
            "AND NOT EXISTS (SELECT 1 FROM snapshots WHERE snapshots.node = nodes.id) "
            "ORDER BY heat_at, heat, id LIMIT max(1, (SELECT count(*) FROM nodes) / 10)"
        )
        return [row["id"] for row in rows]

    def close(self, *, persist: bool = True) -> None:
        """Closes this process's snapshots, those worth it written to disk first; idempotent."""
        if self._closed:
            return
        self._closed = True
        try:
            self.flush()
            self.keeper.close(persist=persist)
        finally:
            self.database.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _count(self, node: Node, visit: Visit, *, attempts: int) -> None:
        if self._pending.count(node.id, visit, attempts=attempts) >= _FLUSH_AFTER:
            self.flush()
