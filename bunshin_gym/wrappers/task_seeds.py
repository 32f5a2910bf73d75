# SPDX-License-Identifier: Apache-2.0
"""Draws the seeds of a task's episodes from a given few: a training set, whose episodes can be stored and reused."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium

from bunshin_gym.errors import UsageError

__all__ = ["TaskSeeds"]


class TaskSeeds(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Each reset takes one of the seeds, drawn by this wrapper's `np_random`, unless its options name one.

    Args:
        env: an env that takes the option `task_seed`.
        seeds: which there are.
    """

    def __init__(self, env: gymnasium.Env[Any, Any], seeds: Sequence[int]) -> None:
        if not seeds:
            raise UsageError("there must be a seed to draw")
        super().__init__(env)
        self.seeds = tuple(seeds)
        self._draws, _ = gymnasium.utils.seeding.np_random()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begins an episode of a drawn seed."""
        if seed is not None:
            self._draws, _ = gymnasium.utils.seeding.np_random(seed)
        drawn = self.seeds[int(self._draws.integers(len(self.seeds)))]
        return self.env.reset(seed=seed, options={"task_seed": drawn, **(options or {})})
