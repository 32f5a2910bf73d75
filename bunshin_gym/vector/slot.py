# SPDX-License-Identifier: Apache-2.0
"""One place of a vector env: an env, the thread that uses it, and where it starts again from."""

from __future__ import annotations

import contextlib
import copy
import logging
import queue
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Final

import gymnasium

from bunshin_gym.env_snapshot import EnvSnapshot
from bunshin_gym.envs import BunshinEnv
from bunshin_gym.errors import BunshinError, SnapshotLost, UsageError
from bunshin_gym.events import emit
from bunshin_gym.vector.nursery import Nursery

__all__ = ["LOST", "Outcome", "Seat", "Slot", "Start", "StuckError", "Worker"]

_log: Final = logging.getLogger(__name__)

LOST: Final = "workspace_died"
"""Key of the info that says why a slot lost its workspace; `TruncateOnDeath` uses the same."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """Where the episodes of a group begin: a snapshot, and what was seen at that moment."""

    snapshot: EnvSnapshot
    observation: dict[str, Any]
    info: dict[str, Any]


class Seat(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Holds the env that sits in a slot now, so that wrappers around it stay when the env is another one.

    With a `start`, a plain reset puts a branch of it here; one with a seed or options resets the env itself.
    """

    def __init__(self, env: BunshinEnv, nursery: Nursery) -> None:
        super().__init__(env)
        self.nursery = nursery
        env.bury = nursery.bury
        self.start: Start | None = None
        self.first: tuple[dict[str, Any], dict[str, Any]] | None = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begins an episode; remembers its first observation for a `Start`."""
        if self.start is None or seed is not None or options:
            self.first = self._begin(seed=seed, options=options)
        else:
            self.first = self._from(self.start)
        observation, info = self.first
        return copy.deepcopy(observation), copy.copy(info)

    def _from(self, start: Start) -> tuple[dict[str, Any], dict[str, Any]]:
        try:
            branch = start.snapshot.branch()
        except SnapshotLost as error:
            _log.warning("the start of %s is set up anew: %s", start.info["task"], error)
            return self._begin(options={"task_seed": start.info["task_seed"]})
        gone, self.env = self.env, branch
        branch.bury = self.nursery.bury
        gone.close()
        return start.observation, start.info

    def _begin(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """A reset in a workspace that was made ahead, if one is ready."""
        env: Any = self.env
        spare = self.nursery.take(env)
        if spare is not None:
            env.hand(spare)
        observation, info = env.reset(seed=seed, options=options)
        return observation, info

    def make_start(self) -> Start:
        """Keeps the state right after a reset for others to begin from; the caller closes its snapshot."""
        assert self.first is not None
        inner = self.env.unwrapped
        assert isinstance(inner, BunshinEnv)
        return Start(snapshot=inner.snapshot(), observation=self.first[0], info=self.first[1])


class StuckError(BunshinError):
    """A call did not even come back when its workspace was ended under it."""


class Worker:
    """A thread that runs one call after the other; a call that never returns keeps no one from exiting."""

    def __init__(self, name: str) -> None:
        self._calls: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._current: Future[Any] | None = None
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def submit(self, call: Callable[[], Any]) -> Future[Any]:
        """Runs it when the calls before it are done."""
        future: Future[Any] = Future()
        self._calls.put((future, call))
        return future

    def give_up(self, error: Exception) -> None:
        """Fails the call that runs now for whoever waits for it; the thread may stay in it for ever."""
        with self._lock:
            if self._current is not None and not self._current.done():
                self._current.set_exception(error)

    def stop(self) -> None:
        """Ends the thread once it has done what it was given."""
        self._calls.put(None)

    def _run(self) -> None:
        while (item := self._calls.get()) is not None:
            future, call = item
            with self._lock:
                self._current = future
            settle: Callable[[Any], None] = future.set_result
            try:
                result = call()
            except BaseException as error:  # noqa: BLE001 - whoever waits for the call gets it
                settle, result = future.set_exception, error
            with self._lock:
                self._current = None
                if not future.done():
                    settle(result)
            del item, future, call, settle, result


@dataclass(slots=True, kw_only=True)
class Outcome:
    """What one slot brought in one call of the vector env.

    Attributes:
        final: last observation and info of the episode that ended, when another has begun in the same step.
        lost: whether the slot has no workspace now and must be reset.
    """

    observation: Any
    info: dict[str, Any]
    reward: float = 0.0
    terminated: bool = False
    truncated: bool = False
    final: tuple[Any, dict[str, Any]] | None = None
    lost: bool = False


@dataclass(slots=True)
class Slot:
    """One of the envs. `env` is what wraps `seat`; all calls on them are made by `worker`.

    A slot whose worker never came back is left to it as a whole, and another takes its place: should the call come
    back after all, it finds nothing that anyone else uses.
    """

    index: int
    make: Callable[[], tuple[gymnasium.Env[Any, Any], Seat]]
    grace_s: float = 10.0
    env: gymnasium.Env[Any, Any] = field(init=False)
    seat: Seat = field(init=False)
    worker: Worker = field(init=False)
    observation: Any = None
    ended: bool = True
    reason: str = ""
    given_up: bool = False

    def __post_init__(self) -> None:
        self.env, self.seat = self.make()
        self.worker = Worker(f"bunshin-slot-{self.index}")

    @property
    def inner(self) -> BunshinEnv:
        """The env with the workspace."""
        inner = self.env.unwrapped
        assert isinstance(inner, BunshinEnv)
        return inner

    def reset(self, seed: int | None, options: dict[str, Any] | None, *, attempts: int, timeout_s: float) -> Outcome:
        """Begins an episode; tries again, with the same seed, when the workspace breaks meanwhile. In the worker.

        Raises:
            BunshinError: it broke every time, or took too long.
        """
        for left in reversed(range(attempts)):
            try:
                with self.limit(timeout_s):
                    observation, info = self.env.reset(seed=seed, options=options)
            except (UsageError, StuckError):
                raise
            except BunshinError as error:
                if left == 0 or self.reason:
                    raise
                self._tell("a reset failed and is tried again", error)
            else:
                self.observation, self.ended = observation, False
                return Outcome(observation=copy.deepcopy(observation), info=info)
        raise AssertionError("the last attempt returns or raises")

    def step(self, action: Any, *, timeout_s: float) -> Outcome:
        """One step; a lost workspace is a truncated one. In the worker."""
        try:
            with self.limit(timeout_s):
                observation, reward, terminated, truncated, info = self.env.step(action)
        except (UsageError, StuckError):
            raise
        except BunshinError as error:
            return self.lose(self.reason or str(error))
        self.observation, self.ended = observation, bool(terminated or truncated)
        return Outcome(
            observation=copy.deepcopy(observation),
            info=info,
            reward=float(reward),
            terminated=bool(terminated),
            truncated=bool(truncated),
        )

    def lose(self, reason: str) -> Outcome:
        """The outcome of a step in which the workspace was lost; what is left of it is ended."""
        self._tell("the workspace is lost; the slot will be refilled", reason)
        emit("lost", task=self.inner.task.id, workspace=self.inner.workspace_id, slot=self.index, reason=reason)
        self.ended = True
        self.inner.abort()
        info = {"task": self.inner.task.id, LOST: reason}
        return Outcome(observation=copy.deepcopy(self.observation), info=info, truncated=True, lost=True)

    @contextlib.contextmanager
    def limit(self, timeout_s: float) -> Iterator[None]:
        """Ends the workspace under what is done here if that takes longer; then it fails. In the worker.

        Raises:
            StuckError: the slot was given up, before or meanwhile: nobody waits for what is done here.
        """
        self._check_wanted()
        self.reason, over = "", threading.Event()
        watch = threading.Thread(target=self._watch, args=(over, timeout_s), daemon=True)
        watch.name = f"bunshin-watch-{self.index}"
        watch.start()
        try:
            yield
        finally:
            over.set()
        self._check_wanted()

    def _check_wanted(self) -> None:
        if self.given_up:
            raise StuckError(self.reason)

    def _watch(self, over: threading.Event, timeout_s: float) -> None:
        if over.wait(timeout_s):
            return
        self.reason = f"no answer in {timeout_s:g} s: its workspace was ended"
        self.abort()
        if not over.wait(self.grace_s):
            self.given_up = True
            self.worker.give_up(StuckError(self.reason))

    def abort(self) -> None:
        """Ends the workspace under a call that is under way, which then fails. In any thread; does not wait."""
        threading.Thread(target=self.inner.abort, name=f"bunshin-abort-{self.index}", daemon=True).start()

    def successor(self) -> Slot:
        """Another in this one's place, without a workspace yet; this one's ends when its call comes back."""
        slot = Slot(self.index, self.make, grace_s=self.grace_s, observation=self.observation)
        slot.seat.start, slot.inner._np_random = self.seat.start, copy.deepcopy(self.inner._np_random)
        self.worker.submit(self.env.close)
        self.worker.stop()
        return slot

    def _tell(self, what: str, why: object) -> None:
        _log.warning(
            "slot %d: %s: %s", self.index, what, why, extra={"bunshin": {"slot": self.index, "reason": str(why)}}
        )
