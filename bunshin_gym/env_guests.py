# SPDX-License-Identifier: Apache-2.0
"""Where an env's workspaces come from, and where they go."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from bunshin_gym.bases import BaseKey, BasePool, shared_bases
from bunshin_gym.broadcast import is_watched, publish, withdraw
from bunshin_gym.episode import Measured, Run
from bunshin_gym.errors import ClosedError, SnapshotLost, WorkspaceDied
from bunshin_gym.events import emit
from bunshin_gym.guest import Guest, Seen
from bunshin_gym.tasks.base import Page, Task

__all__ = ["AheadTask", "EnvGuests"]

_log: Final = logging.getLogger(__name__)


@runtime_checkable
class AheadTask(Protocol):
    """A task with something to do in a fresh workspace before its seed is known; `setup` takes it with or without."""

    def ahead(self, page: Page) -> None:
        """Does it."""
        ...


class EnvGuests:
    """Mixed into an env: takes workspaces from its bases, or one that was made ahead, and gives them up."""

    task: Task
    _bases: BasePool | None
    _base_key: BaseKey
    _guest: Guest | None
    _spare: Guest | None = None
    bury: Callable[[Guest], None] | None = None
    """Closes a workspace that is done with, if someone has taken that over; in whichever thread."""

    def make_spare(self) -> Guest:
        """A workspace for a coming episode, ready but for the seed. In any thread; the caller hands it or closes it."""
        guest = self._branch_of_base()
        try:
            if isinstance(self.task, AheadTask):
                self.task.ahead(guest)
        except BaseException:
            guest.close()
            raise
        return guest

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

    def hand(self, spare: Guest) -> None:
        """Gives a spare for the next reset to begin in; it is the env's to close from now on."""
        unused, self._spare = self._spare, spare
        if unused is not None:
            unused.close()

    def _fresh_guest(self) -> Guest:
        spare, self._spare = self._spare, None
        return self._branch_of_base() if spare is None else spare

    def _branch_of_base(self) -> Guest:
        pool = self._bases if self._bases is not None else shared_bases()
        base = pool.get(self._base_key)
        try:
            return base.branch()
        except (WorkspaceDied, SnapshotLost):
            pool.drop(self._base_key, base)
            return pool.get(self._base_key).branch()

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

    @contextlib.contextmanager
    def _ending(self, guest: Guest) -> Iterator[None]:
        """Closes it in the end. What was set up in a workspace that died is gone with it."""
        try:
            with contextlib.suppress(WorkspaceDied, ClosedError):
                yield
        finally:
            workspace = getattr(guest, "workspace", None)
            if workspace is not None:
                withdraw(Path(self._base_key.home), workspace.id)
            if self.bury is None:
                guest.close()
            else:
                self.bury(guest)
