# SPDX-License-Identifier: Apache-2.0
"""The browser surface: BrowserGym's actions and observation keys, on a page in a workspace."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

import numpy as np
from gymnasium import spaces

from bunshin_gym.surfaces.action_text import ActionText, random_place, random_word
from bunshin_gym.surfaces.actions import Param, Tool, parse_actions
from bunshin_gym.surfaces.base import Episode, Screen
from bunshin_gym.surfaces.observation import common_entries, common_spaces
from bunshin_gym.types import ToolCall, ToolEffect

__all__ = ["BROWSER_TOOLS", "TEXT_LENGTHS", "BrowserActions", "BrowserSurface"]

TEXT_LENGTHS: Final[Mapping[str, int]] = MappingProxyType(
    {
        "axtree_txt": 32768,
        "goal": 4096,
        "url": 2048,
        "open_pages_urls": 8192,
        "focused_element_bid": 64,
        "last_action": 8192,
        "last_action_error": 2048,
    }
)
"""The observation's texts and their greatest lengths, in characters."""

_BID: Final = Param("bid", "str")
_X: Final = Param("x", "float")
_Y: Final = Param("y", "float")
_BUTTON: Final = Param("button", "button", "left")
_CLICK: Final = (_BUTTON, Param("modifiers", "modifiers", ()))


def _table(*tools: Tool) -> Mapping[str, Tool]:
    return MappingProxyType({tool.name: tool for tool in tools})


BROWSER_TOOLS: Final = _table(
    Tool("send_msg_to_user", (Param("text", "str"),), "say something to the user"),
    Tool("report_infeasible", (Param("reason", "str"),), "say that the task cannot be done, and stop"),
    Tool("noop", (Param("wait_ms", "float", 1000.0),), "wait"),
    Tool(
        "fill",
        (_BID, Param("value", "str"), Param("enable_autocomplete_menu", "bool", False)),
        "replace the text of an input element",
    ),
    Tool("check", (_BID,), "tick a checkbox or a radio button"),
    Tool("uncheck", (_BID,), "untick a checkbox"),
    Tool("select_option", (_BID, Param("options", "str | list[str]")), "choose in a select element, by value or label"),
    Tool("click", (_BID, *_CLICK), "click an element"),
    Tool("dblclick", (_BID, *_CLICK), "double-click an element"),
    Tool("hover", (_BID,), "move the pointer over an element"),
    Tool("press", (_BID, Param("key_comb", "str")), "focus an element and press keys, such as 'Control+a'"),
    Tool("focus", (_BID,), "focus an element"),
    Tool("clear", (_BID,), "empty an input element"),
    Tool("drag_and_drop", (Param("from_bid", "str"), Param("to_bid", "str")), "drag one element onto another"),
    Tool("scroll", (Param("delta_x", "float"), Param("delta_y", "float")), "turn the wheel, in pixels"),
    Tool(
        "scroll_at",
        (Param("x", "int"), Param("y", "int"), Param("dx", "int"), Param("dy", "int")),
        "turn the wheel at a place, in pixels",
    ),
    Tool("mouse_move", (_X, _Y), "move the pointer"),
    Tool("mouse_up", (_X, _Y, _BUTTON), "move the pointer and let a button go"),
    Tool("mouse_down", (_X, _Y, _BUTTON), "move the pointer and hold a button"),
    Tool("mouse_click", (_X, _Y, _BUTTON), "click at a place"),
    Tool("mouse_dblclick", (_X, _Y, _BUTTON), "double-click at a place"),
    Tool(
        "mouse_drag_and_drop",
        tuple(Param(name, "float") for name in ("from_x", "from_y", "to_x", "to_y")),
        "drag from one place to another",
    ),
    Tool("keyboard_press", (Param("key", "str"),), "press keys, such as 'Enter' or 'Control+a'"),
    Tool("keyboard_up", (Param("key", "str"),), "let a key go"),
    Tool("keyboard_down", (Param("key", "str"),), "hold a key"),
    Tool("keyboard_type", (Param("text", "str"),), "type, key by key, into what has the focus"),
    Tool("keyboard_insert_text", (Param("text", "str"),), "put text into what has the focus, without key events"),
    Tool("goto", (Param("url", "str"),), "open an address in this tab"),
    Tool("go_back", (), "go back in this tab's history"),
    Tool("go_forward", (), "go forward in this tab's history"),
    Tool("new_tab", (), "open a tab and go to it"),
    Tool("tab_close", (), "close this tab"),
    Tool("tab_focus", (Param("index", "int"),), "go to a tab, by its number from 0"),
    Tool("upload_file", (_BID, Param("file", "str | list[str]")), "choose files in a file input element"),
    Tool("mouse_upload_file", (_X, _Y, Param("file", "str | list[str]")), "choose files in the file input at a place"),
)
"""Every tool of this surface, by name; names and arguments are BrowserGym's."""


