# SPDX-License-Identifier: Apache-2.0
"""bunshin ps, plot: what runs, whoever started it, and what it takes of the machine."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from bunshin_gym.cli.output import console, mib, table
from bunshin_gym.cli.privilege import need_root
from bunshin_gym.errors import UsageError
from bunshin_gym.paths import home_path
from bunshin_gym.types import GroupStats, MemoryAccount

if TYPE_CHECKING:
    from bunshin_gym.records import Record

__all__ = ["Sample", "add_commands", "draw", "samples"]

_MIB: Final = 1 << 20
_PICTURES: Final = (".png", ".svg", ".pdf")


def ps() -> None:
    """Show workspaces and snapshots as a tree of who came from whom, with what they take."""
    from bunshin_gym.accounting import account_ids

    need_root("ps")
    records = _records()
    if not records:
        console.print(f"nothing runs in {home_path()}", highlight=False)
        return
    group = account_ids(record.id for record in records)
    rows = [("all together", "", *_amounts(group.total))]
    for guide, record in _tree(records):
        rows.append((guide + _describe(record), _age(record), *_amounts(group.members[record.id])))
    columns = ("", "age", "procs", "unique", "shared", "files", "kernel", "disk")
    shown = table(f"{home_path()}, sizes in MiB", columns, rows)
    shown.box, shown.pad_edge, shown.padding = None, False, (0, 1, 0, 0)
    for column in shown.columns:
        column.no_wrap = True
    for column in shown.columns[1:]:
        column.min_width = 5
    shown.columns[0].overflow = "ellipsis"
    console.print(shown)


def _tree(records: Sequence[Record], parent: str | None = None, indent: str = "") -> Iterator[tuple[str, Record]]:
    """Each record behind the lines that lead to it; one whose parent is gone is a root."""
    known = {record.id for record in records}
    children = [record for record in records if (record.parent if record.parent in known else None) == parent]
    for child in children:
        last = child is children[-1]
        yield indent + ("└─ " if last else "├─ "), child
        yield from _tree(records, child.id, indent + ("   " if last else "│  "))


def _records() -> list[Record]:
    from bunshin_gym.records import list_snapshots, list_workspaces

    return sorted([*list_workspaces(), *list_snapshots()], key=lambda record: record.created_ns)


def _describe(record: Record) -> str:
    parts = [f"{_kind(record)} {record.id}"]
    if not record.parent:  # the others carry the same
        parts.append(str(record.label.get("note") or record.label.get("name") or ""))
    if record.kind == "snapshots":
        parts.append(record.engine or "")
    if record.kind == "workspaces" and not record.alive:
        parts.append("(ended)")
    if not record.owned:
        parts.append("(its owner is gone: bunshin gc)")
    return " ".join(filter(None, parts))


def _age(record: Record) -> str:
    return f"{(time.time_ns() - record.created_ns) / 1e9:.0f}s"


def _kind(record: Record) -> str:
    if record.kind == "snapshots":
        return "snapshot"
    return "branch" if record.parent else "workspace"


def _amounts(account: MemoryAccount) -> tuple[str, ...]:
    unique = account.private_unique_bytes + account.shm_unique_bytes
    sizes = (
        unique,
        account.private_shared_bytes + account.shm_shared_bytes,
        account.file_unique_bytes + account.file_shared_bytes,
        account.machine_bytes - unique,
        account.disk_bytes,
    )
    return str(account.processes), *(f"{size / _MIB:.1f}" for size in sizes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """The memory of all that ran at one moment.

    Attributes:
        at_ns: since the first sample.
        group: what it took.
        names: what to call its members in a picture.
    """

    at_ns: int
    group: GroupStats
    names: dict[str, str]


def samples(*, seconds: float, interval_s: float, stopped: Event) -> Iterator[Sample]:
    """One at once, one each interval, and a last one when the time is over or `stopped` is set."""
    from bunshin_gym.accounting import account_ids

    begun_ns = time.monotonic_ns()
    for number in range(1, 1 + max(1, round(seconds / interval_s)) + 1):
        records = _records()
        names = {record.id: f"{_kind(record)} {record.id[:6]}" for record in records}
        at_ns = time.monotonic_ns() - begun_ns
        yield Sample(at_ns=at_ns, group=account_ids(names), names=names)
        due_ns = begun_ns + round(number * interval_s * 1e9)
        if stopped.wait(max(0.0, (due_ns - time.monotonic_ns()) / 1e9)):
            return


def draw(taken: list[Sample], output: Path) -> None:
    """Draws memory over time, stacked: what each member has alone, what several share.

    Raises:
        UsageError: matplotlib is not installed.
    """
    from bunshin_gym.figures import pyplot

    plt = pyplot()
    names = {key: name for sample in taken for key, name in sample.names.items()}
    at = [sample.at_ns / 1e9 for sample in taken]
    stack = [[_machine_mib(sample, key) for sample in taken] for key in names]
    together = [sample.group.total.machine_bytes / _MIB for sample in taken]
    shared = [total - sum(line[i] for line in stack) for i, total in enumerate(together)]
    figure, axes = plt.subplots(figsize=(9, 5))
    axes.stackplot(at, *stack, shared, labels=[*names.values(), "shared among them"], step="post")
    _finish(axes, at, together)
    figure.tight_layout()
    figure.savefig(output, dpi=120)
    plt.close(figure)


def _machine_mib(sample: Sample, key: str) -> float:
    member = sample.group.members.get(key)
    return member.machine_bytes / _MIB if member else 0.0


def _finish(axes: Any, at: list[float], together: list[float]) -> None:
    axes.plot(at, together, color="black", linewidth=1, drawstyle="steps-post", label="all together")
    axes.set_xlabel("seconds")
    axes.set_ylabel("MiB")
    axes.set_ylim(bottom=0)
    axes.set_title("memory of workspaces and snapshots, each page once")
    axes.legend(loc="upper left", fontsize="small", ncols=2)


def plot(
    output: Annotated[Path, typer.Argument(help="A .png, .svg or .pdf to write.")] = Path("memory.png"),
    seconds: Annotated[float, typer.Option("--seconds", "-s", min=0.1, help="For how long; Ctrl-C ends it.")] = 30.0,
    interval: Annotated[float, typer.Option("--interval", "-i", min=0.05, help="Seconds between samples.")] = 1.0,
) -> None:
    """Draw the memory of all that runs, over time."""
    from bunshin_gym.figures import pyplot

    need_root("plot")
    if output.suffix not in _PICTURES:
        raise UsageError(f"{output}: a picture ends in {', '.join(_PICTURES)}")
    pyplot()  # says now, not after the wait, that it is missing
    taken = list(_until_interrupted(samples(seconds=seconds, interval_s=interval, stopped=Event())))
    if not any(sample.names for sample in taken):
        raise UsageError(f"nothing ran in {home_path()} meanwhile")
    draw(taken, output)
    peak = max(sample.group.total.machine_bytes for sample in taken)
    console.print(f"{len(taken)} samples, peak {mib(peak)}: {output}", highlight=False)


def _until_interrupted(stream: Iterable[Sample]) -> Iterator[Sample]:
    try:
        with console.status("sampling; Ctrl-C draws what there is"):
            yield from stream
    except KeyboardInterrupt:
        return


def add_commands(app: typer.Typer) -> None:
    """Adds the commands of this file."""
    for command in (ps, plot):
        app.command()(command)
