# SPDX-License-Identifier: Apache-2.0
"""What a workspace and a snapshot are alike: each owns one object of the core, closes once, and is no value to copy."""

from __future__ import annotations

import atexit
import logging
import weakref
from abc import ABC, abstractmethod
from typing import Any, ClassVar, Final, Generic, NoReturn, Self, TypeVar

from bunshin_gym.core import Core
from bunshin_gym.errors import UsageError
from bunshin_gym.native import NativeSnapshot, NativeWorkspace

__all__ = ["Handle"]

_log: Final = logging.getLogger(__name__)
_open: Final[weakref.WeakSet[Handle[Any]]] = weakref.WeakSet()

Native = TypeVar("Native", NativeWorkspace, NativeSnapshot)


class Handle(ABC, Generic[Native]):
    """Belongs to the process that made it; what is left open at the end of that is closed then.

    Attributes:
        _what: the kind in messages.
        _closed_last: at the end of the process, after all handles of the other kind.
    """

    _what: ClassVar[str]
    _closed_last: ClassVar[bool]

    def __init__(self, native: Native, core: Core) -> None:
        self._native: Native = native
        self._core = core
        _open.add(self)

    @property
    def id(self) -> str:
        """Names it in the registry, in cgroups and in messages."""
        return self._native.id

    @property
    def closed(self) -> bool:
        """Whether it was closed, or belongs to another process."""
        return self._native.closed

    @property
    def core(self) -> Core:
        """The state directory it is in."""
        return self._core

    @abstractmethod
    def _end(self) -> None:
        """Ends what it stands for; called once, by the process that made it."""

    def close(self) -> None:
        """Ends it and removes all it had; idempotent. Branches and snapshots made of it live on."""
        if self._native.closed:
            return
        self._end()
        self._native.release()
        _open.discard(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> NoReturn:
        raise UsageError(
            f"{self._what} cannot be copied or pickled: fork(n) makes branches, and each process makes its own"
        )


@atexit.register
def _close_all() -> None:
    for handle in sorted(_open, key=lambda handle: handle._closed_last):
        try:
            handle.close()
        except Exception as error:  # noqa: BLE001 - the others must be closed all the same
            _log.warning("at exit: %s", error)
