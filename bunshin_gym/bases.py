# SPDX-License-Identifier: Apache-2.0
"""Snapshots that resets branch from, in this process, shared by its envs.

Booting a desktop takes seconds, branching a fraction of one: so the first reset boots, and every reset branches; from
the farthest state on the way to its first observation that is kept:

    booted      of each kind of workspace
    prepared    what a `PreparedTask` does whatever the seed; with the first observation, if no seed changes that
    begun       a `PreparedTask` set up from one seed, with the first observation; from the second time on

A snapshot belongs to the process that made it; after os.fork() the child starts with none, and leaves those of its
parent alone.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing import util
from pathlib import Path
from typing import Final, Self

from bunshin_gym.errors import BunshinError, ClosedError, SnapshotLost, UsageError, WorkspaceDied
from bunshin_gym.guest import Guest, GuestBase, GuestSnapshot, Seen
from bunshin_gym.surfaces.base import Screen
from bunshin_gym.tasks.base import PreparedTask, Setup

__all__ = ["BaseKey", "BasePool", "Fresh", "Opening", "shared_bases"]

_log: Final = logging.getLogger(__name__)

_REMEMBERED: Final = 4096


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
        task: what has prepared the workspace after its boot; None for nobody.
        seed: what the task was set up from after that; None if it was not.
        tree: whether the first observation has the accessibility tree.
    """

    home: str
    image: str
    screen: Screen
    surface: str
    engine: str | None = None
    memory_max_bytes: int | None = None
    task: PreparedTask | None = None
    seed: int | None = None
    tree: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """How an episode begins: what setting it up brought, and what was seen then."""

    setup: Setup
    seen: Seen

    def again(self) -> Opening:
        """The same for those that need not look."""
        return Opening(setup=self.setup, seen=dataclasses.replace(self.seen, look_ns=0))


@dataclass(frozen=True, slots=True, kw_only=True)
class Fresh:
    """A workspace for an episode; with an opening it is set up and looked at already. The holder's to close."""

    guest: Guest
    opening: Opening | None = None


@dataclass(frozen=True, slots=True, eq=False)
class _State:
    base: GuestBase | GuestSnapshot
    opening: Opening | None = None


