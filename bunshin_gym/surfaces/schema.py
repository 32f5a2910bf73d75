# SPDX-License-Identifier: Apache-2.0
"""Tools as JSON Schema, for models that are given functions to call."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, Final, Literal

from bunshin_gym.surfaces.actions import MODIFIERS, REQUIRED, Param, Tool
from bunshin_gym.surfaces.base import ActionError
from bunshin_gym.types import ToolCall

__all__ = ["SCHEMAS", "Style", "read_tool_call", "tool_definitions"]

Style = Literal["openai", "anthropic", "mcp"]

SCHEMAS: Final[Mapping[str, Mapping[str, Any]]] = MappingProxyType(
    {
        "str": {"type": "string"},
        "float": {"type": "number"},
        "int": {"type": "integer"},
        "bool": {"type": "boolean"},
        "str | list[str]": {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]},
        "list[str]": {"type": "array", "items": {"type": "string"}},
        "button": {"type": "string", "enum": ["left", "middle", "right"]},
        "modifiers": {"type": "array", "items": {"type": "string", "enum": list(MODIFIERS)}},
    }
)
"""Every kind of parameter as a schema; a new kind in `surfaces.actions` needs its line here."""


def _parameter(param: Param) -> dict[str, Any]:
    schema = copy.deepcopy(dict(SCHEMAS[param.kind]))
    if param.default is not REQUIRED:
        schema["default"] = list(param.default) if isinstance(param.default, tuple) else param.default
    return schema


def _parameters(tool: Tool) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {param.name: _parameter(param) for param in tool.params},
        "required": [param.name for param in tool.params if param.default is REQUIRED],
        "additionalProperties": False,
    }


def tool_definitions(tools: Iterable[Tool], *, style: Style = "openai") -> list[dict[str, Any]]:
    """Definitions of tools, as a chat endpoint takes them.

    Args:
        tools: such as `BROWSER_TOOLS.values()`, or some of them.
        style: `openai` for chat completions, `anthropic` for its messages, `mcp` for the Model Context Protocol.
    """
    keys: dict[Style, str] = {"anthropic": "input_schema", "mcp": "inputSchema", "openai": "parameters"}
    found = [{"name": tool.name, "description": tool.summary, keys[style]: _parameters(tool)} for tool in tools]
    if style == "openai":
        return [{"type": "function", "function": definition} for definition in found]
    return found


def read_tool_call(name: str, arguments: str | Mapping[str, Any]) -> ToolCall:
    """A model's call as an action for `step`. Whether tool and arguments exist is for the env to say.

    Raises:
        ActionError: the arguments are no JSON object.
    """
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments or "{}")
        except json.JSONDecodeError as error:
            raise ActionError(f"{name}: the arguments are no JSON: {error}") from None
    if not isinstance(arguments, Mapping):
        raise ActionError(f"{name}: the arguments are no JSON object")
    return ToolCall(name=name, args=dict(arguments))
