# SPDX-License-Identifier: Apache-2.0
"""What an attempt's guesses came to."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Literal

__all__ = ["Outcome", "Stats"]

Outcome = Literal["hit", "miss", "none"]


@dataclass(slots=True, kw_only=True)
class Stats:
    """Counts and times of one attempt.

    Attributes:
        hits: calls answered by a branch that was adopted.
        misses: calls that ran although there were branches: all guessed wrong, or failed.
        none: calls for which no branch had been made.
        guesses: branches made.
        failed: guesses that raised, ran too long, or tried to leave their workspace.
        saved_ns: time the attempt did not wait.
        wasted_ns: time that discarded branches ran calls for.
        delayed_ns: time that real calls waited before they ran, for a fork to end or a guess to fail.
    """

    hits: int = 0
    misses: int = 0
    none: int = 0
    guesses: int = 0
    failed: int = 0
    saved_ns: int = 0
    wasted_ns: int = 0
    delayed_ns: int = 0

    def count(self, outcome: Outcome, saved_ns: int) -> None:
        """A call was answered."""
        self.hits += outcome == "hit"
        self.misses += outcome == "miss"
        self.none += outcome == "none"
        self.saved_ns += saved_ns

    def add(self, other: Stats) -> None:
        """Adds another attempt's."""
        for field in fields(self):
            setattr(self, field.name, getattr(self, field.name) + getattr(other, field.name))
