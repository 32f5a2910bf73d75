# SPDX-License-Identifier: Apache-2.0
"""Envs and their snapshots as the snapshot tree wants them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Self, cast

import gymnasium

from bunshin_gym.cache.snapshots import SnapshotHandle
from bunshin_gym.errors import WorkspaceDied
from bunshin_gym.speculate.env_workspace import EnvSnapshotHandle, EnvWorkspace
from bunshin_gym.types import Forkable, ToolCall, ToolResult

__all__ = ["EnvState", "HomeState", "handle_of", "offered"]

AnyEnv = gymnasium.Env[Any, Any]


class _DurableEnvSnapshot(EnvSnapshotHandle):
    """One that can go to disk."""

    def persist(self, path: Path) -> None:
        self._held.persist(path)


def handle_of(held: Any) -> EnvSnapshotHandle:
    """A snapshot that an env took or read, with what it offers."""
    kind = _DurableEnvSnapshot if callable(getattr(held, "persist", None)) else EnvSnapshotHandle
    return kind(held, EnvState)


class _ForkedSnapshot:
    """A snapshot of an env that can but fork: a branch that is never stepped."""

    def __init__(self, held: EnvState) -> None:
        self._held = held

    @property
    def unique_bytes(self) -> int:
        return self._held.unique_bytes

    def branch(self) -> Forkable:
        return self._held.fork()

    def close(self) -> None:
        self._held.close()


class EnvState(EnvWorkspace):
    """An env in the middle of an episode."""

    def fork(self) -> Self:
        return EnvState(self._forked())  # type: ignore[return-value]

    def snapshot(self) -> SnapshotHandle:
        take = getattr(self.env, "snapshot", None)
        return handle_of(take()) if callable(take) else _ForkedSnapshot(self.fork())

    def look(self) -> Any:
        observe = offered(self.env, "observe")
        return None if observe is None else observe()

    def state_digest(self) -> bytes | None:
        digest = offered(self.env, "state_digest")
        return None if digest is None else digest()


def offered(env: AnyEnv, name: str) -> Callable[..., Any] | None:
    """A method of the env, or else of the one inside its wrappers."""
    for owner in (env, env.unwrapped):
        method = getattr(owner, name, None)
        if callable(method):
            return cast("Callable[..., Any]", method)
    return None


class HomeState(EnvState):
    """The env that the wrapper was given: lent to one attempt at a time, and reset for the next."""

    def __init__(self, env: AnyEnv, loans: list[int]) -> None:
        super().__init__(env)
        self._loans = loans
        loans[0] += 1
        self._loan = loans[0]

    def run(self, call: ToolCall) -> ToolResult:
        if self._loan != self._loans[0]:
            raise WorkspaceDied("the env was reset meanwhile, for another start of this attempt")
        return super().run(call)

    def close(self) -> None:
        if self._loan == self._loans[0]:
            super().close()
