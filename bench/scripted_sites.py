# SPDX-License-Identifier: Apache-2.0
"""Scripted, randomised agents for the tasks on web sites of ours: what the benchmarks record and replay.

An agent follows the task's own solution and finds its elements in what it sees. Attempts differ as a model's do: now
and then one hovers or scrolls, types where others fill, or follows a link that leads nowhere and goes back.
"""

from __future__ import annotations

import random
from collections.abc import Generator, Iterator, Mapping, Sequence
from typing import Any, Final

from bunshin_gym.errors import UsageError
from bunshin_gym.surfaces.browser import BrowserSurface
from bunshin_gym.tasks.script import Step, action_of
from bunshin_gym.tasks.scripted import Node, parse_tree
from bunshin_gym.types import ToolCall

__all__ = ["site_calls"]

_PATIENCE: Final = 8
_KEEP_AWAY: Final = ("log", "sign", "delete", "remove")


def site_calls(
    steps: Sequence[Step],
    observation: Mapping[str, Any],
    rng: random.Random,
    *,
    idle: float = 0.08,
    detour: float = 0.06,
    typed: float = 0.15,
) -> Generator[ToolCall, Mapping[str, Any], None]:
    """An agent for a solution: yields calls, and is sent the observation after each.

    Args:
        steps: the task's solution.
        observation: the first one.
        rng: what makes this attempt its own.
        idle: chance of a call that does nothing before each step.
        detour: chance to follow a wrong link, and to go back, before a step that follows one: in the midst of a form
            that would lose what was entered.
        typed: chance that text is typed, key by key.

    Raises:
        UsageError: the page never shows what a step needs.
    """
    seen = observation
    for step in steps:
        if rng.random() < idle:
            for call in _idle(seen, rng):
                seen = yield call
        if rng.random() < detour and list(step[:2]) == ["click", "link"]:
            for call in _detour(seen, rng):
                seen = yield call
        keys = step[0] == "fill" and rng.random() < typed
        for left in reversed(range(_PATIENCE)):
            try:
                action = action_of(step, seen)
            except UsageError:
                if not left:
                    raise
                seen = yield from _calls("noop(250)")
                continue
            if action:
                seen = yield from _calls(action.replace(repr(step[3]), "''") if keys else action)
            if keys:
                seen = yield from _calls(f"keyboard_type({step[3]!r})")
            break


def _calls(action: str) -> Generator[ToolCall, Mapping[str, Any], Mapping[str, Any]]:
    (call,) = BrowserSurface().parse(action)
    return (yield call)


def _parsed(*actions: str) -> Iterator[ToolCall]:
    for action in actions:
        yield from BrowserSurface().parse(action)


def _nodes(seen: Mapping[str, Any], *roles: str) -> list[Node]:
    return [node for node in parse_tree(seen["axtree_txt"]) if node.role in roles and node.name]


def _idle(seen: Mapping[str, Any], rng: random.Random) -> Iterator[ToolCall]:
    nodes = _nodes(seen, "link", "button", "textbox")
    if nodes and rng.random() < 0.5:
        return _parsed(f"hover({rng.choice(nodes).bid!r})")
    return _parsed("scroll(0, 100)")


def _detour(seen: Mapping[str, Any], rng: random.Random) -> Iterator[ToolCall]:
    links = [node for node in _nodes(seen, "link") if not any(word in node.name.lower() for word in _KEEP_AWAY)]
    return _parsed(f"click({rng.choice(links).bid!r})", "go_back()") if links else iter(())
