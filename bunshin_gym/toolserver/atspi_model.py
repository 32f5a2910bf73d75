# SPDX-License-Identifier: Apache-2.0
"""Objects of an accessibility tree as they were read, and how the bus writes them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

__all__ = [
    "FOCUSED",
    "SHOWING",
    "STATES",
    "VISIBLE",
    "Accessible",
    "Bus",
    "NoAnswerError",
    "Ref",
    "bits",
    "move_below_menu",
    "to_ref",
]

_STATE_WORDS = (
    "invalid active armed busy checked collapsed defunct editable enabled expandable expanded focusable "
    "focused has-tooltip horizontal iconified modal multi-line multiselectable opaque pressed resizable "
    "selectable selected sensitive showing single-line stale transient vertical visible "
    "manages-descendants indeterminate required truncated animated invalid-entry supports-autocompletion "
    "selectable-text is-default visited checkable has-popup read-only"
)
STATES = tuple(_STATE_WORDS.split())
FOCUSED, SHOWING, VISIBLE = (STATES.index(name) for name in ("focused", "showing", "visible"))


Ref = tuple[str, str]
"""An object: its program's name on the bus, its path."""


@dataclass(slots=True)
class Accessible:
    """One object of a tree, as it was read."""

    ref: Ref
    name: str = ""
    role: str = ""
    states: int = 0
    interfaces: frozenset[str] = frozenset()
    child_count: int = -1
    attributes: dict[str, str] = field(default_factory=dict)
    extents: tuple[int, int, int, int] | None = None
    text: str = ""
    value: tuple[float, float, float, float] | None = None
    actions: list[tuple[str, str, str]] = field(default_factory=list)
    description: str = ""
    children: list[Accessible] = field(default_factory=list)

    def has(self, state: int) -> bool:
        """Whether a state, by its number, is set."""
        return bool(self.states >> state & 1)

    @property
    def on_screen(self) -> bool:
        """Whether it says that it is drawn, and that nothing above it hides it."""
        return self.has(SHOWING) and self.has(VISIBLE)


class NoAnswerError(Exception):
    """An object did not answer: it is gone, or it has no such thing."""


class Bus(Protocol):
    """Asks objects questions."""

    async def call(self, ref: Ref, interface: str, member: str, signature: str = "", *body: Any) -> list[Any]: ...

    async def get(self, ref: Ref, interface: str, name: str) -> Any: ...


def to_ref(pair: Sequence[str]) -> Ref:
    return str(pair[0]), str(pair[1])


def bits(words: Sequence[int]) -> int:
    return words[0] | (words[1] << 32 if len(words) > 1 else 0)


def move_below_menu(window: Accessible) -> None:
    """Corrects the places of an office's elements: it does not count the height of the menu bar above them."""
    bar = _first(window, "menu bar")
    pane = _first(window, "root pane")
    if bar is None or pane is None or bar.extents is None or pane.extents is None or bar.extents[3] == 0:
        return
    if bar.extents[1] == pane.extents[1]:
        _shift(pane, bar.extents[3])


def _first(node: Accessible, role: str) -> Accessible | None:
    """The first object of a role below another."""
    for child in node.children:
        found = child if child.role == role else _first(child, role)
        if found is not None:
            return found
    return None


def _shift(node: Accessible, down: int) -> None:
    if node.extents is not None:
        x, y, width, height = node.extents
        node.extents = (x, y + down, width, height)
    for child in node.children:
        _shift(child, down)
