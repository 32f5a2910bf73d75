# SPDX-License-Identifier: Apache-2.0
"""What is on the screen, as far as a prediction needs it."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Element", "View"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Element:
    """One thing on the screen that a call can be about.

    Attributes:
        ref: how calls name it, such as a bid or a place; empty for plain text.
        role: button, textbox, ...; "text" for plain text.
        name: what it is called on the screen.
        flags: what else is known: "focused", "checked", "disabled", ...
        value: what an input holds.
    """

    ref: str
    role: str
    name: str
    flags: frozenset[str] = frozenset()
    value: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """An observation, as far as a prediction needs it.

    Attributes:
        page: which page or window is shown; without what changes at each visit.
        instruction: what the task asks for, when the observation says it.
        elements: in reading order, at most 400.
        error: why the last call failed; empty when it did not.
        focus: the ref of what has the focus; empty when nothing has.
    """

    page: str = ""
    instruction: str = ""
    elements: tuple[Element, ...] = ()
    error: str = ""
    focus: str = ""
