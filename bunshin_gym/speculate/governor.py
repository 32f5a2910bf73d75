# SPDX-License-Identifier: Apache-2.0
"""One budget for the guesses of all attempts: the most promising start first."""

from __future__ import annotations

import logging
import math
import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from bunshin_gym.errors import UsageError
from bunshin_gym.speculate.costs import CostModel
from bunshin_gym.speculate.policy import Load, Policy, Reliability
from bunshin_gym.types import ToolCall

__all__ = ["Budget", "Governor", "Ticket", "default_governor"]

_log: Final = logging.getLogger(__name__)
_OUTBID_FACTOR: Final = 2.0
_USAGE_MEMORY_NS: Final = 10_000_000_000  # after which an old moment counts a third


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """What all guesses together may take.

    Attributes:
        branches: guessed branches that exist at once.
        running: guessed calls that run at once.
        memory_bytes: memory that guessed branches own together. Below what one is expected to own
            (32 MiB until some were measured) nothing is guessed.
        cores: a guess starts only while fewer calls than this run, real ones included: one that
            has to wait for a core is late, and makes others late.
    """

    branches: int = 4
    running: int = 2
    memory_bytes: int = 256 << 20
    cores: int = field(default_factory=lambda: len(os.sched_getaffinity(0)))

    def __post_init__(self) -> None:
        if min(self.branches, self.running, self.memory_bytes, self.cores) < 0:
            raise UsageError(f"budget: nothing may be negative: {self}")


class Ticket(Protocol):
    """A guess, as the governor sees it."""

    @property
    def gain_ns(self) -> float:
        """What it promises; the higher the sooner."""
        ...

    @property
    def memory_bytes(self) -> int:
        """What its branch will probably own."""
        ...

    def work(self) -> None:
        """Runs the guess; called once, in a worker thread."""
        ...

    def discard(self, why: str) -> None:
        """Gives its branch up."""
        ...


