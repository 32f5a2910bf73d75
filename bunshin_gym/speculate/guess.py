# SPDX-License-Identifier: Apache-2.0
"""One guess on its way: forked, run, and then adopted or discarded.

    waiting ─► forking ─► running ─► done ─► adopted
       │          │          │        │
       └──────────┴──────────┴────────┴────► discarded        running ─► failed

Whoever forked a branch closes it: the worker while it is at work, afterwards the one who discards.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Final, Generic, Literal, TypeVar

from bunshin_gym.errors import BunshinError
from bunshin_gym.speculate.governor import Governor
from bunshin_gym.speculate.protocols import Abortable, Confinable, Measurable
from bunshin_gym.speculate.seat import Seat
from bunshin_gym.speculate.state import Prediction, State
from bunshin_gym.types import Forkable, ToolResult

__all__ = ["RAN_TOO_LONG", "Guess", "with_children"]

F = TypeVar("F", bound=Forkable)

_log: Final = logging.getLogger(__name__)
RAN_TOO_LONG: Final = "it ran too long"
_Phase = Literal["waiting", "forking", "running", "done", "adopted", "discarded", "failed"]


class Guess(Generic[F]):
    """A predicted call in a branch of its own. Implements `Ticket`.

    Args:
        governor: who decides when it starts.
        changed: guards the phase of all guesses of an attempt, and tells of each change.
        source: where to fork from.
        state: the attempt's state that the prediction was made in.
        prediction: what to run.
        gain_ns: what it promises.
        depth: 1 for the next call, 2 for the one after it, ...
        on_done: called by the worker when the result is there.
        on_gone: called once when nothing is left of it, or it was adopted and the old workspace
            is closed.
    """

    def __init__(
        self,
        *,
        governor: Governor,
        changed: threading.Condition,
        source: Seat[F],
        state: State,
        prediction: Prediction,
        gain_ns: float,
        depth: int,
        on_done: Callable[[Guess[F]], None],
        on_gone: Callable[[Guess[F]], None],
    ) -> None:
        self.state, self.call, self.probability = state, prediction.call, prediction.probability
        self.depth, self._gain_ns = depth, gain_ns
        self._governor, self._changed, self._source = governor, changed, source
        self._on_done, self._on_gone = on_done, on_gone
        self.phase: _Phase = "waiting"
        self.why = ""
        self.children: list[Guess[F]] = []
        self.seat: Seat[F] | None = None
        self.result: ToolResult | None = None
        self.began_ns = 0
        self._forked = False
        self.run_ns = 0
        self._branch: F | None = None
        self._bytes = governor.costs.branch_bytes()
        self._limit_ns = governor.policy.limit_ns(governor.costs, state.task, self.call)
        self._timer: threading.Timer | None = None

    @property
    def gain_ns(self) -> float:
        """What it promises."""
        return self._gain_ns

    @property
    def memory_bytes(self) -> int:
        """What its branch owns: expected, and measured once it has run."""
        return self._bytes

    @property
    def started(self) -> bool:
        """Whether a branch was made for it, or is being made."""
        return self._forked

    def work(self) -> None:
        """Forks, runs the call, and keeps the branch unless it was discarded meanwhile."""
        kept = False
        try:
            branch = self._fork()
            if branch is not None:
                kept = self._run(branch)
        except Exception as error:  # noqa: BLE001  # whatever a guess breaks on stays in its branch
            self._fail(f"{type(error).__name__}: {error}")
        finally:
            if self._timer is not None:
                self._timer.cancel()
            if kept:
                self._governor.ran(self)
            else:
                self._drop_branch()
        if kept:
            self._on_done(self)

    def wait(self) -> bool:
        """Waits for a result while the call runs, until its limit; whether there is one."""
        branch = self._branch
        if isinstance(branch, Confinable):
            try:
                branch.hurry()
            except Exception as error:  # noqa: BLE001  # it only takes longer
                _log.warning("a right guess cannot be hurried: %s", error)
        with self._changed:
            left_ns = self._limit_ns - (time.monotonic_ns() - self.began_ns)
            self._changed.wait_for(lambda: self.phase != "running", timeout=max(0.0, left_ns / 1e9))
            if self.phase == "done":
                return True
        self.discard(RAN_TOO_LONG)
        return False

    def adopt(self) -> Seat[F] | None:
        """Hands the branch over, all limits lifted; None when that is not possible any more.

        The caller calls `adopted` once the workspace it replaces is closed.
        """
        with self._changed:
            if self.phase != "done" or self.seat is None:
                return None
            self.phase = "adopted"
            seat = self.seat
        try:
            with seat.lock:
                if isinstance(seat.workspace, Confinable):
                    seat.workspace.unconfine()
        except Exception as error:  # noqa: BLE001  # the real call can still run where it should
            _log.warning("a right guess cannot be adopted: %s", error)
            self._governor.spawn(self._close_seat)
            return None
        return seat

    def let_end(self) -> None:
        """Somebody waits until nothing is left of it."""
        try:
            self._source.hurry()
        except BunshinError as error:  # the snapshot is gone: then so is what was made of it
            _log.debug("a guess cannot be hurried to its end: %s", error)

    def adopted(self) -> None:
        """The workspace that this one replaced is closed: its memory makes up for this one's."""
        self._governor.give_back(self)
        self._on_gone(self)

    def discard(self, why: str) -> None:
        """Gives the guess up; returns at once, the branch is closed behind the caller's back."""
        with self._changed:
            before = self.phase
            if before in ("adopted", "discarded", "failed"):
                return
            self.phase, self.why = "discarded", why
            children, self.children = self.children, []
            self._changed.notify_all()
        for child in children:
            child.discard(why)
        if before == "done":
            self._governor.spawn(self._close_seat)
        elif before == "waiting" and self._governor.withdraw(self):
            self._on_gone(self)
        elif before == "running" and isinstance(self._branch, Abortable):
            self._governor.spawn(self._abort, self._branch)

    def _fork(self) -> F | None:
        branch = self._branch = self._source.branch(self._start, self._governor.costs.record_hold)
        if branch is None:
            return None
        if isinstance(branch, Confinable):
            branch.confine()
        self._governor.costs.record_fork(time.monotonic_ns() - self.began_ns)
        return branch

    def _start(self) -> bool:
        self.began_ns = time.monotonic_ns()
        self._forked = self._enter("waiting", "forking")
        return self._forked

    def _run(self, branch: F) -> bool:
        self._timer = threading.Timer(self._limit_ns / 1e9, self.discard, args=(RAN_TOO_LONG,))
        self._timer.daemon = True
        if not self._enter("forking", "running"):
            return False
        self._timer.start()
        start_ns = time.monotonic_ns()
        try:
            result = branch.run(self.call)
        finally:
            self.run_ns = time.monotonic_ns() - start_ns
        if isinstance(branch, Confinable) and branch.tried_to_leave():
            self._fail("the call tried to leave the workspace")
            return False
        if isinstance(branch, Measurable):
            measured = branch.unique_bytes
            if measured > 0:
                self._bytes = measured
                self._governor.costs.record_branch(measured)
        self._governor.costs.record_run(self.state.task, self.call, self.run_ns)
        with self._changed:
            if self.phase != "running":
                return False
            self.result, self.seat = result, Seat(branch)
            self._branch, self.phase = None, "done"
            self._changed.notify_all()
        return True

    def _enter(self, before: _Phase, after: _Phase) -> bool:
        with self._changed:
            if self.phase != before:
                return False
            self.phase = after
            self._changed.notify_all()
            return True

    def _fail(self, why: str) -> None:
        with self._changed:
            if self.phase != "discarded":
                self.phase, self.why = "failed", why
                _log.info("a guess failed and is discarded: %s: %s", self.call.name, why)
            self._changed.notify_all()

    def _drop_branch(self) -> None:
        branch, self._branch = self._branch, None
        try:
            if branch is not None:
                branch.close()
        finally:
            self._governor.give_back(self)
            self._on_gone(self)

    def _close_seat(self) -> None:
        assert self.seat is not None
        try:
            self.seat.close()
        finally:
            self._governor.give_back(self)
            self._on_gone(self)

    @staticmethod
    def _abort(branch: Abortable) -> None:
        branch.abort()


def with_children(guesses: Sequence[Guess[F]]) -> list[Guess[F]]:
    """The guesses, and those made in their branches."""
    found = list(guesses)
    for guess in found:
        found.extend(guess.children)
    return found
