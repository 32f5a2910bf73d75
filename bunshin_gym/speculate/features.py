# SPDX-License-Identifier: Apache-2.0
"""Features of a state and a candidate call, hashed.

A candidate is described by some twenty atoms ("clicks a button that the instruction names next"),
a state by some ten ("second call, after a fill"). Features are the pairs of the two, so that a
linear model can tell what is likely when. An atom never says a ref, which means another thing on
each page; what it says of elements and of pieces of the instruction is true on any page.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from bunshin_gym.speculate.goal import normal, spans_of, words_of
from bunshin_gym.speculate.slots import Candidate, Fill, pieces_of
from bunshin_gym.speculate.state import Element, State, call_key

__all__ = ["DIMENSIONS", "Situation", "feature_rows"]

DIMENSIONS: Final = 1 << 17
"""How many weights a model has."""

_FLAGS: Final = ("focused", "checked=true", "checked=false", "selected=true", "selected=false", "expanded=true",
                 "expanded=false", "pressed=true")  # fmt: skip
_MIX: Final = tuple(
    np.uint64(odd) for odd in (0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0x27D4EB2F165667C5)
)
_HALF: Final = np.uint64(29)
_SHIFT: Final = np.uint64(40)


@lru_cache(maxsize=200_000)
def _hash(atom: str) -> int:
    data = atom.encode("utf-8", "surrogatepass")
    return zlib.crc32(data) << 32 | zlib.adler32(data)


def feature_rows(
    situation: Situation, candidates: Sequence[Candidate], scores: Sequence[Sequence[float]]
) -> NDArray[np.int64]:
    """Indices of the features of each candidate, all of value 1.

    Each atom is combined with the candidate's template and with its tool alone, and each of these
    with every atom of the state.

    Args:
        situation: the state.
        candidates: n of them.
        scores: n triples, of `NgramPredictor.scores`.

    Returns:
        (n, width) int64, from 0 below DIMENSIONS. Short rows are filled up with 0, which stands
        for nothing and whose weight stays 0.
    """
    lists = [situation.atoms(candidate, score) for candidate, score in zip(candidates, scores, strict=True)]
    width = max(map(len, lists), default=0)
    atoms = np.array([row + [0] * (width - len(row)) for row in lists], dtype=np.uint64).reshape(len(lists), width)
    templates = np.array([_hash(candidate.name) for candidate in candidates], dtype=np.uint64)
    tools = np.array([_hash(candidate.call.name) for candidate in candidates], dtype=np.uint64)
    pairs = np.concatenate([atoms ^ templates[:, None] * _MIX[2], atoms ^ tools[:, None] * _MIX[3]], axis=1) * _MIX[0]
    pairs ^= pairs >> _HALF
    mixed = (pairs[:, :, None] ^ (np.array(situation.state_atoms, dtype=np.uint64) * _MIX[1])) * _MIX[0]
    rows = (mixed >> _SHIFT).astype(np.int64) % (DIMENSIONS - 1) + 1
    rows[np.concatenate([atoms, atoms], axis=1) == 0] = 0
    return rows.reshape(len(lists), -1)


class Situation:
    """A state, prepared for describing many candidates."""

    def __init__(self, state: State) -> None:
        self.state = state
        view, steps = state.view, state.steps
        self._goal = normal(view.instruction)
        self._goal_words = words_of(view.instruction)
        spans = spans_of(view.instruction)
        self._quoted = frozenset(normal(span.text) for span in spans if span.kind == "quoted")
        self._used: Counter[str] = Counter(
            piece.value
            for step in steps
            for value in step.call.args.values()
            if isinstance(value, str)
            for piece in pieces_of(value)
        )
        self._repeats: Counter[str] = Counter(call_key(step.call) for step in steps)
        self._last_key = call_key(steps[-1].call) if steps else ""
        last_args = {str(p.value) for v in steps[-1].call.args.values() for p in pieces_of(v)} if steps else set()
        self._last_place = next(
            (place for place, element in enumerate(view.elements) if element.ref and element.ref in last_args), -1
        )
        self._labels = _labels(view.elements)
        self._order = _order_among_equals(view.elements)
        self._mentions = self._mentioned()
        unused = sorted((s.start, s.text) for s in spans if s.kind == "quoted" and not self._used[s.text])
        self._next_span = unused[0][1] if unused else ""
        self._shown = frozenset(map(normal, self._labels))
        self._fills: dict[tuple[str, str, int], list[int]] = {}
        self.state_atoms = [_hash(f"state {atom}") for atom in self._describe_state()]

    def atoms(self, candidate: Candidate, score: Sequence[float]) -> list[int]:
        """Hashes of what is to be said of a candidate."""
        repeats = min(2, self._repeats[candidate.key])
        hashes = [_ANY, _hash(f"again {repeats} {candidate.key == self._last_key}")]
        hashes += [_hash(f"seen {column} {_bin(value)}") for column, value in enumerate(score)]
        for fill in candidate.fills:
            hashes += self._about(fill)
        if len(candidate.fills) > 1:
            hashes.append(_hash(self._about_both(candidate.fills)))
        return hashes

    def _about(self, fill: Fill) -> list[int]:
        """The same for all candidates that have it."""
        place = fill.place if fill.span is None else fill.span.start
        key = (fill.slot.name + fill.slot.before, fill.slot.kind, place)
        hashes = self._fills.get(key)
        if hashes is None:
            said = self._about_element(fill) if fill.span is None else self._about_span(fill)
            hashes = self._fills[key] = [_hash(atom) for atom in said]
        return hashes

    def _about_element(self, fill: Fill) -> list[str]:
        element, place = fill.element, fill.place
        assert element is not None
        label = self._labels[place]
        name = normal(label)
        words = words_of(label)
        overlap = len(words & self._goal_words) / len(words) if words else -1.0
        mention = self._mentions.get(place, "no")
        used = min(2, self._used[fill.value])
        flags = ",".join(flag for flag in _FLAGS if flag in element.flags)
        slot, role = fill.slot.name, element.role
        return [
            f"{slot} role {role}",
            f"{slot} role {role} mention {mention}",
            f"{slot} mention {mention} {flags}",
            f"{slot} name {name[:32]}",
            f"{slot} overlap {_bin(overlap)} {role}",
            f"{slot} used {used} {role}",
            f"{slot} flags {flags} {role} {bool(element.value)}",
            f"{slot} delta {_delta(place, self._last_place)} {role}",
            f"{slot} order {self._order[place]} {role}",
            f"{slot} quoted {name in self._quoted}",
            f"{slot} clickable {'clickable' in element.flags} {role}",
        ]

    def _about_span(self, fill: Fill) -> list[str]:
        span = fill.span
        assert span is not None
        used = min(2, self._used[span.text])
        return [
            f"{fill.slot.name} kind {span.kind}",
            f"{fill.slot.name} kind {span.kind} used {used}",
            f"{fill.slot.name} next {span.text == self._next_span}",
            f"{fill.slot.name} before {span.before}",
            f"{fill.slot.name} shown {normal(span.text) in self._shown}",
        ]

    def _about_both(self, fills: Sequence[Fill]) -> str:
        """Whether a text fits the element that it would go into."""
        element = next((fill for fill in fills if fill.element is not None), None)
        span = next((fill.span for fill in fills if fill.span is not None), None)
        if element is None or element.element is None or span is None:
            return "two"
        label = words_of(self._labels[element.place])
        near = words_of(self.state.view.instruction[max(0, span.start - 24) : span.start])
        fits = bool(label & near)
        return f"fits {fits} {span.kind} {span.text == self._next_span} {element.element.value == span.text}"

    def _mentioned(self) -> dict[int, str]:
        """Elements that the instruction names: which is next, which come later, which were used."""
        places: list[tuple[int, int]] = []
        padded = f" {self._goal} "
        for place, element in enumerate(self.state.view.elements):
            name = normal(element.name)
            if not name or (not element.ref and element.role != "text"):
                continue
            at = padded.find(f" {name}")
            if at >= 0 and not padded[at + 1 + len(name)].isalnum():
                places.append((at, place))
        result: dict[int, str] = {}
        first = True
        for _, place in sorted(places):
            element = self.state.view.elements[place]
            if self._used[element.ref] or self._used[element.name]:
                result[place] = "used"
            else:
                result[place] = "next" if first else "later"
                first = False
        return result

    def _describe_state(self) -> list[str]:
        state, steps = self.state, self.state.steps
        tools = [step.call.name for step in steps[-2:]]
        left = sum(mention in ("next", "later") for mention in self._mentions.values())
        changed = steps[-1].view.elements != state.view.elements if steps else True
        last_role = state.view.elements[self._last_place].role if self._last_place >= 0 else ""
        return [
            "any",
            f"task {state.task}",
            f"task {state.task} place {min(len(steps), 12)}",
            f"place {min(len(steps), 8)}",
            f"after {tools[-1] if tools else ''} {last_role}",
            f"after {' '.join(tools)}",
            f"left {min(left, 3)} {bool(self._next_span)}",
            f"changed {changed} error {bool(state.view.error)}",
        ]


_ANY: Final = _hash("any")


def _labels(elements: Sequence[Element]) -> list[str]:
    """What each element is called: its name, or the text before it."""
    labels, text, distance = [], "", 9
    for element in elements:
        distance += 1
        if element.role in ("StaticText", "text", "LabelText", "label") and element.name:
            text, distance = element.name, 0
        labels.append(element.name or (text if distance <= 3 else ""))
    return labels


def _order_among_equals(elements: Sequence[Element]) -> list[str]:
    """Each element's place among those of its role: 0, 1, 2, more, or last."""
    totals = Counter(element.role for element in elements)
    seen: Counter[str] = Counter()
    order = []
    for element in elements:
        place = seen[element.role]
        seen[element.role] += 1
        last = place == totals[element.role] - 1 and place > 0
        order.append("last" if last else str(min(place, 3)))
    return order


def _delta(place: int, last: int) -> str:
    if last < 0:
        return "none"
    distance = place - last
    return str(distance) if abs(distance) <= 4 else ("down" if distance > 0 else "up")


def _bin(share: float) -> int:
    """-1 for unknown, 0 for nothing, 5 for all."""
    if share < 0.0:
        return -1
    return 0 if share == 0.0 else 1 + min(4, int(share * 4))
