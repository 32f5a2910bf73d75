# SPDX-License-Identifier: Apache-2.0
"""Nodes of the snapshot tree in the database: what was run, what it brought, how often it is met."""

from __future__ import annotations

import json
import sqlite3
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from cachetools import LRUCache

from bunshin_gym import faults
from bunshin_gym.cache.keys import Context
from bunshin_gym.cache.store.database import Database
from bunshin_gym.cache.worth import Use
from bunshin_gym.errors import BunshinError, UsageError
from bunshin_gym.types import ToolCall, ToolEffect

__all__ = ["Counts", "NewNode", "Node", "NodeGoneError", "NodeIndex", "Visit"]

_NODES_KEPT: Final = 50_000
_HALF_LIFE: Final = 512
"""Attempts after which a visit counts half."""


class NodeGoneError(BunshinError):
    """The node was removed from the store meanwhile."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewNode:
    """A node that is to be stored.

    Attributes:
        digest: key of its sequence.
        parent: the node before it, or None for a root.
        context: the context's id.
        call: what was run, arguments as given; None for a root.
        canonical: the arguments' one spelling.
        sample: which outcome of a stochastic call.
        effect: of its tool.
        skeleton: observation and info, encoded.
        outcome: fingerprint of what two runs of the call must agree in.
        wall_ns: how long the call (or the boot) took.
        result_bytes: size of the result, decoded.
        state: digest of the whole state, where the workspace offers one.
    """

    digest: bytes
    parent: Node | None
    context: int
    call: ToolCall | None
    canonical: str = ""
    sample: int = 0
    effect: ToolEffect = "deterministic"
    skeleton: bytes
    outcome: bytes
    reward: float = 0.0
    terminated: bool = False
    truncated: bool = False
    wall_ns: int
    result_bytes: int
    state: bytes | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A stored node; see `NewNode`. Only what never changes: counts are read when asked for."""

    id: int
    digest: bytes
    parent: int | None
    context: int
    depth: int
    call: ToolCall | None
    canonical: str
    sample: int
    effect: ToolEffect
    skeleton: bytes = field(repr=False)
    outcome: bytes = field(repr=False)
    reward: float
    terminated: bool
    truncated: bool
    wall_ns: int
    result_bytes: int
    state: bytes | None = field(repr=False)
    made_ns: int

    @property
    def over(self) -> bool:
        """Whether the episode ends here."""
        return self.terminated or self.truncated


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """How a node is used.

    Attributes:
        visits: attempts that came by.
        hits: of these, the ones that ran nothing to come here.
        misses: attempts that left the tree here, and so needed a workspace in this state.
        heat: visits, the older the less.
        pinned: never evicted.
    """

    visits: int
    hits: int
    misses: int
    heat: float
    pinned: bool


@dataclass(slots=True, kw_only=True)
class Visit:
    """Counts to be added to a node."""

    visits: int = 0
    hits: int = 0
    misses: int = 0


