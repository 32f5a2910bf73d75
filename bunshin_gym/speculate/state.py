# SPDX-License-Identifier: Apache-2.0
"""What a predictor knows of an attempt: the task, the calls so far, and what is on the screen."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from bunshin_gym.cache.keys import canonical_json
from bunshin_gym.speculate.desktop_view import read_screen
from bunshin_gym.speculate.view import Element, View
from bunshin_gym.types import ToolCall, ToolResult

__all__ = ["Attempt", "Element", "Prediction", "State", "Step", "View", "call_key", "view_of"]

_ELEMENTS_MAX: Final = 400
_NODE: Final = re.compile(
    r"^(?P<indent>\s*)(?:\[(?P<ref>[^\]\s]+)\]\s+)?(?P<role>[A-Za-z]+)"
    r"(?:\s+(?P<quote>['\"])(?P<name>.*?)(?P=quote)(?=,|$))?(?P<rest>.*)$"
)
_INPUTS: Final = frozenset({"textbox", "searchbox", "combobox", "spinbutton", "slider"})
_PHRASE: Final = re.compile(r"[;:,.\n\[\]()]+")
_VALUE: Final = re.compile(r"value=(['\"])(.*?)\1")


def call_key(call: ToolCall) -> str:
    """Text that is equal for equal calls, whatever the spelling of their arguments.

    Raises:
        UsageError: an argument is no JSON value.
    """
    return call.name + canonical_json(call.args)


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One call that an attempt made, and what was on the screen before it.

    Attributes:
        view: what the agent saw when it chose the call.
        call: what it chose.
        run_ns: how long the call took; 0 when it was not measured.
        think_ns: how long the agent took to choose; 0 when it was not measured.
    """

    view: View
    call: ToolCall
    run_ns: int = 0
    think_ns: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """Where an attempt is when its agent thinks.

    Attributes:
        task: what attempts that may resemble each other share, such as a task's id.
        view: what the agent sees now.
        steps: what it did so far.
    """

    task: str
    view: View
    steps: tuple[Step, ...] = ()

    def after(self, call: ToolCall, result: ToolResult, *, run_ns: int = 0, think_ns: int = 0) -> State:
        """The state once `call` brought `result`."""
        step = Step(view=self.view, call=call, run_ns=run_ns, think_ns=think_ns)
        return State(task=self.task, view=_inherit(view_of(result.observation), self.view), steps=(*self.steps, step))


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """A whole attempt, as a predictor learns from it.

    Attributes:
        task: as in `State`.
        steps: every call, in order.
        reward: the sum of its rewards.
        learnt: so many of its first steps are another attempt's, and not to be learnt from again.
    """

    task: str
    steps: tuple[Step, ...] = ()
    reward: float = 0.0
    learnt: int = 0

    def states(self) -> list[tuple[State, ToolCall]]:
        """Each state to learn from, with the call that the agent chose there."""
        return [
            (State(task=self.task, view=step.view, steps=self.steps[:place]), step.call)
            for place, step in enumerate(self.steps)
            if place >= self.learnt
        ]


def _inherit(view: View, before: View) -> View:
    """A view that says no instruction keeps the one before."""
    if view.instruction or not before.instruction:
        return view
    return View(
        page=view.page,
        instruction=before.instruction,
        elements=view.elements,
        error=view.error,
        focus=view.focus,
    )


def view_of(observation: Any, *, instruction: str = "") -> View:
    """Reads an observation: a mapping with BrowserGym's or OSWorld's keys, a text, or a mapping with `text`.

    What it does not know it leaves out; it never raises on an observation's content.
    """
    if isinstance(observation, str):
        return View(instruction=instruction, elements=_phrases(observation))
    if not isinstance(observation, Mapping):
        return View(instruction=instruction)
    goal = str(observation.get("goal") or observation.get("instruction") or instruction)
    error = str(observation.get("last_action_error") or "")
    tree = observation.get("accessibility_tree")
    if isinstance(tree, str) and tree.startswith("<"):
        page, elements, focus = read_screen(tree, _ELEMENTS_MAX)
        return View(page=page, instruction=goal, elements=elements, error=error, focus=focus)
    tree = observation.get("axtree_txt") or tree
    focus = str(observation.get("focused_element_bid") or "")
    elements = _nodes(tree) if isinstance(tree, str) else _phrases(str(observation.get("text") or ""))
    return View(page=_page(observation), instruction=goal, elements=elements, error=error, focus=focus)


def _page(observation: Mapping[str, Any]) -> str:
    url = str(observation.get("url") or observation.get("window") or "")
    return url.split("?", 1)[0].split("#", 1)[0]


def _phrases(text: str) -> tuple[Element, ...]:
    parts = (part.strip().strip("'\"") for part in _PHRASE.split(text))
    return tuple(Element(ref="", role="text", name=part) for part in parts if part)[:_ELEMENTS_MAX]


def _nodes(tree: str) -> tuple[Element, ...]:
    """Reads an accessibility tree, a node a line: `[ref] role 'name', flag, key=value`.

    A nameless element is called after the text in it.
    """
    elements: list[Element] = []
    above: list[tuple[int, int]] = []  # (depth, place) of the elements that this line is inside of
    for line in tree.splitlines():
        match = _NODE.match(line)
        if match is None:
            continue
        depth = len(match["indent"])
        while above and above[-1][0] >= depth:
            above.pop()
        element = _node(match)
        if element.role == "StaticText" and above:
            outer = elements[above[-1][1]]
            if outer.ref and not outer.name and outer.role not in _INPUTS:
                elements[above[-1][1]] = replace(outer, name=element.name)
        above.append((depth, len(elements)))
        elements.append(element)
        if len(elements) == _ELEMENTS_MAX:
            break
    return tuple(elements)


def _node(match: re.Match[str]) -> Element:
    rest = match["rest"] or ""
    value = _VALUE.search(rest)
    flags = (part.strip() for part in _VALUE.sub("", rest).split(","))
    return Element(
        ref=match["ref"] or "",
        role=match["role"],
        name=(match["name"] or "").strip(),
        flags=frozenset(flag for flag in flags if flag and len(flag) <= 40),
        value=value[2] if value else "",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """A call that may come next.

    Attributes:
        call: name and arguments.
        probability: how often such a prediction is right, from 0 to 1.
    """

    call: ToolCall
    probability: float = field(default=0.0)
