# SPDX-License-Identifier: Apache-2.0
"""bunshin fork, trace: what forking costs here."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bunshin_gym.cli.output import console, mib, ms, phase_table, table
from bunshin_gym.cli.privilege import need_root
from bunshin_gym.errors import UsageError

if TYPE_CHECKING:
    from bunshin_gym.types import ForkStats
    from bunshin_gym.workspace import Workspace

__all__ = ["add_commands"]

_Image = Annotated[str, typer.Argument(help="The image to start from.")]
_Branches = Annotated[int, typer.Option("--branches", "-n", min=1, help="How many.")]
_Engine = Annotated[str | None, typer.Option(help="How to fork; the best there is unless given.")]


def fork(image: _Image = "browser", branches: _Branches = 4, engine: _Engine = None) -> None:
    """Boot a workspace, fork it, and show what the branches cost."""
    need_root("fork")
    with _forked(image, branches, engine) as (source, snapshot_stats, made):
        rows = [("source", source.id, ms(snapshot_stats.frozen_ns) + " frozen", *_memory(source))]
        for number, branch in enumerate(made, start=1):
            stats = branch.branch_stats
            rows.append((f"branch {number}", branch.id, ms(stats.total_ns if stats else None), *_memory(branch)))
        console.print(table(f"{image} forked", ("", "id", "time", "unique", "shared", "processes"), rows))


def trace(
    image: _Image = "browser",
    branches: _Branches = 1,
    engine: _Engine = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Save it there.")] = None,
    saved: Annotated[Path | None, typer.Option("--from", help="Show a saved one; nothing is booted.")] = None,
) -> None:
    """Boot a workspace, fork it, and show where the time of snapshot and branches went."""
    if saved is not None:
        _show_trace(_load_trace(saved))
        return
    need_root("trace")
    with _forked(image, branches, engine) as (_, snapshot_stats, made):
        stats = [snapshot_stats, *(branch.branch_stats for branch in made if branch.branch_stats is not None)]
    if json_file is not None:
        json_file.write_text(json.dumps([asdict(one) for one in stats], indent=2) + "\n")
    _show_trace(stats)


def _show_trace(stats: Sequence[ForkStats]) -> None:
    snapshot, *made = stats
    console.print(phase_table(f"snapshot, source frozen {ms(snapshot.frozen_ns)}", snapshot))
    for number, branch in enumerate(made, start=1):
        console.print(phase_table(f"branch {number}", branch))


def _load_trace(path: Path) -> list[ForkStats]:
    from bunshin_gym.types import ForkStats, Phase

    try:
        rows = json.loads(path.read_text())
        stats = [ForkStats(**{**row, "phases": tuple(Phase(**phase) for phase in row["phases"])}) for row in rows]
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise UsageError(f"{path} is no saved trace: {error}") from error
    if not stats:
        raise UsageError(f"{path} is no saved trace: it is empty")
    return stats


def add_commands(app: typer.Typer) -> None:
    """Adds the commands of this file."""
    for command in (fork, trace):
        app.command()(command)


def _memory(workspace: Workspace) -> tuple[str, str, str]:
    stats = workspace.stats()
    return mib(stats.unique_bytes), mib(stats.shared_bytes), str(stats.processes)


@contextmanager
def _forked(image_name: str, count: int, engine: str | None) -> Iterator[tuple[Workspace, ForkStats, list[Workspace]]]:
    """A booted workspace, what its snapshot cost, and its branches; all are closed at the end."""
    from bunshin_gym.images import ImageStore
    from bunshin_gym.toolclient import ToolClient
    from bunshin_gym.workspace import Workspace

    store = ImageStore()
    image = store.get(image_name)
    with ExitStack() as stack:
        with console.status(f"booting {image_name}"), store.hold(image):
            # An image without a start command gets one that waits.
            argv = None if image.argv else ["sleep", "infinity"]
            source = stack.enter_context(Workspace.start(image, argv=argv, label="bunshin fork"))
            if "tool" in image.services:
                with ToolClient(source.root, socket=image.services["tool"]) as client:
                    client.wait_ready()
        with console.status("forking"):
            snapshot = stack.enter_context(source.snapshot(engine=engine))
            made = [stack.enter_context(branch) for branch in snapshot.spawn(count)]
        yield source, snapshot.stats, made
