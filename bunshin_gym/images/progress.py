# SPDX-License-Identifier: Apache-2.0
"""Shows a person that a long build goes on, and what it does now."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.markup import escape
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from bunshin_gym.images.run import Report

__all__ = ["build_progress"]

log = logging.getLogger(__name__)

_LINE_WIDTH = 60


@contextmanager
def build_progress(title: str) -> Iterator[Report]:
    """A spinner on standard error with the newest line; plain log records without a terminal."""
    log.info("%s: started", title)
    console = Console(stderr=True)
    columns = (
        SpinnerColumn(),
        TextColumn("[bold]{task.description}"),
        TimeElapsedColumn(),
        TextColumn("{task.fields[line]}"),
    )
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(title, total=None, line="")

        def report(line: str) -> None:
            short = line if len(line) <= _LINE_WIDTH else line[: _LINE_WIDTH - 1] + "…"
            bar.update(task, line=escape(short))

        yield report
    log.info("%s: done", title)
