# SPDX-License-Identifier: Apache-2.0
"""What bench/fork.py and bench/memory.py share: a workspace with a page in it, medians, tables, files of results."""

from __future__ import annotations

import json
import os
import platform
import re
import signal
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from bunshin_gym.cache.stamps import pixels_agree
from bunshin_gym.errors import BunshinError
from bunshin_gym.images import ImageStore
from bunshin_gym.toolclient import ToolClient
from bunshin_gym.types import ForkStats, Phase
from bunshin_gym.workspace import Workspace

OURS, STOCK = "pool", "criu"
OVER_CRIU = "Median (least-greatest) of all rounds; ratio: ours by stock CRIU's."
ENGINES = (OURS, STOCK)
MIB = 1 << 20
SCREEN_TIMEOUT_S = 60.0
_BAR_WIDTH = 30
_APPLICATIONS = "/usr/local/bin/applications"

console = Console()
progress = Console(stderr=True)

_STYLE = "<style>body{font:16px sans-serif;margin:24px}input{width:640px;font:16px monospace;caret-color:transparent}"
_FIRST = (
    f"<!doctype html><title>first</title>{_STYLE}</style><h1>A page with a field</h1>"
    "<p><input id=field autofocus></p>"
    + "".join(f"<p>Paragraph {n}: the quick brown fox jumps over the lazy dog.</p>" for n in range(200))
)
_SECOND = (
    f"<!doctype html><title>second</title>{_STYLE}td{{background:linear-gradient(#fff,#cde);padding:6px}}</style>"
    "<h1>A page with a table</h1><table>"
    + "".join(f"<tr>{''.join(f'<td>{row} x {column} = {row * column}' for column in range(12))}" for row in range(300))
    + "</table>"
)
_PAGES = {"/tmp/bench/first.html": _FIRST, "/tmp/bench/second.html": _SECOND}
_FORTY = "forty characters of text, as people type"

ACTIONS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("mouse_click", {"x": 200, "y": 105}),
    ("keyboard_type", {"text": _FORTY}),
    ("scroll", {"delta_y": 600}),
    ("new_tab", {}),
    ("goto", {"url": "file:///tmp/bench/second.html"}),
    ("scroll", {"delta_y": 900}),
    ("tab_focus", {"index": 0}),
    ("keyboard_press", {"key": "F5"}),
    ("keyboard_type", {"text": _FORTY}),
    ("scroll", {"delta_y": 600}),
)
"""Click, type 40, scroll, new tab, a second page, scroll, back to the first tab, reload, type 40, scroll."""


class Guest:
    """A workspace and how to see that it works: its tool server, or a command where it has none."""

    def __init__(self, workspace: Workspace, socket: str | None) -> None:
        self.workspace = workspace
        self.socket = socket
        self.still = socket is not None
        """Whether its screen stays the same while nobody does anything."""

    def wait_ready(self) -> None:
        """Returns once it answers."""
        if self.socket is None:
            self.workspace.exec(["true"], timeout_s=60)
            return
        with self._client() as client:
            client.wait_ready()

    def screen(self) -> Any:
        """Its pixels; None without a screen, or where something blinks on it."""
        if not self.still:
            return None
        with self._client() as client:
            return client.observe(tree=False)["screenshot"]

    def wait_screen(self, wanted: Any) -> None:
        """Returns once it shows the same.

        Raises:
            BunshinError: it does not in time.
        """
        deadline = time.monotonic() + SCREEN_TIMEOUT_S
        while not pixels_agree(wanted, self.screen()):
            if time.monotonic() > deadline:
                raise BunshinError(f"the screen of {self.workspace.id} is not its source's")

    def act(self, number: int) -> None:
        """One of the ten actions; without a browser, a file is written instead."""
        if self.socket is None:
            self.workspace.exec(["sh", "-c", f"dd if=/dev/zero of=/tmp/written-{number} bs=4096 count=4 2>/dev/null"])
            return
        name, args = ACTIONS[number]
        with self._client() as client:
            error = client.step(name, args, screenshot=False, tree=False)["last_action_error"]
        if error:
            raise BunshinError(f"{name}: {error}")

    def start_applications(self) -> None:
        """What the image brings beside its browser, if it does; returns once their windows are there."""
        if self.socket is None or not (self.workspace.root / _APPLICATIONS.lstrip("/")).exists():
            return
        with self._client() as client:
            done = client.shell(["sh", "-c", f"exec {_APPLICATIONS} >/tmp/applications.log 2>&1"], timeout_s=120)
            self.still = False  # the word processor's cursor blinks
            if done["exit_code"] != 0:
                raise BunshinError(f"{_APPLICATIONS}: {client.read_file('/tmp/applications.log').decode()}")

    def open_pages(self) -> None:
        """Shows the first page, and lets the browser come to rest."""
        if self.socket is None:
            return
        with self._client() as client:
            for path, text in _PAGES.items():
                client.write_file(path, text)
            error = client.call("goto", {"url": "file:///tmp/bench/first.html"})["last_action_error"]
            if error:
                raise BunshinError(error)
        self._wait_rest()

    def _wait_rest(self) -> None:
        """Returns once two looks at the screen show the same."""
        deadline = time.monotonic() + SCREEN_TIMEOUT_S
        seen = self.screen()
        while not pixels_agree(seen, now := self.screen()):
            seen = now
            if time.monotonic() > deadline:
                raise BunshinError(f"the screen of {self.workspace.id} does not come to rest")

    def _client(self) -> ToolClient:
        return ToolClient(self.workspace.root, socket=self.socket or "")


