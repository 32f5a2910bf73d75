# SPDX-License-Identifier: Apache-2.0
"""How the command writes times, sizes and tables."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console
from rich.table import Table
from rich.text import Text

from bunshin_gym.types import ForkStats

__all__ = ["console", "errors", "mib", "ms", "phase_table", "table"]

console = Console()
errors = Console(stderr=True)

_BAR_WIDTH = 40


def ms(length_ns: int | None) -> str:
    """Milliseconds, as text."""
    return "-" if length_ns is None else f"{length_ns / 1e6:.0f} ms"


def mib(size_bytes: int | None) -> str:
    """MiB, as text."""
    return "-" if size_bytes is None else f"{size_bytes / (1 << 20):.1f} MiB"


def table(title: str, columns: Iterable[str], rows: Iterable[Iterable[str]]) -> Table:
    """A plain table; numbers to the right but for the first column."""
    made = Table(title=title, title_justify="left", header_style="bold")
    for number, name in enumerate(columns):
        made.add_column(name, justify="left" if number == 0 else "right", overflow="fold")
    for row in rows:
        made.add_row(*map(Text, row))
    return made


def phase_table(title: str, stats: ForkStats) -> Table:
    """Where the time of a snapshot or a branch went, as bars on one axis."""
    whole = max(stats.total_ns, 1)
    rows = []
    for phase in stats.phases:
        start = round(phase.start_ns / whole * _BAR_WIDTH)
        length = max(1, round(phase.length_ns / whole * _BAR_WIDTH))
        bar = " " * start + "█" * min(length, _BAR_WIDTH - start)
        rows.append((phase.name, ms(phase.start_ns), ms(phase.length_ns), bar.ljust(_BAR_WIDTH)))
    made = table(f"{title}: {ms(stats.total_ns)}", ("phase", "from", "takes", "when"), rows)
    made.columns[-1].justify = "left"  # or the bars would not stand on one axis
    return made
