# SPDX-License-Identifier: Apache-2.0
"""Where an env's workspaces come from, and where they go."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import logging
import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from bunshin_gym.bases import BaseKey, BasePool, Fresh, Opening, shared_bases
from bunshin_gym.broadcast import is_watched, publish, withdraw
from bunshin_gym.episode import Measured, Run
from bunshin_gym.errors import ClosedError, WorkspaceDied
from bunshin_gym.events import emit
from bunshin_gym.guest import Guest, Seen
from bunshin_gym.tasks.base import Task

__all__ = ["EnvGuests"]

_log: Final = logging.getLogger(__name__)


class EnvGuests:
    """Mixed into an env: takes workspaces from its bases, or one that was made ahead, and gives them up."""

    task: Task
    _bases: BasePool | None
    _base_key: BaseKey
    _tree: bool
    _guest: Guest | None
    _run: Run | None
    _pixels: NDArray[np.uint8] | None
    _spare: Fresh | None = None
    _ending: tuple[int, Future[None]] | None = None
    bury: Callable[[Guest], None] | None = None
    """Closes a workspace that is done with, if someone has taken that over; in whichever thread."""

    def make_spare(self) -> Fresh:
        """A workspace for a coming episode, ready but for the seed. In any thread; the caller hands it or closes it."""
        return self._pool.branch(self._base_key)

    @property
    def workspace_id(self) -> str | None:
        """The id of the workspace as `bunshin ps` shows it; None without an episode."""
        workspace = getattr(self._guest, "workspace", None)
        return None if workspace is None else str(workspace.id)

    def _repr_html_(self) -> str:
        from bunshin_gym.envs import BunshinEnv
        from bunshin_gym.notebook import env_html

        assert isinstance(self, BunshinEnv)
        return env_html(self)

    def hand(self, spare: Fresh) -> None:
        """Gives a spare for the next reset to begin in; it is the env's to close from now on."""
        self._drop_spare()
        self._spare = spare

    def _drop_spare(self) -> None:
        unused, self._spare = self._spare, None
        if unused is not None:
            unused.guest.close()

    @property
    def _pool(self) -> BasePool:
        return self._bases if self._bases is not None else shared_bases()

    def _begin(self, seed: int) -> Opening:
        """Begins an episode, in the kept state that is nearest to its first observation."""
        pool, begun = self._pool, dataclasses.replace(self._base_key, seed=seed)
        prepared = self._base_key.task
        fresh, self._spare = self._spare, None
        if fresh is None and prepared is not None and prepared.seeded:
            fresh = pool.branch_begun(begun)
        if fresh is None:
            fresh = pool.branch(self._base_key)
        self._guest, opening = fresh.guest, fresh.opening
        if opening is None:
            setup = self.task.setup(fresh.guest, seed)
            opening = Opening(setup=setup, seen=fresh.guest.act((), tree=self._tree))
            if prepared is not None:
                pool.begun(begun, fresh.guest, opening)
        self._run = Run(setup=copy.deepcopy(opening.setup), started_ns=time.monotonic_ns())
        return opening

    def _give_up(self) -> None:
        """Ends a workspace in which no episode could begin."""
        guest, self._guest, self._run = self._guest, None, None
        if guest is not None:
            guest.close()

    def _measured(self, event: str, guest: Guest, begun_ns: int, seen: Seen, *, memory: bool) -> Measured:
        """What a call cost that began then; told as an event too, if it has a name."""
        stats = guest.stats() if memory else None
        measured = Measured(
            total_ns=time.monotonic_ns() - begun_ns,
            tool_ns=seen.tool_ns,
            look_ns=seen.look_ns,
            frozen_ns=guest.snapshot_stats.frozen_ns if guest.snapshot_stats else 0,
            snapshot=guest.snapshot_stats,
            branch=guest.branch_stats,
            unique_bytes=stats.unique_bytes if stats else None,
            shared_bytes=stats.shared_bytes if stats else None,
        )
        if event:
            emit(
                event,
                task=self.task.id,
                workspace=self.workspace_id,
                total_s=measured.total_ns / 1e9,
                tool_s=measured.tool_ns / 1e9,
                look_s=measured.look_ns / 1e9,
                branch_s=measured.branch.total_ns / 1e9 if measured.branch and event == "reset" else None,
            )
        return measured

    def _forked(self, guests: Sequence[Guest], begun_ns: int) -> None:
        stats = guests[0].snapshot_stats
        emit(
            "fork",
            task=self.task.id,
            workspace=self.workspace_id,
            branches=len(guests),
            total_s=(time.monotonic_ns() - begun_ns) / 1e9,
            frozen_s=stats.frozen_ns / 1e9 if stats else None,
            copied_bytes=stats.copied_bytes if stats else None,
        )

    def _broadcast(self, pixels: NDArray[np.uint8], run: Run) -> None:
        """Shows the screen to those who watch by `bunshin view`; if that fails, the episode goes on."""
        home = Path(self._base_key.home)
        if self.workspace_id is None or not is_watched(home):
            return
        notes = {
            "task": self.task.id,
            "goal": run.setup.goal,
            "last_action": run.last_action,
            "last_action_error": run.last_error,
            "steps": run.steps,
            "reward": run.reward,
            "done": run.done,
        }
        try:
            publish(home, self.workspace_id, pixels, notes)
        except OSError as error:
            _log.warning("the screen of %s is not shown: %s", self.workspace_id, error)

    def _leave(self) -> Guest | None:
        """Ends the episode, not yet its workspace, which the caller must."""
        guest, run = self._guest, self._run
        self._guest = self._run = self._pixels = None
        if guest is None:
            return None
        try:
            # What was set up in a workspace that died is gone with it.
            with contextlib.suppress(WorkspaceDied, ClosedError):
                if run is not None:
                    self.task.teardown(guest, run.setup.state)
        except BaseException:
            guest.close()
            raise
        finally:
            workspace = getattr(guest, "workspace", None)
            if workspace is not None:
                withdraw(Path(self._base_key.home), workspace.id)
        return guest

    def _end_behind(self, guest: Guest | None) -> None:
        """Ends a workspace in another thread: at most one of an env's at a time."""
        if guest is None:
            return
        if self.bury is not None:
            self.bury(guest)
            return
        undertaker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="bunshin-end")
        self._ending = os.getpid(), undertaker.submit(guest.close)
        undertaker.shutdown(wait=False)

    def _wait_ended(self) -> None:
        """Returns when no workspace of a former episode is left; raises what ending it did."""
        ending, self._ending = self._ending, None
        # After os.fork() it is the parent's to end: the thread is not in the child.
        if ending is not None and ending[0] == os.getpid():
            ending[1].result()
