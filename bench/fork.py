# SPDX-License-Identifier: Apache-2.0
"""How long a fork takes: ours (the page pool) against stock CRIU, on the same live workspace, round by round.

A first snapshot of a booted workspace, one branch of it (until it answers, until its screen is the source's), a
snapshot of that branch after a few actions (the delta), and 16 branches at once.

    python bench/fork.py --json fork.json --markdown docs/benchmarks.md
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer
from measure import (
    ENGINES,
    MIB,
    OURS,
    OVER_CRIU,
    STOCK,
    Guest,
    Series,
    Table,
    all_closed,
    booted,
    each,
    phase_table,
    progress,
    since_ms,
    stop_on_signals,
    warn_if_busy,
    write_json,
    write_section,
)

from bunshin_gym.types import ForkStats
from bunshin_gym.workspace import Snapshot

MANY = 16


@dataclass(slots=True)
class Phases:
    """Snapshots and branches by kind and engine."""

    found: dict[tuple[str, str], list[ForkStats]] = field(default_factory=dict)

    def add(self, kind: str, engine: str, stats: ForkStats | None) -> None:
        """One operation's."""
        if stats is not None:
            self.found.setdefault((kind, engine), []).append(stats)

    def tables(self, image: str) -> list[Table]:
        """One for each."""
        return [phase_table(f"{image}, {kind}, {engine}", stats) for (kind, engine), stats in self.found.items()]


def one_branch(source: Guest, snapshot: Snapshot, wanted: Any, phases: Phases) -> dict[str, float]:
    """A branch until it works, and a snapshot of it."""
    start_ns = time.monotonic_ns()
    with snapshot.branch() as workspace:
        numbers = {"branch one returned": since_ms(start_ns)}
        branch = Guest(workspace, source.socket)
        branch.wait_ready()
        numbers["branch one"] = since_ms(start_ns)
        if wanted is not None:
            branch.wait_screen(wanted)
            numbers["branch one screen"] = since_ms(start_ns)
        phases.add("branch", snapshot.engine, workspace.branch_stats)
        for number in range(3):
            branch.act(number)
        with workspace.snapshot(engine=snapshot.engine) as delta:
            phases.add("snapshot of a branch", snapshot.engine, delta.stats)
            numbers["frozen delta"] = delta.stats.frozen_ns / 1e6
            numbers["snapshot delta"] = delta.stats.total_ns / 1e6
            numbers["copied delta MiB"] = delta.stats.copied_bytes / MIB
    return numbers


def many_branches(source: Guest, snapshot: Snapshot) -> float:
    """Milliseconds until all of them answer."""
    start_ns = time.monotonic_ns()
    workspaces = snapshot.spawn(MANY)
    with all_closed(workspaces):
        each(workspaces, lambda workspace: Guest(workspace, source.socket).wait_ready())
        return since_ms(start_ns)


def one_round(source: Guest, engine: str, times: Series, sizes: Series, phases: Phases) -> None:
    """One engine's turn."""
    wanted = source.screen()
    with source.workspace.snapshot(engine=engine) as snapshot:
        phases.add("first snapshot", engine, snapshot.stats)
        numbers = {"frozen first": snapshot.stats.frozen_ns / 1e6, "snapshot first": snapshot.stats.total_ns / 1e6}
        copied = {"copied first": snapshot.stats.copied_bytes / MIB}
        numbers |= one_branch(source, snapshot, wanted, phases)
        copied["copied delta"] = numbers.pop("copied delta MiB")
        numbers[f"branch {MANY}"] = many_branches(source, snapshot)
    times.add(engine, numbers)
    sizes.add(engine, copied)


def measure(image: str, rounds: int) -> tuple[dict[str, float | None], list[Table]]:
    """All rounds on one image; the engines take turns at going first."""
    times, sizes, phases = Series(), Series(), Phases()
    with booted(image) as source:
        for number in range(rounds):
            for engine in ENGINES if number % 2 == 0 else ENGINES[::-1]:
                progress.print(f"{image}: round {number + 1} of {rounds}, {engine}")
                one_round(source, engine, times, sizes, phases)
    prefix = "" if image == "browser" else f"{image}_"
    numbers = {**times.numbers("ms", prefix), f"{prefix}rounds": rounds}
    columns = ("what", f"ours ({OURS})", f"stock CRIU ({STOCK})", "ratio", "")
    rows = times.rows("ms") + [
        (name, *(f"{sizes.median(name, engine):.1f}" for engine in ENGINES), "", "MiB") for name in sizes.names()
    ]
    return numbers, [Table(title=f"{image}: times of a fork", columns=columns, rows=rows), *phases.tables(image)]


def run(images: Sequence[str], rounds: int) -> tuple[dict[str, float | None], list[Table]]:
    """All images."""
    numbers: dict[str, float | None] = {}
    tables: list[Table] = []
    for image in images:
        more_numbers, more_tables = measure(image, rounds)
        numbers |= more_numbers
        tables += more_tables
        for table in more_tables:
            table.show()
    return numbers, tables


def main(
    images: Annotated[list[str] | None, typer.Option("--image", help="Which; minimal and browser by default.")] = None,
    heavy: Annotated[bool, typer.Option("--heavy", help="The heavy one too.")] = False,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds on each image.")] = 11,
    quick: Annotated[bool, typer.Option("--quick", help="Five rounds: three minutes.")] = False,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the numbers there.")] = None,
    markdown: Annotated[Path | None, typer.Option(help="Write the tables into this page.")] = None,
) -> None:
    """Measures and prints tables."""
    stop_on_signals()
    warn_if_busy()
    chosen = [*(images or ["minimal", "browser"]), *(["heavy"] if heavy else [])]
    numbers, tables = run(chosen, 5 if quick else rounds)
    write_json(json_file, numbers)
    write_section(markdown, "fork", "Fork: times", OVER_CRIU, [table.markdown() for table in tables])


if __name__ == "__main__":
    typer.run(main)
