# SPDX-License-Identifier: Apache-2.0
"""One booted snapshot for each kind of workspace in this process, shared by its envs.

Booting a desktop takes seconds, branching a fraction of one: so the first reset boots, and every
reset branches. A base belongs to the process that booted it; after os.fork() the child starts with
none, and leaves its parent's alone.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing import util
from pathlib import Path
from typing import Final, Self

from bunshin_gym.errors import BunshinError, UsageError
from bunshin_gym.guest import Guest, GuestBase, GuestSnapshot
from bunshin_gym.surfaces.base import Screen
from bunshin_gym.tasks.base import PreparedTask

__all__ = ["BaseKey", "BasePool", "shared_bases"]


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseKey:
    """All that makes two boots differ.

    Attributes:
        home: the state directory.
        image: the image's name, or its digest.
        screen: size of the screen.
        surface: what the tool server serves.
        engine: which engine forks; None is the default one.
        memory_max_bytes: limit of each workspace; None for none.
        task: what has set the workspace up after its boot; None for nobody.
    """

    home: str
    image: str
    screen: Screen
    surface: str
    engine: str | None = None
    memory_max_bytes: int | None = None
    task: PreparedTask | None = None


@dataclass(slots=True)
class _Slot:
    lock: threading.Lock = field(default_factory=threading.Lock)
    base: GuestBase | None = None


class _Prepared:
    """A state that a task has set up, as a base."""

    image_digest = ""

    def __init__(self, snapshot: GuestSnapshot) -> None:
        self._snapshot = snapshot

    def branch(self) -> Guest:
        return self._snapshot.branch()

    def close(self) -> None:
        self._snapshot.close()


class BasePool:
    """Bases by key, each booted once, by whoever asks first; others wait for it."""

    def __init__(
        self,
        boot: Callable[[BaseKey], GuestBase],
        *,
        image_digest: Callable[[BaseKey], str] | None = None,
        load: Callable[[BaseKey, Path], GuestSnapshot] | None = None,
        prepared_max: int = 8,
    ) -> None:
        """Keeps at most `prepared_max` states that tasks have set up, beside all that were booted."""
        self._prepared_max = prepared_max
        self._boot, self._load = boot, load
        self._image_digest = image_digest
        self._forget()
        forget = weakref.WeakMethod(self._forget)

        def after_fork() -> None:
            if (method := forget()) is not None:
                method()

        os.register_at_fork(after_in_child=after_fork)

    def _forget(self) -> None:
        """Starts empty without closing: what is there belongs to another process."""
        self._lock = threading.Lock()
        self._slots: dict[BaseKey, _Slot] = {}
        self._closer: util.Finalize | None = None

    def __deepcopy__(self, memo: object) -> Self:
        """Itself: an env's spec, which holds it, may be copied."""
        return self

    def get(self, key: BaseKey) -> GuestBase:
        """Returns the base, booted if it was not yet.

        Raises:
            BunshinError: it cannot be booted; the next call tries again.
        """
        with self._lock:
            slot = self._slots.setdefault(key, _Slot())
            if self._closer is None:
                # Also run at the end of a multiprocessing worker, where atexit is not.
                self._closer = util.Finalize(None, self.close, exitpriority=50)
        with slot.lock:
            if slot.base is None:
                slot.base = self._boot(key) if key.task is None else self._prepare(key, key.task)
            return slot.base

    def _prepare(self, key: BaseKey, task: PreparedTask) -> GuestBase:
        """Lets a task set a fresh workspace up, and keeps that state; of too many the oldest is given up."""
        with contextlib.closing(self.get(dataclasses.replace(key, task=None)).branch()) as guest:
            task.prepare(guest)
            snapshot = guest.snapshot()
        with self._lock:
            prepared = [
                (other, slot.base)
                for other, slot in self._slots.items()
                if other.task is not None and slot.base is not None
            ]
        for other, base in prepared[: max(0, len(prepared) + 1 - self._prepared_max)]:
            self.drop(other, base)
        return _Prepared(snapshot)

    def image_digest(self, key: BaseKey) -> str:
        """What a base of that key is booted from; without booting one if there is another way to know."""
        return self.get(key).image_digest if self._image_digest is None else self._image_digest(key)

    def load(self, key: BaseKey, path: Path) -> GuestSnapshot:
        """A snapshot that `GuestSnapshot.persist` wrote; the caller's to close.

        Raises:
            UsageError: guests of this pool cannot be written to disk.
            BunshinError: it cannot be read.
        """
        if self._load is None:
            raise UsageError("the workspaces of this pool are not kept on disk")
        return self._load(key, path)

    def drop(self, key: BaseKey, base: GuestBase) -> None:
        """Closes a base that turned out to be broken, unless it was replaced already."""
        with self._lock:
            slot = self._slots.get(key)
        if slot is None:
            return
        with slot.lock:
            if slot.base is base:
                slot.base = None
                base.close()

    def close(self) -> None:
        """Closes every base; a later get boots again."""
        with self._lock:
            slots, self._slots = list(self._slots.values()), {}
        with contextlib.ExitStack() as stack:
            for slot in slots:
                with slot.lock:
                    if slot.base is not None:
                        stack.callback(slot.base.close)
                        slot.base = None


_shared: BasePool | None = None
_shared_lock: Final = threading.Lock()


def shared_bases() -> BasePool:
    """This process's pool of real workspaces.

    Raises:
        BunshinError: the native half is missing.
    """
    global _shared
    with _shared_lock:
        if _shared is None:
            try:
                from bunshin_gym.workspace_guest import WorkspaceBase, boot_base, image_digest
            except ImportError as error:
                raise BunshinError(f"the C core is not built: {error}; run `make core`") from error
            _shared = BasePool(boot_base, image_digest=image_digest, load=WorkspaceBase.load)
        return _shared
