# SPDX-License-Identifier: Apache-2.0
"""A page as a fixed number of elements with features, and clicks on them as numbers: for small policies."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from bunshin_gym.errors import UsageError
from bunshin_gym.tasks.scripted import Node, parse_tree
from bunshin_gym.types import ToolCall

__all__ = ["FEATURES", "ClickElements", "element_features"]

_ROLES: Final = ("button", "link", "textbox", "checkbox", "radio", "tab", "combobox")
FEATURES: Final = (
    "is there",
    *(f"is a {role}" for role in _ROLES),
    "is of another role",
    "its name is quoted in the goal",
    "its name is a word of the goal",
    "share of its words that the goal has",
    "its role is a word of the goal",
    "its place among those of its role, if the goal has an ordinal for it",
    "has a name",
    "is checked",
    "is focused",
    "place on the page",
)
"""What the numbers of an element say, in their order."""

_WORD: Final = re.compile(r"[\w#]+")
_ORDINAL: Final = re.compile(r"(\d+)(?:st|nd|rd|th)")


def element_features(goal: str, nodes: Sequence[Node], most: int) -> NDArray[np.float32]:
    """Features of the first `most` elements: (most, len(FEATURES)) float32, zeros where there is none."""
    found = np.zeros((most, len(FEATURES)), dtype=np.float32)
    words = {word.lower() for word in _WORD.findall(goal)}
    ordinals = {int(number) for number in _ORDINAL.findall(goal)}
    seen: dict[str, int] = {}
    for index, node in enumerate(nodes[:most]):
        own = [word.lower() for word in _WORD.findall(node.name)]
        place = seen[node.role] = seen.get(node.role, 0) + 1
        found[index] = [
            1.0,
            *(node.role == role for role in _ROLES),
            node.role not in _ROLES,
            bool(node.name) and f'"{node.name}"' in goal,
            bool(own) and " ".join(own) in " ".join(_WORD.findall(goal.lower())) and set(own) <= words,
            sum(word in words for word in own) / max(1, len(own)),
            node.role in words,
            place in ordinals,
            bool(node.name),
            "checked" in node.rest,
            "focused" in node.rest,
            index / most,
        ]
    return found


class ClickElements(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Observations are element features, actions are which element to click.

    An action that names no element clicks nothing. The inner observation is in `last`.

    Args:
        env: an env with BrowserGym's observation, cached or not.
        most: elements that are seen and can be clicked.
    """

    def __init__(self, env: gymnasium.Env[Any, Any], *, most: int = 16) -> None:
        if most < 1:
            raise UsageError(f"most is 1 or more, not {most}")
        super().__init__(env)
        self.most = most
        self.action_space = spaces.Discrete(most)
        self.observation_space = spaces.Box(0.0, 1.0, shape=(most, len(FEATURES)), dtype=np.float32)
        self.last: dict[str, Any] = {}
        self._nodes: tuple[Node, ...] = ()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begins an episode."""
        observation, info = self.env.reset(seed=seed, options=options)
        return self.see(observation), info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Clicks."""
        observation, reward, terminated, truncated, info = self.env.step(self.call(int(action)))
        return self.see(observation), reward, terminated, truncated, info

    def call(self, index: int) -> ToolCall:
        """The tool call that an action stands for now."""
        if 0 <= index < len(self._nodes):
            return ToolCall(name="click", args={"bid": self._nodes[index].bid, "button": "left", "modifiers": []})
        return ToolCall(name="noop", args={"wait_ms": 0.0})

    def see(self, observation: dict[str, Any]) -> NDArray[np.float32]:
        """Takes an inner observation as the one that the next action is about; returns its features."""
        self.last = observation
        self._nodes = parse_tree(observation["axtree_txt"])
        return element_features(observation["goal"], self._nodes, self.most)
