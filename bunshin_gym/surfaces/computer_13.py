# SPDX-License-Identifier: Apache-2.0
"""OSWorld's action space `computer_13`: thirteen kinds of action as mappings, turned into pyautogui source."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Final

from bunshin_gym.surfaces.base import ActionError

__all__ = ["ACTION_TYPES", "to_source"]

_BUTTONS: Final = ("left", "right", "middle")
_Args = Mapping[str, Any]


def _number(args: _Args, name: str) -> int | float:
    value = args[name]
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ActionError(f"{name} must be a number, not {value!r}")
    return value


def _text(args: _Args, name: str) -> str:
    if not isinstance(args[name], str):
        raise ActionError(f"{name} must be a string, not {args[name]!r}")
    return str(args[name])


def _button(args: _Args) -> str:
    if args["button"] not in _BUTTONS:
        raise ActionError(f"button must be one of {_BUTTONS}, not {args['button']!r}")
    return f"button={args['button']!r}"


def _place(args: _Args) -> list[str]:
    """x and y, if they are given; both or none."""
    if ("x" in args) != ("y" in args):
        raise ActionError("x and y belong together")
    return [f"{name}={_number(args, name)!r}" for name in ("x", "y") if name in args]


def _move(function: str, extra: str = "") -> Callable[[_Args], str]:
    def build(args: _Args) -> str:
        return f"pyautogui.{function}({', '.join([*_place(args), *([extra] if extra else [])])})"

    return build


def _click(args: _Args) -> str:
    parts = [_button(args)] if "button" in args else []
    clicks = [f"clicks={int(_number(args, 'num_clicks'))}"] if "num_clicks" in args else []
    return f"pyautogui.click({', '.join([*parts, *_place(args), *clicks])})"


def _press_button(function: str) -> Callable[[_Args], str]:
    return lambda args: f"pyautogui.{function}({_button(args) if 'button' in args else ''})"


def _scroll(args: _Args) -> str:
    if not {"dx", "dy"} & set(args):
        raise ActionError("SCROLL needs dx, dy or both")
    names = {"dx": "hscroll", "dy": "vscroll"}
    return "\n".join(f"pyautogui.{names[n]}({int(_number(args, n))})" for n in ("dx", "dy") if n in args)


def _key(function: str) -> Callable[[_Args], str]:
    return lambda args: f"pyautogui.{function}({_text(args, 'key').lower()!r})"


def _hotkey(args: _Args) -> str:
    keys = args["keys"]
    if not isinstance(keys, list | tuple) or not all(isinstance(key, str) for key in keys):
        raise ActionError(f"keys must be a list of strings, not {keys!r}")
    return f"pyautogui.hotkey({', '.join(repr(key.lower()) for key in keys)})"


_BUILDERS: Final[Mapping[str, tuple[frozenset[str], frozenset[str], Callable[[_Args], str]]]] = {
    # name: arguments it needs, arguments it may have, how it is written
    "MOVE_TO": (frozenset({"x", "y"}), frozenset(), _move("moveTo")),
    "CLICK": (frozenset(), frozenset({"button", "x", "y", "num_clicks"}), _click),
    "MOUSE_DOWN": (frozenset(), frozenset({"button"}), _press_button("mouseDown")),
    "MOUSE_UP": (frozenset(), frozenset({"button"}), _press_button("mouseUp")),
    "RIGHT_CLICK": (frozenset(), frozenset({"x", "y"}), _move("rightClick")),
    "DOUBLE_CLICK": (frozenset(), frozenset({"x", "y"}), _move("doubleClick")),
    "DRAG_TO": (frozenset({"x", "y"}), frozenset(), _move("dragTo", "duration=1.0, button='left', mouseDownUp=True")),
    "SCROLL": (frozenset(), frozenset({"dx", "dy"}), _scroll),
    "TYPING": (frozenset({"text"}), frozenset(), lambda args: f"pyautogui.typewrite({_text(args, 'text')!r})"),
    "PRESS": (frozenset({"key"}), frozenset(), _key("press")),
    "KEY_DOWN": (frozenset({"key"}), frozenset(), _key("keyDown")),
    "KEY_UP": (frozenset({"key"}), frozenset(), _key("keyUp")),
    "HOTKEY": (frozenset({"keys"}), frozenset(), _hotkey),
}
_WORDS: Final = ("WAIT", "FAIL", "DONE")

ACTION_TYPES: Final = (*_BUILDERS, *_WORDS)
"""Every kind of action there is."""


def to_source(action: Mapping[str, Any]) -> str:
    """Writes an action as pyautogui source, or as the word it is.

    Args:
        action: `action_type`, with its parameters beside it or under `parameters`.

    Raises:
        ActionError: there is no such kind of action, or its parameters do not fit.
    """
    kind = action["action_type"]
    if kind in _WORDS:
        return str(kind)
    if kind not in _BUILDERS:
        raise ActionError(f"action_type {kind!r} is none of {', '.join(ACTION_TYPES)}")
    args = action.get("parameters", {name: value for name, value in action.items() if name != "action_type"})
    if not isinstance(args, Mapping):
        raise ActionError(f"{kind}: parameters must be a mapping, not {type(args).__name__}")
    needed, allowed, build = _BUILDERS[kind]
    missing, unknown = needed - set(args), set(args) - needed - allowed
    if missing or unknown:
        problem = f"lacks {sorted(missing)}" if missing else f"has no parameter {sorted(unknown)}"
        raise ActionError(f"{kind} {problem}")
    return build(args)