class BasePool:
    """States by key, each made once, by whoever asks first; others wait for it."""

    def __init__(
        self,
        boot: Callable[[BaseKey], GuestBase],
        *,
        image_digest: Callable[[BaseKey], str],
        load: Callable[[BaseKey, Path], GuestSnapshot] | None = None,
        set_up_max: int = 32,
    ) -> None:
        """`image_digest` says what a workspace of a key is booted from.

        At most `set_up_max` states that tasks have set up are kept, those used last, beside all that were booted. Each
        is a snapshot: it takes what the task changed in the booted workspace, as `bunshin ps` shows.
        """
        self._set_up_max = set_up_max
        self._boot, self._load = boot, load
        self.image_digest: Final = image_digest
        self._forget()
        forget = weakref.WeakMethod(self._forget)

        def after_fork() -> None:
            if (method := forget()) is not None:
                method()

        os.register_at_fork(after_in_child=after_fork)

    def _forget(self) -> None:
        """Starts empty without closing: what is there belongs to another process."""
        self._lock = threading.Lock()
        self._making: dict[BaseKey, threading.Lock] = {}
        self._kept: OrderedDict[BaseKey, _State] = OrderedDict()
        self._begun_once: OrderedDict[BaseKey, None] = OrderedDict()
        self._closer: util.Finalize | None = None

    def __deepcopy__(self, memo: object) -> Self:
        """Itself: an env's spec, which holds it, may be copied."""
        return self

    def branch(self, key: BaseKey) -> Fresh:
        """A fresh workspace that was booted, and prepared if the key has a task; that state is kept from now on.

        Raises:
            BunshinError: it cannot be made; the next call tries again.
        """
        for last in (False, True):
            with self._made_once(key):
                state = self._find(key)
                if state is None and key.task is not None:
                    return self._prepare(key, key.task)
                if state is None:
                    state = self._keep(key, _State(self._boot(key)))
            fresh = self._branch(key, state, or_raise=last)
            if fresh is not None:
                return fresh
        raise AssertionError("the last round returns or raises")

    def branch_begun(self, key: BaseKey) -> Fresh | None:
        """A workspace in which the key's task was set up from the key's seed, if that state is kept."""
        state = self._find(key)
        return None if state is None else self._branch(key, state, or_raise=False)

    def begun(self, key: BaseKey, guest: Guest, opening: Opening) -> None:
        """Hears that in a guest, as it is now, the key's task was set up from its seed: the second time this is kept.

        A seed that never comes again costs nothing; and that the state cannot be kept hinders no one.
        """
        with self._lock:
            if key in self._kept:
                return
            if key not in self._begun_once:
                self._begun_once[key] = None
                if len(self._begun_once) > _REMEMBERED:
                    self._begun_once.popitem(last=False)
                return
            del self._begun_once[key]
        try:
            self._keep(key, _State(guest.snapshot(), opening.again()))
        except BunshinError as error:
            _log.warning("seed %s of %s is set up anew every time: %s", key.seed, key.task and key.task.id, error)

    def _prepare(self, key: BaseKey, task: PreparedTask) -> Fresh:
        """Lets a task prepare a fresh workspace, keeps that state, and goes on in it."""
        guest = self.branch(dataclasses.replace(key, task=None, tree=True)).guest
        try:
            task.prepare(guest)
            opening = None if task.seeded else Opening(setup=task.setup(guest, 0), seen=guest.act((), tree=key.tree))
            self._keep(key, _State(guest.snapshot(), opening and opening.again()))
        except BaseException:
            guest.close()
            raise
        return Fresh(guest=guest, opening=opening)

    def _branch(self, key: BaseKey, state: _State, *, or_raise: bool) -> Fresh | None:
        """A branch; None when the state is lost, or was given up meanwhile, and is no longer kept."""
        try:
            return Fresh(guest=state.base.branch(), opening=state.opening)
        except (WorkspaceDied, SnapshotLost, ClosedError):
            with self._lock:
                if self._kept.get(key) is state:
                    del self._kept[key]
            state.base.close()
            if or_raise:
                raise
            return None

    @contextlib.contextmanager
    def _made_once(self, key: BaseKey) -> Iterator[None]:
        """Whoever makes a state is alone with that. Its lock may be held when that of the state before it is taken."""
        with self._lock:
            lock = self._making.setdefault(key, threading.Lock())
            if self._closer is None:
                # Also run at the end of a multiprocessing worker, where atexit is not.
                self._closer = util.Finalize(None, self.close, exitpriority=50)
        with lock:
            yield

    def _find(self, key: BaseKey) -> _State | None:
        with self._lock:
            state = self._kept.get(key)
            if state is not None:
                self._kept.move_to_end(key)
            return state

    def _keep(self, key: BaseKey, state: _State) -> _State:
        """Keeps it; of too many that tasks have set up, the one not used for longest is given up."""
        with self._lock:
            given_up = [self._kept.pop(key)] if key in self._kept else []
            self._kept[key] = state
            set_up = [other for other in self._kept if other.task is not None]
            given_up += [self._kept.pop(other) for other in set_up[: max(0, len(set_up) - self._set_up_max)]]
        for old in given_up:
            old.base.close()
        return state

    def load(self, key: BaseKey, path: Path) -> GuestSnapshot:
        """A snapshot that `GuestSnapshot.persist` wrote; the caller's to close.

        Raises:
            UsageError: guests of this pool cannot be written to disk.
            BunshinError: it cannot be read.
        """
        if self._load is None:
            raise UsageError("the workspaces of this pool are not kept on disk")
        return self._load(key, path)

    def close(self) -> None:
        """Gives every state up, once those that are being made are there; a later branch boots again."""
        with contextlib.ExitStack() as held:
            with self._lock:
                making = sorted(self._making.items(), key=lambda item: item[0].task is None)
            for _, lock in making:
                held.enter_context(lock)
            with self._lock:
                states, self._kept = list(self._kept.values()), OrderedDict()
        with contextlib.ExitStack() as stack:
            for state in states:
                stack.callback(state.base.close)


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
