# SPDX-License-Identifier: Apache-2.0
"""Forks a workspace over and over, discards each branch, and looks whether anything grows.

Every cycle takes a snapshot, makes a branch of it, waits until it answers and gives both up. All that must not
grow is looked at once the first tenth has warmed caches up, and at the end.

    python bench/soak.py --image minimal --cycles 1000 --json soak.json
"""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Iterator, Set
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import typer
from measure import MIB, OURS, Guest, Table, booted, progress, since_ms, stop_on_signals, write_json

from bunshin_gym.workspace import Workspace

# What one cycle may add. Our own memory grows by the allocator's fragments only; the kernel's is the whole machine's,
# and freed late.
OWN_BYTES = 8192
SOURCE_BYTES = 8192
KERNEL_BYTES = 200 << 10
SETTLED_CYCLES = 200  # fewer do not tell what memory a cycle adds
CONSTANT = ("descriptors", "mounts", "processes", "cgroups", "source_descriptors", "source_mappings")


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What is there between two cycles; the fields are counts, or bytes where they say so."""

    descriptors: int
    mounts: int
    processes: int
    cgroups: int
    source_descriptors: int
    source_mappings: int
    own_bytes: int
    source_bytes: int
    kernel_bytes: int


def _field_bytes(path: str, *names: str) -> int:
    lines = (line.split() for line in Path(path).read_text().splitlines())
    return sum(int(line[1]) * 1024 for line in lines if line and line[0].rstrip(":") in names)


def _descendants(pid: int) -> Iterator[int]:
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in (task / "children").read_text().split():
            yield int(child)
            yield from _descendants(int(child))


def _cgroups(ids: Set[str]) -> int:
    """Those that branches given up have left."""
    walk = os.walk("/sys/fs/cgroup")
    return sum(1 for _, directories, _ in walk for name in directories if name in ids)


def look(source: Workspace, discarded: Set[str]) -> Usage:
    """Now; nothing is under way. `discarded`: ids of the branches that were given up."""
    gc.collect()
    inside = [source.pid, *_descendants(source.pid)]
    return Usage(
        descriptors=len(os.listdir("/proc/self/fd")),
        mounts=len(Path("/proc/self/mountinfo").read_text().splitlines()),
        processes=sum(1 for _ in _descendants(os.getpid())),
        cgroups=_cgroups(discarded),
        source_descriptors=sum(len(os.listdir(f"/proc/{pid}/fd")) for pid in inside),
        source_mappings=sum(len(Path(f"/proc/{pid}/maps").read_text().splitlines()) for pid in inside),
        own_bytes=_field_bytes("/proc/self/status", "VmRSS"),
        source_bytes=sum(_field_bytes(f"/proc/{pid}/status", "RssAnon", "RssShmem") for pid in inside),
        kernel_bytes=_field_bytes("/proc/meminfo", "Slab", "KernelStack", "PageTables", "Percpu"),
    )


def cycle(guest: Guest, engine: str) -> str:
    """One fork, discarded; the branch's id."""
    with guest.workspace.snapshot(engine=engine) as snapshot, snapshot.branch() as branch:
        Guest(branch, guest.socket).wait_ready()
        return branch.id


def grown(before: Usage, after: Usage, cycles: int, *, still: bool) -> list[str]:
    """What has, more than it may."""
    was, now = asdict(before), asdict(after)
    watched = CONSTANT if still else CONSTANT[:4]  # a browser opens and maps files as it pleases
    wrong = [f"{name}: {was[name]}, then {now[name]}" for name in watched if now[name] > was[name]]
    limits = {"own_bytes": OWN_BYTES, "kernel_bytes": KERNEL_BYTES, **({"source_bytes": SOURCE_BYTES} if still else {})}
    for name, limit in limits.items() if cycles >= SETTLED_CYCLES else ():
        a_cycle = (now[name] - was[name]) / cycles
        if a_cycle > limit:
            wrong.append(f"{name}: {a_cycle / 1024:.0f} KiB a cycle")
    return wrong


def _table(image: str, before: Usage, after: Usage) -> Table:
    def cell(name: str, value: int) -> str:
        return f"{value / MIB:.1f} MiB" if name.endswith("_bytes") else str(value)

    names = asdict(before)
    rows = [(name, cell(name, getattr(before, name)), cell(name, getattr(after, name))) for name in names]
    return Table(title=f"{image}: what is there between two forks", columns=("what", "warm", "at the end"), rows=rows)


def main(
    image: Annotated[str, typer.Option(help="Which image.")] = "minimal",
    cycles: Annotated[int, typer.Option(min=10, help="How many forks.")] = 1000,
    engine: Annotated[str, typer.Option(help="Which engine.")] = OURS,
    quick: Annotated[bool, typer.Option("--quick", help="A hundred forks.")] = False,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the numbers there.")] = None,
) -> None:
    """Exit code 1 if something grew."""
    stop_on_signals()
    count = 100 if quick else cycles
    with booted(image) as guest:
        discarded = {cycle(guest, engine) for _ in range(count // 10)}
        before, begun_ns = look(guest.workspace, discarded), time.monotonic_ns()
        for number in range(count - count // 10):
            if number % 50 == 0:
                progress.print(f"{image}: {number} of {count}")
            discarded.add(cycle(guest, engine))
        spent_ms = since_ms(begun_ns)
        after = look(guest.workspace, discarded)
    measured = count - count // 10
    _table(image, before, after).show()
    wrong = grown(before, after, measured, still=guest.socket is None)
    numbers = {
        f"{when}_{name}": value for when, u in (("warm", before), ("end", after)) for name, value in asdict(u).items()
    }
    write_json(json_file, {**numbers, "cycles": measured, "cycle_ms": spent_ms / measured, "grown": "; ".join(wrong)})
    print(*(wrong or [f"nothing grew over {measured} forks of {spent_ms / measured:.0f} ms each"]), sep="\n")
    if wrong:
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
