# SPDX-License-Identifier: Apache-2.0
"""The predictor: a linear ranking of candidate calls, learnt from recorded and running attempts.

Training pairs the call that was made with ones that were not, in the same state; the model is a
logistic regression on the difference of their features (scikit-learn's SGDClassifier, so it goes
on learning online). Scores become probabilities by softmax and a second small regression, fitted
on attempts that the ranking had not seen, which knows that the right call may be no candidate.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

try:
    from scipy.sparse import csr_matrix
    from sklearn.linear_model import LogisticRegression, SGDClassifier
except ImportError as error:
    raise ImportError(f"{error}: pip install 'bunshin-gym[speculate]'") from error

from bunshin_gym.errors import UsageError
from bunshin_gym.speculate.features import DIMENSIONS, Situation, feature_rows
from bunshin_gym.speculate.model_file import Parts, read_bytes, write_atomically, write_bytes
from bunshin_gym.speculate.ngram import NgramPredictor
from bunshin_gym.speculate.slots import Candidate, Slots
from bunshin_gym.speculate.state import Attempt, Prediction, State, call_key
from bunshin_gym.types import ToolCall

__all__ = ["RankingPredictor", "Settings"]

EVIDENCE: Final = 7
_RANKS: Final = 3
_BATCH_STATES: Final = 256
_PENDING_PAIRS: Final = 200

_Pair = tuple[NDArray[np.int32], NDArray[np.int32]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How a predictor learns.

    Attributes:
        rivals: calls not made that each call made is compared with.
        calls_max: the ranking learns from about so many calls, drawn at random; all are counted.
        epochs: passes over the recorded attempts.
        rate: step size of the stochastic gradient in the first epoch.
        online_rate: step size when it learns from one attempt.
        shrink: weight of the L2 penalty.
        anonymous: share of the calls that are learnt from without knowing the task.
        held_back: share of a known task's attempts that probabilities are fitted on.
        calibrated_max: calls that they are fitted on, for each half of the tasks.
        seed: of the order and of the choice of rivals.
    """

    rivals: int = 8
    calls_max: int = 8000
    epochs: int = 3
    rate: float = 0.02
    online_rate: float = 0.01
    shrink: float = 1e-6
    anonymous: float = 0.5
    held_back: float = 0.2
    calibrated_max: int = 1500
    seed: int = 0


@dataclass(frozen=True, slots=True)
class _Ranked:
    """Candidates with their scores, best first, and what is needed to make them probabilities."""

    candidates: list[Candidate]
    scores: NDArray[np.float64]


