# SPDX-License-Identifier: Apache-2.0
"""bunshin ps, fork, trace: what runs, and what forking costs here."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text
from rich.tree import Tree

from bunshin_gym.cli.output import console, mib, ms, phase_table, table
from bunshin_gym.paths import home_path

if TYPE_CHECKING:
    from bunshin_gym.records import Record
    from bunshin_gym.types import ForkStats
    from bunshin_gym.workspace import Workspace

__all__ = ["Memory", "add_commands", "workspace_memory"]

_Image = Annotated[str, typer.Argument(help="The image to start from.")]
_Branches = Annotated[int, typer.Option("--branches", "-n", min=1, help="How many.")]
_Engine = Annotated[str | None, typer.Option(help="How to fork; the best there is unless given.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Memory of a workspace's processes, as the kernel adds it up.

    Attributes:
        processes: how many.
        pss_bytes: shared pages divided by who maps them.
        private_bytes: pages that one process alone maps.
    """

    processes: int
    pss_bytes: int
    private_bytes: int


def workspace_memory(init_pid: int) -> Memory | None:
    """Memory of all in the pid namespace of a workspace's process 1; None if that is gone."""
    try:
        namespace = os.stat(f"/proc/{init_pid}/ns/pid").st_ino
    except OSError:
        return None
    processes = pss = private = 0
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            if os.stat(f"/proc/{pid}/ns/pid").st_ino != namespace:
                continue
            rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
        except OSError:
            continue  # it ended, or has no memory of its own
        sizes = dict(line.split(":", 1) for line in rollup.splitlines()[1:])
        processes += 1
        pss += _kib(sizes["Pss"])
        private += _kib(sizes["Private_Clean"]) + _kib(sizes["Private_Dirty"])
    return Memory(processes=processes, pss_bytes=pss, private_bytes=private)


def _kib(text: str) -> int:
    return int(text.split()[0]) * 1024


def ps() -> None:
    """Show workspaces and snapshots as a tree of who came from whom, with their memory."""
    from bunshin_gym.records import list_snapshots, list_workspaces

    records = sorted([*list_workspaces(), *list_snapshots()], key=lambda record: record.created_ns)
    if not records:
        console.print(f"nothing runs in {home_path()}", highlight=False)
        return
    root = Tree(str(home_path()))
    nodes: dict[str, Tree] = {}
    for record in records:
        nodes[record.id] = nodes.get(record.parent or "", root).add(Text(_describe(record)))
    console.print(root)


def _describe(record: Record) -> str:
    kind = "workspace" if record.kind == "workspaces" else "snapshot"
    parts = [f"{kind} {record.id}", f"{(time.time_ns() - record.created_ns) / 1e9:.0f} s old"]
    if record.engine:
        parts.append(record.engine)
    name = record.label.get("note") or record.label.get("name")
    if name:
        parts.append(str(name))
    if record.kind == "workspaces":
        memory = workspace_memory(record.pid) if record.alive else None
        if memory is None:
            parts.append("ended")
        else:
            parts.append(f"{memory.processes} processes, pss {mib(memory.pss_bytes)}")
            parts.append(f"private {mib(memory.private_bytes)}")
    parts.append(f"of process {record.owner_pid}" if record.owned else "its owner is gone: bunshin gc")
    return ", ".join(parts)


def fork(image: _Image = "browser", branches: _Branches = 4, engine: _Engine = None) -> None:
    """Boot a workspace, fork it, and show what the branches cost."""
    with _forked(image, branches, engine) as (source, snapshot_stats, made):
        rows = [("source", source.id, ms(snapshot_stats.frozen_ns) + " frozen", *_memory(source))]
        for number, branch in enumerate(made, start=1):
            stats = branch.branch_stats
            rows.append((f"branch {number}", branch.id, ms(stats.total_ns if stats else None), *_memory(branch)))
        console.print(table(f"{image} forked", ("", "id", "time", "unique", "shared", "processes"), rows))


def trace(image: _Image = "browser", branches: _Branches = 1, engine: _Engine = None) -> None:
    """Boot a workspace, fork it, and show where the time of snapshot and branches went."""
    with _forked(image, branches, engine) as (_, snapshot_stats, made):
        console.print(phase_table(f"snapshot, source frozen {ms(snapshot_stats.frozen_ns)}", snapshot_stats))
        for number, branch in enumerate(made, start=1):
            if branch.branch_stats is not None:
                console.print(phase_table(f"branch {number}", branch.branch_stats))


def add_commands(app: typer.Typer) -> None:
    """Adds the commands of this file."""
    for command in (ps, fork, trace):
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
