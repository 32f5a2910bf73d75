# SPDX-License-Identifier: Apache-2.0
"""bunshin cache: stats, tree, gc, export, and the quarantine of tools."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bunshin_gym.cli.output import console, mib, table
from bunshin_gym.errors import UsageError

if TYPE_CHECKING:
    from bunshin_gym.cache.tree import SnapshotTree

__all__ = ["app"]

app = typer.Typer(no_args_is_help=True, help="Stored tool sequences and their snapshots.")

Directory = Annotated[Path, typer.Argument(help="Where the tree is kept.")]
Task = Annotated[str | None, typer.Option(help="Only this task's, such as miniwob.click-test.")]


class Form(StrEnum):
    """How a tree is shown."""

    TEXT = "text"
    SVG = "svg"
    HTML = "html"


@contextmanager
def _tree(directory: Path) -> Iterator[SnapshotTree]:
    from bunshin_gym.cache.tree import SnapshotTree

    if not (directory / "index.sqlite").exists():
        raise UsageError(f"{directory} holds no snapshot tree")
    with SnapshotTree(directory) as tree:
        yield tree


@app.command()
def stats(
    directory: Directory,
    plot: Annotated[Path | None, typer.Option(help="Draw hits over steps into this .png or .svg.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Say what is stored, what was hit, what it saved, and which tools disagree with themselves."""
    from bunshin_gym.cache.tree_view import rate_plot

    with _tree(directory) as tree:
        summary = _summary(tree)
        tools = tree.ledger.tools()
        if plot is not None:
            rate_plot(tree.ledger.rates(), plot)
    if as_json:
        tool_rows = [{name: getattr(row, name) for name in row.__slots__} for row in tools]
        console.print_json(json.dumps({**summary, "tools": tool_rows}))
        return
    shown = [(name, mib(value) if name.endswith("_bytes") else f"{value:,}") for name, value in summary.items()]
    console.print(table("tree", ("what", "how much"), [(name.removesuffix("_bytes"), text) for name, text in shown]))
    rows = [
        (
            row.task,
            row.name,
            str(row.runs),
            f"{row.run_ns / max(1, row.runs) / 1e6:.0f}",
            str(row.hits),
            f"{row.disagreements}/{row.audits}",
            row.quarantined or "",
        )
        for row in tools
    ]
    console.print(table("tools", ("task", "tool", "runs", "mean ms", "hits", "disagree", "quarantine"), rows))


def _summary(tree: SnapshotTree) -> dict[str, Any]:
    rates = tree.ledger.rates()
    count = tree.database.read_one("SELECT count(*) AS n, count(DISTINCT context) AS c FROM nodes")
    assert count is not None
    hits, misses = sum(rate.hits for rate in rates), sum(rate.misses for rate in rates)
    return {
        "contexts": count["c"],
        "nodes": count["n"],
        "attempts": tree.index.clock(),
        "hits": hits,
        "misses": misses,
        "hit_percent": round(100 * hits / max(1, hits + misses), 1),
        "saved_s": round(sum(rate.saved_ns for rate in rates) / 1e9, 1),
        "executed_s": round(sum(rate.executed_ns for rate in rates) / 1e9, 1),
        "contents": tree.contents.count(),
        "contents_bytes": tree.contents.stored_bytes(),
        "memory_snapshots": len(tree.ledger.snapshots("memory")),
        "memory_bytes": tree.ledger.tier_bytes("memory"),
        "disk_snapshots": len(tree.ledger.snapshots("disk")),
        "disk_bytes": tree.ledger.tier_bytes("disk"),
    }


@app.command("tree")
def show_tree(
    directory: Directory,
    form: Annotated[Form, typer.Option(help="How to show it.")] = Form.TEXT,
    output: Annotated[Path | None, typer.Option(help="The file for html, the folder for svg.")] = None,
    task: Task = None,
) -> None:
    """Show the tree: calls, hits, costs, where snapshots are, and screens."""
    from bunshin_gym.cache.tree_view import branches, to_html, to_svg, to_text

    with _tree(directory) as tree:
        found = branches(tree, task)
        if not found:
            raise UsageError(f"{directory} holds nothing" + (f" of task {task}" if task else ""))
        if form is Form.TEXT:
            console.print(to_text(found))
        elif output is None:
            raise UsageError(f"--form {form} needs --output")
        elif form is Form.HTML:
            to_html(found, tree, output)
            console.print(f"{output}", markup=False, highlight=False)
        else:
            output.mkdir(parents=True, exist_ok=True)
            for number, (body, root) in enumerate(found):
                path = output / f"{number:03d}-{body['task'].replace('/', '-')}-{body['seed']}.svg"
                to_svg(body, root, tree, path)
                console.print(f"{path}", markup=False, highlight=False)


@app.command()
def gc(
    directory: Directory,
    contents_mib: Annotated[int | None, typer.Option(help="Remove coldest results down to this size.")] = None,
) -> None:
    """Remove what killed processes left and, beyond a size, what is met least."""
    with _tree(directory) as tree:
        report = tree.gc(contents_max_bytes=None if contents_mib is None else contents_mib << 20)
    rows = [(name.removesuffix("_bytes"), mib(n) if name.endswith("_bytes") else str(n)) for name, n in report.items()]
    console.print(table("removed", ("what", "how much"), rows))


@app.command()
def export(
    directory: Directory,
    output: Annotated[Path, typer.Argument(help="A folder for trajectories, one for each way through the tree.")],
    task: Task = None,
) -> None:
    """Write each stored sequence, from start to leaf, as a trajectory that replays."""
    from bunshin_gym.trajectory import export_tree

    with _tree(directory) as tree:
        count = export_tree(tree, output, task=task)
    console.print(f"{count} trajectories in {output}", markup=False, highlight=False)


@app.command()
def quarantine(
    directory: Directory,
    task: Annotated[str, typer.Argument(help="The task.")],
    tool: Annotated[str, typer.Argument(help="The tool.")],
    lift: Annotated[bool, typer.Option("--lift", help="Reuse it again.")] = False,
) -> None:
    """Stop reusing a tool's results in a task, or start again."""
    with _tree(directory) as tree:
        tree.ledger.quarantine(task, tool, None if lift else "by command")
