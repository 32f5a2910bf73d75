# SPDX-License-Identifier: Apache-2.0
"""bunshin tasks: list, show and check the task families.

A family is a module with `env_names()` and `make_task(name)`. Beside these it may have `splits()` (name of a split to
names of tasks), `describe(name)` (lines for a person) and `problems()` (what is wrong with its files, a line each).
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer

from bunshin_gym.cli.output import console, errors
from bunshin_gym.errors import BunshinError, UsageError

__all__ = ["app"]

app = typer.Typer(help="Tasks: what there is, what each wants, whether their files are right.")


@app.callback(invoke_without_command=True)
def default(context: typer.Context) -> None:
    """List the environment ids there are, unless another command is given."""
    if context.invoked_subcommand is None:
        list_tasks()


@app.command("list")
def list_tasks(
    contains: Annotated[str, typer.Argument(help="Only ids that contain this.")] = "",
    family: Annotated[str, typer.Option(help="Only of this family.")] = "",
    split: Annotated[str, typer.Option(help="Only of this split, such as train or test.")] = "",
) -> None:
    """List the environment ids there are."""
    for name in sorted(_families()) if not family else [family]:
        module = _family(name)
        if split and not family and not hasattr(module, "splits"):
            continue
        wanted = _split(name, module, split) if split else None
        for env_name, task in module.env_names().items():
            env_id = f"bunshin/{env_name}-v0"
            if contains.lower() in env_id.lower() and (wanted is None or task in wanted):
                console.print(env_id, markup=False, highlight=False)


@app.command()
def show(task: Annotated[str, typer.Argument(help="A task's id, such as desktop.calc-total, or an env's.")]) -> None:
    """Say what a task is: what the agent is told, how it is set up and judged, what it needs."""
    family, name = _split_id(task)
    module = _family(family)
    if hasattr(module, "describe"):
        lines: Sequence[str] = module.describe(name)
    else:
        made = module.make_task(name)
        lines = [f"id: {made.id}", f"image: {made.image}", f"surface: {made.surface}"]
    for line in lines:
        console.print(line, markup=False, highlight=False, soft_wrap=True)


@app.command()
def check(family: Annotated[str, typer.Argument(help="Only this family.")] = "") -> None:
    """Check the files of all families: tasks, solutions, splits. Fails if anything is wrong with one."""
    wrong = 0
    for name in [family] if family else sorted(_families()):
        module = _family(name)
        try:
            count = len(module.env_names())
            found = list(module.problems()) if hasattr(module, "problems") else []
            found += _split_problems(module)
        except BunshinError as error:
            count, found = 0, [str(error)]
        for problem in found:
            errors.print(f"{name}: {problem}", markup=False, highlight=False, soft_wrap=True)
        wrong += len(found)
        console.print(f"{name}: {count} tasks, {len(found)} problems", highlight=False)
    if wrong:
        raise typer.Exit(1)


@app.command()
def prepare() -> None:
    """Install what judging desktop tasks needs, and make their documents; at once if they are there."""
    from bunshin_gym.osworld import shared_evaluator
    from bunshin_gym.tasks import desktop

    with console.status("installing OSWorld's evaluation from PyPI"):
        python = shared_evaluator().install()
    console.print(f"evaluation: {python.parent.parent}", markup=False, highlight=False)
    console.print(f"documents: {desktop.tasks().files}", markup=False, highlight=False)


def _families() -> Mapping[str, str]:
    from bunshin_gym.tasks import FAMILIES

    return FAMILIES


def _family(name: str) -> Any:
    if name not in _families():
        raise UsageError(f"no task family {name!r}; there are {', '.join(_families())}")
    return importlib.import_module(_families()[name])


def _split_id(task: str) -> tuple[str, str]:
    """Family and name of a task, by its id or by an env's."""
    wanted = task.removeprefix("bunshin/").removesuffix("-v0")
    if "." in wanted and wanted.partition(".")[0] in _families():
        family, _, name = wanted.partition(".")
        return family, name
    for family in _families():
        names = _family(family).env_names()
        if wanted in names:
            return family, names[wanted]
    raise UsageError(f"no task {task!r}; `bunshin tasks list` lists them")


def _split(family: str, module: Any, split: str) -> set[str]:
    splits = module.splits() if hasattr(module, "splits") else {}
    if split not in splits:
        raise UsageError(f"family {family} has no split {split!r}; there are {', '.join(splits) or 'none'}")
    return set(splits[split])


def _split_problems(module: Any) -> list[str]:
    """Each task is to be in one split, no more and no less."""
    if not hasattr(module, "splits"):
        return []
    names = set(module.env_names().values())
    seen: set[str] = set()
    found = []
    for split, members in module.splits().items():
        found += [f"split {split} has {name}, which there is not" for name in members if name not in names]
        found += [f"{name} is in {split} and in another split" for name in members if name in seen]
        seen.update(members)
    return [*found, *(f"{name} is in no split" for name in sorted(names - seen))]
