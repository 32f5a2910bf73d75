# SPDX-License-Identifier: Apache-2.0
"""What in a result belongs to the run and not to its outcome: times, ids, measurements.

An env declares such places as dotted paths, `observation.clock` or `info.calls.*.id`, each with a kind:

- `unix_s`, `unix_ns`, `iso_time`: the present time when a stored result is given out;
- `call_id`: the id of the caller's call, or a new one;
- `action`: the action as the caller wrote it, which may be another spelling of the same call;
- `pixels`: a screen; two that nobody could tell apart are equal (browsers do not draw the same to the last bit);
- `keep`: given out as it was stored, but never compared (a caret that blinks, a measured length);
- `drop`: taken out of every result, stored or fresh.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Final, Literal, get_args

import numpy as np

from bunshin_gym.cache.store.codec import fingerprint
from bunshin_gym.errors import UsageError
from bunshin_gym.types import ToolResult

__all__ = ["StampKind", "Stamps", "pixels_agree"]

StampKind = Literal["unix_s", "unix_ns", "iso_time", "call_id", "action", "pixels", "keep", "drop"]

_MISSING: Final = object()
_LEVELS: Final = 8
"""By how much of 255 a pixel may differ and still look the same."""


def pixels_agree(one: Any, other: Any) -> bool:
    """Whether two screens of 8-bit pixels look the same; anything else must be equal."""
    if not (isinstance(one, np.ndarray) and isinstance(other, np.ndarray)) or one.dtype != np.uint8:
        return fingerprint(one) == fingerprint(other)
    if one.shape != other.shape or other.dtype != np.uint8:
        return False
    if np.array_equal(one, other):
        return True
    return int(np.abs(one.astype(np.int16) - other.astype(np.int16)).max()) <= _LEVELS


class Stamps:
    """The declared places of one env."""

    def __init__(self, paths: Mapping[str, StampKind] | None = None) -> None:
        """Raises UsageError for a path that begins with neither `observation.` nor `info.`, or an unknown kind."""
        self._paths: list[tuple[tuple[str, ...], StampKind]] = []
        for path, kind in (paths or {}).items():
            parts = tuple(path.split("."))
            if parts[0] not in ("observation", "info") or len(parts) < 2 or "" in parts:
                raise UsageError(f"stamp {path!r} must begin with 'observation.' or 'info.'")
            if kind not in get_args(StampKind):
                raise UsageError(f"stamp {path!r}: kind {kind!r} is none of {get_args(StampKind)}")
            self._paths.append((parts, kind))

    def to_store(self, result: ToolResult) -> ToolResult:
        """The result without what is declared `drop`."""
        return self._changed(result, [(p, _drop) for p, kind in self._paths if kind == "drop"])

    def to_caller(self, result: ToolResult, *, call_id: str | None, action: str | None) -> ToolResult:
        """A stored result with the present time, the caller's id and the caller's words in it."""
        makers: dict[StampKind, Callable[[Any], Any]] = {
            "unix_s": lambda _: time.time(),
            "unix_ns": lambda _: time.time_ns(),
            "iso_time": lambda _: datetime.now(UTC).isoformat(),
            "call_id": lambda _: uuid.uuid4().hex if call_id is None else call_id,
            "action": lambda stored: stored if action is None else action,
        }
        return self._changed(result, [(p, makers[kind]) for p, kind in self._paths if kind in makers])

    def unstored(self, result: ToolResult, action: str | None) -> ToolResult:
        """A fresh result as a stored one would look: without what is declared `drop`, in the caller's words."""
        result = self.to_store(result)
        if action is None:
            return result
        return self._changed(result, [(p, lambda _: action) for p, kind in self._paths if kind == "action"])

    def outcome(self, result: ToolResult) -> bytes:
        """A digest of what two runs of one call must agree in: all but the info and the declared places.

        Screens are compared by `screens_agree`.

        Raises:
            UsageError: the observation holds what cannot be stored.
        """
        changes = [(p, _drop) for p, _ in self._paths if p[0] == "observation"]
        bare = self._changed(result, changes)
        return fingerprint([bare.observation, float(bare.reward), bool(bare.terminated), bool(bare.truncated)])

    @property
    def has_screens(self) -> bool:
        """Whether there are places to be compared by `screens_agree`."""
        return any(kind == "pixels" for _, kind in self._paths)

    def screens_agree(self, one: ToolResult, other: ToolResult) -> bool:
        """Whether the declared screens of two results look the same."""
        places = [path for path, kind in self._paths if kind == "pixels"]
        return all(
            len(old) == len(new) and all(map(pixels_agree, old, new))
            for old, new in ((self._found(one, path), self._found(other, path)) for path in places)
        )

    @staticmethod
    def _found(result: ToolResult, path: tuple[str, ...]) -> list[Any]:
        """What is at a place, which may be several."""
        found: list[Any] = []

        def note(value: Any) -> Any:
            found.append(value)
            return value

        _at(result.observation if path[0] == "observation" else result.info, path[1:], note)
        return found

    @staticmethod
    def _changed(result: ToolResult, changes: Iterable[tuple[tuple[str, ...], Callable[[Any], Any]]]) -> ToolResult:
        parts = {"observation": result.observation, "info": result.info}
        for path, change in changes:
            parts[path[0]] = _at(parts[path[0]], path[1:], change)
        return replace(result, observation=parts["observation"], info=parts["info"])


def _drop(_: Any) -> Any:
    return _MISSING


def _at(value: Any, path: tuple[str, ...], change: Callable[[Any], Any]) -> Any:
    """The value with the change made at the path; shares what is untouched; absent places stay absent."""
    if not path:
        return change(value)
    if isinstance(value, Mapping):
        keys = list(value) if path[0] == "*" else [key for key in value if str(key) == path[0]]
        changed = {**value, **{key: _at(value[key], path[1:], change) for key in keys}}
        return {key: item for key, item in changed.items() if item is not _MISSING}
    if isinstance(value, list | tuple):
        items = [_at(item, path[1:], change) if path[0] in ("*", str(i)) else item for i, item in enumerate(value)]
        kept = [item for item in items if item is not _MISSING]
        return kept if isinstance(value, list) else tuple(kept)
    return value
