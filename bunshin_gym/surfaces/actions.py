# SPDX-License-Identifier: Apache-2.0
"""Actions as text: function calls with literal arguments, read by `ast` and never evaluated."""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from bunshin_gym.surfaces.base import ActionError
from bunshin_gym.types import ToolCall, ToolEffect

__all__ = ["MODIFIERS", "REQUIRED", "Param", "Tool", "parse_actions", "render_call"]

REQUIRED: Final = object()
"""Default of a parameter that has none."""

_CALLS_MAX: Final = 64
_TEXT_MAX: Final = 1 << 20
MODIFIERS: Final = ("Alt", "Control", "ControlOrMeta", "Meta", "Shift")
"""Keys that can be held during a click."""


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError("a string")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise TypeError("a string without lone surrogates") from None
    return value


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise TypeError("a number")
    return float(value)


def _integer(value: object) -> int:
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or abs(value) >= 1 << 31:
        raise TypeError("an integer")
    return value


def _flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise TypeError("True or False")
    return value


def _texts(value: object) -> str | list[str]:
    if isinstance(value, list | tuple):
        return [_text(item) for item in value]
    return _text(value)


def _button(value: object) -> str:
    if value not in ("left", "middle", "right"):
        raise TypeError("'left', 'middle' or 'right'")
    return str(value)


def _modifiers(value: object) -> list[str]:
    if not isinstance(value, list | tuple) or any(item not in MODIFIERS for item in value):
        raise TypeError(f"a list of {', '.join(MODIFIERS)}")
    return list(value)


_READERS: Final[Mapping[str, Callable[[object], Any]]] = {
    "str": _text,
    "float": _number,
    "int": _integer,
    "bool": _flag,
    "str | list[str]": _texts,
    "button": _button,
    "modifiers": _modifiers,
}

_KIND_TEXTS: Final = {"button": "'left' | 'middle' | 'right'", "modifiers": f"list of {' | '.join(MODIFIERS)}"}


@dataclass(frozen=True, slots=True)
class Param:
    """One parameter of a tool: its name, its kind (a key of the readers) and its default."""

    name: str
    kind: str
    default: Any = REQUIRED

    def __str__(self) -> str:
        kind = _KIND_TEXTS.get(self.kind, self.kind)
        default = "" if self.default is REQUIRED else f" = {self.default!r}"
        return f"{self.name}: {kind}{default}"


@dataclass(frozen=True, slots=True)
class Tool:
    """One tool: its name, its parameters in order, and what it does in one sentence."""

    name: str
    params: tuple[Param, ...]
    summary: str
    effect: ToolEffect = field(default="deterministic", kw_only=True)

    def __str__(self) -> str:
        return f"{self.name}({', '.join(map(str, self.params))}): {self.summary}"

    def bind(self, positional: Sequence[object], named: Mapping[str, object]) -> dict[str, Any]:
        """Returns all arguments by name, checked, defaults filled in, in the tool's order.

        Raises:
            ActionError: one is missing, unknown, given twice or of the wrong kind.
        """
        if len(positional) > len(self.params):
            raise ActionError(f"{self.name} takes {len(self.params)} arguments, not {len(positional)}")
        names = [param.name for param in self.params]
        given = dict(zip(names, positional, strict=False))
        for name, value in named.items():
            if name not in names:
                raise ActionError(f"{self.name} has no argument {name!r}; it is {self}")
            if name in given:
                raise ActionError(f"{self.name}: argument {name!r} is given twice")
            given[name] = value
        return {param.name: self._read(param, given.get(param.name, param.default)) for param in self.params}

    def _read(self, param: Param, value: object) -> Any:
        if value is REQUIRED:
            raise ActionError(f"{self.name}: argument {param.name!r} is missing; it is {self}")
        try:
            return _READERS[param.kind](value)
        except TypeError as error:
            raise ActionError(f"{self.name}: argument {param.name!r} must be {error}, not {value!r}") from None


def render_call(call: ToolCall) -> str:
    """Writes a call as text that parses to the same call."""
    return f"{call.name}({', '.join(f'{name}={value!r}' for name, value in call.args.items())})"


def parse_actions(action: object, tools: Mapping[str, Tool]) -> tuple[ToolCall, ...]:
    """Reads an action in any of its forms.

    Args:
        action: text with one or more calls, a line each; a `ToolCall`; a mapping with the keys
            `name` and `args`; or a list of the latter two.
        tools: the tools there are.

    Raises:
        ActionError: it is none of these; nothing was run.
    """
    if isinstance(action, str):
        calls = _parse_text(action, tools)
    elif isinstance(action, list | tuple):
        calls = tuple(_read_call(item, tools) for item in action)
    else:
        calls = (_read_call(action, tools),)
    if not calls:
        raise ActionError("the action is empty; noop(0) does nothing")
    if len(calls) > _CALLS_MAX:
        raise ActionError(f"{len(calls)} calls in one action; {_CALLS_MAX} is the most")
    return calls


def _find(name: object, tools: Mapping[str, Tool]) -> Tool:
    tool = tools.get(name) if isinstance(name, str) else None
    if tool is None:
        raise ActionError(f"unknown action {name!r}; there are {', '.join(tools)}")
    return tool


def _read_call(item: object, tools: Mapping[str, Tool]) -> ToolCall:
    if isinstance(item, ToolCall):
        name, args = item.name, item.args
    elif isinstance(item, Mapping) and set(item) <= {"name", "args"} and "name" in item:
        name, args = item["name"], item.get("args", {})
    else:
        raise ActionError(f"an action is text, a ToolCall or a mapping with name and args, not {type(item).__name__}")
    if not isinstance(args, Mapping):
        raise ActionError(f"args must be a mapping, not {type(args).__name__}")
    tool = _find(name, tools)
    return ToolCall(name=tool.name, args=tool.bind((), args))


def _parse_text(text: str, tools: Mapping[str, Tool]) -> tuple[ToolCall, ...]:
    if len(text) > _TEXT_MAX:
        raise ActionError(f"the action has {len(text)} characters; {_TEXT_MAX} is the most")
    try:
        tree = ast.parse(text.strip())
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        reason = error.msg if isinstance(error, SyntaxError) else str(error) or type(error).__name__
        raise ActionError(f"cannot read the action as function calls: {reason}") from None
    return tuple(_read_statement(statement, tools) for statement in tree.body)


def _read_statement(statement: ast.stmt, tools: Mapping[str, Tool]) -> ToolCall:
    node = statement.value if isinstance(statement, ast.Expr) else None
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
        raise ActionError(f"line {statement.lineno} is no call such as click('12')")
    tool = _find(node.func.id, tools)
    positional = [_literal(tool, arg) for arg in node.args]
    named: dict[str, object] = {}
    for keyword in node.keywords:
        if keyword.arg is None:
            raise ActionError(f"{tool.name}: ** is not allowed")
        named[keyword.arg] = _literal(tool, keyword.value)
    return ToolCall(name=tool.name, args=tool.bind(positional, named))


def _literal(tool: Tool, node: ast.expr) -> object:
    try:
        value: object = ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        raise ActionError(f"{tool.name}: arguments must be plain values, not expressions") from None
    return value
