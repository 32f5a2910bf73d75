# SPDX-License-Identifier: Apache-2.0
"""Keeps tool calls and snapshots of one workspace apart: a call's connection comes from outside and cannot fork."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from bunshin_gym.errors import UsageError

__all__ = ["Gate"]


class Gate:
    """Any number of calls pass at once; while it is shut none is inside, and those that come wait.

    Whoever shuts it comes before calls that arrive later, so a stream of calls does not keep it out.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._inside = 0
        self._wanted = 0
        self._shut = False

    @contextmanager
    def passing(self) -> Iterator[None]:
        """For one call; waits while the gate is shut, or about to be."""
        with self._changed:
            self._changed.wait_for(lambda: not self._shut and not self._wanted)
            self._inside += 1
        try:
            yield
        finally:
            with self._changed:
                self._inside -= 1
                self._changed.notify_all()

    @contextmanager
    def shut(self, timeout_s: float) -> Iterator[None]:
        """Waits until the calls inside have returned.

        Raises:
            UsageError: they have not within that time; nothing has changed.
        """
        with self._changed:
            self._wanted += 1
            try:
                free = self._changed.wait_for(lambda: not self._shut and not self._inside, timeout_s)
                if not free:
                    raise UsageError(
                        f"{self._inside} tool call(s) have not returned within {timeout_s:g} s; "
                        "take the snapshot once they have"
                    )
                self._shut = True
            finally:
                self._wanted -= 1
                self._changed.notify_all()
        try:
            yield
        finally:
            with self._changed:
                self._shut = False
                self._changed.notify_all()
