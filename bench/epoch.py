# SPDX-License-Identifier: Apache-2.0
"""An epoch of recorded attempts: plain, with the cache, with speculation, with both.

All settings share memory by fork: plain is the memory-sharing baseline. By default every attempt runs in a real
workspace of this machine. Recorded calls are made again; agents' thinking is slept. No thinking was recorded: it is
log-normal, median 2 s by default and sigma 0.5, which is the fast end of the 2 to 20 s that are published for a step of
a language model; the same draws in every setting. Batches run in each setting in turn, and a batch is over with its
last attempt, whose thinking alone is a floor that no setting gets below (`floor`).

    python bench/epoch.py --json epoch.json                   desktops, real workspaces, batches of 8 and 16
    python bench/epoch.py --groups bench/data/shop-groups.jsonl.zst --history bench/data/shop-attempts.jsonl.zst
    python bench/epoch.py --modelled --json model.json        calls last as recorded, on two modelled cores
    python bench/epoch.py --modelled --slower 5.3 --groups bench/data/miniwob-groups.jsonl.zst ...
                                                              calls of 0.8 s and resets of 2.4 s, which is what they
                                                              take in a browser that is started at each reset
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from recordings import DATA, Record, attempt_of, load
from replay_epoch import SETTINGS, Epoch, batches, replay_all, think_s
from rich.console import Console
from rich.table import Table
from worlds import Modelled, Real

from bunshin_gym.cache import Budgets
from bunshin_gym.speculate.predictor import RankingPredictor

console = Console(stderr=True)


def train(records: list[Record]) -> bytes:
    """A predictor of earlier attempts at these tasks, with other seeds."""
    predictor = RankingPredictor()
    predictor.fit([attempt_of(record) for record in records])
    return predictor.to_bytes()


def floor_s(records: list[Record], batch: int, median_s: float) -> float:
    """What thinking alone takes: of each batch, the attempt that thinks longest."""
    return sum(
        max(sum(think_s(record, step, median_s) for step in range(len(record["steps"]))) for record in part)
        for part in batches(records, batch)
    )


def rows_of(epochs: dict[str, Epoch], title: str) -> Table:
    """The epochs side by side, as ratios of the plain one."""
    table = Table(title=title)
    for column in ("setting", "wall s", "ratio", "waited", "peak MiB", "ratio", "known", "guessed", "rewards"):
        table.add_column(column, justify="left" if column == "setting" else "right")
    plain = epochs["plain"]
    for name, epoch in epochs.items():
        known = epoch.sources.get("hit", 0) + epoch.sources.get("waited", 0)
        table.add_row(
            name,
            f"{epoch.wall_s:.1f}",
            f"{epoch.wall_s / plain.wall_s:.2f}",
            f"{epoch.waited_s / plain.waited_s:.2f}",
            f"{epoch.peak_bytes / 2**20:.0f}",
            f"{epoch.peak_bytes / plain.peak_bytes:.3f}",
            f"{known / max(1, sum(epoch.sources.values())):.2f}",
            f"{epoch.stats.hits}/{epoch.stats.guesses}" if epoch.stats.guesses else "-",
            "equal" if epoch.rewards == plain.rewards else "DIFFERENT",
        )
    return table


def measure(
    records: list[Record], model: bytes, world: Any, *, batch: int, median_s: float, budgets: Budgets
) -> dict[str, Any]:
    """All settings side by side; their numbers by name."""
    settings = [replace(setting, batch=batch, think_s=median_s, budgets=budgets) for setting in SETTINGS]
    predictors = {s.name: RankingPredictor.from_bytes(model) for s in settings if s.speculation}
    epochs = replay_all(world, records, settings, predictors)
    plain = epochs["plain"]
    for name, epoch in epochs.items():
        for error in epoch.errors:
            console.print(f"[red]{name}: {error}")
    floor = floor_s(records, batch, median_s) / plain.wall_s
    console.print(rows_of(epochs, f"batches of {batch}, median thinking time {median_s} s, floor {floor:.2f}"))
    numbers: dict[str, Any] = {
        "floor": floor,
        "rewards_equal": all(epoch.rewards == plain.rewards and not epoch.errors for epoch in epochs.values()),
    }
    for name, epoch in epochs.items():
        numbers[name] = {
            "wall_s": epoch.wall_s,
            "time_ratio": epoch.wall_s / plain.wall_s,
            "waited_ratio": epoch.waited_s / plain.waited_s,
            "memory_ratio": epoch.peak_bytes / plain.peak_bytes,
            "peak_bytes": epoch.peak_bytes,
            "guesses": epoch.stats.guesses,
            "guesses_right": epoch.stats.hits,
        }
    return numbers


def main(
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the numbers here.")] = None,
    modelled: Annotated[bool, typer.Option(help="Modelled workspaces instead of real ones.")] = False,
    slower: Annotated[float, typer.Option(help="Modelled: how many times slower calls and resets are.")] = 1.0,
    speed: Annotated[float, typer.Option(help="Modelled: how much faster than recorded to replay.")] = 4.0,
    tasks: Annotated[int, typer.Option(help="How many of the recorded tasks; 0 for all.")] = 4,
    think: Annotated[list[float] | None, typer.Option(help="Median thinking times, in seconds.")] = None,
    batch: Annotated[list[int] | None, typer.Option(help="Attempts at once; the first is the headline.")] = None,
    tree_mib: Annotated[int, typer.Option(help="Memory for the cache's snapshots.")] = 768,
    groups: Annotated[Path, typer.Option(help="Recorded groups of 8 attempts.")] = DATA / "desktop-groups.jsonl.zst",
    history: Annotated[Path, typer.Option(help="Attempts to train on.")] = DATA / "desktop-attempts.jsonl.zst",
) -> None:
    """Replays an epoch in four settings."""
    records = load(groups)
    names = sorted({record["task"] for record in records})
    names = names[:: max(1, len(names) // tasks)][:tasks] if tasks else names
    records = [record for record in records if record["task"] in names]
    model = train(load(history))
    world: Any = Modelled(records, speed=speed, slower=slower) if modelled else Real(records)
    results: dict[str, Any] = {}
    try:
        for size in batch or [16, 8]:
            for median_s in think or [2.0]:
                budgets = Budgets(memory_bytes=tree_mib << 20)
                results[f"{size}_{median_s:g}"] = measure(
                    records, model, world, batch=size, median_s=median_s, budgets=budgets
                )
    finally:
        world.close()
    headline = next(iter(results.values()))
    result = {
        "epoch_time_ratio": headline["both"]["time_ratio"],
        "peak_memory_ratio": headline["both"]["memory_ratio"],
        "rewards_equal": all(numbers["rewards_equal"] for numbers in results.values()),
        "workspaces": "modelled" if modelled else "real",
        "settings": results,
    }
    console.print_json(data={key: result[key] for key in list(result)[:4]})
    if json_file is not None:
        json_file.write_text(json.dumps(result, indent=1) + "\n")
    if not result["rewards_equal"]:
        sys.exit("rewards differ, or attempts failed")


if __name__ == "__main__":
    typer.run(main)
