# SPDX-License-Identifier: Apache-2.0
"""An env as the tree, the cache and the speculation see it."""

from __future__ import annotations

from typing import Self

from bunshin_gym.envs import BunshinEnv
from bunshin_gym.types import ToolCall, ToolResult

__all__ = ["ForkableEnv"]


class ForkableEnv:
    """A reset `BunshinEnv` as the `Forkable` that the tree, the cache and the speculation take."""

    def __init__(self, env: BunshinEnv) -> None:
        self.env = env

    def fork(self) -> Self:
        """A branch of the env."""
        return type(self)(self.env.fork(1)[0])

    def run(self, call: ToolCall) -> ToolResult:
        """One step."""
        observation, reward, terminated, truncated, info = self.env.step(call)
        return ToolResult(observation=observation, reward=reward, terminated=terminated, truncated=truncated, info=info)

    def close(self) -> None:
        """Closes the env."""
        self.env.close()
