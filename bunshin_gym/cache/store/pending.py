# SPDX-License-Identifier: Apache-2.0
"""Counts that are gathered in memory and written together: a hit must not wait for the database."""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from collections.abc import Mapping

from bunshin_gym.cache.store.index import Visit
from bunshin_gym.cache.store.ledger import Rate

__all__ = ["Pending"]


class Pending:
    """Counts of this process that are not written yet."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._reset()

    def _reset(self) -> None:
        self._pid = os.getpid()
        self._visits: dict[int, Visit] = {}
        self._tools: dict[tuple[str, str], Counter[str]] = {}
        self._events = self._attempts = 0
        self._hits = self._misses = self._saved_ns = self._executed_ns = 0

    def count(self, node: int, visit: Visit, *, attempts: int) -> int:
        """Adds to a node's counts; returns how many events are pending."""
        with self._lock:
            self._own()
            entry = self._visits.setdefault(node, Visit())
            entry.visits += visit.visits
            entry.hits += visit.hits
            entry.misses += visit.misses
            self._attempts += attempts
            self._events += 1
            return self._events

    def step(self, *, hit: bool, saved_ns: int, executed_ns: int) -> None:
        with self._lock:
            self._own()
            self._hits += hit
            self._misses += not hit
            self._saved_ns += saved_ns
            self._executed_ns += executed_ns

    def tool(self, task: str, name: str, added: Mapping[str, int]) -> None:
        with self._lock:
            self._own()
            self._tools.setdefault((task, name), Counter()).update(added)

    def take(self) -> tuple[dict[int, Visit], int, dict[tuple[str, str], Counter[str]], Rate | None]:
        """Everything pending; nothing is pending then."""
        with self._lock:
            self._own()
            visits, attempts, tools = self._visits, self._attempts, self._tools
            rate = None
            if self._hits or self._misses:
                rate = Rate(
                    at_ns=time.time_ns(),
                    hits=self._hits,
                    misses=self._misses,
                    saved_ns=self._saved_ns,
                    executed_ns=self._executed_ns,
                )
            self._reset()
        return visits, attempts, tools, rate

    def _own(self) -> None:
        if self._pid != os.getpid():  # what a forked child inherits is its parent's to write
            self._reset()
