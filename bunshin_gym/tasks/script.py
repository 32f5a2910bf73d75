# SPDX-License-Identifier: Apache-2.0
"""Scripted solutions as data: what to do with which element, by role and name, as an agent sees them.

A step is a list: the kind, then its arguments.

    ["goto", "http://shop.test/"]                  open an address
    ["click", "button", "Add to cart"]             the first such element; a number picks another, from 0
    ["fill", "textbox", "Quantity", "3"]           replace its text
    ["select", "combobox", "Sort by", "Newest"]    choose an option
    ["check", "checkbox", "Remember me"]           tick it
    ["press", "Enter"]                             keys, to what has the focus
    ["see", "Thank you"]                           nothing: the tree must show this text
    ["answer", {"status": "SUCCESS"}]              tell the user; anything but a text is said as JSON
    ["infeasible", "no such product"]              give up
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from bunshin_gym.errors import UsageError
from bunshin_gym.tasks.scripted import Node, parse_tree

__all__ = ["Step", "Stepped", "action_of", "check_steps", "play"]

Stepped = tuple[Mapping[str, Any], float, bool, bool, Mapping[str, Any]]
"""What an env's step returns."""

_WAIT: Final = "noop(250)"
_PATIENCE: Final = 40
_TIMED_OUT: Final = "Timeout"

Step = Sequence[Any]

_ARGUMENTS: Final[Mapping[str, tuple[int, int]]] = {
    "goto": (1, 1),
    "click": (2, 3),
    "fill": (3, 4),
    "select": (3, 4),
    "check": (2, 3),
    "press": (1, 1),
    "see": (1, 1),
    "answer": (1, 1),
    "infeasible": (1, 1),
}
"""Each kind, and how few and how many arguments it takes."""


def check_steps(steps: Sequence[Step]) -> None:
    """Raises UsageError unless all are steps."""
    for step in steps:
        if not step or step[0] not in _ARGUMENTS:
            raise UsageError(f"{step!r} is no step; there are {', '.join(_ARGUMENTS)}")
        fewest, most = _ARGUMENTS[step[0]]
        if not fewest <= len(step) - 1 <= most:
            raise UsageError(f"{step!r}: {step[0]} takes {fewest} to {most} arguments")


def action_of(step: Step, observation: Mapping[str, Any]) -> str:
    """The action that a step is, on what is seen; empty when there is nothing to do.

    Raises:
        UsageError: the page does not show what the step needs.
    """
    kind, *args = step
    match kind:
        case "goto":
            return f"goto({args[0]!r})"
        case "press":
            return f"keyboard_press({args[0]!r})"
        case "answer":
            text = args[0] if isinstance(args[0], str) else json.dumps(args[0])
            return f"send_msg_to_user({text!r})"
        case "infeasible":
            return f"report_infeasible({args[0]!r})"
        case "see":
            if _plain(args[0]) not in _plain(observation["axtree_txt"]):
                raise UsageError(f"the page at {observation['url']} does not show {args[0]!r}")
            return ""
        case "click" | "check":
            return f"{kind}({_element(observation, *args).bid!r})"
        case "fill":
            role, name, text, *place = args
            return f"fill({_element(observation, role, name, *place).bid!r}, {text!r})"
        case "select":
            role, name, option, *place = args
            return f"select_option({_element(observation, role, name, *place).bid!r}, {option!r})"
    raise UsageError(f"{step!r} is no step")


def play(
    step: Callable[[str], Stepped], observation: Mapping[str, Any], steps: Sequence[Step]
) -> Iterator[tuple[str, Stepped]]:
    """Plays steps as an agent would, one action at a time; patient with a slow page.

    Args:
        step: an env's own.
        observation: what is seen now.
        steps: what to do.

    Yields:
        Each action, and what its step returned.

    Raises:
        UsageError: the page never shows what a step needs.
    """
    for wanted in steps:
        for left in reversed(range(_PATIENCE)):
            try:
                action = action_of(wanted, observation)
            except UsageError:
                if left == 0:
                    raise
                action = _WAIT
            if not action:
                break
            stepped = step(action)
            observation = stepped[0]
            yield action, stepped
            # Of what could not be acted on in time nothing was done: it is tried again.
            if action != _WAIT and (left == 0 or _TIMED_OUT not in observation["last_action_error"]):
                break


def _element(observation: Mapping[str, Any], role: str, name: str, place: int = 0) -> Node:
    """By its whole name, or else by the beginning of it."""
    nodes = [node for node in parse_tree(observation["axtree_txt"]) if node.role == role]
    wanted = _plain(name)
    found = [node for node in nodes if _plain(node.name) == wanted]
    if not found and wanted:
        found = [node for node in nodes if _plain(node.name).startswith(wanted)]
    if place < len(found):
        return found[place]
    names = ", ".join(repr(_plain(node.name)) for node in nodes[:40])
    raise UsageError(f"the page at {observation['url']} has no {role} {name!r} ({place}); of that role: {names}")


def _plain(text: str) -> str:
    """With single blanks, and without the marks that fonts draw as icons."""
    return re.sub(r"(?:[\s\ue000-\uf8ff]|\\u[ef][0-9a-f]{3})+", " ", text).replace("\\'", "'").strip()
