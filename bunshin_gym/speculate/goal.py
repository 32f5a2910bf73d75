# SPDX-License-Identifier: Apache-2.0
"""What an instruction names: the pieces of text that calls may take from it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

__all__ = ["Span", "normal", "spans_of", "words_of"]

_SPANS_MAX: Final = 40
_QUOTED: Final = re.compile(r"\"([^\"]{1,200})\"|“([^”]{1,200})”|(?<!\w)'([^']{1,200})'(?!\w)")
_NUMBER: Final = re.compile(r"[$#]?\d[\d/:.,-]*\d|\d")
_NAME: Final = re.compile(r"[A-Z][\w'-]*(?:\s+[A-Z][\w'-]*)+")
_WORD: Final = re.compile(r"[\w@#$%&'.+-]*[\w@#$%]")
_LIST: Final = re.compile(r",\s*|\s+and\s+|\s+or\s+|:\s+|;\s*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A piece of an instruction.

    Attributes:
        text: as it stands there.
        kind: quoted, number, name, item of a list, or word.
        before: the word before it, in lower case.
        start: its place, in characters.
    """

    text: str
    kind: str
    before: str
    start: int


def normal(text: str) -> str:
    """Lower case, one space between words, no punctuation around."""
    return " ".join(text.lower().split()).strip(" .,;:!?\"'")


@lru_cache(maxsize=4096)
def words_of(text: str) -> frozenset[str]:
    """The words of a text, in lower case."""
    return frozenset(word.lower() for word in _WORD.findall(text))


@lru_cache(maxsize=1024)
def spans_of(goal: str) -> tuple[Span, ...]:
    """The pieces of an instruction that a call may take, the most telling kinds first."""
    found: dict[str, Span] = {}
    for kind, start, text in _pieces(goal):
        if text and text not in found:
            before = _WORD.findall(goal[:start])
            found[text] = Span(text=text, kind=kind, before=before[-1].lower() if before else "", start=start)
        if len(found) == _SPANS_MAX:
            break
    return tuple(found.values())


def _pieces(goal: str) -> list[tuple[str, int, str]]:
    pieces = []
    for match in _QUOTED.finditer(goal):
        group = next(number for number in (1, 2, 3) if match[number] is not None)
        pieces.append(("quoted", match.start(group), match[group]))
    pieces += [("number", match.start(), match[0]) for match in _NUMBER.finditer(goal)]
    pieces += [("name", match.start(), match[0]) for match in _NAME.finditer(goal)]
    start = 0
    for cut in [*_LIST.finditer(goal), None]:
        end = cut.start() if cut is not None else len(goal)
        item = goal[start:end].strip(" .\"'")
        if item and len(item) <= 60:
            pieces.append(("item", start, item))
        start = cut.end() if cut is not None else end
    pieces += [("word", match.start(), match[0]) for match in _WORD.finditer(goal)]
    return pieces
