# SPDX-License-Identifier: Apache-2.0
"""The commands and their options; the work is done elsewhere."""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path
from typing import Annotated, Final

import typer

from bunshin_gym.cli import cache, images, memory, tasks, view, workspaces
from bunshin_gym.cli.output import console, errors, table
from bunshin_gym.cli.privilege import need_root
from bunshin_gym.errors import BunshinError

__all__ = ["app", "main"]

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Live computer workspaces that fork like a process.",
)
app.add_typer(images.app, name="image")
app.add_typer(cache.app, name="cache")
app.add_typer(tasks.app, name="tasks")
workspaces.add_commands(app)
memory.add_commands(app)
app.command()(view.view)

_MARKS: Final = {"ok": "[green]ok[/]", "none": "[dim]none[/]", "warn": "[yellow]warn[/]", "fail": "[red]fail[/]"}


@app.callback()
def options(
    home: Annotated[Path | None, typer.Option(help="The state directory.", envvar="BUNSHIN_HOME")] = None,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Say more, on standard error.")] = False,
) -> None:
    """Options of all commands."""
    logging.basicConfig(level=logging.INFO if verbose else logging.WARNING, format="%(levelname)s %(message)s")
    if home is not None:
        os.environ["BUNSHIN_HOME"] = os.fspath(home)


@app.command()
def doctor() -> None:
    """Say what this machine can do, what is missing, and how to get it. Fails if nothing would work."""
    from bunshin_gym.doctor import diagnose

    findings = diagnose()
    for finding in findings:
        mark = _MARKS[finding.state]
        console.print(" " * (4 - len(finding.state)) + mark, finding.name + ": ", end="")
        console.print(finding.detail, markup=False, highlight=False, soft_wrap=True)
        if finding.advice:
            console.print(f"     -> {finding.advice}", markup=False, highlight=False, soft_wrap=True)
    failed = [finding.name for finding in findings if finding.state == "fail"]
    if failed:
        console.print(f"\n[red]Not ready:[/] {', '.join(failed)}")
        raise typer.Exit(1)
    console.print("\n[green]Ready.[/]")


@app.command()
def run(
    task: Annotated[str, typer.Argument(help="Such as miniwob.click-test, or an environment id.")],
    seed: Annotated[int, typer.Option(help="Of the reset.")] = 0,
    policy: Annotated[str, typer.Option(help="scripted, random, or stdin: one action a line.")] = "stdin",
    steps: Annotated[int, typer.Option(min=1, help="The most to take.")] = 50,
    record: Annotated[Path | None, typer.Option(help="A .gif or .png to write the screens to.")] = None,
    human: Annotated[bool, typer.Option("--human", help="Show a live view.")] = False,
) -> None:
    """Run one episode of a task."""
    from bunshin_gym.cli.run import run_episode

    need_root("run")
    run_episode(task, seed=seed, policy=policy, steps=steps, record=record, human=human)


@app.command()
def demo(
    output: Annotated[Path, typer.Option(help="Where to save the picture of the branches.")] = Path("demo.png"),
    seed: Annotated[int, typer.Option(help="Of the task.")] = 7,
    engine: Annotated[str | None, typer.Option(help="How to fork; the best there is unless given.")] = None,
) -> None:
    """Solve a web task in real Chromium, fork it into four branches that go different ways."""
    from bunshin_gym.demo import run_demo

    need_root("demo")
    run_demo(output, seed=seed, engine=engine)


@app.command()
def gc() -> None:
    """Reap what killed processes left: processes, mounts, cgroups, directories, unnamed images."""
    from bunshin_gym.images import ImageStore
    from bunshin_gym.scratch import reap_scratch
    from bunshin_gym.workspace import core

    need_root("gc")
    report = core().gc()
    removed = ImageStore().gc()
    scratch = reap_scratch()
    names = ("workspaces", "snapshots", "processes", "cgroups", "layers", "strays")
    rows = [(name, str(getattr(report, name))) for name in names]
    rows += [("images", str(len(removed))), ("scratch", str(scratch))]
    console.print(table("reaped", ("what", "how many"), rows))


def main() -> None:
    """Runs the command; what goes wrong for a known reason is one line, not a traceback."""
    try:
        app()
    except BunshinError as error:
        errors.print(f"bunshin: {error}", markup=False, highlight=False, style="red", soft_wrap=True)
        sys.exit(1)