@contextmanager
def booted(image_name: str) -> Iterator[Guest]:
    """A workspace that runs, with a page on its screen if it has a browser; stopped at the end."""
    store = ImageStore()
    image = store.get(image_name)
    with ExitStack() as stack:
        stack.enter_context(store.hold(image))
        workspace = stack.enter_context(Workspace.start(image, label="benchmark"))
        guest = Guest(workspace, image.services.get("tool"))
        guest.wait_ready()
        guest.start_applications()
        guest.open_pages()
        yield guest


@contextmanager
def all_closed(workspaces: Sequence[Workspace]) -> Iterator[None]:
    """Closes them at the end, several at a time."""
    try:
        yield
    finally:
        each(workspaces, lambda workspace: workspace.close(), width=4)


def each(items: Sequence[Any], what: Callable[[Any], Any], *, width: int = 16) -> list[Any]:
    """Does something with all of them, `width` at a time."""
    with ThreadPoolExecutor(max_workers=width) as pool:
        return list(pool.map(what, items))


def stop_on_signals() -> None:
    """A termination is as good as Ctrl-C: all is stopped on the way out."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, interrupt)


def since_ms(start_ns: int) -> float:
    """Milliseconds since a monotonic time."""
    return (time.monotonic_ns() - start_ns) / 1e6


# ---- numbers


@dataclass(slots=True)
class Series:
    """Values by name and engine."""

    values: dict[tuple[str, str], list[float]] = field(default_factory=dict)

    def add(self, engine: str, numbers: Mapping[str, float]) -> None:
        """One round's."""
        for name, value in numbers.items():
            self.values.setdefault((name, engine), []).append(value)

    def median(self, name: str, engine: str) -> float:
        """The middle of all rounds."""
        return statistics.median(self.values[name, engine])

    def ratio(self, name: str) -> float | None:
        """Ours by stock CRIU's, each the median; None where stock CRIU has none of it."""
        stock = self.median(name, STOCK)
        return self.median(name, OURS) / stock if stock else None

    def names(self) -> list[str]:
        """In the order of their coming."""
        return list(dict.fromkeys(name for name, _ in self.values))

    def rows(self, unit: str) -> list[tuple[str, ...]]:
        """A row for each name: ours, stock CRIU's, the ratio; with the least and the greatest of all rounds."""
        rows = []
        for name in self.names():
            ratio = self.ratio(name)
            spreads = (_spread(self.values[name, engine]) for engine in ENGINES)
            rows.append((name, *spreads, "-" if ratio is None else f"{ratio:.3f}", unit))
        return rows

    def numbers(self, unit: str, prefix: str) -> dict[str, float | None]:
        """For the flat object."""
        found: dict[str, float | None] = {}
        for name in self.names():
            key, ratio = prefix + re.sub(r"\W+", "_", name), self.ratio(name)
            found[f"{key}_ratio"] = None if ratio is None else round(ratio, 4)
            for engine in ENGINES:
                found[f"{key}_{engine}_{unit.lower()}"] = round(self.median(name, engine), 3)
        return found


def _spread(values: Sequence[float]) -> str:
    middle = statistics.median(values)
    digits = 0 if middle >= 100 else 1 if middle >= 1 else 2
    return f"{middle:.{digits}f} ({min(values):.{digits}f}-{max(values):.{digits}f})"