class BrowserActions(ActionText):
    """The action space: text. Samples are calls that parse: random clicks, keys, scrolls.

    Most hit the page, some name an element that is not there.
    """

    def __init__(self, screen: Screen, *, seed: int | None = None) -> None:
        super().__init__(screen, TEXT_LENGTHS["last_action"], seed=seed)

    def samples(self, rng: np.random.Generator) -> list[str]:
        """One random call of each kind."""
        x, y = random_place(self.screen, rng)
        bid, word = int(rng.integers(10, 40)), random_word(rng)
        return [
            f"mouse_click({x}, {y})",
            f"mouse_move({x}, {y})",
            f"scroll(0, {int(rng.integers(-200, 200))})",
            f"keyboard_type('{word}')",
            "keyboard_press('Tab')",
            f"click('{bid}')",
            f"fill('{bid}', '{word}')",
            "noop(50)",
        ]


class BrowserSurface:
    """Implements `Surface` for pages in a browser."""

    name: Final = "browser"
    tree_keys: Final = ("axtree_txt",)
    tools: Final[Mapping[str, Tool]] = BROWSER_TOOLS
    effects: Final[Mapping[str, ToolEffect]] = MappingProxyType(
        {name: tool.effect for name, tool in BROWSER_TOOLS.items()}
    )

    def describe(self) -> str:
        """The tools, one a line."""
        return "\n".join(map(str, BROWSER_TOOLS.values()))

    def parse(self, action: object) -> tuple[ToolCall, ...]:
        """Reads an action; see `parse_actions`."""
        return parse_actions(action, BROWSER_TOOLS)

    def action_space(self, screen: Screen) -> BrowserActions:
        """Text with one call a line."""
        return BrowserActions(screen)

    def observation_space(self, screen: Screen, *, elapsed_time: bool) -> spaces.Dict:
        """BrowserGym's keys, with spaces that vector envs can share.

        `screenshot` is (height, width, 3) uint8; `open_pages_urls` is one address a line;
        `elapsed_time`, in seconds, is there on request, since it is another one in every run.
        """
        entries = common_spaces(TEXT_LENGTHS, screen, elapsed_time=elapsed_time)
        entries["active_page_index"] = spaces.Box(0, 255, shape=(1,), dtype=np.int64)
        return spaces.Dict(entries)

    def observation(self, seen: Mapping[str, Any], episode: Episode, screen: Screen) -> dict[str, Any]:
        """Builds an observation out of what the tool server saw.

        Raises:
            ToolError: the screenshot is not of the screen's size.
        """
        texts = {
            "axtree_txt": seen["axtree_txt"],
            "goal": episode.goal,
            "url": seen["url"],
            "open_pages_urls": "\n".join(seen["open_pages_urls"]),
            "focused_element_bid": seen["focused_element_bid"] or "",
            "last_action": episode.last_action,
            "last_action_error": episode.last_action_error,
        }
        result = common_entries(texts, TEXT_LENGTHS, seen["screenshot"], screen, episode)
        result["active_page_index"] = np.array([min(seen["active_page_index"], 255)], dtype=np.int64)
        return dict(sorted(result.items()))
