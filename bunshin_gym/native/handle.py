# SPDX-License-Identifier: Apache-2.0
"""What the core, a workspace and a snapshot are alike: one C object, which one process owns."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from bunshin_gym._native import ffi
from bunshin_gym.errors import ClosedError
from bunshin_gym.native.call import call

__all__ = ["NativeHandle"]


class NativeHandle:
    """Owns one C object; closing is idempotent, and a no-op in a process that did not make it."""

    def __init__(self, what: str, pointer: Any, free: Any, owner: object = None) -> None:
        self._what = what
        self._pid = os.getpid()
        self._owner = owner
        self._idle = threading.Condition()
        self._users = 0
        # The C function itself: it must work in whatever order objects go at the interpreter's end.
        self._pointer = ffi.gc(pointer, free)

    def _check_process(self) -> None:
        if os.getpid() != self._pid:
            raise ClosedError(
                f"{self._what} belongs to process {self._pid}; this is its child {os.getpid()}: "
                "make workspaces after forking, or start processes by 'spawn'"
            )

    @contextmanager
    def _use(self) -> Iterator[Any]:
        """The pointer, which another thread's release() will not free meanwhile."""
        self._check_process()
        with self._idle:
            if self._pointer is None:
                raise ClosedError(f"{self._what} has been closed")
            pointer = self._pointer
            self._users += 1
        try:
            yield pointer
        finally:
            with self._idle:
                self._users -= 1
                self._idle.notify_all()

    @contextmanager
    def held(self) -> Iterator[None]:
        """Not freed meanwhile. Raises ClosedError if it is, or belongs to another process."""
        with self._use():
            yield

    def _call(self, function: Callable[..., int], *args: Any) -> None:
        with self._use() as pointer:
            call(function, pointer, *args)

    @property
    def closed(self) -> bool:
        return self._pointer is None or os.getpid() != self._pid

    def release(self) -> None:
        """Frees the C object once no other thread is in a call on it."""
        if os.getpid() != self._pid:
            return
        with self._idle:
            pointer, self._pointer = self._pointer, None
            while self._users:
                self._idle.wait()
        if pointer is not None:
            ffi.release(pointer)
