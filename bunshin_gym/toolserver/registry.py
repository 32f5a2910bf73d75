# SPDX-License-Identifier: Apache-2.0
"""Tools by name: who answers a call, and whether its arguments fit.

Two kinds. An *action* is what an agent does; that it fails is something the agent has to see, so its
error becomes part of the result. A *function* serves tasks and the env; its error is the caller's.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

__all__ = ["ActionError", "Registry", "Tool", "ToolRefusedError"]

Handler = Callable[..., Awaitable[Any]]
Kind = Literal["action", "function"]


class ToolRefusedError(Exception):
    """The call cannot be made: no such tool, or arguments that do not fit it."""


class ActionError(Exception):
    """An action had no effect, or not the one it should have had; the text is for the agent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """A named handler."""

    name: str
    kind: Kind
    handler: Handler
    signature: inspect.Signature

    def bind(self, args: Mapping[str, Any]) -> Awaitable[Any]:
        """Starts the handler with keyword arguments.

        Raises:
            ToolRefusedError: they do not fit its signature.
        """
        try:
            bound = self.signature.bind(**args)
        except TypeError as error:
            raise ToolRefusedError(f"{self.name}: {error}") from error
        return self.handler(*bound.args, **bound.kwargs)


class Registry:
    """All tools of a server."""

    def __init__(self) -> None:
        self._tools: dict[str, Tool] = {}

    def add(self, kind: Kind, handlers: Mapping[str, Handler]) -> None:
        """Adds handlers of one kind under their names."""
        for name, handler in handlers.items():
            assert name not in self._tools, name
            self._tools[name] = Tool(name=name, kind=kind, handler=handler, signature=inspect.signature(handler))

    def find(self, name: str) -> Tool:
        """The tool of that name.

        Raises:
            ToolRefusedError: there is none.
        """
        tool = self._tools.get(name)
        if tool is None:
            raise ToolRefusedError(f"no tool named {name!r}; there are: {', '.join(sorted(self._tools))}")
        return tool

    def describe(self) -> dict[str, dict[str, str]]:
        """Name to kind and signature, for documentation and checks."""
        return {
            name: {"kind": tool.kind, "signature": str(tool.signature)} for name, tool in sorted(self._tools.items())
        }
