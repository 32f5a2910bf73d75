# SPDX-License-Identifier: Apache-2.0
"""Calls into the C core: what goes in as C strings, and what comes out as an exception."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from bunshin_gym._native import ffi
from bunshin_gym.errors import (
    BunshinError,
    CallTimeout,
    ClosedError,
    EngineError,
    PrivilegeError,
    ResourceError,
    SnapshotLost,
    UnsupportedError,
    UsageError,
    WorkspaceDied,
)

__all__ = ["ERRORS", "Arena", "call", "check", "text"]

ERRORS: Final[Mapping[int, type[BunshinError]]] = {
    errno.EINVAL: UsageError,
    errno.ENOENT: UsageError,
    errno.ENOTDIR: UsageError,
    errno.EBUSY: UsageError,
    errno.EOPNOTSUPP: UnsupportedError,
    errno.ENOSYS: UnsupportedError,
    errno.EPERM: PrivilegeError,
    errno.EACCES: PrivilegeError,
    errno.ENOMEM: ResourceError,
    errno.ENOSPC: ResourceError,
    errno.EMFILE: ResourceError,
    errno.ENFILE: ResourceError,
    errno.EAGAIN: ResourceError,
    errno.E2BIG: ResourceError,
    errno.ESRCH: WorkspaceDied,
    errno.ESTALE: ClosedError,
    errno.ETIMEDOUT: CallTimeout,
    errno.EIO: EngineError,
    errno.EOWNERDEAD: SnapshotLost,
    errno.EPROTO: EngineError,
}
"""Which exception an errno of the core becomes; all others become BunshinError."""


def check(code: int, error: Any) -> None:
    """Raises what a negative return value stands for, with the core's message."""
    if code >= 0:
        return
    message = ffi.string(error.msg).decode("utf-8", "replace") or os.strerror(-code)
    kind = ERRORS.get(-code, BunshinError)
    raise kind(-code, message) if issubclass(kind, OSError) else kind(message)


def call(function: Callable[..., int], *args: Any) -> None:
    """Calls a function of the core whose last argument is the error; raises what went wrong."""
    error = ffi.new("struct bsh_error *")
    check(function(*args, error), error)


def text(value: str, what: str) -> Any:
    """A C string, which lives as long as somebody holds it. Raises UsageError where C would see its end too early."""
    if "\0" in value:
        raise UsageError(f"{what}: a NUL character in {value!r}")
    return ffi.new("char[]", value.encode("utf-8", "surrogateescape"))


class Arena:
    """Keeps C strings alive for the length of one call."""

    def __init__(self) -> None:
        self._kept: list[Any] = []

    def text(self, value: str, what: str) -> Any:
        self._kept.append(text(value, what))
        return self._kept[-1]

    def array(self, values: Sequence[str], what: str) -> Any:
        if isinstance(values, str):
            raise UsageError(f"{what}: a list of strings is wanted, not the string {values!r}")
        array = ffi.new("const char *[]", [self.text(value, what) for value in values] + [ffi.NULL])
        self._kept.append(array)
        return array

    def environment(self, values: Mapping[str, str]) -> Any:
        for name in values:
            if not name or "=" in name:
                raise UsageError(f"env: {name!r} is no name of a variable")
        return self.array([f"{name}={value}" for name, value in values.items()], "env")
