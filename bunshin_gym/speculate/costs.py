# SPDX-License-Identifier: Apache-2.0
"""What calls, forks, branches and thinking have cost so far, to tell what the next will cost."""

from __future__ import annotations

import math
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Final

from bunshin_gym.speculate.state import call_key
from bunshin_gym.types import ToolCall

__all__ = ["CostModel"]

_KEYS_MAX: Final = 20_000
_THINKS_KEPT: Final = 64
_FADE: Final = 0.15
_FADE_NS: Final = 20_000_000_000
_PRIOR_WEIGHT: Final = 2.0


@dataclass(slots=True)
class _Mean:
    """A mean that forgets: exact for the first few values, then exponentially weighted."""

    value: float = 0.0
    count: int = 0

    def add(self, value: float) -> None:
        self.count += 1
        self.value += (value - self.value) * max(_FADE, 1.0 / self.count)

    def towards(self, prior: float) -> float:
        """The mean, drawn to the prior while there are few values."""
        weight = self.count / (self.count + _PRIOR_WEIGHT)
        return weight * self.value + (1.0 - weight) * prior


@dataclass(slots=True)
class _Fading:
    """A mean that goes back to what was assumed, so that one bad hour does not last for ever:
    who stops forking because it was slow would never learn that it no longer is."""

    prior: float
    mean: _Mean = field(default_factory=_Mean)
    last_ns: int = 0

    def add(self, value: float) -> None:
        if self.mean.count and self._trust() < 0.5:
            self.mean = _Mean(self.value, 1)
        self.mean.add(value)
        self.last_ns = time.monotonic_ns()

    @property
    def value(self) -> float:
        if not self.mean.count:
            return self.prior
        trust = self._trust()
        return trust * self.mean.value + (1.0 - trust) * self.prior

    def _trust(self) -> float:
        return math.exp(-(time.monotonic_ns() - self.last_ns) / _FADE_NS)


class CostModel:
    """Running means by (task, call), (task, tool), tool; thread-safe.

    Args:
        run_ns: what a call costs before any was seen.
        think_ns: how long an agent thinks before any did.
        fork_ns: how long until a branch can run something, before any was made.
        hold_ns: for how much of it its source is held up.
        branch_bytes: what a branch takes before any was measured.
    """

    def __init__(
        self,
        *,
        run_ns: int = 500_000_000,
        think_ns: int = 1_000_000_000,
        fork_ns: int = 150_000_000,
        hold_ns: int = 50_000_000,
        branch_bytes: int = 32 << 20,
    ) -> None:
        self._lock = threading.Lock()
        self._run_prior_ns = run_ns
        self._think_prior_ns = think_ns
        self._fork = _Fading(float(fork_ns))
        self._hold = _Fading(float(min(hold_ns, fork_ns)))
        self._bytes = _Mean(float(branch_bytes), 1)
        self._runs: OrderedDict[Hashable, _Mean] = OrderedDict()
        self._thinks: OrderedDict[str, deque[int]] = OrderedDict()
        self._all_thinks: deque[int] = deque(maxlen=_THINKS_KEPT)
        self._attempts: OrderedDict[str, _Mean] = OrderedDict()
        self._all_attempts = _Mean()

    def record_run(self, task: str, call: ToolCall, run_ns: int) -> None:
        """A call took so long."""
        with self._lock:
            for key in self._run_keys(task, call):
                _entry(self._runs, key).add(run_ns)

    def record_think(self, task: str, think_ns: int) -> None:
        """An agent took so long to choose its next call."""
        with self._lock:
            thinks = self._thinks.setdefault(task, deque(maxlen=_THINKS_KEPT))
            self._thinks.move_to_end(task)
            thinks.append(think_ns)
            self._all_thinks.append(think_ns)
            if len(self._thinks) > _KEYS_MAX:
                self._thinks.popitem(last=False)

    def record_fork(self, fork_ns: int) -> None:
        """A fork took so long, the confining of the branch included."""
        with self._lock:
            self._fork.add(fork_ns)

    def record_hold(self, hold_ns: int) -> None:
        """A source was held up so long by a fork."""
        with self._lock:
            self._hold.add(hold_ns)

    def record_branch(self, unique_bytes: int) -> None:
        """A branch that had run its call owned so much memory."""
        with self._lock:
            self._bytes.add(unique_bytes)

    def record_attempt(self, task: str, wall_ns: int) -> None:
        """An attempt took so long from its first state to its last result."""
        with self._lock:
            _entry(self._attempts, task).add(wall_ns)
            self._all_attempts.add(wall_ns)

    def run_ns(self, task: str, call: ToolCall) -> float:
        """How long the call will probably take."""
        with self._lock:
            expected = float(self._run_prior_ns)
            for key in self._run_keys(task, call):
                mean = self._runs.get(key)
                if mean is not None:
                    expected = mean.towards(expected)
            return expected

    def think_samples_ns(self, task: str) -> tuple[int, ...]:
        """How long agents thought of late, at this task if that is known; never empty."""
        with self._lock:
            own = self._thinks.get(task)
            if own is not None and len(own) >= 8:
                return tuple(own)
            return tuple(self._all_thinks) or (self._think_prior_ns,)

    def fork_ns(self) -> float:
        """How long a fork will probably take."""
        with self._lock:
            return self._fork.value

    def hold_ns(self) -> float:
        """How long a fork will probably hold its source up."""
        with self._lock:
            return min(self._hold.value, self._fork.value)

    def branch_bytes(self) -> int:
        """How much memory a branch will probably own."""
        with self._lock:
            return int(self._bytes.value)

    def attempt_ns(self, task: str) -> float:
        """How long attempts at this task take; 0 when none of any task has ended yet."""
        with self._lock:
            mean = self._attempts.get(task)
            everywhere = self._all_attempts.value
            return everywhere if mean is None else mean.towards(everywhere)

    @staticmethod
    def _run_keys(task: str, call: ToolCall) -> tuple[Hashable, ...]:
        """From the general to the special."""
        return (call.name, (task, call.name), (task, call_key(call)))


def _entry(means: OrderedDict[Hashable, _Mean] | OrderedDict[str, _Mean], key: Hashable) -> _Mean:
    mean = means.setdefault(key, _Mean())  # type: ignore[arg-type]
    means.move_to_end(key)  # type: ignore[arg-type]
    if len(means) > _KEYS_MAX:
        means.popitem(last=False)
    return mean