class NodeIndex:
    """Nodes by key; safe for threads and processes."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self._recent: LRUCache[bytes, Node] = LRUCache(_NODES_KEPT)
        self._by_id: LRUCache[int, Node] = LRUCache(_NODES_KEPT)
        self._lock = threading.Lock()

    def context(self, context: Context) -> int:
        """The context's id; it is stored if it is new."""
        digest = context.digest()
        row = self.database.read_one("SELECT id FROM contexts WHERE digest = ?", (digest,))
        if row is None:
            with self.database.write() as db:
                db.execute(
                    "INSERT OR IGNORE INTO contexts(digest, body) VALUES (?, ?)",
                    (digest, context.canonical()),
                )
                row = db.execute("SELECT id FROM contexts WHERE digest = ?", (digest,)).fetchone()
        return int(row["id"])

    def contexts(self) -> dict[int, dict[str, Any]]:
        """Bodies of all contexts by id."""
        return {row["id"]: json.loads(row["body"]) for row in self.database.read("SELECT * FROM contexts")}

    def find(self, digest: bytes) -> Node | None:
        """The node of that key."""
        with self._lock:
            node = self._recent.get(digest)
        if node is not None:
            return node
        row = self.database.read_one("SELECT * FROM nodes WHERE digest = ?", (digest,))
        return None if row is None else self._remember(_node(row))

    def get(self, node_id: int) -> Node:
        """The node of that id; raises NodeGoneError."""
        with self._lock:
            node = self._by_id.get(node_id)
        if node is not None:
            return node
        row = self.database.read_one("SELECT * FROM nodes WHERE id = ?", (node_id,))
        if row is None:
            raise NodeGoneError(f"node {node_id} was removed from the store")
        return self._remember(_node(row))

    def insert(self, new: NewNode, *, replace: bool = False) -> tuple[Node, bool]:
        """Stores a node; returns it and True, or the one that was there before and False.

        With `replace`, the one that was there takes over the new result: its own was damaged.

        Raises:
            NodeGoneError: its parent was removed meanwhile; nothing was stored.
        """
        call = new.call
        values = (
            new.digest,
            None if new.parent is None else new.parent.id,
            new.context,
            0 if new.parent is None else new.parent.depth + 1,
            None if call is None else call.name,
            None if call is None else json.dumps(dict(call.args), default=_plain),
            new.canonical,
            new.sample,
            new.effect,
            new.skeleton,
            new.outcome,
            new.reward,
            new.terminated,
            new.truncated,
            new.wall_ns,
            new.result_bytes,
            new.state,
            time.time_ns(),
        )
        try:
            with self.database.write() as db:
                added = db.execute(_INSERT + (_REPLACE if replace else _KEEP), values).rowcount == 1
                row = db.execute("SELECT * FROM nodes WHERE digest = ?", (new.digest,)).fetchone()
                faults.point("node.before_commit")
        except sqlite3.IntegrityError as error:
            raise NodeGoneError(f"the node before {new.digest.hex()} was removed: {error}") from error
        faults.point("node.committed")
        return self._remember(_node(row)), added

    def path(self, node: Node) -> list[Node]:
        """From the root to the node, both included."""
        path = [node]
        while path[-1].parent is not None:
            path.append(self.get(path[-1].parent))
        return path[::-1]

    def children(self, node_id: int) -> list[Node]:
        """Nodes one call further, oldest first."""
        rows = self.database.read("SELECT * FROM nodes WHERE parent = ? ORDER BY id", (node_id,))
        return [_node(row) for row in rows]

    def of_context(self, context: int) -> list[Node]:
        """All nodes of a context, each after its parent."""
        rows = self.database.read("SELECT * FROM nodes WHERE context = ? ORDER BY id", (context,))
        return [_node(row) for row in rows]

    def counts(self, node_id: int) -> Counts:
        """How the node is used, as far as it was written; raises NodeGoneError."""
        row = self.database.read_one(_COUNTS + " WHERE id = ?", (node_id,))
        if row is None:
            raise NodeGoneError(f"node {node_id} was removed from the store")
        return _counts(row, self.clock())

    def counts_of_context(self, context: int) -> dict[int, Counts]:
        """Counts of all nodes of a context by id."""
        clock = self.clock()
        rows = self.database.read(_COUNTS + " WHERE context = ?", (context,))
        return {row["id"]: _counts(row, clock) for row in rows}

    def uses(self, context: int) -> list[Use]:
        """What the worth of snapshots in a context follows from; each node after its parent."""
        clock = self.clock()
        return [
            Use(
                id=row["id"],
                parent=row["parent"],
                wall_ns=row["wall_ns"],
                replayable=row["effect"] == "deterministic",
                over=bool(row["terminated"] or row["truncated"]),
                visits=row["visits"],
                misses=row["misses"],
                heat=_cooled(row["heat"], clock - row["heat_at"]),
            )
            for row in self.database.read(_USES, (context,))
        ]

    def clock(self) -> int:
        """Attempts so far, of all processes."""
        row = self.database.read_one("SELECT value FROM counters WHERE name = 'attempts'")
        return 0 if row is None else int(row["value"])

    def add_visits(self, visits: Iterable[tuple[int, Visit]], *, attempts: int) -> None:
        """Adds counts, in one transaction."""
        with self.database.write() as db:
            db.execute(
                "INSERT INTO counters VALUES ('attempts', ?) ON CONFLICT(name) DO UPDATE SET value = value + ?",
                (attempts, attempts),
            )
            clock = self.clock()
            for node_id, visit in visits:
                row = db.execute(_COUNTS + " WHERE id = ?", (node_id,)).fetchone()
                if row is not None:
                    heat = _cooled(row["heat"], clock - row["heat_at"]) + visit.visits
                    values = (visit.visits, visit.hits, visit.misses, heat, clock, node_id)
                    db.execute(_ADD, values)
            faults.point("visits.before_commit")

    def pin(self, node_id: int, pinned: bool) -> None:
        """Sets whether the node's snapshot may be evicted and the node removed."""
        with self.database.write() as db:
            if db.execute("UPDATE nodes SET pinned = ? WHERE id = ?", (pinned, node_id)).rowcount != 1:
                raise NodeGoneError(f"node {node_id} was removed from the store")

    def set_state(self, node_id: int, state: bytes) -> None:
        """Notes the digest of the whole state at the node."""
        with self.database.write() as db:
            db.execute("UPDATE nodes SET state = ? WHERE id = ?", (state, node_id))
        self.forget()

    def remove(self, node_ids: Iterable[int]) -> int:
        """Removes nodes and all below them; returns how many."""
        removed = 0
        with self.database.write() as db:
            for node_id in node_ids:
                # Deepest first: a node must not lose its parent before it goes itself.
                rows = db.execute(_BELOW, (node_id,)).fetchall()
                for row in rows:
                    removed += db.execute("DELETE FROM nodes WHERE id = ?", (row["id"],)).rowcount
        self.forget()
        return removed

    def forget(self) -> None:
        """Drops what is kept of the database in this process."""
        with self._lock:
            self._recent.clear()
            self._by_id.clear()

    def _remember(self, node: Node) -> Node:
        with self._lock:
            self._recent[node.digest] = node
            self._by_id[node.id] = node
        return node


