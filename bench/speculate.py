# SPDX-License-Identifier: Apache-2.0
"""How well the next call is predicted, against counting n-grams; and what guesses bring and cost.

Accuracy is on tasks that the predictor never saw: the tasks are cut into folds, each tested on what
was learnt from the others. The replay (bench/replay_epoch.py) uses such a predictor too. The cost of
wrong guesses is measured with a predictor that is always wrong, always sure and always believed; in
earnest the runner stops to believe such a one after a few calls.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from recordings import DATA, Record, attempt_of, load
from replay_epoch import SETTINGS, Epoch, replay_all
from rich.console import Console
from rich.table import Table
from worlds import Modelled

from bunshin_gym.speculate.ngram import NgramPredictor
from bunshin_gym.speculate.predictor import RankingPredictor
from bunshin_gym.speculate.protocols import Predictor
from bunshin_gym.speculate.state import Attempt, Prediction, State, call_key
from bunshin_gym.types import ToolCall

console = Console(stderr=True)


@dataclass(slots=True)
class Score:
    """What a predictor was right about, over all folds."""

    first: list[bool] = field(default_factory=list)
    among: list[bool] = field(default_factory=list)
    promised: list[float] = field(default_factory=list)
    cpu_ms: list[float] = field(default_factory=list)

    def add(self, predictor: Predictor, attempts: Sequence[Attempt]) -> None:
        """Predicts every call of the attempts."""
        for attempt in attempts:
            for state, call in attempt.states():
                start_ns = time.thread_time_ns()
                best = predictor.predict(state, k=3)
                self.cpu_ms.append((time.thread_time_ns() - start_ns) / 1e6)
                keys = [call_key(prediction.call) for prediction in best]
                self.first.append(keys[:1] == [call_key(call)])
                self.among.append(call_key(call) in keys)
                self.promised.append(best[0].probability if best else 0.0)

    @property
    def calibration_error(self) -> float:
        """Mean distance of promise and outcome, in ten bins."""
        promised, kept = np.array(self.promised), np.array(self.first, dtype=float)
        bins = np.minimum((promised * 10).astype(int), 9)
        return float(sum(abs((promised - kept)[bins == b].sum()) for b in range(10)) / len(kept))


class Stubborn:
    """Always sure of a call that nobody makes."""

    def predict(self, state: State, *, k: int = 3) -> list[Prediction]:
        """One wrong call."""
        return [Prediction(call=ToolCall(name="noop", args={"wait_ms": 987.0}), probability=0.95)]

    def learn(self, attempt: Attempt) -> None:
        """Learns nothing."""


def accuracy(attempts: Sequence[Attempt], folds: int) -> tuple[Score, Score, float]:
    """Scores of the ranking and of the n-grams on tasks held out, and the CPU seconds of a fit."""
    tasks = sorted({attempt.task for attempt in attempts})
    ranking, counting, fit_s = Score(), Score(), []
    for fold in range(folds):
        held = set(tasks[fold::folds])
        seen = [attempt for attempt in attempts if attempt.task not in held]
        unseen = [attempt for attempt in attempts if attempt.task in held]
        predictor, ngrams = RankingPredictor(), NgramPredictor()
        start = time.process_time()
        predictor.fit(seen)
        fit_s.append(time.process_time() - start)
        for attempt in seen:
            ngrams.learn(attempt)
        ranking.add(predictor, unseen)
        counting.add(ngrams, unseen)
    return ranking, counting, float(np.mean(fit_s))


def accuracy_table(ranking: Score, counting: Score) -> Table:
    """Both side by side."""
    table = Table(title=f"next call on tasks never seen, {len(ranking.first)} calls")
    for column in ("predictor", "acc@1", "acc@3", "calibration error", "CPU ms median", "p99"):
        table.add_column(column, justify="left" if column == "predictor" else "right")
    for name, score in (("ranking", ranking), ("n-gram", counting)):
        table.add_row(
            name,
            f"{np.mean(score.first):.3f}",
            f"{np.mean(score.among):.3f}",
            f"{score.calibration_error:.3f}",
            f"{np.median(score.cpu_ms):.2f}",
            f"{np.quantile(score.cpu_ms, 0.99):.2f}",
        )
    table.add_row(
        "ratio",
        f"{np.mean(ranking.first) / max(1e-9, float(np.mean(counting.first))):.1f}",
        f"{np.mean(ranking.among) / max(1e-9, float(np.mean(counting.among))):.1f}",
    )
    return table


def replays(records: list[Record], history: list[Record], *, think_s: float, speed: float) -> dict[str, Epoch]:
    """Plain, with guesses on tasks never seen, and with wrong guesses alone."""
    tasks = {record["task"] for record in records}
    predictor = RankingPredictor()
    predictor.fit([attempt_of(record) for record in history if record["task"] not in tasks])
    by_name = {setting.name: replace(setting, think_s=think_s) for setting in SETTINGS}
    guessing = by_name["speculation"]
    settings = [
        by_name["plain"],
        replace(guessing, name="guesses"),
        replace(guessing, name="wrong guesses", credulous=True),
    ]
    predictors: dict[str, Predictor] = {"guesses": predictor, "wrong guesses": Stubborn()}
    epochs = replay_all(Modelled(records, speed=speed), records, settings, predictors)
    for name, epoch in epochs.items():
        for error in epoch.errors:
            console.print(f"[red]{name}: {error}")
    return epochs


def replay_table(epochs: dict[str, Epoch], think_s: float) -> Table:
    """What guesses brought and cost."""
    table = Table(title=f"batches of 8 on tasks never seen, median thinking time {think_s} s")
    for column in ("guesses", "attempts' time", "branches", "hits", "misses", "guess CPU", "wasted", "peak memory"):
        table.add_column(column, justify="left" if column == "guesses" else "right")
    plain = epochs["plain"]
    for name, epoch in epochs.items():
        stats = epoch.stats
        table.add_row(
            name,
            f"{epoch.attempts_s / plain.attempts_s:.3f}",
            str(stats.guesses),
            str(stats.hits),
            str(stats.misses),
            f"{epoch.guess_cpu_s / epoch.cpu_s:.3f}",
            f"{stats.wasted_ns / 1e9:.1f} s",
            f"{epoch.peak_bytes / plain.peak_bytes:.3f}",
        )
    return table


def main(
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the numbers here.")] = None,
    quick: Annotated[bool, typer.Option(help="Two folds, fewer replayed tasks.")] = False,
    think: Annotated[float, typer.Option(help="Median thinking time, in seconds.")] = 1.0,
    speed: Annotated[float, typer.Option(help="How much faster than recorded to replay.")] = 1.0,
    groups: Annotated[Path, typer.Option(help="Recorded groups of 8 attempts.")] = DATA / "miniwob-groups.jsonl.zst",
    history: Annotated[Path, typer.Option(help="Attempts to learn from.")] = DATA / "miniwob-attempts.jsonl.zst",
) -> None:
    """Measures predictions, and replays attempts with and without guesses."""
    records = load(history)
    ranking, counting, fit_s = accuracy([attempt_of(record) for record in records], 2 if quick else 4)
    console.print(accuracy_table(ranking, counting))
    replayed = load(groups)
    tasks = sorted({record["task"] for record in replayed})[:: 6 if quick else 2]
    replayed = [record for record in replayed if record["task"] in tasks]
    epochs = replays(replayed, records, think_s=think, speed=speed)
    console.print(replay_table(epochs, think))
    plain, guesses, wrong = epochs["plain"], epochs["guesses"], epochs["wrong guesses"]
    result = {
        "acc1": float(np.mean(ranking.first)),
        "acc3": float(np.mean(ranking.among)),
        "acc1_ngram": float(np.mean(counting.first)),
        "wrong_guess_cost": max(0.0, wrong.attempts_s / plain.attempts_s - 1.0),
        "acc3_ngram": float(np.mean(counting.among)),
        "calibration_error": ranking.calibration_error,
        "predict_cpu_ms": float(np.median(ranking.cpu_ms)),
        "predict_cpu_ms_p99": float(np.quantile(ranking.cpu_ms, 0.99)),
        "fit_cpu_s": fit_s,
        "hit_rate": guesses.stats.hits / guesses.steps,
        "saved_s": guesses.stats.saved_ns / 1e9 * speed,
        "attempt_time_ratio": guesses.attempts_s / plain.attempts_s,
        "guess_cpu_share": guesses.guess_cpu_s / guesses.cpu_s,
        "peak_memory_ratio_speculation": guesses.peak_bytes / plain.peak_bytes,
        "rewards_equal": guesses.rewards == plain.rewards == wrong.rewards,
    }
    console.print_json(data=result)
    if json_file is not None:
        json_file.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    typer.run(main)
