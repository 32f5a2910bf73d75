# SPDX-License-Identifier: Apache-2.0
"""Desktop tasks of our own, in OSWorld's schema: files in `envs/tasks/desktop`, their documents made on first use."""

from __future__ import annotations

import fcntl
import functools
import hashlib
import json
import shutil
from pathlib import Path
from typing import Any, Final

from bunshin_gym.errors import UsageError
from bunshin_gym.osworld.collection import Collection
from bunshin_gym.osworld.definition import load_definition
from bunshin_gym.paths import home_path, task_folder
from bunshin_gym.tasks.miniwob_names import camel_case
from bunshin_gym.tasks.osworld import DesktopTask, describe_definition
from bunshin_gym.tasks.scripted_desktop import load_solution

__all__ = ["describe", "env_names", "make_task", "problems", "solution", "splits", "tasks"]

ALL_TIMED: Final = True
_FOLDER: Final = "desktop"


def env_names() -> dict[str, str]:
    """Every task: `Desktop-NAME` and its name; no task is read."""
    folder = task_folder(_FOLDER)
    if folder is None:
        return {}
    names = (path.stem for path in sorted(folder.glob("examples/*/*.json")))
    return {f"Desktop-{camel_case(name)}": name for name in names}


def splits() -> dict[str, list[str]]:
    """Tasks to train with and tasks to test with."""
    folder = _folder()
    return dict(json.loads((folder / "splits.json").read_text()))


def describe(name: str) -> list[str]:
    """What a task is, for a person."""
    return describe_definition(load_definition(_path(name)), [])


def problems() -> list[str]:
    """What is wrong with the task files: each must be readable, named after its file, and have a solution."""
    found = []
    for path in sorted(_folder().glob("examples/*/*.json")):
        try:
            task = load_definition(path)
            if task.id != path.stem:
                found.append(f"{path.name}: its id is {task.id}")
            load_solution(_folder() / "solutions" / path.name)
        except UsageError as error:
            found.append(str(error))
    return found


def make_task(name: str) -> DesktopTask:
    """Returns a task.

    Raises:
        UsageError: there is none of that name.
    """
    found = tasks()
    return DesktopTask(family="desktop", name=name, definition=found.get(name), tasks=found)


def solution(name: str) -> list[Any]:
    """The task's scripted solution, for `scripted_desktop.perform`."""
    return load_solution(_folder() / "solutions" / f"{name}.json")


@functools.cache
def tasks() -> Collection:
    """All of them, with their documents.

    Raises:
        UsageError: the tasks are not installed with the package.
        OSWorldError: the documents cannot be made.
    """
    folder = _folder()
    return Collection(folder, files=_documents(folder / "documents.py"))


def _folder() -> Path:
    folder = task_folder(_FOLDER)
    if folder is None:
        raise UsageError("the desktop tasks are not installed: envs/tasks/desktop is missing")
    return folder


def _path(name: str) -> Path:
    path = next(_folder().glob(f"examples/*/{name}.json"), None)
    if path is None:
        raise UsageError(f"there is no desktop task {name!r}")
    return path


def _documents(script: Path) -> Path:
    """Where the documents are; made if they are not there yet."""
    digest = hashlib.sha256(script.read_bytes()).hexdigest()[:12]
    final = home_path() / "osworld" / f"documents-{digest}"
    if not final.is_dir():
        final.parent.mkdir(parents=True, exist_ok=True)
        with open(final.with_suffix(".lock"), "a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not final.is_dir():
                scratch = final.with_suffix(".new")
                shutil.rmtree(scratch, ignore_errors=True)
                from bunshin_gym.osworld import shared_evaluator

                shared_evaluator().run_script(script, str(scratch))
                scratch.rename(final)
    return final
