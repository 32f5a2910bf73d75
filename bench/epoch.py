# SPDX-License-Identifier: Apache-2.0
"""An epoch of recorded attempts: plain, with the cache, with speculation, with both.

The wrappers, threads and waits are real; workspaces are replayed from recordings on a modelled
machine of 2 cores (bench/replay_env.py). All settings share memory by fork: plain is the
memory-sharing baseline. Thinking times are log-normal (sigma 0.5), the same in every setting.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from recordings import DATA, Record, attempt_of, load
from replay_epoch import SETTINGS, Epoch, replay
from rich.console import Console
from rich.table import Table

from bunshin_gym.speculate.predictor import RankingPredictor

console = Console(stderr=True)


def train(records: list[Record]) -> bytes:
    """A predictor of earlier attempts at these tasks, with other seeds."""
    predictor = RankingPredictor()
    predictor.fit([attempt_of(record) for record in records])
    return predictor.to_bytes()


def rows_of(epochs: dict[str, Epoch], title: str) -> Table:
    """The epochs side by side, as ratios of the plain one."""
    table = Table(title=title)
    for column in ("setting", "wall s", "ratio", "peak MiB", "ratio", "hit rate", "saved s", "guess CPU", "rewards"):
        table.add_column(column, justify="left" if column == "setting" else "right")
    plain = epochs["plain"]
    for name, epoch in epochs.items():
        stats = epoch.stats
        table.add_row(
            name,
            f"{epoch.wall_s:.1f}",
            f"{epoch.wall_s / plain.wall_s:.2f}",
            f"{epoch.peak_bytes / 2**20:.0f}",
            f"{epoch.peak_bytes / plain.peak_bytes:.3f}",
            f"{stats.hits / epoch.steps:.2f}" if stats.guesses else "-",
            f"{stats.saved_ns / 1e9 * 1.0:.1f}",
            f"{epoch.guess_cpu_s / epoch.cpu_s:.2f}",
            "equal" if epoch.rewards == plain.rewards else "DIFFERENT",
        )
    return table


def measure(
    records: list[Record], model: bytes, *, batch: int, think_s: float, speed: float
) -> tuple[dict[str, Epoch], bool]:
    """All settings; and whether every attempt had equal rewards in all of them, without errors."""
    epochs: dict[str, Epoch] = {}
    for setting in SETTINGS:
        predictor = RankingPredictor.from_bytes(model) if setting.speculation else None
        epochs[setting.name] = replay(records, replace(setting, batch=batch, think_s=think_s, speed=speed), predictor)
        for error in epochs[setting.name].errors:
            console.print(f"[red]{setting.name}: {error}")
    equal = all(epoch.rewards == epochs["plain"].rewards and not epoch.errors for epoch in epochs.values())
    console.print(rows_of(epochs, f"batches of {batch}, median thinking time {think_s} s"))
    return epochs, equal


def main(
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the numbers here.")] = None,
    quick: Annotated[bool, typer.Option(help="Fewer tasks, one thinking time, batches of 8.")] = False,
    think: Annotated[float, typer.Option(help="Median thinking time of the headline, in seconds.")] = 0.5,
    speed: Annotated[float, typer.Option(help="How much faster than recorded to replay.")] = 4.0,
    groups: Annotated[Path, typer.Option(help="Recorded groups of 8 attempts.")] = DATA / "miniwob-groups.jsonl.zst",
    history: Annotated[Path, typer.Option(help="Attempts to train on.")] = DATA / "miniwob-attempts.jsonl.zst",
) -> None:
    """Replays an epoch in four settings."""
    records = load(groups)
    if quick:
        tasks = sorted({record["task"] for record in records})[::3]
        records = [record for record in records if record["task"] in tasks]
    model = train(load(history))
    result: dict[str, float | bool] = {}
    all_equal = True
    for batch in (8,) if quick else (8, 16):
        for think_s in (think,) if quick else sorted({think, 0.25, 1.0, 2.0}):
            epochs, equal = measure(records, model, batch=batch, think_s=think_s, speed=speed)
            all_equal &= equal
            for name, epoch in epochs.items():
                key = f"{name}_{batch}_{think_s:g}"
                result[f"time_ratio_{key}"] = epoch.wall_s / epochs["plain"].wall_s
                result[f"memory_ratio_{key}"] = epoch.peak_bytes / epochs["plain"].peak_bytes
    headline = f"both_8_{think:g}"
    result = {
        "epoch_time_ratio": result[f"time_ratio_{headline}"],
        "peak_memory_ratio": result[f"memory_ratio_{headline}"],
        "rewards_equal": all_equal,
        **result,
    }
    console.print_json(data={key: result[key] for key in list(result)[:3]})
    if json_file is not None:
        json_file.write_text(json.dumps(result, indent=1) + "\n")
    if not all_equal:
        sys.exit("rewards differ, or attempts failed")


if __name__ == "__main__":
    typer.run(main)
