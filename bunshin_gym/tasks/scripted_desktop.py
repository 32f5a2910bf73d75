# SPDX-License-Identifier: Apache-2.0
"""Scripted solutions of desktop tasks: what a person would do, as data.

A solution is a JSON list of steps, each of them one of:

    "pyautogui.hotkey('ctrl', 's')"                 an action, as an agent would send it
    {"click": "OK", "role": "push-button"}          click an element by its name, once it is on the screen
    {"terminal": "ls"}                              open a terminal and run a command in it
    {"window": "Untitled 1"}                        wait for a window whose title has this in it
    {"gone": "Save Document?"}                      wait until no window's title has this in it

`click` takes also `role`, `index` (of several; -1 is the last), `button`, `times`, `dx` and `dy` (from its middle), and
`then`: what has to be in a window's title afterwards, or it is clicked again.
The elements come from the accessibility tree that the agent sees, so a solution is independent of where things are.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Protocol
from xml.etree import ElementTree

from bunshin_gym.errors import BunshinError, UsageError

__all__ = ["Element", "ScriptError", "actions_of", "elements", "load_solution", "perform"]

_LOOKS: Final = 60
_COMMAND_LOOKS: Final = 900
_TRIES: Final = 3
_PAUSE: Final = {"name": "wait", "args": {"seconds": 0.4}}
_STATE: Final = "{https://accessibility.ubuntu.example.org/ns/state}"
_PLACE: Final = "{https://accessibility.ubuntu.example.org/ns/component}"
_NUMBERS: Final = re.compile(r"-?\d+")
_WINDOWS: Final = frozenset({"frame", "dialog", "window", "alert", "file-chooser"})


class ScriptError(BunshinError):
    """A scripted solution met something else than it expects."""


class Env(Protocol):
    """What a script is performed on."""

    def step(self, action: Any) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]: ...


class Element:
    """An element on the screen: role, name, extents."""

    __slots__ = ("height", "name", "role", "width", "x", "y")

    def __init__(self, node: ElementTree.Element) -> None:
        self.role, self.name = node.tag, node.get("name", "")
        self.x, self.y = map(int, _NUMBERS.findall(node.get(f"{_PLACE}screencoord", "0 0")))
        self.width, self.height = map(int, _NUMBERS.findall(node.get(f"{_PLACE}size", "0 0")))

    @property
    def middle(self) -> tuple[int, int]:
        """Where to click it."""
        return self.x + self.width // 2, self.y + self.height // 2


def elements(tree: str) -> list[Element]:
    """All elements of a tree that are on the screen, in its order."""
    if not tree:
        return []
    found = ElementTree.fromstring(tree).iter()
    return [Element(node) for node in found if node.get(f"{_STATE}showing") and node.get(f"{_PLACE}size")]


def load_solution(path: Path) -> list[Any]:
    """Reads a solution.

    Raises:
        UsageError: there is none, or it is no list of steps.
    """
    try:
        steps = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise UsageError(f"{path}: {error}") from error
    if not isinstance(steps, list) or not all(isinstance(step, str) or _kind(step) for step in steps):
        raise UsageError(f"{path}: a solution is a list of actions and steps")
    return steps


def perform(env: Env, seen: Mapping[str, Any], steps: Sequence[Any]) -> tuple[dict[str, Any], float, bool]:
    """Performs a solution; returns the last observation, reward, and whether the episode has ended.

    Raises:
        ScriptError: an action failed, or what a step waits for did not come.
    """
    last = [(dict(seen), 0.0, False)]

    def look() -> dict[str, Any]:
        return last[0][0]

    for number, step in enumerate(steps):
        for action in actions_of(step, look):
            observation, reward, ended, _, _ = env.step(action)
            last[0] = (observation, reward, ended)
            if observation["last_action_error"]:
                raise ScriptError(f"step {number}, {step!r}: {observation['last_action_error']}")
    return last[0]


def _kind(step: Any) -> str:
    kinds = ("click", "terminal", "window", "gone")
    return next((kind for kind in kinds if isinstance(step, Mapping) and kind in step), "")


def actions_of(step: Any, look: Callable[[], Mapping[str, Any]]) -> Iterator[Any]:
    """The actions of a step; each is performed before the next one is asked for, and `look` tells what came of it.

    Raises:
        ScriptError: what the step waits for does not come.
    """
    if isinstance(step, str):
        yield step
        return
    kind = _kind(step)
    if kind == "terminal":
        yield from _in_terminal(str(step["terminal"]), look)
    elif kind == "click":
        yield from _click(step, look)
    else:
        wanted = str(step[kind])
        yield from _until(lambda: _has_window(wanted, look()) == (kind == "window"), step)


def _click(step: Mapping[str, Any], look: Any) -> Iterator[Any]:
    """Clicks, and with `then` does so again if no such window comes: a new page may take no clicks yet."""
    for _ in range(_TRIES):
        yield from _until(lambda: _match(step, look()) is not None, step)
        element = _match(step, look())
        assert element is not None
        x, y = element.middle
        place = f"{x + step.get('dx', 0)}, {y + step.get('dy', 0)}"
        yield f"pyautogui.click({place}, clicks={step.get('times', 1)}, button={step.get('button', 'left')!r})"
        if "then" not in step:
            return
        for _ in range(_LOOKS // _TRIES):
            if _has_window(step["then"], look()):
                return
            yield _PAUSE
    raise ScriptError(f"{step!r}: no such window comes")


def _in_terminal(command: str, look: Any) -> Iterator[Any]:
    for _ in range(_TRIES):
        # A window that is just opening may hold the keyboard for itself.
        if look()["terminal"]:
            break
        yield "pyautogui.hotkey('ctrl', 'alt', 't')\ntime.sleep(1)"
        for _ in range(_LOOKS // _TRIES):
            if not look()["terminal"]:
                yield _PAUSE
    yield from _until(lambda: look()["terminal"].rstrip().endswith("$"), {"terminal": command})
    before = look()["terminal"]
    yield f"pyautogui.write({command!r})\npyautogui.press('enter')"
    # A command may do nothing but wait: it is no rest of the desktop that ends it, only the next prompt.
    yield from _until(
        lambda: look()["terminal"] != before and look()["terminal"].rstrip().endswith("$"),
        {"terminal": command},
        looks=_COMMAND_LOOKS,
    )


def _until(condition: Any, step: Any, *, looks: int = _LOOKS) -> Iterator[Any]:
    for _ in range(looks):
        if condition():
            return
        yield _PAUSE
    raise ScriptError(f"{step!r}: it does not come")


def _match(step: Mapping[str, Any], seen: Mapping[str, Any]) -> Element | None:
    found = [
        element
        for element in elements(seen["accessibility_tree"])
        if element.name == step["click"] and step.get("role", element.role) == element.role and element.width > 0
    ]
    index = step.get("index", 0)
    return found[index] if -len(found) <= index < len(found) else None


def _has_window(wanted: str, seen: Mapping[str, Any]) -> bool:
    """Whether such a window is on the screen: one that is about to come is a point, and its elements are elsewhere."""
    windows = (e for e in elements(seen["accessibility_tree"]) if e.role in _WINDOWS and e.width > 1)
    return any(wanted in window.name for window in windows)
