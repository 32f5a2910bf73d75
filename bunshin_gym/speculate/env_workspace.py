# SPDX-License-Identifier: Apache-2.0
"""A Gymnasium env as the workspace that speculation works on.

What an env has to offer: `fork`, as `fork() -> env` or `fork(n) -> list of envs`; and where its
actions are not tool calls, `parse(action) -> calls` or a `surface` that has it. It may offer
`effects`, and everything in `protocols.py`; what it lacks is done without.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, Self

import gymnasium

from bunshin_gym.cache.keys import canonical_json
from bunshin_gym.errors import UsageError
from bunshin_gym.types import ToolCall, ToolEffect, ToolResult

__all__ = ["EnvSnapshotHandle", "EnvWorkspace", "call_of", "effects_of", "find_forkable", "parser_of", "put_in_place"]

_VERBATIM: Final = ""
"""Name of the call that stands for an action which is not one tool call; `action` is its argument."""

AnyEnv = gymnasium.Env[Any, Any]


class EnvWorkspace:
    """Implements `Forkable` and the optional protocols over an env that was reset."""

    def __init__(self, env: AnyEnv) -> None:
        self.env = env

    def fork(self) -> Self:
        """A branch of the env."""
        return type(self)(self._forked())

    def _forked(self) -> AnyEnv:
        fork: Callable[[], Any] = self.env.fork  # type: ignore[attr-defined]
        branches = fork()
        branch: AnyEnv = branches[0] if isinstance(branches, list | tuple) else branches
        return branch

    def snapshot(self) -> Any:
        """A snapshot as the env makes it; None if it does not."""
        held = self._offered("snapshot")
        return None if held is None else EnvSnapshotHandle(held, type(self))

    def run(self, call: ToolCall) -> ToolResult:
        """One step."""
        action: Any = call.args["action"] if call.name == _VERBATIM else call
        observation, reward, terminated, truncated, info = self.env.step(action)
        return ToolResult(
            observation=observation, reward=float(reward), terminated=terminated, truncated=truncated, info=info
        )

    def close(self) -> None:
        """Closes the env."""
        self.env.close()

    def confine(self) -> None:
        """As the env does it, if it does."""
        self._offered("confine")

    def hurry(self) -> None:
        """As the env does it, if it does."""
        self._offered("hurry")

    def unconfine(self) -> None:
        """As the env does it, if it does."""
        self._offered("unconfine")

    def tried_to_leave(self) -> bool:
        """Whether the env says so."""
        return bool(self._offered("tried_to_leave"))

    def abort(self) -> None:
        """As the env does it, if it does; else the call runs to its end."""
        self._offered("abort")

    def known(self, call: ToolCall) -> bool:
        """Whether the env says so."""
        return bool(self._offered("known", call))

    @property
    def unique_bytes(self) -> int:
        """What the env says; 0 when it does not."""
        return int(getattr(self.env, "unique_bytes", 0) or 0)

    def _offered(self, name: str, *args: Any) -> Any:
        method = getattr(self.env, name, None)
        return method(*args) if callable(method) else None


class EnvSnapshotHandle:
    """An env's snapshot, whose branches are workspaces of one kind; at leisure if the env's can be made so."""

    def __init__(self, held: Any, kind: type[EnvWorkspace]) -> None:
        self._held, self._kind = held, kind

    @property
    def unique_bytes(self) -> int:
        """What it takes beside what it shares; 0 when that is not known."""
        return int(getattr(self._held, "unique_bytes", 0) or 0)

    def branch(self) -> EnvWorkspace:
        """Goes on from here; the caller closes it."""
        return self._kind(self._held.branch())

    def branch_confined(self) -> EnvWorkspace:
        """One that nobody waits for."""
        make = getattr(self._held, "branch_confined", None)
        return self._kind(make() if callable(make) else self._held.branch())

    def hurry(self) -> None:
        """Somebody waits now for those that are being made."""
        hurry = getattr(self._held, "hurry", None)
        if callable(hurry):
            hurry()

    def close(self) -> None:
        """Gives it up; branches live on."""
        self._held.close()


def find_forkable(env: AnyEnv) -> tuple[gymnasium.Wrapper[Any, Any, Any, Any] | None, AnyEnv]:
    """The outermost env that can be forked, and the wrapper that holds it if there is one.

    Raises:
        UsageError: none can.
    """
    outer: gymnasium.Wrapper[Any, Any, Any, Any] | None = None
    inner = env
    while not callable(getattr(type(inner), "fork", None)):
        if not isinstance(inner, gymnasium.Wrapper):
            raise UsageError(f"{env} cannot be forked: neither {inner} nor a wrapper of it has fork()")
        outer, inner = inner, inner.env
    return outer, inner


def put_in_place(env: AnyEnv, outer: gymnasium.Wrapper[Any, Any, Any, Any] | None, inner: AnyEnv) -> AnyEnv:
    """The env with another one in the place of that which `find_forkable` found in it, below `outer`."""
    if outer is None:
        return inner
    outer.env = inner
    return env


def parser_of(env: AnyEnv) -> Callable[[Any], tuple[ToolCall, ...]]:
    """How the env reads actions: its own `parse`, its surface's, or tool calls as they are."""
    for owner in (env, env.unwrapped, getattr(env.unwrapped, "surface", None)):
        parse = getattr(owner, "parse", None)
        if callable(parse):
            return lambda action: _as_calls(parse(action))
    return _as_calls


def call_of(action: Any, parse: Callable[[Any], tuple[ToolCall, ...]]) -> ToolCall:
    """The action as one call; one that stands for it verbatim when it is none, or several."""
    try:
        calls = parse(action)
    except ValueError:  # the env says what is wrong with it
        calls = ()
    if len(calls) == 1:
        return calls[0]
    try:
        canonical_json(action)
    except UsageError:
        action = list(calls) if calls else repr(action)
    if calls and not isinstance(action, str):
        action = [{"name": call.name, "args": dict(call.args)} for call in calls]
    return ToolCall(name=_VERBATIM, args={"action": action})


def effects_of(
    env: AnyEnv, effects: Mapping[str, ToolEffect] | None, parse: Callable[[Any], tuple[ToolCall, ...]]
) -> Callable[[ToolCall], ToolEffect]:
    """What running a call again means; a tool that nobody declared is external.

    Raises:
        UsageError: neither the caller nor the env declares anything.
    """
    declared = effects
    for owner in (env, env.unwrapped):
        if declared is None and isinstance(getattr(owner, "effects", None), Mapping):
            declared = owner.effects  # type: ignore[attr-defined]
    if declared is None:
        raise UsageError(f"{env} does not declare its tools' effects: pass effects={{tool name: effect}}")
    known: Mapping[str, ToolEffect] = declared

    def effect(call: ToolCall) -> ToolEffect:
        if call.name != _VERBATIM:
            return known.get(call.name, "external")
        try:
            found = {known.get(part.name, "external") for part in parse(call.args["action"])}
        except ValueError:
            return "deterministic"  # it is refused, and changes nothing
        return "external" if "external" in found else "stochastic" if "stochastic" in found else "deterministic"

    return effect


def _as_calls(action: Any) -> tuple[ToolCall, ...]:
    if isinstance(action, ToolCall):
        return (action,)
    if isinstance(action, Mapping) and isinstance(action.get("name"), str):
        return (ToolCall(name=action["name"], args=dict(action.get("args", {}))),)
    if isinstance(action, list | tuple):
        return tuple(call for item in action for call in _as_calls(item))
    raise ValueError(f"no tool call: {action!r}")