def median_stats(stats: Sequence[ForkStats]) -> ForkStats:
    """Each phase's median; phases of one name are told apart by their order."""
    found: dict[tuple[str, int], list[Phase]] = {}
    for one in stats:
        seen: dict[str, int] = {}
        for phase in one.phases:
            number = seen[phase.name] = seen.get(phase.name, 0) + 1
            found.setdefault((phase.name, number), []).append(phase)

    def middle(values: Iterator[int]) -> int:
        return int(statistics.median(values))

    return ForkStats(
        total_ns=middle(one.total_ns for one in stats),
        frozen_ns=middle(one.frozen_ns for one in stats),
        copied_bytes=middle(one.copied_bytes for one in stats),
        shared_bytes=middle(one.shared_bytes for one in stats),
        layer_bytes=middle(one.layer_bytes for one in stats),
        phases=tuple(
            Phase(
                name=name,
                start_ns=middle(phase.start_ns for phase in phases),
                length_ns=middle(phase.length_ns for phase in phases),
            )
            for (name, _), phases in found.items()
        ),
    )


# ---- what is shown and written


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A table for the terminal and for a page."""

    title: str
    columns: tuple[str, ...]
    rows: Sequence[Sequence[str]]

    def show(self) -> None:
        """Prints it."""
        made = RichTable(title=self.title, title_justify="left", header_style="bold")
        for number, name in enumerate(self.columns):
            made.add_column(name, justify="left" if number == 0 or name == "when" else "right")
        for row in self.rows:
            made.add_row(*map(Text, row))
        console.print(made)

    def markdown(self) -> str:
        """The same as a page has it."""
        lines = [f"**{self.title}**", "", "| " + " | ".join(self.columns) + " |"]
        lines.append("|" + "|".join("---" if number == 0 else "--:" for number in range(len(self.columns))) + "|")
        rows = ([f"`{cell}`" if "█" in cell else cell for cell in row] for row in self.rows)
        lines += ["| " + " | ".join(row) + " |" for row in rows]
        return "\n".join(lines)


def phase_table(title: str, stats: Sequence[ForkStats]) -> Table:
    """Medians of the phases, as bars on one axis."""
    middle = median_stats(stats)
    whole = max([middle.total_ns, *(phase.start_ns + phase.length_ns for phase in middle.phases)])
    rows = []
    for phase in sorted(middle.phases, key=lambda phase: phase.start_ns):
        start = min(round(phase.start_ns / whole * _BAR_WIDTH), _BAR_WIDTH - 1)
        length = max(1, round(phase.length_ns / whole * _BAR_WIDTH))
        bar = ("·" * start + "█" * min(length, _BAR_WIDTH - start)).ljust(_BAR_WIDTH, "·")
        rows.append((phase.name, f"{phase.start_ns / 1e6:.1f}", f"{phase.length_ns / 1e6:.1f}", bar))
    return Table(
        title=f"{title}: {middle.total_ns / 1e6:.0f} ms, source frozen {middle.frozen_ns / 1e6:.0f} ms"
        if middle.frozen_ns
        else f"{title}: {middle.total_ns / 1e6:.0f} ms",
        columns=("phase", "from ms", "takes ms", "when"),
        rows=rows,
    )


def machine() -> dict[str, Any]:
    """Where this was measured, and how busy it was."""
    memory = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())["MemTotal"]
    return {
        "kernel": platform.release(),
        "processors": os.cpu_count(),
        "memory_mib": int(memory.split()[0]) // 1024,
        "load": round(os.getloadavg()[0], 2),
    }


def warn_if_busy() -> None:
    """Times of a busy machine are no times."""
    load = os.getloadavg()[0]
    if load > 2:
        progress.print(f"load is {load:.1f}: trust the ratios, and those little", style="yellow")


def write_json(path: Path | None, numbers: Mapping[str, Any]) -> None:
    """The flat object."""
    if path is not None:
        path.write_text(json.dumps({**machine(), **numbers}, indent=2) + "\n")


def write_section(path: Path | None, key: str, title: str, legend: str, parts: Sequence[str]) -> None:
    """Replaces the section between its two marks in a page, or adds it; the rest of the page stays."""
    if path is None:
        return
    where = machine()
    head = (
        f"Kernel {where['kernel']}, {where['processors']} processors, {where['memory_mib']} MiB, "
        f"load at the end {where['load']}. {legend}"
    )
    body = "\n\n".join([f"<!-- {key} -->", f"## {title}", head, *parts, f"<!-- /{key} -->"])
    page = (
        path.read_text() if path.exists() else "# Benchmarks\n\nWritten by the benchmarks themselves (`--markdown`).\n"
    )
    pattern = re.compile(rf"<!-- {key} -->.*?<!-- /{key} -->", re.DOTALL)
    page = pattern.sub(lambda _: body, page) if pattern.search(page) else page.rstrip("\n") + "\n\n" + body + "\n"
    path.write_text(page)
