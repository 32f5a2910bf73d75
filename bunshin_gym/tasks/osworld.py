# SPDX-License-Identifier: Apache-2.0
"""OSWorld's tasks: set up and judged by OSWorld's own code, in workspaces that fork.

Tasks come from a folder of the user's (`BUNSHIN_OSWORLD`, or `root=`); none ships with this package. Setting one up is
done once: every episode is a fork of the state after it. An episode ends when the agent says that it is done or that
the task cannot be done; then, and only then, it is judged.
"""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from bunshin_gym.errors import UsageError
from bunshin_gym.osworld.collection import Collection, find_collection
from bunshin_gym.osworld.definition import Definition, load_definition
from bunshin_gym.paths import task_folder
from bunshin_gym.surfaces.base import Screen
from bunshin_gym.tasks.base import Message, Page, Setup, Verdict
from bunshin_gym.tasks.scripted_desktop import load_solution

__all__ = ["DesktopTask", "describe", "describe_definition", "env_names", "make_task", "problems", "solution"]

ALL_TIMED: Final = True
"""A desktop's clock goes on, and its programs' timers with it: equal calls may bring different pictures."""

_SCREEN: Final = Screen(width=1920, height=1080)
_END: Final = {"infeasible": "FAIL", "done": "DONE"}


@dataclass(frozen=True, kw_only=True)
class DesktopTask:
    """A task in OSWorld's schema as a `PreparedTask`.

    Attributes:
        family: of its id.
        name: its own.
        definition: what its file says.
        tasks: the folder it comes from, where its files are too.
        screen: size of the screen.
    """

    family: str
    name: str
    definition: Definition = field(compare=False)
    tasks: Collection = field(compare=False)
    screen: Screen = _SCREEN

    image: str = "desktop"
    surface: str = "desktop"

    @property
    def id(self) -> str:
        """Its family and its name."""
        return f"{self.family}.{self.name}"

    @property
    def timed(self) -> bool:
        """Yes: see `ALL_TIMED`."""
        return ALL_TIMED

    @property
    def seeded(self) -> bool:
        """No: programs on the desktop have no random numbers of ours."""
        return False

    def prepare(self, page: Page) -> None:
        """Runs the steps of its `config`.

        Raises:
            OSWorldError: one failed.
        """
        from bunshin_gym.osworld import shared_evaluator

        if self.definition.config:
            shared_evaluator().set_up(_machine(page), self.tasks, self.definition, self._size)

    def setup(self, page: Page, seed: int) -> Setup:
        """Says what is to be done; all else is done already."""
        return Setup(goal=self.definition.instruction, info={"domain": self.definition.domain})

    def validate(self, page: Page, state: Mapping[str, Any], messages: Sequence[Message]) -> Verdict:
        """Judges when the agent has said its last word; before that there is nothing to say."""
        last = messages[-1].role if messages else ""
        if last not in _END:
            return Verdict(reward=0.0, done=False)
        return Verdict(reward=self.score(page, _END[last]), done=True)

    def score(self, page: Page, last_action: str = "DONE") -> float:
        """What OSWorld's evaluation says of the workspace as it is; it goes on in the state that this leaves it in."""
        from bunshin_gym.osworld import shared_evaluator

        history = [last_action]
        return shared_evaluator().evaluate(_machine(page), self.tasks, self.definition, self._size, history)

    def reseed(self, page: Page, seed: int) -> None:
        """Seeds the tool server's random numbers; programs on the desktop have none of ours."""
        page.call("seed", {"value": seed})

    def teardown(self, page: Page, state: Mapping[str, Any]) -> None:
        """Nothing: all of it is in the workspace."""

    @property
    def _size(self) -> tuple[int, int]:
        return self.screen.width, self.screen.height


def _machine(page: Page) -> Any:
    """The workspace behind a page, whose network namespace the endpoint reaches into."""
    if not hasattr(page, "pid"):
        raise UsageError("desktop tasks need a real workspace")
    return page


@functools.lru_cache(maxsize=8)
def _collection(root: str) -> Collection:
    found = find_collection(root)
    assert found is not None
    return found


def env_names() -> dict[str, str]:
    """Every task of the folder named by BUNSHIN_OSWORLD: `OSWorld-DOMAIN-ID` and its id; no task is read."""
    root = os.environ.get("BUNSHIN_OSWORLD", "")
    if not root:
        return {}
    return {f"OSWorld-{domain}-{name}": name for name, domain in _collection(root).names().items()}


def make_task(name: str, *, root: str | None = None, allow: Sequence[str] = ()) -> DesktopTask:
    """Returns a task.

    Args:
        name: its id, the beginning of it, or the path of its file.
        root: the folder of tasks; None is $BUNSHIN_OSWORLD, or what is around the file.
        allow: kinds of needs that are met elsewhere, such as `network`; the task is not refused for them.

    Raises:
        UsageError: there is no such task, or something that it needs is not here; the message says what.
    """
    if name.endswith(".json"):
        path = Path(name).resolve()
        definition = load_definition(path)
        tasks = _collection(root or os.fspath(path.parent.parent))
    else:
        chosen = root or os.environ.get("BUNSHIN_OSWORLD", "")
        if not chosen:
            raise UsageError(
                "OSWorld's tasks do not ship with this package: set BUNSHIN_OSWORLD to a checkout of it, or give root="
            )
        tasks = _collection(chosen)
        definition = tasks.get(name)
    missing = [need for need in tasks.needs(definition) if need.kind not in allow]
    if missing:
        raise UsageError(f"OSWorld task {definition.id} cannot be run here: {'; '.join(map(str, missing))}")
    return DesktopTask(family="osworld", name=definition.id, definition=definition, tasks=tasks)


def solution(name: str) -> list[Any]:
    """A scripted solution of a task, if there is one here.

    Raises:
        UsageError: there is none.
    """
    folder = task_folder("osworld")
    if folder is None:
        raise UsageError("the solutions are not installed: envs/tasks/osworld is missing")
    return load_solution(folder / "solutions" / f"{name}.json")


def describe(name: str) -> list[str]:
    """What a task is, for a person."""
    tasks = _collection(os.environ.get("BUNSHIN_OSWORLD", ""))
    definition = tasks.get(name)
    return describe_definition(definition, [str(need) for need in tasks.needs(definition)])


def describe_definition(definition: Definition, needs: Sequence[str]) -> list[str]:
    """Lines that say what a task is."""
    raw = definition.raw
    lines = [f"id: {definition.id}", f"domain: {definition.domain}", f"instruction: {definition.instruction}"]
    lines += [f"set-up: {step['type']} {json.dumps(step['parameters'])}" for step in definition.config]
    lines += [
        f"before judging: {s['type']} {json.dumps(s['parameters'])}" for s in raw["evaluator"].get("postconfig", [])
    ]
    lines += [f"judged by: {', '.join(definition.metrics())}"]
    lines += [f"of: {json.dumps(getter)}" for getter in definition.getters()]
    return [*lines, *(f"wants: {need}" for need in needs)]


def problems() -> list[str]:
    """What is wrong with the task files in $BUNSHIN_OSWORLD; that a task wants more than is here is no problem."""
    root = os.environ.get("BUNSHIN_OSWORLD", "")
    return _collection(root).problems() if root else []
