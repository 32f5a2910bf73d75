# SPDX-License-Identifier: Apache-2.0
"""The baseline: which call followed the last ones before, by counting."""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any, Final

from bunshin_gym.errors import UsageError
from bunshin_gym.speculate.state import Attempt, Prediction, State, call_key
from bunshin_gym.types import ToolCall

__all__ = ["NgramPredictor"]

_CONTEXTS_MAX: Final = 100_000
_CALLS_MAX: Final = 100_000

Context = tuple[str, ...]


class NgramPredictor:
    """Frequencies with back-off: of this task after the last calls, of this task, of any task.

    Implements `Predictor`; thread-safe.

    Args:
        order: how many calls back the longest context goes.
    """

    def __init__(self, *, order: int = 2) -> None:
        if order < 0:
            raise UsageError(f"order is at least 0, not {order}")
        self._order = order
        self._lock = threading.RLock()
        self._counts: OrderedDict[Context, Counter[str]] = OrderedDict()
        self._calls: OrderedDict[str, ToolCall] = OrderedDict()

    def learn(self, attempt: Attempt) -> None:
        """Counts an attempt's calls."""
        with self._lock:
            keys = [call_key(step.call) for step in attempt.steps]
            for place, (step, key) in enumerate(zip(attempt.steps, keys, strict=True)):
                if place < attempt.learnt:
                    continue
                self._calls[key] = step.call
                self._calls.move_to_end(key)
                for context in self._contexts(attempt.task, keys[:place], place):
                    self._counts.setdefault(context, Counter())[key] += 1
                    self._counts.move_to_end(context)
            while len(self._counts) > _CONTEXTS_MAX:
                self._counts.popitem(last=False)
            while len(self._calls) > _CALLS_MAX:
                self._calls.popitem(last=False)

    def predict(self, state: State, *, k: int = 3) -> Sequence[Prediction]:
        """The k likeliest calls among those seen."""
        keys = [call_key(step.call) for step in state.steps]
        with self._lock:
            chances = self._chances(state.task, keys, width=4 * k)
            best = sorted(chances.items(), key=lambda item: -item[1])[:k]
            return [Prediction(call=self._calls[key], probability=chance) for key, chance in best if key in self._calls]

    def scores(self, state: State, keys: Sequence[str]) -> list[tuple[float, float, float]]:
        """For each call: how often it came after the last one in this task, in this task at this
        place, and after the last one anywhere; -1 where the context was never seen."""
        before = [call_key(step.call) for step in state.steps]
        last = before[-1] if before else ""
        contexts = (
            ("task", state.task, last),
            ("place", state.task, str(len(before))),
            ("any", last),
        )
        with self._lock:
            counters = [self._counts.get(context) for context in contexts]
            totals = [0 if counter is None else counter.total() for counter in counters]
            columns = [
                [-1.0] * len(keys) if counter is None else [counter[key] / total for key in keys]
                for counter, total in zip(counters, totals, strict=True)
            ]
        return list(zip(*columns, strict=True))

    def dump(self) -> dict[str, Any]:
        """All counts as JSON values."""
        with self._lock:
            return {
                "order": self._order,
                "counts": [[list(context), dict(counter)] for context, counter in self._counts.items()],
                "calls": [[call.name, dict(call.args)] for call in self._calls.values()],
            }

    @classmethod
    def load(cls, data: Mapping[str, Any]) -> NgramPredictor:
        """Reads what `dump` wrote; raises KeyError, TypeError or ValueError for anything else."""
        predictor = cls(order=int(data["order"]))
        for context, counts in data["counts"]:
            predictor._counts[tuple(context)] = Counter({str(key): int(count) for key, count in counts.items()})
        for name, args in data["calls"]:
            call = ToolCall(name=name, args=args)
            predictor._calls[call_key(call)] = call
        return predictor

    def _contexts(self, task: str, before: Sequence[str], place: int) -> list[Context]:
        """From the special to the general; the first ones are those that `scores` reads."""
        last = before[-1] if before else ""
        contexts: list[Context] = [("task", task, last), ("place", task, str(place)), ("any", last)]
        if self._order >= 2 and len(before) >= 2:
            contexts.append(("task", task, *before[-self._order :]))
        return [*contexts, ("task", task), ("all",)]

    def _chances(self, task: str, before: Sequence[str], *, width: int) -> dict[str, float]:
        """Interpolated frequencies, the longest context seen counting most."""
        last = before[-1] if before else ""
        ladder: list[Context] = [("all",), ("any", last), ("task", task), ("task", task, last)]
        if self._order >= 2 and len(before) >= 2:
            ladder.append(("task", task, *before[-self._order :]))
        chances: dict[str, float] = {}
        for context in ladder:
            counter = self._counts.get(context)
            if not counter:
                continue
            total = counter.total()
            trust = total / (total + 1.0)
            chances = {key: chance * (1.0 - trust) for key, chance in chances.items()}
            for key, count in counter.most_common(width):
                chances[key] = chances.get(key, 0.0) + trust * count / total
        return chances
