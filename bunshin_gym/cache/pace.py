# SPDX-License-Identifier: Apache-2.0
"""How fast a workspace is made: at leisure while nobody waits for it, and at once when somebody does."""

from __future__ import annotations

import threading
from typing import Protocol, runtime_checkable

from bunshin_gym.cache.snapshots import PatientHandle, SnapshotHandle
from bunshin_gym.types import Forkable

__all__ = ["Pace"]


@runtime_checkable
class _Yielding(Protocol):
    def confine(self) -> None: ...
    def unconfine(self) -> None: ...


class Pace:
    """One making of a workspace; `hurry` may come from any thread at any time, the rest from the one that makes it."""

    def __init__(self, *, leisurely: bool = False) -> None:
        self._leisurely = leisurely
        self._lock = threading.Lock()
        self._source: PatientHandle | None = None
        self._live: _Yielding | None = None

    @property
    def leisurely(self) -> bool:
        """Whether nobody waits."""
        return self._leisurely

    def branch(self, snapshot: SnapshotHandle) -> Forkable:
        """A branch of the snapshot, which yields to others as long as nobody waits."""
        with self._lock:
            source = snapshot if self._leisurely and isinstance(snapshot, PatientHandle) else None
            self._source = source
        if source is None:
            return snapshot.branch()
        try:
            live = source.branch_confined()
        finally:
            with self._lock:
                self._source = None
        with self._lock:
            if isinstance(live, _Yielding) and self._leisurely:
                self._live = live
            elif isinstance(live, _Yielding):
                try:
                    live.unconfine()
                except BaseException:
                    live.close()
                    raise
        return live

    def uses(self, live: Forkable) -> None:
        """Goes on in a workspace that there was already, or that was made some other way."""
        with self._lock:
            if self._leisurely and isinstance(live, _Yielding):
                live.confine()
                self._live = live

    def lost(self) -> None:
        """The workspace is about to be closed."""
        with self._lock:
            self._live = None

    def hurry(self) -> None:
        """Somebody waits from now on; idempotent."""
        with self._lock:
            self._leisurely = False
            source, live, self._live = self._source, self._live, None
            if source is not None:
                source.hurry()
            if live is not None:
                live.unconfine()
