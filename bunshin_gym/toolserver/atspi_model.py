# SPDX-License-Identifier: Apache-2.0
"""Objects of an accessibility tree as they were read, and how the bus writes them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

__all__ = ["FOCUSED", "SHOWING", "STATES", "VISIBLE", "Accessible", "Bus", "NoAnswerError", "Ref", "bits", "to_ref"]

_STATE_WORDS = (
    "invalid active armed busy checked collapsed defunct editable enabled expandable expanded focusable "
    "focused has-tooltip horizontal iconified modal multi-line multiselectable opaque pressed resizable "
    "selectable selected sensitive showing single-line stale transient vertical visible manages- "
    "descendants indeterminate required truncated animated invalid-entry supports-autocompletion "
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
