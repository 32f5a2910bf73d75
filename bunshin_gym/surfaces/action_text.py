# SPDX-License-Identifier: Apache-2.0
"""Action spaces of text whose samples are actions."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import numpy as np

from bunshin_gym.surfaces.base import Screen
from bunshin_gym.surfaces.spaces import Unicode

__all__ = ["ActionText", "random_place", "random_word"]


class ActionText(Unicode):
    """Text for a screen; samples are of the kinds that `samples` names."""

    def __init__(self, screen: Screen, max_length: int, *, seed: int | None = None) -> None:
        super().__init__(max_length, min_length=1, seed=seed)
        self.screen = screen

    def sample(self, mask: Any = None, probability: Any = None) -> str:
        """Returns one random action."""
        if mask is not None or probability is not None:
            return super().sample(mask, probability)
        return str(self.np_random.choice(self.samples(self.np_random)))

    @abstractmethod
    def samples(self, rng: np.random.Generator) -> list[str]:
        """One random action of each kind."""


def random_place(screen: Screen, rng: np.random.Generator) -> tuple[int, int]:
    """A pixel of the screen."""
    return int(rng.integers(screen.width)), int(rng.integers(screen.height))


def random_word(rng: np.random.Generator) -> str:
    """A word of five letters."""
    return "".join(map(chr, rng.integers(97, 123, size=5)))
