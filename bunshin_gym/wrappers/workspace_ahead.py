# SPDX-License-Identifier: Apache-2.0
"""Makes the next episode's workspace while the agent is busy with this one."""

from __future__ import annotations

import copy
from typing import Any

import gymnasium

from bunshin_gym.env_guests import EnvGuests
from bunshin_gym.errors import UsageError, WorkspaceDied
from bunshin_gym.vector.admission import shared_admission
from bunshin_gym.vector.nursery import Nursery

__all__ = ["WorkspaceAhead"]


class WorkspaceAhead(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Keeps one workspace ready for the next reset, and ends the used one behind it.

    A reset then costs what the task does with its seed, and the first look. The spare takes memory, as `bunshin ps`
    shows, and processor time while the agent thinks; `BunshinVectorEnv(spares=...)` does the same for a batch.

    Args:
        env: the env, with a `BunshinEnv` inside.

    Raises:
        UsageError: there is none inside.
    """

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        inner = env.unwrapped
        if not isinstance(inner, EnvGuests):
            raise UsageError(f"WorkspaceAhead needs a BunshinEnv inside, not {type(inner).__name__}")
        self._inner = inner
        self._nursery = Nursery(1, shared_admission())
        inner.bury = self._nursery.bury

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Resets in the workspace that was made ahead, if it is ready."""
        self._nursery.pause()
        try:
            spare = self._nursery.take(self._inner)
            if spare is None:
                return self.env.reset(seed=seed, options=options)
            draws = copy.deepcopy(self.env.unwrapped.np_random)
            self._inner.hand(spare)
            try:
                return self.env.reset(seed=seed, options=options)
            except WorkspaceDied:  # it died while it waited: the same episode begins in another one
                self.env.unwrapped.np_random = draws
                return self.env.reset(seed=seed, options=options)
        finally:
            self._nursery.resume()

    def wait_ready(self) -> None:
        """Returns when the next episode's workspace is there and the used ones are gone, or none can be made."""
        self._nursery.wait_idle()

    def close(self) -> None:
        """Closes the env and what was made ahead."""
        self._nursery.close()
        super().close()
