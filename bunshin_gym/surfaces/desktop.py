# SPDX-License-Identifier: Apache-2.0
"""The desktop surface: OSWorld's actions and observation keys, on a whole desktop in a workspace."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

import numpy as np
from gymnasium import spaces

from bunshin_gym.surfaces.action_text import ActionText, random_place, random_word
from bunshin_gym.surfaces.actions import REQUIRED, Param, Tool, parse_actions
from bunshin_gym.surfaces.base import ActionError, Episode, Screen
from bunshin_gym.surfaces.computer_13 import to_source
from bunshin_gym.surfaces.observation import common_entries, common_spaces
from bunshin_gym.types import ToolCall, ToolEffect

__all__ = ["DESKTOP_TEXT_LENGTHS", "DESKTOP_TOOLS", "DesktopActions", "DesktopSurface"]

DESKTOP_TEXT_LENGTHS: Final[Mapping[str, int]] = MappingProxyType(
    {
        "accessibility_tree": 1 << 19,
        "instruction": 8192,
        "last_action": 1 << 16,
        "last_action_error": 2048,
        "terminal": 1 << 15,
    }
)
"""The observation's texts and their greatest lengths, in characters."""

DESKTOP_TOOLS: Final[Mapping[str, Tool]] = MappingProxyType(
    {
        tool.name: tool
        for tool in (
            Tool("pyautogui", (Param("source", "str"),), "run Python source with the modules pyautogui and time"),
            Tool("wait", (Param("seconds", "float", 2.0),), "let time pass"),
            Tool("send_msg_to_user", (Param("text", "str"),), "say something to the user"),
            Tool("report_infeasible", (Param("reason", "str", ""),), "say that the task cannot be done, and stop"),
            Tool("done", (Param("answer", "str", ""),), "say that the task is done, and stop"),
        )
    }
)
"""Every tool of this surface, by name."""

_WORDS: Final[Mapping[str, ToolCall]] = MappingProxyType(
    {
        "WAIT": ToolCall(name="wait", args={"seconds": 2.0}),
        "FAIL": ToolCall(name="report_infeasible", args={"reason": ""}),
        "DONE": ToolCall(name="done", args={"answer": ""}),
    }
)


class DesktopActions(ActionText):
    """The action space: text. Samples are pyautogui source: random clicks, keys, scrolls."""

    def __init__(self, screen: Screen, *, seed: int | None = None) -> None:
        super().__init__(screen, DESKTOP_TEXT_LENGTHS["last_action"], seed=seed)

    def samples(self, rng: np.random.Generator) -> list[str]:
        """One random action of each kind."""
        (x, y), word = random_place(self.screen, rng), random_word(rng)
        return [
            f"pyautogui.click({x}, {y})",
            f"pyautogui.moveTo({x}, {y})",
            f"pyautogui.scroll({int(rng.integers(-5, 6))})",
            f"pyautogui.write('{word}')",
            "pyautogui.press('tab')",
            "WAIT",
        ]


class DesktopSurface:
    """Implements `Surface` for desktops.

    An action is pyautogui source, one of the words WAIT, FAIL and DONE, a mapping of the kind `computer_13`
    (`action_type` and its parameters), or a call of a tool.
    """

    name: Final = "desktop"
    tree_keys: Final = ("accessibility_tree", "terminal")
    tools: Final[Mapping[str, Tool]] = DESKTOP_TOOLS
    effects: Final[Mapping[str, ToolEffect]] = MappingProxyType(
        {name: tool.effect for name, tool in DESKTOP_TOOLS.items()}
    )

    def describe(self) -> str:
        """The tools, one a line."""
        return "\n".join(
            [
                "An action is Python source with the modules pyautogui and time, or one of the words WAIT, FAIL, DONE.",
                *map(str, DESKTOP_TOOLS.values()),
            ]
        )

    def parse(self, action: object) -> tuple[ToolCall, ...]:
        """Reads an action in any of its forms.

        Raises:
            ActionError: it is none of them.
        """
        if isinstance(action, str):
            return (_read_text(action),)
        if isinstance(action, Mapping) and "action_type" in action:
            source = to_source(action)
            return (_WORDS[source] if source in _WORDS else _source_call(source),)
        return parse_actions(action, DESKTOP_TOOLS)

    def action_space(self, screen: Screen) -> DesktopActions:
        """Text: pyautogui source or a word."""
        return DesktopActions(screen)

    def observation_space(self, screen: Screen, *, elapsed_time: bool) -> spaces.Dict:
        """OSWorld's keys, with spaces that vector envs can share, and the last action with its error.

        `screenshot` is (height, width, 3) uint8; `terminal` is empty when no terminal has the focus.
        """
        return spaces.Dict(common_spaces(DESKTOP_TEXT_LENGTHS, screen, elapsed_time=elapsed_time))

    def observation(self, seen: Mapping[str, Any], episode: Episode, screen: Screen) -> dict[str, Any]:
        """Builds an observation out of what the tool server saw.

        Raises:
            ToolError: the screenshot is not of the screen's size.
        """
        texts = {
            "accessibility_tree": seen["accessibility_tree"],
            "instruction": episode.goal,
            "last_action": episode.last_action,
            "last_action_error": episode.last_action_error,
            "terminal": seen["terminal"] or "",
        }
        return dict(sorted(common_entries(texts, DESKTOP_TEXT_LENGTHS, seen["screenshot"], screen, episode).items()))


def _read_text(text: str) -> ToolCall:
    word = text.strip()
    if not word:
        raise ActionError("the action is empty; WAIT does nothing")
    return _WORDS.get(word) or _source_call(word)


def _source_call(source: str) -> ToolCall:
    tool = DESKTOP_TOOLS["pyautogui"]
    assert tool.params[0].default is REQUIRED
    return ToolCall(name=tool.name, args=tool.bind((source,), {}))