class RankingPredictor:
    """Implements `Predictor`; thread-safe: predictions read weights that are replaced as a whole.

    A predictor that has not learnt anything predicts nothing.
    """

    def __init__(self, settings: Settings | None = None) -> None:
        self.settings = settings if settings is not None else Settings()
        self._lock = threading.RLock()
        self._rng = np.random.default_rng(self.settings.seed)
        self.slots = Slots()
        self.ngrams = NgramPredictor()
        self._model = self._fresh_model()
        self._pending: list[_Pair] = []
        self.weights: NDArray[np.float64] = np.zeros(DIMENSIONS)
        self.calibration: NDArray[np.float64] = np.eye(1, EVIDENCE + 1)[0]

    def fit(self, attempts: Sequence[Attempt]) -> None:
        """Learns from recorded attempts, from scratch; what was learnt before is forgotten.

        Raises:
            UsageError: there is no call to learn from.
        """
        if not any(attempt.steps for attempt in attempts):
            raise UsageError("fit: the attempts have no calls")
        with self._lock:
            self._fit_calibration(attempts)
            self._fit_ranking(attempts)

    def learn(self, attempt: Attempt) -> None:
        """Takes one finished attempt into account: its calls are counted at once, the ranking follows
        every few attempts."""
        with self._lock:
            groups = [group for state, call in attempt.states() if (group := self._group(state, call)) is not None]
            self._pending += [pair for group in groups for pair in self._pairs(group)]
            if len(self._pending) >= _PENDING_PAIRS:
                self._train_pending()
            for state, call in attempt.states():
                self.slots.learn(state, call)
            self.ngrams.learn(attempt)

    def predict(self, state: State, *, k: int = 3) -> Sequence[Prediction]:
        """The k likeliest calls with their probabilities."""
        with self._lock:
            candidates = self.slots.candidates(state)
        if not candidates:
            return []
        ranked = self._rank(state, candidates)
        chances = self._chances(state.task, ranked, min(k, len(ranked.candidates)))
        return [
            Prediction(call=candidate.call, probability=float(chance))
            for candidate, chance in zip(ranked.candidates, chances, strict=False)
        ]

    # -- files ----------------------------------------------------------------------------------

    def to_bytes(self) -> bytes:
        """All that was learnt; `from_bytes` makes an equal predictor of it."""
        with self._lock:
            self._train_pending()
            meta = {"settings": asdict(self.settings), "slots": self.slots.dump(), "ngrams": self.ngrams.dump()}
            return write_bytes(Parts(self.weights, self.calibration, meta))

    @classmethod
    def from_bytes(cls, data: bytes, *, where: str = "the data") -> Self:
        """Reads what `to_bytes` wrote; nothing in it is run.

        Raises:
            UsageError: it is no predictor, another version's, or damaged.
        """
        parts = read_bytes(data, dimensions=DIMENSIONS, evidence=EVIDENCE, where=where)
        try:
            predictor = cls(Settings(**parts.meta["settings"]))
            predictor.slots = Slots.load(parts.meta["slots"])
            predictor.ngrams = NgramPredictor.load(parts.meta["ngrams"])
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise UsageError(f"{where} is damaged: {error!r}") from error
        predictor.calibration = parts.calibration
        predictor._set_weights(parts.weights)
        return predictor

    def save(self, path: str | Path) -> None:
        """Writes a file, whole or not at all. Raises OSError."""
        write_atomically(Path(path), self.to_bytes())

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Reads a file that `save` wrote.

        Raises:
            OSError: it cannot be read.
            UsageError: it is no predictor, another version's, or damaged.
        """
        return cls.from_bytes(Path(path).read_bytes(), where=str(path))

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self).from_bytes, (self.to_bytes(),)

    # -- ranking --------------------------------------------------------------------------------

    def _fresh_model(self) -> Any:
        return SGDClassifier(
            loss="log_loss",
            penalty="l2",
            alpha=self.settings.shrink,
            learning_rate="constant",
            eta0=self.settings.online_rate,
            fit_intercept=False,
            random_state=self.settings.seed,
        )

    def _set_weights(self, weights: NDArray[np.float64]) -> None:
        """Goes on learning from these weights."""
        nothing = csr_matrix((1, DIMENSIONS))
        self._model.partial_fit(nothing, [1.0], classes=np.array([-1.0, 1.0]))
        self._model.coef_[:] = weights
        self.weights = weights.copy()

    def _rows(self, state: State, candidates: Sequence[Candidate]) -> NDArray[np.int64]:
        scores = self.ngrams.scores(state, [candidate.key for candidate in candidates])
        return feature_rows(Situation(state), candidates, scores)

    def _rank(self, state: State, candidates: Sequence[Candidate]) -> _Ranked:
        scores = self.weights[self._rows(state, candidates)].sum(axis=1)
        order = np.argsort(-scores, kind="stable")
        return _Ranked([candidates[place] for place in order], scores[order])

    def _fit_ranking(self, attempts: Sequence[Attempt]) -> None:
        """Counts all calls, then ranks; how often a call was seen is what it was before each attempt."""
        self.slots, self.ngrams = Slots(), NgramPredictor()
        self._model, self.weights, self._pending = self._fresh_model(), np.zeros(DIMENSIONS), []
        for attempt in attempts:
            for state, call in attempt.states():
                self.slots.learn(state, call)
        groups: list[NDArray[np.int32]] = []
        share = self.settings.calls_max / sum(len(attempt.steps) for attempt in attempts)
        for place in self._rng.permutation(len(attempts)):
            attempt = attempts[int(place)]
            if self._rng.random() < share:
                groups += [group for state, call in attempt.states() if (group := self._group(state, call)) is not None]
            self.ngrams.learn(attempt)
        for epoch in range(self.settings.epochs):
            self._model.eta0 = self.settings.rate / (1 + epoch)
            order = self._rng.permutation(len(groups))
            for start in range(0, len(order), _BATCH_STATES):
                batch = order[start : start + _BATCH_STATES]
                self._train([pair for place in batch for pair in self._pairs(groups[int(place)])])
        self._model.eta0 = self.settings.online_rate

    def _group(self, state: State, call: ToolCall) -> NDArray[np.int32] | None:
        """Features of the call that was made, first, and of some that were not; None if it is no candidate.

        Now and then the task is kept from the model, so that it learns what holds for any.
        """
        candidates = self.slots.candidates(state)
        key = call_key(call)
        right = next((place for place, candidate in enumerate(candidates) if candidate.key == key), None)
        if right is None or len(candidates) < 2:
            return None
        others = np.delete(np.arange(len(candidates)), right)
        drawn = self._rng.choice(others, size=min(len(others), 2 * self.settings.rivals), replace=False)
        if self._rng.random() < self.settings.anonymous:
            state = replace(state, task="")
        chosen = [candidates[int(place)] for place in (right, *drawn)]
        return self._rows(state, chosen).astype(np.int32)

    def _pairs(self, group: NDArray[np.int32]) -> list[_Pair]:
        """The call that was made beside its hardest rivals, as the weights are now."""
        scores = self.weights[group[1:]].sum(axis=1)
        hardest = np.argsort(-scores)[: self.settings.rivals]
        return [(group[0], group[1 + int(rival)]) for rival in hardest]

    def _train_pending(self) -> None:
        pairs, self._pending = self._pending, []
        self._train(pairs)

    def _train(self, pairs: Sequence[_Pair]) -> None:
        if not pairs:
            return
        signs = self._rng.choice([-1.0, 1.0], size=len(pairs))
        indices = np.concatenate([index for pair in pairs for index in pair])
        values = np.concatenate(
            [
                np.repeat([sign, -sign], [len(right), len(rival)])
                for sign, (right, rival) in zip(signs, pairs, strict=True)
            ]
        )
        values[indices == 0] = 0.0
        ends = np.cumsum([0, *(len(right) + len(rival) for right, rival in pairs)])
        matrix = csr_matrix((values, indices, ends), shape=(len(pairs), DIMENSIONS))
        self._model.partial_fit(matrix, signs, classes=np.array([-1.0, 1.0]))
        self.weights = self._model.coef_.ravel().copy()

    # -- probabilities --------------------------------------------------------------------------

    def _folds(self, attempts: Sequence[Attempt]) -> list[tuple[list[Attempt], list[Attempt]]]:
        """Two ways to learn from half of the tasks, less some attempts, and be tested on all the rest:
        new tasks and known ones. With one task, half of its attempts."""
        groups = [attempt.task for attempt in attempts]
        if len(set(groups)) == 1:
            groups = [str(place) for place in range(len(attempts))]
        names = sorted(set(groups))
        left = {names[int(place)] for place in self._rng.permutation(len(names))[: len(names) // 2]}
        drawn = self._rng.random(len(attempts)) < self.settings.held_back
        rows = list(zip(attempts, groups, drawn, strict=True))
        folds = []
        for side in (True, False):
            seen = [attempt for attempt, group, held in rows if (group in left) == side and not held]
            tests = [attempt for attempt, group, held in rows if (group in left) != side or held]
            self._rng.shuffle(tests)
            folds.append((seen, tests))
        return folds

    def _evidence(self, task: str, ranked: _Ranked, count: int) -> NDArray[np.float64]:
        """(count, 7): of each of the best, the logit of its softmax, its lead, how many rivals there
        are, whether it is the first or the second, and the logit again if the task is known."""
        shifted = np.exp(ranked.scores - ranked.scores[0])
        shares = np.clip(shifted / shifted.sum(), 1e-6, 1 - 1e-6)[:count]
        logits = np.log(shares / (1.0 - shares))
        lead = np.append(-np.diff(ranked.scores), 5.0)[:count]
        place = np.arange(count)
        known = float(self.slots.knows(task))
        return np.column_stack(
            [
                logits,
                np.clip(lead, 0.0, 5.0),
                np.full(count, np.log(len(ranked.candidates))),
                place == 0,
                place == 1,
                np.full(count, known),
                known * logits,
            ]
        )

    def _chances(self, task: str, ranked: _Ranked, count: int) -> NDArray[np.float64]:
        """Probabilities that never rise and add up to 1 at most."""
        evidence = self._evidence(task, ranked, count)
        chances: NDArray[np.float64] = 1.0 / (1.0 + np.exp(-(evidence @ self.calibration[:-1] + self.calibration[-1])))
        falling: NDArray[np.float64] = np.minimum.accumulate(chances)
        return falling / max(1.0, float(falling.sum()))

    def _fit_calibration(self, attempts: Sequence[Attempt]) -> None:
        evidence: list[NDArray[np.float64]] = []
        right: list[bool] = []
        for seen, tests in self._folds(attempts):
            if not any(attempt.steps for attempt in seen):
                continue
            self._fit_ranking(seen)
            states = [pair for attempt in tests for pair in attempt.states()]
            for state, call in states[: self.settings.calibrated_max]:
                candidates = self.slots.candidates(state)
                if candidates:
                    ranked = self._rank(state, candidates)
                    count = min(_RANKS, len(candidates))
                    evidence.append(self._evidence(state.task, ranked, count))
                    right += [candidate.key == call_key(call) for candidate in ranked.candidates[:count]]
        if len(set(right)) == 2:  # else there is nothing to fit
            model = LogisticRegression(C=1.0, max_iter=1000).fit(np.vstack(evidence), right)
            self.calibration = np.append(model.coef_.ravel(), model.intercept_)
