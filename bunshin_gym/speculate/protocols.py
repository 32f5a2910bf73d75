# SPDX-License-Identifier: Apache-2.0
"""What speculation asks of a predictor, and what a workspace may offer beyond `Forkable`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

from bunshin_gym.speculate.state import Attempt, Prediction, State
from bunshin_gym.types import ToolCall

__all__ = ["Abortable", "Confinable", "Foreknowing", "Measurable", "Predictor", "Snapshotting"]


class Predictor(Protocol):
    """Proposes the next call; both methods may be called from any thread at any time."""

    def predict(self, state: State, *, k: int = 3) -> Sequence[Prediction]:
        """At most k different calls, the likeliest first."""
        ...

    def learn(self, attempt: Attempt) -> None:
        """Takes a finished attempt into account."""
        ...


@runtime_checkable
class Confinable(Protocol):
    """A workspace that can be shut in while it runs a guess."""

    def confine(self) -> None:
        """Cuts it off from everything outside and lowers its CPU and IO weight; before any call."""
        ...

    def hurry(self) -> None:
        """Gives CPU and IO weight back, the rest not yet: the agent waits for the call that runs."""
        ...

    def unconfine(self) -> None:
        """Gives it all that its source has: the guess was right, it is the real one now."""
        ...

    def tried_to_leave(self) -> bool:
        """Whether something in it tried to reach the outside since it was confined."""
        ...


@runtime_checkable
class Abortable(Protocol):
    """A workspace whose running call can be ended from another thread."""

    def abort(self) -> None:
        """Ends the call now: `run` raises, and only `close` is useful after. Harmless when no
        call runs, and when the workspace is closed."""
        ...


@runtime_checkable
class Foreknowing(Protocol):
    """A workspace, such as a cached one, that knows some results without running the call."""

    def known(self, call: ToolCall) -> bool:
        """Whether `run` would return a stored result now."""
        ...


@runtime_checkable
class Measurable(Protocol):
    """A workspace that knows what it takes."""

    @property
    def unique_bytes(self) -> int:
        """Memory that it owns alone."""
        ...


@runtime_checkable
class Snapshotting(Protocol):
    """A workspace whose forks come in two parts: a snapshot, which it waits for, and branches."""

    def snapshot(self) -> Any:
        """Its state now, with `branch()` (from any thread) and `close()`; None where it can but fork.

        With `branch_confined()` too, where a branch can be confined before anything runs in it.
        """
        ...
