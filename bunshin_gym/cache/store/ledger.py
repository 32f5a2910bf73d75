# SPDX-License-Identifier: Apache-2.0
"""Which snapshots there are and whose they are; what is known of each tool; hits and misses over time."""

from __future__ import annotations

import sqlite3
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from bunshin_gym.cache.store.database import Database
from bunshin_gym.cache.store.locks import Owner

__all__ = ["Ledger", "Rate", "SnapshotRow", "Tier", "ToolRow"]

Tier = Literal["memory", "disk"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotRow:
    """One snapshot of one node.

    Attributes:
        owner: the process that holds it (memory) or wrote it (disk).
        unique_bytes: what would be free without it.
        path: where it is, on disk.
        wanted: False when another process asked its owner to drop it.
        uses: branches made from it.
    """

    id: int
    node: int
    tier: Tier
    owner: Owner
    unique_bytes: int
    path: Path | None
    wanted: bool
    uses: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolRow:
    """What is known of a tool of a task.

    Attributes:
        runs: times it was run; `run_ns` is how long all of these took.
        hits: times that a stored result of it was given out.
        audits: times that a stored result was compared with a fresh one.
        disagreements: times that they differed.
        quarantined: why it is not reused any more, or None.
    """

    task: str
    name: str
    runs: int
    run_ns: int
    hits: int
    audits: int
    disagreements: int
    quarantined: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """Hits and misses of one process in one stretch of time, and what they saved and cost."""

    at_ns: int
    hits: int
    misses: int
    saved_ns: int
    executed_ns: int


class Ledger:
    """Bookkeeping beside the nodes; safe for threads and processes."""

    def __init__(self, database: Database) -> None:
        self.database = database

    # -- snapshots

    def add_snapshot(self, node: int, tier: Tier, unique_bytes: int, *, path: Path | None = None) -> SnapshotRow:
        """Notes a snapshot of this process's."""
        values = (node, tier, str(Owner.current()), unique_bytes, None if path is None else str(path), time.time_ns())
        with self.database.write() as db:
            cursor = db.execute(
                "INSERT INTO snapshots(node, tier, owner, unique_bytes, path, made_ns) VALUES (?, ?, ?, ?, ?, ?)",
                values,
            )
            row = db.execute("SELECT * FROM snapshots WHERE id = ?", (cursor.lastrowid,)).fetchone()
        return _snapshot(row)

    def snapshots(self, tier: Tier | None = None) -> list[SnapshotRow]:
        """All snapshots, or those of one tier."""
        if tier is None:
            rows = self.database.read("SELECT * FROM snapshots ORDER BY id")
        else:
            rows = self.database.read("SELECT * FROM snapshots WHERE tier = ? ORDER BY id", (tier,))
        return [_snapshot(row) for row in rows]

    def snapshots_of(self, nodes: list[int]) -> list[SnapshotRow]:
        """Snapshots of these nodes."""
        marks = ",".join("?" * len(nodes))
        rows = self.database.read(f"SELECT * FROM snapshots WHERE node IN ({marks}) ORDER BY id", tuple(nodes))
        return [_snapshot(row) for row in rows]

    def tier_bytes(self, tier: Tier) -> int:
        """What all snapshots of a tier take."""
        row = self.database.read_one("SELECT SUM(unique_bytes) AS total FROM snapshots WHERE tier = ?", (tier,))
        return 0 if row is None or row["total"] is None else int(row["total"])

    def set_snapshot_bytes(self, snapshot: int, unique_bytes: int) -> None:
        """Corrects a snapshot's size: it owns more once another that shared with it is gone."""
        with self.database.write() as db:
            db.execute("UPDATE snapshots SET unique_bytes = ? WHERE id = ?", (unique_bytes, snapshot))

    def snapshot_used(self, snapshot: int) -> None:
        """One more branch was made from it."""
        with self.database.write() as db:
            db.execute("UPDATE snapshots SET uses = uses + 1 WHERE id = ?", (snapshot,))

    def unwant(self, snapshot: int) -> None:
        """Asks the owner, which may be another process, to drop a snapshot."""
        with self.database.write() as db:
            db.execute("UPDATE snapshots SET wanted = 0 WHERE id = ?", (snapshot,))

    def remove_snapshot(self, snapshot: int) -> None:
        """Notes that a snapshot is no more."""
        with self.database.write() as db:
            db.execute("DELETE FROM snapshots WHERE id = ?", (snapshot,))

    def reap(self) -> int:
        """Removes memory snapshots of dead processes from the books; returns how many."""
        owners = self.database.read("SELECT DISTINCT owner FROM snapshots WHERE tier = 'memory'")
        dead = [row["owner"] for row in owners if not Owner.parse(row["owner"]).alive()]
        reaped = 0
        for owner in dead:
            with self.database.write() as db:
                sql = "DELETE FROM snapshots WHERE tier = 'memory' AND owner = ?"
                reaped += db.execute(sql, (owner,)).rowcount
        return reaped

    # -- tools

    def add_tool(self, task: str, name: str, **added: int) -> None:
        """Adds to a tool's counts: runs, run_ns, hits, audits, disagreements."""
        columns = [column for column in _TOOL_COUNTS if added.get(column)]
        if not columns:
            return
        changes = ", ".join(f"{column} = {column} + excluded.{column}" for column in columns)
        sql = (
            f"INSERT INTO tools(task, name, {', '.join(columns)}) VALUES (?, ?{', ?' * len(columns)}) "
            f"ON CONFLICT(task, name) DO UPDATE SET {changes}"
        )
        with self.database.write() as db:
            db.execute(sql, (task, name, *(added[column] for column in columns)))

    def tools(self) -> list[ToolRow]:
        """All tools met so far."""
        return [_tool(row) for row in self.database.read("SELECT * FROM tools ORDER BY task, name")]

    def tool(self, task: str, name: str) -> ToolRow | None:
        """What is known of one tool."""
        row = self.database.read_one("SELECT * FROM tools WHERE task = ? AND name = ?", (task, name))
        return None if row is None else _tool(row)

    def quarantine(self, task: str, name: str, reason: str | None) -> None:
        """Stops the reuse of a tool's results in a task, or allows it again (None)."""
        with self.database.write() as db:
            db.execute(
                "INSERT INTO tools(task, name, quarantined) VALUES (?, ?, ?) "
                "ON CONFLICT(task, name) DO UPDATE SET quarantined = excluded.quarantined",
                (task, name, reason),
            )

    # -- rates

    def add_rate(self, rate: Rate) -> None:
        """Notes what happened since the last time."""
        with self.database.write() as db:
            db.execute(
                "INSERT INTO rates(at_ns, hits, misses, saved_ns, executed_ns) VALUES (?, ?, ?, ?, ?)",
                (rate.at_ns, rate.hits, rate.misses, rate.saved_ns, rate.executed_ns),
            )

    def rates(self) -> list[Rate]:
        """Everything noted, in order of time."""
        rows = self.database.read("SELECT * FROM rates ORDER BY at_ns, id")
        return [Rate(**{name: row[name] for name in Rate.__slots__}) for row in rows]


_TOOL_COUNTS: Final = ("runs", "run_ns", "hits", "audits", "disagreements")


def _snapshot(row: sqlite3.Row) -> SnapshotRow:
    return SnapshotRow(
        id=row["id"],
        node=row["node"],
        tier=row["tier"],
        owner=Owner.parse(row["owner"]),
        unique_bytes=row["unique_bytes"],
        path=None if row["path"] is None else Path(row["path"]),
        wanted=bool(row["wanted"]),
        uses=row["uses"],
    )


def _tool(row: sqlite3.Row) -> ToolRow:
    values: dict[str, Any] = {name: row[name] for name in ToolRow.__slots__}
    return ToolRow(**values)
