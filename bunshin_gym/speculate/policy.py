# SPDX-License-Identifier: Apache-2.0
"""When a guess is worth a branch.

The expected gain of running a guess ahead, in nanoseconds of the attempt's time:

    p x (time saved if right - adoption) - wait for a snapshot in progress
        - price of a fork x fork - price of a run x run spent in vain

The time saved is the mean, over the thinking times seen of late, of what the branch will have run
by the time the agent asks. The prices are what a guess takes from the real calls: next to nothing
while cores are idle; when none is, little for the run, which is confined and yields to them, and all
that it takes for the fork, which yields to nobody.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

from bunshin_gym.errors import UsageError
from bunshin_gym.speculate.costs import CostModel
from bunshin_gym.types import ToolCall

__all__ = ["Load", "Policy", "Reliability"]

_TASKS_MAX: Final = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What the host is busy with.

    Attributes:
        cores: CPU cores there are.
        real_calls: calls that agents wait for.
        guesses: calls that run ahead.
        usage: share of the cores that real calls have taken of late, 0 to 1.
    """

    cores: int
    real_calls: int = 0
    guesses: int = 0
    usage: float = 0.0


class Reliability:
    """How far predictions may be believed: matches over what their probabilities promised.

    Every prediction counts, run or not, so belief that was lost comes back by itself when the
    predictor is right again. Thread-safe.

    Args:
        memory: predictions after which an old one counts a third.
    """

    def __init__(self, *, memory: int = 60) -> None:
        self._keep = 1.0 - 1.0 / memory
        self._lock = threading.Lock()
        self._tasks: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def score(self, task: str, probability: float, *, matched: bool) -> None:
        """A prediction was made and the agent's call is now known."""
        with self._lock:
            for key in (task, ""):
                promised, kept = self._tasks.pop(key, (0.0, 0.0))
                self._tasks[key] = (promised * self._keep + probability, kept * self._keep + matched)
            while len(self._tasks) > _TASKS_MAX:
                self._tasks.popitem(last=False)

    def believe(self, task: str, probability: float) -> float:
        """The probability after what happened to such predictions before; never raised."""
        with self._lock:
            everywhere = self._ratio("", 1.0)
            return probability * min(1.0, self._ratio(task, everywhere))

    def _ratio(self, key: str, prior: float) -> float:
        promised, kept = self._tasks.get(key, (0.0, 0.0))
        return (kept + 2.0 * prior) / (promised + 2.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """The knobs of speculation.

    Attributes:
        k: predictions looked at in each state.
        chain: how many calls ahead; 1 is the next call alone.
        gain_min_ns: a guess that promises less is not run.
        probability_min: nor is one that is less likely than this.
        adoption_ns: what taking over a branch costs the attempt.
        price_idle: price of a CPU second while a core is idle.
        price_busy: and while none is, for guesses that yield to real calls.
        price_fork: price of a CPU second of a fork on a host whose cores are all in use.
        limit_factor: a guess is given up after this many times its expected time ...
        limit_floor_ns: ... but not before this.
        straggler: how much more the attempts that hold a batch up are worth, at most.
    """

    k: int = 3
    chain: int = 2
    gain_min_ns: int = 5_000_000
    probability_min: float = 0.25
    adoption_ns: int = 2_000_000
    price_idle: float = 0.02
    price_busy: float = 0.15
    price_fork: float = 1.0
    limit_factor: float = 8.0
    limit_floor_ns: int = 5_000_000_000
    straggler: float = 3.0

    def __post_init__(self) -> None:
        if self.k < 1 or self.chain < 1:
            raise UsageError(f"policy: k and chain are at least 1, not {self.k} and {self.chain}")
        if not 0.0 <= self.probability_min <= 1.0:
            raise UsageError(f"policy: probability_min is from 0 to 1, not {self.probability_min}")
        if self.limit_factor < 1.0 or self.straggler < 1.0:
            raise UsageError("policy: limit_factor and straggler are at least 1")

    def gain_ns(
        self, costs: CostModel, task: str, call: ToolCall, probability: float, *, elapsed_ns: int, load: Load
    ) -> float:
        """The expected gain of starting the guess now, `elapsed_ns` after the agent began to think."""
        run_ns, fork_ns, hold_ns = costs.run_ns(task, call), costs.fork_ns(), costs.hold_ns()
        left = [think - elapsed_ns for think in costs.think_samples_ns(task) if think > elapsed_ns]
        if not left:
            return float("-inf")
        saved = sum(min(run_ns, max(0.0, time - fork_ns)) for time in left) / len(left)
        waited = sum(max(0.0, hold_ns - time) for time in left) / len(left)
        taken = self._price_of_fork(load) * fork_ns + self._price_of_run(load) * (1.0 - probability) * run_ns
        return probability * (saved - self.adoption_ns) - waited - taken

    def limit_ns(self, costs: CostModel, task: str, call: ToolCall) -> int:
        """How long a guess may run."""
        return int(max(self.limit_floor_ns, self.limit_factor * costs.run_ns(task, call)))

    def weight(self, expected_left_ns: float, batch_left_ns: float) -> float:
        """What an attempt's gain counts: more when it will end later than the others."""
        if expected_left_ns <= 0.0 or batch_left_ns <= 0.0:
            return 1.0
        return min(self.straggler, max(1.0 / self.straggler, expected_left_ns / batch_left_ns))

    def _price_of_run(self, load: Load) -> float:
        busy = min(1.0, (load.real_calls + load.guesses) / max(1, load.cores))
        return self.price_idle + (self.price_busy - self.price_idle) * busy

    def _price_of_fork(self, load: Load) -> float:
        """By what the host has been doing, too: a call that comes in the midst of the fork waits for it."""
        busy = min(1.0, max(load.real_calls / max(1, load.cores), load.usage))
        return self.price_idle + (self.price_fork - self.price_idle) * busy