_INSERT: Final = """
INSERT INTO nodes(digest, parent, context, depth, tool, args, canonical, sample, effect, skeleton, outcome,
                  reward, terminated, truncated, wall_ns, result_bytes, state, made_ns)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
"""
_KEEP: Final = "ON CONFLICT(digest) DO NOTHING"
_REPLACE: Final = """
ON CONFLICT(digest) DO UPDATE SET skeleton = excluded.skeleton, outcome = excluded.outcome,
reward = excluded.reward, terminated = excluded.terminated, truncated = excluded.truncated
"""
_COUNTS: Final = "SELECT id, visits, hits, misses, heat, heat_at, pinned FROM nodes"
_USES: Final = """
SELECT id, parent, wall_ns, effect, terminated, truncated, visits, misses, heat, heat_at
FROM nodes WHERE context = ? ORDER BY id
"""
_ADD: Final = """
UPDATE nodes SET visits = visits + ?, hits = hits + ?, misses = misses + ?, heat = ?, heat_at = ? WHERE id = ?
"""
_BELOW: Final = """
WITH RECURSIVE below(id, depth) AS (
    SELECT id, depth FROM nodes WHERE id = ?
    UNION ALL SELECT nodes.id, nodes.depth FROM nodes JOIN below ON nodes.parent = below.id
) SELECT id FROM below ORDER BY depth DESC
"""


def _plain(value: Any) -> Any:
    """numpy's numbers and arrays as JSON has them."""
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    if isinstance(value, Mapping):
        return dict(value)
    raise UsageError(f"{type(value).__name__} is not a JSON value")


def _cooled(heat: float, attempts: int) -> float:
    return float(heat * 0.5 ** (attempts / _HALF_LIFE))


def _counts(row: sqlite3.Row, clock: int) -> Counts:
    return Counts(
        visits=row["visits"],
        hits=row["hits"],
        misses=row["misses"],
        heat=_cooled(row["heat"], clock - row["heat_at"]),
        pinned=bool(row["pinned"]),
    )


def _node(row: sqlite3.Row) -> Node:
    call = None if row["tool"] is None else ToolCall(name=row["tool"], args=json.loads(row["args"]))
    return Node(
        id=row["id"],
        digest=row["digest"],
        parent=row["parent"],
        context=row["context"],
        depth=row["depth"],
        call=call,
        canonical=row["canonical"],
        sample=row["sample"],
        effect=row["effect"],
        skeleton=row["skeleton"],
        outcome=row["outcome"],
        reward=row["reward"],
        terminated=bool(row["terminated"]),
        truncated=bool(row["truncated"]),
        wall_ns=row["wall_ns"],
        result_bytes=row["result_bytes"],
        state=row["state"],
        made_ns=row["made_ns"],
    )
