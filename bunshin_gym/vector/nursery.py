# SPDX-License-Identifier: Apache-2.0
"""Makes workspaces ahead and ends used ones behind, both while nobody waits for it."""

from __future__ import annotations

import logging
import threading
from collections import deque
from typing import Final

from bunshin_gym.bases import Fresh
from bunshin_gym.env_guests import EnvGuests
from bunshin_gym.errors import BunshinError
from bunshin_gym.guest import Guest
from bunshin_gym.vector.admission import Admission

__all__ = ["Nursery"]

_log: Final = logging.getLogger(__name__)


class Nursery:
    """Spare workspaces for the tasks that were asked for last, and a grave for those that are done with.

    One thread does both, the dead first since they hold memory. It rests while a reset needs the processors.

    Args:
        most: spares to keep; with 0 none is made, and workspaces are ended in the background all the same.
        admission: whose turnstile the making goes through.
    """

    def __init__(self, most: int, admission: Admission) -> None:
        self._most, self._admission = most, admission
        self._wake = threading.Condition()
        self._dead: deque[Guest] = deque()
        self._ready: dict[str, deque[Fresh]] = {}
        self._wanted: deque[EnvGuests] = deque(maxlen=most or 1)
        self._paused = self._closed = self._broken = self._busy = False
        self._thread: threading.Thread | None = None

    def take(self, env: EnvGuests) -> Fresh | None:
        """A spare for the env's task, or None; another one will be made."""
        if not self._most:
            return None
        with self._wake:
            self._wanted.append(env)
            self._broken = False
            ready = self._ready.get(env.task.id)
            spare = ready.popleft() if ready else None
            self._notify()
        return spare

    def bury(self, guest: Guest) -> None:
        """Ends a workspace soon; at once when this is closed."""
        with self._wake:
            if not self._closed:
                self._dead.append(guest)
                self._notify()
                return
        guest.close()

    def pause(self) -> None:
        """Begins nothing until `resume`."""
        with self._wake:
            self._paused = True

    def resume(self) -> None:
        """Goes on."""
        with self._wake:
            self._paused = False
            self._notify()

    def wait_idle(self) -> None:
        """Returns when there is nothing to make and nothing to end, or nothing more can be made."""
        with self._wake:
            self._wake.wait_for(lambda: self._closed or not (self._busy or self._dead or self._missing()))

    def close(self) -> None:
        """Ends all it has, and waits until that is done; idempotent."""
        with self._wake:
            self._closed = True
            self._notify()
            thread = self._thread
        if thread is not None:
            thread.join()
        for ready in self._ready.values():
            self._dead.extend(spare.guest for spare in ready)
        self._ready.clear()
        while self._dead:
            self._dead.pop().close()

    def _notify(self) -> None:
        if self._thread is None and not self._closed:
            self._thread = threading.Thread(target=self._run, name="bunshin-nursery", daemon=True)
            self._thread.start()
        self._wake.notify_all()

    def _run(self) -> None:
        while True:
            with self._wake:
                self._wake.wait_for(lambda: self._closed or (not self._paused and (self._dead or self._missing())))
                if self._closed:
                    return
                dead, env = (self._dead.popleft(), None) if self._dead else (None, self._missing())
                self._busy = True
            failed = False
            try:
                if dead is not None:
                    dead.close()
                elif env is not None:
                    self._make(env)
            except BunshinError as error:
                failed = True
                _log.warning("a workspace was not %s: %s", "ended" if env is None else "made ahead", error)
            except Exception:  # noqa: BLE001 - a task's own code; a reset, which runs it too, raises
                failed = True
                _log.exception("a workspace was not %s", "ended" if env is None else "made ahead")
            finally:
                with self._wake:
                    self._broken |= failed and env is not None
                    self._busy = False
                    self._wake.notify_all()

    def _missing(self) -> EnvGuests | None:
        """An env whose task has fewer spares than it was asked for lately. Called with the lock held."""
        if not self._most or self._broken or sum(map(len, self._ready.values())) >= self._most:
            return None
        for env in self._wanted:
            wanted = sum(other.task.id == env.task.id for other in self._wanted)
            if len(self._ready.get(env.task.id, ())) < wanted:
                return env
        return None

    def _make(self, env: EnvGuests) -> None:
        with self._admission.making():
            spare = env.make_spare()
        with self._wake:
            if not self._closed:
                self._ready.setdefault(env.task.id, deque()).append(spare)
                return
        spare.guest.close()
