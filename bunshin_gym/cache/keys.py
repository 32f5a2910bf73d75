# SPDX-License-Identifier: Apache-2.0
"""Keys of the tool-sequence cache: contexts, canonical arguments, and digests of sequences.

A key is the digest of a context (image, task, parameters, seed, options that change observations)
and of every tool call since. Each step's digest contains the one before it, so that two sequences
have one key exactly if their contexts and all their calls agree:

    digest(root)  = H(context)
    digest(child) = H(digest(parent), tool name, canonical arguments, sample number)
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

import numpy as np

from bunshin_gym.errors import UsageError
from bunshin_gym.types import ToolCall, ToolEffect

__all__ = ["Context", "ToolSpec", "call_digest", "canonical_json", "specs_from_effects"]

_DIGEST_BYTES: Final = 20
_NOTHING: Final[Mapping[str, Any]] = MappingProxyType({})


def canonical_json(value: Any) -> str:
    """One text for all spellings of one JSON value.

    Keys are sorted; numbers are compared by value (1 and 1.0 are one, 0.0 and -0.0 too); tuples
    are lists; numpy numbers are numbers. Strings are kept code point by code point: typing `é` and
    typing `e` with a combining accent are two calls. `true` is not 1.

    Raises:
        UsageError: the value holds something that JSON cannot, NaN and infinity included; the
            message says where.
    """
    return json.dumps(
        _canonical(value, "arguments"),
        sort_keys=True,
        separators=(",", ":"),
        ensure_ascii=True,
        allow_nan=False,
    )


def _canonical(value: Any, path: str) -> Any:
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        if not math.isfinite(value):
            raise UsageError(f"{path}: {value} is not a JSON number")
        return int(value) if value.is_integer() else value
    if isinstance(value, np.ndarray):
        value = value.tolist()
    if isinstance(value, list | tuple):
        return [_canonical(item, f"{path}[{i}]") for i, item in enumerate(value)]
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise UsageError(f"{path}: the key {key!r} is not a string")
        return {str(key): _canonical(item, f"{path}.{key}") for key, item in value.items()}
    raise UsageError(f"{path}: {type(value).__name__} is not a JSON value")


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolSpec:
    """What the cache has to know of one tool.

    Attributes:
        effect: what running it again means; only deterministic tools are reused by default.
        defaults: arguments that mean the same when they are left out.
        ignored: arguments that do not change what happens, such as a call's id or a comment.
        steps: argument name to step size: values are rounded to its multiples for the key.
            Without an entry, coordinates are exact.
        canonical: last word on the arguments: takes them after the above, returns JSON values.
    """

    effect: ToolEffect = "deterministic"
    defaults: Mapping[str, Any] = field(default_factory=dict)
    ignored: frozenset[str] = frozenset()
    steps: Mapping[str, float] = field(default_factory=dict)
    canonical: Callable[[Mapping[str, Any]], Mapping[str, Any]] | None = None

    def __post_init__(self) -> None:
        for name, step in self.steps.items():
            if not (math.isfinite(step) and step > 0):
                raise UsageError(f"step of {name!r} is {step}; it must be above 0")

    def canonical_args(self, args: Mapping[str, Any]) -> str:
        """The arguments' one spelling.

        Raises:
            UsageError: an argument is no JSON value, or no number where a step is declared.
        """
        kept = {**self.defaults, **args}
        for name in self.ignored:
            kept.pop(name, None)
        for name, step in self.steps.items():
            if name in kept:
                kept[name] = _rounded(name, kept[name], step)
        return canonical_json(kept if self.canonical is None else self.canonical(kept))


def _rounded(name: str, value: Any, step: float) -> int:
    if isinstance(value, bool) or not isinstance(value, int | float | np.number):
        raise UsageError(f"argument {name!r} is {value!r}, not a number")
    if not math.isfinite(value):
        raise UsageError(f"argument {name!r} is {value}, not a JSON number")
    return math.floor(float(value) / step + 0.5)


def specs_from_effects(effects: Mapping[str, ToolEffect]) -> dict[str, ToolSpec]:
    """Specs of tools of which nothing but the effect is declared."""
    return {name: ToolSpec(effect=effect) for name, effect in effects.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """Where a sequence starts: all that decides a fresh workspace's first observation.

    Attributes:
        image: the image's digest.
        task: the task's id.
        params: the task's parameters, JSON values.
        seed: the seed of reset, or None when the start is not seeded (then it is never shared).
        options: env options that change observations: screen size, observation kinds and so on.
    """

    image: str
    task: str
    params: Mapping[str, Any] = field(default_factory=lambda: _NOTHING)
    seed: int | None = None
    options: Mapping[str, Any] = field(default_factory=lambda: _NOTHING)

    def canonical(self) -> str:
        """The context's one spelling; raises UsageError for what is no JSON value."""
        return canonical_json(
            {
                "image": self.image,
                "task": self.task,
                "params": self.params,
                "seed": self.seed,
                "options": self.options,
            }
        )

    def digest(self) -> bytes:
        """The root's key."""
        return _hash(b"context", self.canonical().encode())


def call_digest(parent: bytes, name: str, canonical_args: str, *, sample: int = 0) -> bytes:
    """The key of the sequence that `parent` stands for with one call more.

    Args:
        sample: which outcome of a stochastic call; 0 for a deterministic one.
    """
    return _hash(b"call", parent, name.encode(), canonical_args.encode(), str(sample).encode())


def call_key(call: ToolCall, spec: ToolSpec) -> tuple[str, str]:
    """The call without its place: (tool name, canonical arguments)."""
    return call.name, spec.canonical_args(call.args)


def _hash(*parts: bytes) -> bytes:
    """Each part goes in with its length, so that no two lists of parts look alike."""
    state = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    for part in parts:
        state.update(len(part).to_bytes(8, "big"))
        state.update(part)
    return state.digest()
