# SPDX-License-Identifier: Apache-2.0
"""An env's state, kept for branches to be made of it later; and what decides how a task starts."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from bunshin_gym.cache.keys import Context
from bunshin_gym.cache.stamps import StampKind
from bunshin_gym.guest import Guest, GuestSnapshot

if TYPE_CHECKING:
    from bunshin_gym.envs import BunshinEnv

__all__ = ["STAMPS", "EnvSnapshot", "context_of"]


STAMPS: Final[Mapping[str, StampKind]] = MappingProxyType(
    {
        "observation.screenshot": "pixels",
        "observation.last_action": "action",
        "observation.elapsed_time": "keep",
        "info.measured": "drop",
    }
)
"""Places in observations and infos that tell of the run, not of what came of it."""


class EnvSnapshot:
    """A workspace's snapshot with the episode's state on this side; use it from any thread."""

    def __init__(
        self,
        guest: GuestSnapshot,
        memory: BunshinEnv,
        adopt: Callable[[BunshinEnv, Guest], BunshinEnv],
    ) -> None:
        """Owns both; `memory` has no workspace, and `adopt` makes an env like it around one."""
        self._guest, self._memory, self._adopt = guest, memory, adopt

    @property
    def unique_bytes(self) -> int:
        """What it takes beside what it shares."""
        return self._guest.unique_bytes

    def branch(self) -> BunshinEnv:
        """An env that goes on from here; the caller closes it."""
        guest = self._guest.branch()
        try:
            return self._adopt(self._memory, guest)
        except BaseException:
            guest.close()
            raise

    def close(self) -> None:
        """Gives it up; branches live on. Idempotent."""
        self._guest.close()


def context_of(env: BunshinEnv, image_digest: str, task_seed: int) -> Context:
    """All that decides an episode's first observation."""
    return Context(
        image=image_digest,
        task=env.task.id,
        params={"code": _code_digest((type(env.task), type(env.surface), type(env)))},
        seed=task_seed,
        options={
            "screen": [env.screen.width, env.screen.height],
            "keys": sorted(env.observation_space.spaces),  # type: ignore[attr-defined]
        },
    )


@cache
def _code_digest(classes: tuple[type[object], ...]) -> str:
    """Of the source files of these classes and their bases: other code may start another episode."""
    files = {inspect.getfile(base) for one in classes for base in one.__mro__ if base.__module__ != "builtins"}
    digest = hashlib.sha256()
    for file in sorted(files):
        digest.update(Path(file).read_bytes())
    return digest.hexdigest()[:16]
