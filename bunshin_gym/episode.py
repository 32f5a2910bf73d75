# SPDX-License-Identifier: Apache-2.0
"""An episode's state on the host's side, and what its steps cost."""

from __future__ import annotations

from dataclasses import dataclass, field

from bunshin_gym.tasks.base import Message, Setup
from bunshin_gym.types import ForkStats

__all__ = ["Measured", "Run"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What a reset, a step or a fork cost. Two of them always compare equal.

    So infos that differ only in what was measured are equal, as Gymnasium's checker wants of a
    deterministic env.

    Attributes:
        total_ns: all of the call.
        tool_ns: the tool calls in the workspace.
        look_ns: taking the observation.
        frozen_ns: how long the source of this branch stood still, in the fork that made it.
        snapshot: that fork's snapshot.
        branch: the making of this workspace from it.
        unique_bytes: memory that only this workspace has, if memory was measured.
        shared_bytes: memory that others have too, counted whole, if memory was measured.
    """

    total_ns: int = field(default=0, compare=False)
    tool_ns: int = field(default=0, compare=False)
    look_ns: int = field(default=0, compare=False)
    frozen_ns: int = field(default=0, compare=False)
    snapshot: ForkStats | None = field(default=None, compare=False)
    branch: ForkStats | None = field(default=None, compare=False)
    unique_bytes: int | None = field(default=None, compare=False)
    shared_bytes: int | None = field(default=None, compare=False)


@dataclass(slots=True)
class Run:
    """An episode's state on this side; a fork copies it."""

    setup: Setup
    started_ns: int
    messages: tuple[Message, ...] = ()
    last_action: str = ""
    last_error: str = ""
    steps: int = 0
    forks: int = 0
    done: bool = False
    reward: float = 0.0
