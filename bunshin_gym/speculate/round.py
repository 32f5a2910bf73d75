# SPDX-License-Identifier: Apache-2.0
"""What belongs to one state in which an agent thinks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from bunshin_gym.speculate.guess import Guess
from bunshin_gym.speculate.seat import Seat
from bunshin_gym.speculate.state import Prediction, State
from bunshin_gym.types import Forkable

__all__ = ["Round"]

F = TypeVar("F", bound=Forkable)


@dataclass(slots=True)
class Round(Generic[F]):
    """The guesses made in one state, from when the agent begins to think until its call comes."""

    state: State
    seat: Seat[F]
    began_ns: int
    guesses: list[Guess[F]]
    predictions: Sequence[Prediction] = ()
