# SPDX-License-Identifier: Apache-2.0
"""What branches take: 16 of one snapshot, ours (the page pool) against stock CRIU, every page counted once.

At the fork, after 60 s of idling, and after ten actions in each of them. A branch's marginal memory is what no other
process has: private pages alone, or with shared and kernel memory. The group is source, snapshot and all branches.

    python bench/memory.py --json memory.json --markdown docs/benchmarks.md
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import methodcaller
from pathlib import Path
from typing import Annotated, Any

import typer
from measure import (
    ACTIONS,
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
    progress,
    stop_on_signals,
    warn_if_busy,
    write_json,
    write_section,
)

from bunshin_gym.accounting import GroupStats, account
from bunshin_gym.figures import pyplot
from bunshin_gym.workspace import Snapshot, Workspace

MANY = 16
IDLE_S = 60.0


@dataclass(slots=True)
class Group:
    """One engine's group and its memory over time."""

    source: Workspace
    snapshot: Snapshot
    branches: list[Workspace]
    begun_ns: int = field(default_factory=time.monotonic_ns)
    curve: list[tuple[float, float]] = field(default_factory=list)

    def look(self) -> GroupStats:
        """Accounts for it, and notes the total."""
        stats = account([self.source, *self.branches], [self.snapshot])
        self.curve.append(((time.monotonic_ns() - self.begun_ns) / 1e9, stats.total.machine_bytes / MIB))
        return stats

    @property
    def peak_mib(self) -> float:
        """The most it was seen to take."""
        return max(mib for _, mib in self.curve)


def marginal(group: Group, stats: GroupStats, when: str, series: Series) -> None:
    """What each branch has that nobody else has."""
    for branch in group.branches:
        one = stats.members[branch.id]
        kernel = one.machine_bytes - one.private_unique_bytes - one.shm_unique_bytes
        numbers = {
            f"marginal private {when}": one.private_unique_bytes / MIB,
            f"marginal shared memory {when}": one.shm_unique_bytes / MIB,
            f"marginal kernel {when}": kernel / MIB,
            f"marginal total {when}": one.machine_bytes / MIB,
        }
        series.add(group.snapshot.engine, numbers)
    series.add(group.snapshot.engine, {f"group{MANY} {when}": stats.total.machine_bytes / MIB})


def work(group: Group, source: Guest) -> None:
    """The ten actions in all branches, looked at after each."""
    guests = [Guest(branch, source.socket) for branch in group.branches]
    for number in range(len(ACTIONS)):
        each(guests, methodcaller("act", number), width=4)
        group.look()


def one_group(image: str, engine: str, idle_s: float, series: Series) -> list[tuple[float, float]]:
    """Boots, forks, idles, works."""
    with booted(image) as source, source.workspace.snapshot(engine=engine) as snapshot:
        branches = snapshot.spawn(MANY)
        with all_closed(branches):
            group = Group(source.workspace, snapshot, branches)
            marginal(group, group.look(), "at fork", series)
            if idle_s:
                threading.Event().wait(idle_s)
                marginal(group, group.look(), f"after {idle_s:.0f} s idle", series)
            work(group, source)
            stats = group.look()
            marginal(group, stats, f"after {len(ACTIONS)} actions", series)
            pool = stats.members[snapshot.id]
            base = stats.members[source.workspace.id]
            numbers = {
                f"group{MANY} peak": group.peak_mib,
                "source": base.machine_bytes / MIB,
                "snapshot": (pool.machine_bytes + pool.private_shared_bytes) / MIB,
                "snapshot disk": pool.disk_bytes / MIB,
            }
            series.add(engine, numbers)
            return group.curve


def draw(curves: dict[str, list[tuple[float, float]]], title: str, output: Path) -> None:
    """Memory of the groups over time."""
    plt = pyplot()
    figure, axes = plt.subplots(figsize=(8, 4))
    names = {OURS: f"ours ({OURS})", STOCK: f"stock CRIU ({STOCK})"}
    for engine, curve in curves.items():
        axes.plot([at for at, _ in curve], [mib for _, mib in curve], marker="o", markersize=3, label=names[engine])
    axes.set_xlabel("seconds since the branches were made")
    axes.set_ylabel("MiB")
    axes.set_ylim(bottom=0)
    axes.set_title(title)
    axes.legend(loc="lower right")
    figure.tight_layout()
    figure.savefig(output)
    plt.close(figure)


def short_names(numbers: dict[str, Any]) -> dict[str, Any]:
    """The names by which the ratios at the fork are asked for, beside the long ones."""
    aliases = {
        key.replace("_at_fork", ""): value for key, value in numbers.items() if "marginal" in key and "_at_fork" in key
    }
    return {**aliases, **numbers}


def measure(image: str, groups: int, idle_s: float) -> tuple[dict[str, Any], Table, dict[str, Any]]:
    """All groups of one image; the engines take turns at going first."""
    series, curves = Series(), {}
    for number in range(groups):
        for engine in ENGINES if number % 2 == 0 else ENGINES[::-1]:
            progress.print(f"{image}: group {number + 1} of {groups}, {engine}")
            curves[engine] = one_group(image, engine, idle_s, series)
    prefix = "" if image == "browser" else f"{image}_"
    numbers: dict[str, Any] = short_names(series.numbers("MiB", prefix))
    numbers |= {f"{prefix}groups": groups, f"{prefix}branches": MANY}
    columns = ("what", f"ours ({OURS})", f"stock CRIU ({STOCK})", "ratio", "")
    title = f"{image}: memory of {MANY} branches, {groups} groups"
    return numbers, Table(title=title, columns=columns, rows=series.rows("MiB")), curves


def picture(markdown: Path, image: str, curves: dict[str, Any]) -> str:
    """Draws beside the page; the line that shows it there."""
    name = f"{markdown.stem}-memory-{image}.svg"
    draw(curves, f"{image}: source, snapshot and {MANY} branches", markdown.with_name(name))
    return f"![memory of a group over time, {image}]({name})"


def main(
    images: Annotated[list[str] | None, typer.Option("--image", help="Which; minimal and browser by default.")] = None,
    heavy: Annotated[bool, typer.Option("--heavy", help="The heavy one too.")] = False,
    groups: Annotated[int, typer.Option(min=1, help="Groups of branches on each image.")] = 5,
    quick: Annotated[bool, typer.Option("--quick", help="One group each, no idling: three minutes.")] = False,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the numbers there.")] = None,
    markdown: Annotated[Path | None, typer.Option(help="Write tables and pictures into this page.")] = None,
) -> None:
    """Measures and prints tables."""
    stop_on_signals()
    warn_if_busy()
    numbers: dict[str, Any] = {}
    parts: list[str] = []
    chosen: Sequence[str] = [*(images or ["minimal", "browser"]), *(["heavy"] if heavy else [])]
    for image in chosen:
        found, table, curves = measure(image, 1 if quick else groups, 0.0 if quick else IDLE_S)
        numbers |= found
        table.show()
        parts.append(table.markdown())
        if markdown is not None:
            parts.append(picture(markdown, image, curves))
    write_json(json_file, numbers)
    write_section(markdown, "memory", "Fork: memory", OVER_CRIU, parts)


if __name__ == "__main__":
    typer.run(main)
