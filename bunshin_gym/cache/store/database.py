# SPDX-License-Identifier: Apache-2.0
"""The SQLite file behind the tree: one connection a process, write-ahead log, short transactions."""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from bunshin_gym.errors import ClosedError, UsageError

__all__ = ["Database"]

_VERSION: Final = 1
_BUSY_S: Final = 60.0

# AUTOINCREMENT: the id of a removed node must never come to mean another one.
_SCHEMA: Final = """
CREATE TABLE contexts (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    digest BLOB NOT NULL UNIQUE,
    body TEXT NOT NULL
);
CREATE TABLE nodes (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    digest BLOB NOT NULL UNIQUE,
    parent INTEGER REFERENCES nodes(id),
    context INTEGER NOT NULL REFERENCES contexts(id),
    depth INTEGER NOT NULL,
    tool TEXT,
    args TEXT,
    canonical TEXT,
    sample INTEGER NOT NULL,
    effect TEXT NOT NULL,
    skeleton BLOB NOT NULL,
    outcome BLOB NOT NULL,
    reward REAL NOT NULL,
    terminated INTEGER NOT NULL,
    truncated INTEGER NOT NULL,
    wall_ns INTEGER NOT NULL,
    result_bytes INTEGER NOT NULL,
    state BLOB,
    visits INTEGER NOT NULL DEFAULT 0,
    hits INTEGER NOT NULL DEFAULT 0,
    misses INTEGER NOT NULL DEFAULT 0,
    heat REAL NOT NULL DEFAULT 0,
    heat_at INTEGER NOT NULL DEFAULT 0,
    pinned INTEGER NOT NULL DEFAULT 0,
    made_ns INTEGER NOT NULL
);
CREATE INDEX nodes_by_parent ON nodes(parent);
CREATE INDEX nodes_by_context ON nodes(context);
CREATE TABLE snapshots (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    node INTEGER NOT NULL REFERENCES nodes(id) ON DELETE CASCADE,
    tier TEXT NOT NULL CHECK (tier IN ('memory', 'disk')),
    owner TEXT NOT NULL,
    unique_bytes INTEGER NOT NULL,
    path TEXT,
    wanted INTEGER NOT NULL DEFAULT 1,
    uses INTEGER NOT NULL DEFAULT 0,
    made_ns INTEGER NOT NULL
);
CREATE UNIQUE INDEX snapshots_on_disk ON snapshots(node) WHERE tier = 'disk';
CREATE INDEX snapshots_by_node ON snapshots(node);
CREATE TABLE tools (
    task TEXT NOT NULL,
    name TEXT NOT NULL,
    runs INTEGER NOT NULL DEFAULT 0,
    run_ns INTEGER NOT NULL DEFAULT 0,
    hits INTEGER NOT NULL DEFAULT 0,
    audits INTEGER NOT NULL DEFAULT 0,
    disagreements INTEGER NOT NULL DEFAULT 0,
    quarantined TEXT,
    PRIMARY KEY (task, name)
) WITHOUT ROWID;
CREATE TABLE rates (
    id INTEGER PRIMARY KEY,
    at_ns INTEGER NOT NULL,
    hits INTEGER NOT NULL,
    misses INTEGER NOT NULL,
    saved_ns INTEGER NOT NULL,
    executed_ns INTEGER NOT NULL
);
CREATE TABLE counters (
    name TEXT PRIMARY KEY,
    value INTEGER NOT NULL
) WITHOUT ROWID;
"""

_abandoned: list[sqlite3.Connection] = []
"""Connections of a parent process: never used here, never closed here."""


class Database:
    """A connection that a forked child replaces by its own.

    A commit survives the death of the process at any moment; it survives a loss of power unless it
    is one of the last, and then the file is whole all the same.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._closed = False
        self._open()
        try:
            self._migrate()
        except BaseException:
            self.close()
            raise

    def read(self, sql: str, args: tuple[Any, ...] = ()) -> list[sqlite3.Row]:
        """All rows of a query."""
        with self._use() as connection:
            return connection.execute(sql, args).fetchall()

    def read_one(self, sql: str, args: tuple[Any, ...] = ()) -> sqlite3.Row | None:
        """The first row of a query."""
        with self._use() as connection:
            row: sqlite3.Row | None = connection.execute(sql, args).fetchone()
            return row

    @contextmanager
    def write(self) -> Iterator[sqlite3.Connection]:
        """One transaction; committed at the end of the block, undone when it raises."""
        with self._use() as connection:
            if connection.in_transaction:
                yield connection  # part of the transaction around it
                return
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
                connection.execute("COMMIT")
            except BaseException:
                connection.execute("ROLLBACK")
                raise

    def close(self) -> None:
        """Closes the connection; idempotent."""
        if self._closed or self._pid != os.getpid():
            return
        with self._lock:
            self._closed = True
            self._connection.close()

    @contextmanager
    def _use(self) -> Iterator[sqlite3.Connection]:
        if self._closed:
            raise ClosedError(f"the store {self.path} was closed")
        if self._pid != os.getpid():
            _abandoned.append(self._connection)
            self._open()
        with self._lock:
            yield self._connection

    def _open(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.RLock()
        connection = sqlite3.connect(self.path, timeout=_BUSY_S, isolation_level=None, check_same_thread=False)
        connection.row_factory = sqlite3.Row
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute("PRAGMA foreign_keys = ON")
        self._connection = connection

    def _migrate(self) -> None:
        with self.write() as connection:
            (version,) = connection.execute("PRAGMA user_version").fetchone()
            if version == _VERSION:
                return
            if version != 0:
                raise UsageError(
                    f"{self.path} is of version {version}, this program reads {_VERSION}; "
                    "use another directory, or the program that wrote it"
                )
            for statement in _SCHEMA.split(";"):
                if statement.strip():
                    connection.execute(statement)
            connection.execute(f"PRAGMA user_version = {_VERSION}")
