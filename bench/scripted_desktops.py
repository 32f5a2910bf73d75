# SPDX-License-Identifier: Apache-2.0
"""Scripted, randomised agents for our own desktop tasks: what the benchmarks record and replay.

An agent follows the task's own solution and finds its elements in what it sees. Attempts differ as a model's do: now
and then one rests, moves the pointer, types a text in two goes, or presses a key so often that others press once.
"""

from __future__ import annotations

import random
import re
from collections.abc import Generator, Iterator, Mapping, Sequence
from typing import Any, Final

from bunshin_gym.surfaces.desktop import DesktopSurface
from bunshin_gym.tasks.scripted_desktop import actions_of, elements
from bunshin_gym.types import ToolCall

__all__ = ["desktop_calls"]

_WRITE: Final = re.compile(r"pyautogui\.write\('([^'\\]+) ([^'\\]+)'\)")
_PRESSES: Final = re.compile(r"pyautogui\.press\('(\w+)', presses=(\d)\)")


def desktop_calls(
    steps: Sequence[Any],
    observation: Mapping[str, Any],
    rng: random.Random,
    *,
    idle: float = 0.08,
    parted: float = 0.2,
) -> Generator[ToolCall, Mapping[str, Any], None]:
    """An agent for a solution: yields calls, and is sent the observation after each.

    Args:
        steps: the task's solution.
        observation: the first one.
        rng: what makes this attempt its own.
        idle: chance of an action that does nothing before each step.
        parted: chance that what can be done in one action is done in several.

    Raises:
        ScriptError: what a step waits for does not come.
    """
    last = [observation]
    for step in steps:
        if rng.random() < idle:
            last[0] = yield _call(_idle(last[0], rng))
        for action in actions_of(step, lambda: last[0]):
            parts = _parts(action) if isinstance(action, str) and rng.random() < parted else iter((action,))
            for part in parts:
                last[0] = yield _call(part)


def _call(action: Any) -> ToolCall:
    (call,) = DesktopSurface().parse(action)
    return call


def _idle(seen: Mapping[str, Any], rng: random.Random) -> Any:
    named = [element for element in elements(seen["accessibility_tree"]) if element.name]
    if named and rng.random() < 0.5:
        x, y = rng.choice(named).middle
        return f"pyautogui.moveTo({x}, {y})"
    return "WAIT" if rng.random() < 0.5 else "pyautogui.press('shift')"


def _parts(action: str) -> Iterator[str]:
    """The same in several actions, where that is possible."""
    if match := _WRITE.fullmatch(action):
        yield f"pyautogui.write('{match[1]} ')"
        yield f"pyautogui.write('{match[2]}')"
    elif match := _PRESSES.fullmatch(action):
        for _ in range(int(match[2])):
            yield f"pyautogui.press('{match[1]}')"
    else:
        yield action
