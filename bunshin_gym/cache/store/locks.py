# SPDX-License-Identifier: Apache-2.0
"""Locks between threads and processes that the kernel releases when their holder dies.

A name is a byte of one file, at an offset that is the name's hash; a lock is an open-file-description
lock on that byte. Each holder has a descriptor of its own, so that threads exclude each other as
processes do, and a kill -9 releases what its process held: no lock ever needs a time-out.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import struct
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final, Self

__all__ = ["HeldLock", "NamedLocks", "Owner"]

_FLOCK: Final = "hhqqi0q"  # struct flock of Linux x86-64: type, whence, start, length, pid, padding


@dataclass(frozen=True, slots=True, order=True)
class Owner:
    """A process by identity: a pid alone may be taken by another process later.

    Attributes:
        pid: as seen in this pid namespace.
        start_ticks: when it started, in clock ticks after boot.
        boot_id: which boot of the machine.
    """

    pid: int
    start_ticks: int
    boot_id: str

    @classmethod
    def current(cls) -> Self:
        """The calling process."""
        pid = os.getpid()
        return cls(pid, _start_ticks(pid) or 0, _boot_id())

    @classmethod
    def parse(cls, text: str) -> Self:
        """Reads what `str()` wrote."""
        pid, start_ticks, boot_id = text.split(":")
        return cls(int(pid), int(start_ticks), boot_id)

    def alive(self) -> bool:
        """Whether that very process still runs."""
        return self.boot_id == _boot_id() and _start_ticks(self.pid) == self.start_ticks

    def __str__(self) -> str:
        return f"{self.pid}:{self.start_ticks}:{self.boot_id}"


@cache
def _boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def _start_ticks(pid: int) -> int | None:
    """Field 22 of /proc/PID/stat; None for a process that is gone or a zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = stat.rpartition(")")[2].split()  # the name before it may hold anything
    return None if fields[0] in "ZX" else int(fields[19])


class HeldLock:
    """One lock, held until `release`, which may be called by any thread and more than once."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._pid = os.getpid()
        _held.add(self)

    def release(self) -> None:
        """Lets go; idempotent. In a forked child it lets go of the child's copy alone."""
        fd, self._fd = self._fd, -1
        if fd < 0:
            return
        if self._pid == os.getpid():
            # Unlocked by name, so that a descriptor copied by a fork elsewhere holds nothing on.
            fcntl.fcntl(fd, fcntl.F_OFD_SETLK, struct.pack(_FLOCK, fcntl.F_UNLCK, os.SEEK_SET, 0, 0, 0))
        os.close(fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


_held: weakref.WeakSet[HeldLock] = weakref.WeakSet()


def _drop_in_child() -> None:
    """A child must not keep its parent's locks alive after the parent's death."""
    for lock in list(_held):
        lock.release()


os.register_at_fork(after_in_child=_drop_in_child)


class NamedLocks:
    """Locks by name over one file, which is made when it is absent and never removed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        os.close(self._open())

    def acquire(self, name: bytes, *, shared: bool = False) -> HeldLock:
        """Waits until the lock is ours; other threads run on meanwhile."""
        lock = self._lock(name, shared, fcntl.F_OFD_SETLKW)
        if lock is None:
            raise AssertionError("a waiting lock was refused")
        return lock

    def try_acquire(self, name: bytes, *, shared: bool = False) -> HeldLock | None:
        """The lock, or None when another holds it."""
        return self._lock(name, shared, fcntl.F_OFD_SETLK)

    @contextmanager
    def held(self, name: bytes, *, shared: bool = False) -> Iterator[None]:
        """The lock for the length of a block."""
        with self.acquire(name, shared=shared):
            yield

    def _open(self) -> int:
        return os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)

    def _lock(self, name: bytes, shared: bool, command: int) -> HeldLock | None:
        offset = int.from_bytes(hashlib.blake2b(name, digest_size=8).digest(), "big") >> 2
        kind = fcntl.F_RDLCK if shared else fcntl.F_WRLCK
        fd = self._open()
        try:
            fcntl.fcntl(fd, command, struct.pack(_FLOCK, kind, os.SEEK_SET, offset, 1, 0))
        except BlockingIOError:
            os.close(fd)
            return None
        except BaseException:
            os.close(fd)
            raise
        return HeldLock(fd)


@dataclass(slots=True)
class ForkGuard:
    """Tells a forked child that an object was its parent's."""

    pid: int

    @classmethod
    def here(cls) -> Self:
        """Remembers the calling process."""
        return cls(os.getpid())

    def foreign(self) -> bool:
        """Whether this is another process than the one that made the object."""
        return self.pid != os.getpid()


class PerThread(threading.local):
    """Attributes that are each thread's own, and each process's own after a fork."""

    pid: int = -1

    def fresh(self) -> bool:
        """True the first time in this thread of this process."""
        if self.pid == os.getpid():
            return False
        self.pid = os.getpid()
        return True
