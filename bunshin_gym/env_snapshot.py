# SPDX-License-Identifier: Apache-2.0
"""An env's state, kept for branches to be made of it later; and what decides how a task starts."""

from __future__ import annotations

import hashlib
import inspect
import os
import shutil
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from bunshin_gym.bases import shared_bases
from bunshin_gym.cache.keys import Context
from bunshin_gym.cache.stamps import StampKind
from bunshin_gym.env_state import read_state, restore, stored_state, write_state
from bunshin_gym.errors import SnapshotDamaged, UsageError
from bunshin_gym.guest import Guest, GuestSnapshot

if TYPE_CHECKING:
    from bunshin_gym.envs import BunshinEnv

__all__ = ["STAMPS", "EnvSnapshot", "context_of", "load_snapshot"]

_GUEST: Final = "workspace"
_STATE: Final = "episode"


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
        return self._branch(confined=False)

    def branch_confined(self) -> BunshinEnv:
        """The same, confined from the start: its making yields to others too."""
        return self._branch(confined=True)

    def hurry(self) -> None:
        """Somebody waits for the confined branches that are being made: they yield no more."""
        self._guest.hurry()

    def persist(self, path: Path) -> None:
        """Writes it under `path`, which does not exist; returns once all of it is on the disk.

        What a killed writer leaves is refused by `BunshinEnv.load_snapshot`.

        Raises:
            UsageError: the path exists, or its directory does not, or the task's state cannot be stored.
            BunshinError: it cannot be written; nothing is left.
        """
        try:
            path.mkdir()
        except OSError as error:
            raise UsageError(f"path: {path} cannot be made: {error.strerror}") from error
        try:
            self._guest.persist(path / _GUEST)
            write_state(path / _STATE, stored_state(self._memory))
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        except BaseException:
            shutil.rmtree(path, ignore_errors=True)
            raise

    def _branch(self, *, confined: bool) -> BunshinEnv:
        guest = self._guest.branch(confined=confined)
        try:
            return self._adopt(self._memory, guest)
        except BaseException:
            guest.close()
            raise

    def close(self) -> None:
        """Gives it up; branches live on. Idempotent."""
        self._guest.close()


def load_snapshot(like: BunshinEnv, path: Path) -> EnvSnapshot:
    """What `EnvSnapshot.persist` wrote, of `like`'s task or of another that has an id, in memory again.

    Raises:
        SnapshotDamaged: it is not whole, or not what was written.
        BunshinError: it cannot be read for another reason, such as an image that is not here.
    """
    state = read_state(path / _STATE)
    made = dict(state["made"])
    memory = type(like)(
        like.task if like.task.id == state["task"] else state["task"],
        **{**made, "screen": tuple(made["screen"])},
        render_mode=like.render_mode,
        home=like._base_key.home,
        bases=like._bases,
    )
    restore(memory, state)
    pool = like._bases if like._bases is not None else shared_bases()
    try:
        guest = pool.load(memory._base_key, path / _GUEST)
    except FileNotFoundError as error:
        raise SnapshotDamaged(f"{error.filename} is missing") from error
    return EnvSnapshot(guest, memory, type(like)._adopt)


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
