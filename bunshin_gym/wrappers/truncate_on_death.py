# SPDX-License-Identifier: Apache-2.0
"""Lets a batch go on when one of its workspaces dies."""

from __future__ import annotations

import copy
from typing import Any, Final

import gymnasium

from bunshin_gym.errors import ReplayDiverged, UsageError, WorkspaceDied

__all__ = ["TruncateOnDeath"]

_LOST: Final = (WorkspaceDied, ReplayDiverged)


class TruncateOnDeath(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Turns a workspace's death into a truncated step, and its next reset into a new workspace.

    Stock vector envs end the whole run when one env raises. With this around each env, that slot is truncated
    and refilled, and the others go on. The step's info has the reason as `workspace_died`. A workspace that a cache
    inside cannot make again counts as dead.

    Args:
        env: the env.
        reset_attempts: how often a reset is tried before its death is raised.
    """

    def __init__(self, env: gymnasium.Env[Any, Any], *, reset_attempts: int = 3) -> None:
        if reset_attempts < 1:
            raise UsageError(f"reset_attempts is 1 or more, not {reset_attempts}")
        super().__init__(env)
        self._attempts = reset_attempts
        self._last: Any = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Resets; tries again, with the same seed, when the workspace dies meanwhile.

        Raises:
            WorkspaceDied: it died every time.
        """
        for left in reversed(range(self._attempts)):
            try:
                self._last, info = self.env.reset(seed=seed, options=options)
            except _LOST:
                if left == 0:
                    raise
            else:
                return copy.deepcopy(self._last), info
        raise AssertionError("the last attempt returns or raises")

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Steps; when the workspace dies, returns the last observation, truncated."""
        try:
            observation, reward, terminated, truncated, info = self.env.step(action)
        except _LOST as death:
            return copy.deepcopy(self._last), 0.0, False, True, {"workspace_died": str(death)}
        self._last = copy.deepcopy(observation)
        return observation, reward, terminated, truncated, info
