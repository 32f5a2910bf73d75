# SPDX-License-Identifier: Apache-2.0
"""WebArena's rules for comparing texts and addresses; pure functions, so that each rule has its test."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final, Protocol
from urllib.parse import parse_qs, urlsplit

__all__ = ["AnswerJudge", "contents_match", "exact_match", "must_include", "strings_match", "url_matches"]

_OR: Final = " |OR| "
# As the field's tokenizer does it: numbers with their points and commas, words, and each other sign by itself.
_TOKENS: Final = re.compile(r"\d+(?:[.,:]\d+)*|\w+|[^\w\s]")


class AnswerJudge(Protocol):
    """A language model, or whoever can say whether two answers mean the same."""

    def __call__(self, *, kind: str, intent: str, reference: str, answer: str) -> float:
        """How well an answer fits.

        Args:
            kind: `fuzzy`: does it mean what the reference says? `unachievable`: does it give the reference as the
                reason why the task cannot be done?
            intent: the task.
            reference: the text to compare with.
            answer: what the agent said.

        Returns:
            0 to 1.
        """
        ...


def exact_match(reference: str, answer: str) -> bool:
    """Equal but for case, blanks around, and one pair of quotes."""
    return _clean(reference) == _clean(answer)


def must_include(reference: str, answer: str, *, tokens: bool = False) -> bool:
    """Whether the reference is somewhere in the answer; with `tokens`, a single character must be a word of it."""
    wanted, text = _clean(reference), _clean(answer)
    if tokens and len(wanted) == 1:
        return wanted in _TOKENS.findall(text)
    return wanted in text


def strings_match(
    references: Mapping[str, Any], answer: str, *, intent: str, note: str = "", judge: AnswerJudge | None = None
) -> float:
    """The score of an answer: the product over all that is asked of it.

    Raises:
        ValueError: a language model is needed and there is none.
    """
    score = 1.0
    for kind, wanted in references.items():
        if kind == "exact_match":
            score *= exact_match(wanted, answer)
        elif kind == "must_include":
            for reference in wanted:
                score *= must_include(reference, answer, tokens=len(wanted) == 1)
        elif judge is None:
            raise ValueError("this answer is compared by a language model: give a judge")
        elif wanted == "N/A":
            if not exact_match(wanted, answer):
                score *= judge(kind="unachievable", intent=intent, reference=note, answer=_clean(answer))
        else:
            for reference in wanted:
                score *= judge(kind="fuzzy", intent=intent, reference=reference, answer=_clean(answer))
    return score


def url_matches(references: str, url: str) -> bool:
    """Whether one of the addresses is part of this one, and this one has the parameters that they have."""
    wanted = [urlsplit(reference.rstrip("/")) for reference in references.split(_OR)]
    seen = urlsplit(url.rstrip("/"))
    if not any(f"{part.netloc}{part.path}" in f"{seen.netloc}{seen.path}" for part in wanted):
        return False
    given = parse_qs(seen.query)
    choices: dict[str, set[str]] = {}
    for part in wanted:
        for name, values in parse_qs(part.query).items():
            choices.setdefault(name, set()).update(values)
    return all(values & set(given.get(name, ())) for name, values in choices.items())


def contents_match(required: Mapping[str, Any], content: str) -> bool:
    """Whether what a page shows is what it must be."""
    if "exact_match" in required:
        return exact_match(required["exact_match"], content)
    wanted: Iterable[str] = required["must_include"]
    return all(any(must_include(choice, content) for choice in text.split(_OR)) for text in wanted)


def _clean(text: str) -> str:
    text = text.strip()
    for quote in "'\"":
        if len(text) > 1 and text.startswith(quote) and text.endswith(quote):
            return text[1:-1].lower()
    return text.lower()
