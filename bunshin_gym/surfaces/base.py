# SPDX-License-Identifier: Apache-2.0
"""What a surface is: the tools an agent has on a workspace, and what it sees of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from gymnasium import spaces

from bunshin_gym.types import ToolCall, ToolEffect

if TYPE_CHECKING:
    from bunshin_gym.surfaces.actions import Tool

__all__ = ["ActionError", "Episode", "Screen", "Surface"]


class ActionError(ValueError):
    """What the agent sent is no action; the text is for the agent, as `last_action_error`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Screen:
    """Size of a workspace's screen, in pixels."""

    width: int
    height: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Episode:
    """What an observation has that the workspace does not know.

    Attributes:
        goal: what the task asks for.
        last_action: the last action as the agent wrote it.
        last_action_error: why it failed; empty when it did not.
        elapsed_ns: wall time since the reset, or None when it is not to be observed.
    """

    goal: str
    last_action: str = ""
    last_action_error: str = ""
    elapsed_ns: int | None = None


class Surface(Protocol):
    """One way to use a workspace; holds no state."""

    @property
    def name(self) -> str:
        """Its name in options and keys."""
        ...

    @property
    def tree_keys(self) -> tuple[str, ...]:
        """Keys of observations that come from the accessibility tree."""
        ...

    @property
    def effects(self) -> Mapping[str, ToolEffect]:
        """Every tool's name, and what running it again means."""
        ...

    @property
    def tools(self) -> Mapping[str, Tool]:
        """Every tool by its name; `surfaces.schema` makes JSON Schema of them."""
        ...

    def describe(self) -> str:
        """The tools, one a line with its signature, as text for an agent's prompt."""
        ...

    def parse(self, action: object) -> tuple[ToolCall, ...]:
        """Turns an action into calls with canonical arguments: all named, defaults filled in.

        Raises:
            ActionError: it is no action of this surface.
        """
        ...

    def action_space(self, screen: Screen) -> spaces.Space[Any]:
        """Where actions come from; its samples are actions that parse."""
        ...

    def observation_space(self, screen: Screen, *, elapsed_time: bool) -> spaces.Dict:
        """What `observation` returns."""
        ...

    def observation(self, seen: Mapping[str, Any], episode: Episode, screen: Screen) -> dict[str, Any]:
        """Turns what the tool server saw into fresh arrays and texts of the observation space."""
        ...
