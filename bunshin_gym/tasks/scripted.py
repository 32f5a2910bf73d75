# SPDX-License-Identifier: Apache-2.0
"""Scripted policies for some MiniWoB++ tasks: they read the goal and the tree, as an agent would."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from bunshin_gym.errors import UsageError

__all__ = ["SCRIPTED", "Node", "parse_tree", "solve"]

_LINE: Final = re.compile(
    r"\t*\[(?P<bid>\w+)\] (?P<role>\w+) (?P<name>'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\")(?P<rest>.*)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """An element that an action can name: its id, role, name, and the rest of its line."""

    bid: str
    role: str
    name: str
    rest: str


def parse_tree(text: str) -> tuple[Node, ...]:
    """Elements of an `axtree_txt` that have an id, in their order."""
    found = (_LINE.fullmatch(line) for line in text.splitlines())
    return tuple(
        Node(bid=m["bid"], role=m["role"], name=m["name"][1:-1].strip(), rest=m["rest"]) for m in found if m is not None
    )


def _named(nodes: Sequence[Node], role: str, name: str | None = None) -> Node:
    """The first element of a role, and of a name if one is given.

    Raises:
        UsageError: there is none.
    """
    for node in nodes:
        if node.role == role and (name is None or node.name == name):
            return node
    raise UsageError(f"the page has no {role} {'' if name is None else repr(name)}")


def _boxes(nodes: Sequence[Node]) -> list[Node]:
    return [node for node in nodes if node.role == "textbox"]


def _quoted(goal: str) -> list[str]:
    return re.findall(r'"([^"]*)"', goal)


def _click(node: Node) -> str:
    return f"click({node.bid!r})"


def _fill(node: Node, text: str) -> str:
    return f"fill({node.bid!r}, {text!r})"


def _click_test(goal: str, nodes: Sequence[Node]) -> list[str]:
    return [_click(_named(nodes, "button"))]


def _click_test_2(goal: str, nodes: Sequence[Node]) -> list[str]:
    return [_click(_named(nodes, "button", "ONE"))]


def _click_button_sequence(goal: str, nodes: Sequence[Node]) -> list[str]:
    return [_click(_named(nodes, "button", name)) for name in ("ONE", "TWO")]


def _click_button(goal: str, nodes: Sequence[Node]) -> list[str]:
    return [_click(_named(nodes, "button", _quoted(goal)[0]))]


def _click_dialog(goal: str, nodes: Sequence[Node]) -> list[str]:
    return [_click(_named(nodes, "button", "Close"))]


def _click_dialog_2(goal: str, nodes: Sequence[Node]) -> list[str]:
    name = _quoted(goal)[0]
    return [_click(_named(nodes, "button", "Close" if name == "x" else name))]


def _enter_text(goal: str, nodes: Sequence[Node]) -> list[str]:
    return [_fill(_named(nodes, "textbox"), _quoted(goal)[0]), _click(_named(nodes, "button", "Submit"))]


def _enter_password(goal: str, nodes: Sequence[Node]) -> list[str]:
    filled = [_fill(box, _quoted(goal)[0]) for box in _boxes(nodes)]
    return [*filled, _click(_named(nodes, "button", "Submit"))]


def _login_user(goal: str, nodes: Sequence[Node]) -> list[str]:
    filled = [_fill(box, text) for box, text in zip(_boxes(nodes), _quoted(goal), strict=True)]
    return [*filled, _click(_named(nodes, "button", "Login"))]


def _focus_text(goal: str, nodes: Sequence[Node]) -> list[str]:
    return [_click(_named(nodes, "textbox"))]


def _focus_text_2(goal: str, nodes: Sequence[Node]) -> list[str]:
    found = re.search(r"(\d)(?:st|nd|rd|th)", goal)
    assert found is not None, goal
    return [_click(_boxes(nodes)[int(found[1]) - 1])]


def _select(goal: str) -> str:
    found = re.fullmatch(r"Select (.*?)(?: from the list)? and click Submit\.", goal)
    assert found is not None, goal
    return found[1]


def _click_checkboxes(goal: str, nodes: Sequence[Node]) -> list[str]:
    wanted = set(_select(goal).split(", ")) - {"nothing"}
    ticks = [_click(node) for node in nodes if node.role == "checkbox" and node.name in wanted]
    return [*ticks, _click(_named(nodes, "button", "Submit"))]


def _click_option(goal: str, nodes: Sequence[Node]) -> list[str]:
    return [_click(_named(nodes, "radio", _select(goal))), _click(_named(nodes, "button", "Submit"))]


def _choose_list(goal: str, nodes: Sequence[Node]) -> list[str]:
    box = _named(nodes, "combobox")
    return [f"select_option({box.bid!r}, {_select(goal)!r})", _click(_named(nodes, "button", "Submit"))]


def _click_tab(goal: str, nodes: Sequence[Node]) -> list[str]:
    found = re.search(r"Tab #\d", goal)
    assert found is not None, goal
    return [_click(_named(nodes, "link", found[0]))]


SCRIPTED: Final[Mapping[str, Callable[[str, Sequence[Node]], list[str]]]] = MappingProxyType(
    {
        "miniwob.choose-list": _choose_list,
        "miniwob.click-button": _click_button,
        "miniwob.click-button-sequence": _click_button_sequence,
        "miniwob.click-checkboxes": _click_checkboxes,
        "miniwob.click-dialog": _click_dialog,
        "miniwob.click-dialog-2": _click_dialog_2,
        "miniwob.click-option": _click_option,
        "miniwob.click-tab": _click_tab,
        "miniwob.click-test": _click_test,
        "miniwob.click-test-2": _click_test_2,
        "miniwob.enter-password": _enter_password,
        "miniwob.enter-text": _enter_text,
        "miniwob.focus-text": _focus_text,
        "miniwob.focus-text-2": _focus_text_2,
        "miniwob.login-user": _login_user,
    }
)
"""Task ids with a policy: goal and elements to actions that solve it."""


def solve(task_id: str, observation: Mapping[str, Any]) -> list[str]:
    """Actions that solve a task from its first observation.

    Raises:
        UsageError: there is no policy for it.
    """
    policy = SCRIPTED.get(task_id)
    if policy is None:
        raise UsageError(f"no scripted policy for {task_id}; there are some for {', '.join(SCRIPTED)}")
    return policy(observation["goal"], parse_tree(observation["axtree_txt"]))
