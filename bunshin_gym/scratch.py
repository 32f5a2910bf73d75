# SPDX-License-Identifier: Apache-2.0
"""Folders for what is needed for a while; those of killed processes are found again.

Whoever has one holds a lock on the folder itself, which ends with the process that holds it, however it ends.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from pathlib import Path
from typing import Final, Self

__all__ = ["ScratchFolder", "reap_scratch"]

_PREFIX: Final = "bunshin-scratch-"


class ScratchFolder:
    """A new folder, in a block, until `close`, or until the interpreter ends.

    Args:
        what: part of its name.
    """

    def __init__(self, what: str) -> None:
        while True:
            self._folder = tempfile.TemporaryDirectory(prefix=f"{_PREFIX}{what}-")
            self.path = Path(self._folder.name)
            with contextlib.suppress(FileNotFoundError):  # it was reaped before we had the lock
                self._lock: int | None = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
                fcntl.flock(self._lock, fcntl.LOCK_EX)
                if self.path.exists():
                    return
                os.close(self._lock)

    def close(self) -> None:
        """Removes it with all that is in it; idempotent."""
        lock, self._lock = self._lock, None
        if lock is not None:
            self._folder.cleanup()
            os.close(lock)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def reap_scratch() -> int:
    """Removes this user's folders whose owners are gone; returns how many."""
    reaped = 0
    for path in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        try:
            folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except (FileNotFoundError, NotADirectoryError, PermissionError):
            continue  # gone, or not one of ours
        try:
            if os.fstat(folder).st_uid == os.geteuid():
                fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path)
                reaped += 1
        except BlockingIOError:
            continue  # in use
        finally:
            os.close(folder)
    return reaped
