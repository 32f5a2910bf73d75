# SPDX-License-Identifier: Apache-2.0
"""A workspace and the right to use it; branches of it that hold it up as briefly as can be."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, cast

from bunshin_gym.speculate.protocols import Snapshotting
from bunshin_gym.types import Forkable

__all__ = ["Seat"]

F = TypeVar("F", bound=Forkable)


@dataclass(slots=True, eq=False)
class _Held:
    """A snapshot of the workspace's present state, for all guesses made in it."""

    snapshot: Any
    users: int = 0
    stale: bool = False


class Seat(Generic[F]):
    """A workspace that one thread at a time forks, snapshots or runs a call in.

    Where the workspace offers snapshots, only taking one waits for the seat and holds it; branches are
    made of it while the workspace may already run on, and guesses in one state share it.
    """

    def __init__(self, workspace: F) -> None:
        self.workspace = workspace
        self.lock = threading.Lock()
        self._held: _Held | None = None
        self._making: list[Any] = []
        self._in_a_hurry = False

    def branch(self, may_start: Callable[[], bool], on_held: Callable[[int], None]) -> F | None:
        """A branch of the present state; None if `may_start` says no once the seat is free.

        Args:
            on_held: told for how long the workspace was held up, in nanoseconds.
        """
        with self.lock:
            if not may_start():
                return None
            begun_ns = time.monotonic_ns()
            fresh = self._held is None
            held = self._hold()
            branch = self.workspace.fork() if held is None else None
            if held is not None:
                held.users += 1
            if fresh:
                on_held(time.monotonic_ns() - begun_ns)
        if held is None:
            return branch
        self._making.append(held.snapshot)
        try:
            confined = None if self._in_a_hurry else getattr(held.snapshot, "branch_confined", None)
            return cast("F", held.snapshot.branch() if confined is None else confined())
        finally:
            self._making.remove(held.snapshot)
            with self.lock:
                held.users -= 1
                unused = held.stale and held.users == 0
            if unused:
                held.snapshot.close()

    def hurry(self) -> None:
        """Somebody waits for the end of branches in the making, now and later: they yield to others no more."""
        self._in_a_hurry = True
        for snapshot in list(self._making):
            hurry = getattr(snapshot, "hurry", None)
            if hurry is not None:
                hurry()

    def moves_on(self) -> Callable[[], None] | None:
        """The workspace is about to change; call it with the lock held.

        Returns:
            What is left to do, without the lock and at leisure; None if nothing is.
        """
        held, self._held = self._held, None
        if held is None:
            return None
        held.stale = True
        return held.snapshot.close if held.users == 0 else None

    def close(self) -> None:
        """Closes the workspace once nobody uses it."""
        with self.lock:
            left = self.moves_on()
            try:
                self.workspace.close()
            finally:
                if left is not None:
                    left()

    def _hold(self) -> _Held | None:
        if self._held is None and isinstance(self.workspace, Snapshotting):
            snapshot = self.workspace.snapshot()
            if snapshot is not None:
                self._held = _Held(snapshot)
        return self._held
