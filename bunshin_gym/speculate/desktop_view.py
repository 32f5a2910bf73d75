# SPDX-License-Identifier: Apache-2.0
"""Reads a desktop's accessibility tree, in OSWorld's XML, as a predictor needs it.

A desktop's actions name places, not elements: an element's ref is its middle, written as in `pyautogui.click(410, 96)`.
"""

from __future__ import annotations

import html
import re
from typing import Final, NamedTuple

from bunshin_gym.speculate.view import Element

__all__ = ["Screen", "read_screen"]

# A start tag as OSWorld and we write it, name first, and the text after it. Several times as fast as to parse it all.
_TAG: Final = re.compile(r'<([\w-]+) name="([^"]*)"([^>]*)>([^<]*)')
_PLACE: Final = re.compile(r'cp:screencoord="\((-?\d+), (-?\d+)\)".*? cp:size="\((\d+), (\d+)\)"')
_VALUE: Final = re.compile(r' val:value="([^"]*)"')
# As the flags of a browser's elements are called.
_FLAGS: Final = {
    'st:focused="true"': "focused",
    'st:checked="true"': "checked=true",
    'st:selected="true"': "selected=true",
    'st:expanded="true"': "expanded=true",
    'st:pressed="true"': "pressed=true",
}
_WINDOWS: Final = frozenset({"frame", "dialog", "window", "alert", "file-chooser"})
_NAME_MAX: Final = 200


class Screen(NamedTuple):
    """What is shown: the active window's title, the elements, the ref of the one that has the focus."""

    window: str
    elements: tuple[Element, ...]
    focus: str


def read_screen(tree: str, most: int) -> Screen:
    """The elements that are on the screen and have a name or a text, in the tree's order; of cells those with a text.

    Args:
        tree: the XML; of what is none, nothing is read.
        most: how many elements to read.
    """
    window = focus = ""
    elements: list[Element] = []
    for role, raw_name, said, raw_text in _TAG.findall(tree):
        if 'st:showing="true"' not in said:
            continue
        name, text = html.unescape(raw_name)[:_NAME_MAX], html.unescape(raw_text.strip())[:_NAME_MAX]
        if role in _WINDOWS and not window and 'st:active="true"' in said:
            window = name
        focused = 'st:focused="true"' in said
        bare = not text and (not name or role == "table-cell")
        if (bare and not focused) or len(elements) == most:
            continue
        place = _PLACE.search(said)
        if place is None:
            continue
        x, y, width, height = map(int, place.groups())
        ref = f"{x + width // 2}, {y + height // 2}"
        focus = ref if focused else focus
        value = _VALUE.search(said)
        flags = {flag for state, flag in _FLAGS.items() if state in said}
        elements.append(
            Element(
                ref=ref,
                role=role,
                name=name or text,
                flags=frozenset(flags if 'st:enabled="true"' in said else flags | {"disabled"}),
                value=text or (value[1] if value else ""),
            )
        )
    return Screen(window, tuple(elements), focus)
