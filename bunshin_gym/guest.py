# SPDX-License-Identifier: Apache-2.0
"""What an env needs of a workspace, as one protocol; `WorkspaceGuest` is the real one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, Self

from bunshin_gym.errors import ToolError
from bunshin_gym.tasks.base import Page
from bunshin_gym.types import ForkStats, ToolCall, WorkspaceStats

__all__ = ["Answered", "Guest", "GuestBase", "GuestSnapshot", "Seen"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What the workspace showed after its last call.

    Attributes:
        view: what the tool server saw, as the surface's `observation` takes it.
        error: what went wrong with the last call; empty when nothing did.
        run: how many of the calls were run; the rest was dropped because of the error.
        tool_ns: time spent in the calls.
        look_ns: time spent looking.
        answer: what came of the question that was asked with it, `value` or `error`; None if none was.
    """

    view: Mapping[str, Any]
    error: str = ""
    run: int = 0
    tool_ns: int = 0
    look_ns: int = 0
    answer: Mapping[str, Any] | None = None


class Answered:
    """A page that has answered one question already: that one is not asked again."""

    def __init__(self, page: Page, question: str, answer: Mapping[str, Any]) -> None:
        self._page, self._question, self._answer = page, question, answer
        self.open, self.call, self.execute = page.open, page.call, page.execute

    def evaluate(self, script: str, arg: Any = None) -> Any:
        """See `Page`."""
        if script != self._question or arg is not None:
            return self._page.evaluate(script, arg)
        if "error" in self._answer:
            raise ToolError(self._answer["error"])
        return self._answer["value"]


class Guest(Page, Protocol):
    """A running workspace with a tool server in it."""

    @property
    def branch_stats(self) -> ForkStats | None:
        """What making this workspace cost; None if it was booted."""
        ...

    @property
    def snapshot_stats(self) -> ForkStats | None:
        """What the snapshot cost that it was made from; None if it was booted."""
        ...

    def act(self, calls: Sequence[ToolCall], *, tree: bool = True, question: str = "") -> Seen:
        """Runs calls in order until one fails, then looks; no calls: only looks. Without `tree`, not at that.

        A question is JavaScript that is evaluated in the page while it is looked at.

        Raises:
            WorkspaceDied: the workspace is gone.
            ToolError: the tool server broke.
        """
        ...

    def fork(self, count: int) -> list[Self]:
        """Makes branches of what runs now; this workspace goes on.

        Raises:
            BunshinError: it cannot be forked; it goes on, and no branch is left.
        """
        ...

    def snapshot(self) -> GuestSnapshot:
        """Keeps the state it is in now; it goes on.

        Raises:
            BunshinError: no snapshot can be taken; it goes on, and nothing is left.
        """
        ...

    def stats(self) -> WorkspaceStats:
        """What it takes now."""
        ...

    def reseed(self) -> None:
        """Lets generators of random numbers inside seed themselves anew, where they can be made to."""
        ...

    def confine(self) -> None:
        """Lowers what it gets of CPU and disks, and begins to note whether something in it wants out."""
        ...

    def hurry(self) -> None:
        """Gives back what `confine` took."""
        ...

    def wanted_out(self) -> bool:
        """Whether something in it wanted to reach the outside since `confine`."""
        ...

    def close(self) -> None:
        """Ends it; idempotent."""
        ...


class GuestSnapshot(Protocol):
    """A state of a guest, from which any number of guests are made."""

    @property
    def unique_bytes(self) -> int:
        """Memory and disk that it takes beside what it shares."""
        ...

    def branch(self, *, confined: bool = False) -> Guest:
        """Makes a guest in this state, confined already if wanted; from several threads at once if wanted."""
        ...

    def hurry(self) -> None:
        """Gives confined guests that are being made, in other threads, what `confined` took from them."""
        ...

    def persist(self, path: Path) -> None:
        """Writes it under `path`, which does not exist; returns once all of it is on the disk."""
        ...

    def close(self) -> None:
        """Gives it up; branches live on. Idempotent."""
        ...


class GuestBase(Protocol):
    """A booted workspace's snapshot, from which every episode starts."""

    def branch(self) -> Guest:
        """Makes a fresh workspace of it; from several threads at once if wanted."""
        ...

    def close(self) -> None:
        """Gives the snapshot up; branches live on. Idempotent."""
        ...