class Governor:
    """Decides which guesses run, for all attempts of this process; thread-safe.

    Its own lock is a leaf: no ticket is called while it is held.

    Args:
        budget: what all guesses may take.
        policy: when a guess is worth a branch.
        costs: what things cost; shared so that attempts learn from each other.
    """

    def __init__(
        self, *, budget: Budget | None = None, policy: Policy | None = None, costs: CostModel | None = None
    ) -> None:
        self.budget = budget if budget is not None else Budget()
        self.policy = policy if policy is not None else Policy()
        self.costs = costs if costs is not None else CostModel()
        self.reliability = Reliability()
        self._lock = threading.Lock()
        self._queue: list[Ticket] = []
        self._holding: list[Ticket] = []
        self._running: list[Ticket] = []
        self._real_calls = 0
        self._usage, self._usage_ns = 0.0, time.monotonic_ns()
        self._attempts: dict[int, tuple[str, int]] = {}
        self._attempts_made = 0
        self._closed = False
        self._workers = ThreadPoolExecutor(
            max_workers=2 * self.budget.branches + 4, thread_name_prefix="bunshin-speculate"
        )

    @property
    def held(self) -> int:
        """Branches that guesses have, or are about to have."""
        with self._lock:
            return len(self._holding)

    @property
    def held_bytes(self) -> int:
        """Memory set aside for them."""
        with self._lock:
            return sum(ticket.memory_bytes for ticket in self._holding)

    def load(self) -> Load:
        """What the host is busy with, as far as this process knows."""
        with self._lock:
            self._count_usage()
            return Load(
                cores=self.budget.cores,
                real_calls=self._real_calls,
                guesses=len(self._running),
                usage=self._usage,
            )

    @contextmanager
    def real_call(self) -> Iterator[None]:
        """Counts a call that an agent waits for."""
        with self._lock:
            self._count_usage()
            self._real_calls += 1
        try:
            yield
        finally:
            with self._lock:
                self._count_usage()
                self._real_calls -= 1
            self._pump()

    def enter(self, task: str) -> int:
        """An attempt begins; returns its number."""
        with self._lock:
            self._attempts_made += 1
            self._attempts[self._attempts_made] = (task, time.monotonic_ns())
            return self._attempts_made

    def leave(self, number: int, *, finished: bool) -> None:
        """An attempt is over; what it took counts when it was finished."""
        with self._lock:
            task, began_ns = self._attempts.pop(number)
        if finished:
            self.costs.record_attempt(task, time.monotonic_ns() - began_ns)

    def weight(self, number: int) -> float:
        """What the gain of this attempt counts, beside the others that are under way."""
        now = time.monotonic_ns()
        with self._lock:
            attempts = dict(self._attempts)
        left = {n: max(0.0, self.costs.attempt_ns(task) - (now - began)) for n, (task, began) in attempts.items()}
        if number not in left or len(left) < 2:
            return 1.0
        return self.policy.weight(left[number], sum(left.values()) / len(left))

    def gain_ns(self, number: int, task: str, call: ToolCall, probability: float, elapsed_ns: int) -> float:
        """What running a call ahead promises the attempt of that number; minus infinity if it is too unlikely.

        Args:
            probability: as the predictor has it.
            elapsed_ns: how long the agent has been thinking.
        """
        believed = self.reliability.believe(task, probability)
        if believed < self.policy.probability_min:
            return float("-inf")
        gain = self.policy.gain_ns(self.costs, task, call, believed, elapsed_ns=elapsed_ns, load=self.load())
        return gain * self.weight(number) if gain > 0 else gain

    def offer(self, ticket: Ticket) -> None:
        """Queues a guess; it starts when it fits and no better one waits."""
        with self._lock:
            if not self._closed:
                self._queue.append(ticket)
        self._pump()

    def withdraw(self, ticket: Ticket) -> bool:
        """Takes a guess back; False when it started already, or never waited."""
        with self._lock:
            if ticket not in self._queue:
                return False
            self._queue.remove(ticket)
            return True

    def ran(self, ticket: Ticket) -> None:
        """The guess's call has ended; its branch waits for the agent."""
        with self._lock:
            if ticket in self._running:
                self._running.remove(ticket)
        self._pump()

    def give_back(self, ticket: Ticket) -> None:
        """The guess's branch is gone, or took the place of the one it came from."""
        with self._lock:
            for tickets in (self._running, self._holding):
                if ticket in tickets:
                    tickets.remove(ticket)
        self._pump()

    def spawn(self, job: Callable[..., Any], *args: Any) -> Future[Any]:
        """Runs a job in a worker thread; what it raises is logged.

        Raises:
            RuntimeError: the governor was closed.
        """
        future = self._workers.submit(job, *args)
        future.add_done_callback(_log_failure)
        return future

    def close(self) -> None:
        """Starts no more guesses and waits for the workers; attempts must be closed before."""
        with self._lock:
            self._closed = True
            self._queue.clear()
        self._workers.shutdown(wait=True)

    def _count_usage(self) -> None:
        """Lets the time since the last change count: an average that forgets."""
        now_ns = time.monotonic_ns()
        kept = math.exp((self._usage_ns - now_ns) / _USAGE_MEMORY_NS)
        self._usage = kept * self._usage + (1.0 - kept) * min(1.0, self._real_calls / max(1, self.budget.cores))
        self._usage_ns = now_ns

    def _pump(self) -> None:
        with self._lock:
            starting, outbid = self._choose()
        for ticket in outbid:
            ticket.discard("outbid")
        for ticket in starting:
            self.spawn(ticket.work)

    def _choose(self) -> tuple[list[Ticket], list[Ticket]]:
        """Takes out of the queue what may start now; and names who must make room for the next."""
        starting: list[Ticket] = []
        if self._closed:
            return starting, []
        self._queue.sort(key=lambda ticket: -ticket.gain_ns)
        for ticket in list(self._queue):
            running = len(self._running)
            if running >= self.budget.running or running + self._real_calls >= self.budget.cores:
                return starting, []
            if not self._fits(ticket):
                return starting, self._weaker_than(ticket)
            self._queue.remove(ticket)
            self._holding.append(ticket)
            self._running.append(ticket)
            starting.append(ticket)
        return starting, []

    def _fits(self, ticket: Ticket) -> bool:
        used = sum(held.memory_bytes for held in self._holding)
        return len(self._holding) < self.budget.branches and used + ticket.memory_bytes <= self.budget.memory_bytes

    def _weaker_than(self, ticket: Ticket) -> list[Ticket]:
        idle = [held for held in self._holding if held not in self._running]
        weakest = min(idle, key=lambda held: held.gain_ns, default=None)
        if weakest is None or weakest.gain_ns * _OUTBID_FACTOR >= ticket.gain_ns:
            return []
        return [weakest]


def _log_failure(future: Future[Any]) -> None:
    if not future.cancelled() and (error := future.exception()) is not None:
        _log.error("a worker failed", exc_info=error)


_defaults: dict[int, Governor] = {}
_defaults_lock: Final = threading.Lock()


def default_governor() -> Governor:
    """The governor that attempts of this process share when none is given."""
    with _defaults_lock:
        governor = _defaults.get(os.getpid())
        if governor is None:
            governor = _defaults[os.getpid()] = Governor()
        return governor
