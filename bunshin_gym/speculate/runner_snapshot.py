# SPDX-License-Identifier: Apache-2.0
"""A snapshot of an attempt."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from bunshin_gym.types import Forkable

if TYPE_CHECKING:
    from bunshin_gym.speculate.runner import SpeculativeRunner

__all__ = ["RunnerSnapshot"]

F = TypeVar("F", bound=Forkable)


class RunnerSnapshot(Generic[F]):
    """A snapshot of an attempt: of its workspace, with what the predictor knows."""

    def __init__(self, held: Any, frozen: F | None, make: Callable[[F, bool], SpeculativeRunner[F]]) -> None:
        self._held, self._frozen, self._make = held, frozen, make

    @property
    def unique_bytes(self) -> int:
        """What it takes beside what it shares; 0 when that is not known."""
        return int(getattr(self._held if self._frozen is None else self._frozen, "unique_bytes", 0))

    def branch(self) -> SpeculativeRunner[F]:
        """An attempt that goes on from here; the caller closes it."""
        return self._make(self._plain(), False)

    def branch_confined(self) -> SpeculativeRunner[F]:
        """One that nobody waits for: it is confined as far as the workspace can be, and guesses nothing yet."""
        confined = getattr(self._held, "branch_confined", None)
        return self._make(self._plain() if confined is None else confined(), True)

    def hurry(self) -> None:
        """Somebody waits now for those that are being made."""
        hurry = getattr(self._held, "hurry", None)
        if hurry is not None:
            hurry()

    def close(self) -> None:
        """Gives it up; branches live on."""
        (self._held if self._frozen is None else self._frozen).close()

    def _plain(self) -> F:
        branch: F = self._held.branch() if self._frozen is None else self._frozen.fork()
        return branch
