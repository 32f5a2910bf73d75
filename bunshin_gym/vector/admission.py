# SPDX-License-Identifier: Apache-2.0
"""Says how many workspaces this machine takes, and lets the rest wait or refuses it."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, Self

from bunshin_gym.errors import ResourceError, UsageError

__all__ = ["Admission", "Permit", "available_bytes", "shared_admission"]

_MIB: Final = 1 << 20
_LOOK_AGAIN_S: Final = 0.2


class Permit:
    """Room for a number of workspaces; give it back with `close`."""

    def __init__(self, admission: Admission, count: int) -> None:
        self._admission, self._count = admission, count
        self._reserved = True

    @property
    def reserved(self) -> int:
        """Workspaces that are allowed and not there yet, so that no memory figure shows them."""
        return self._count if self._reserved else 0

    def settle(self) -> None:
        """Says that the workspaces are there: from now on the machine's own figures count them."""
        self._reserved = False

    def close(self) -> None:
        """Gives the room back; idempotent."""
        self._admission._give_back(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Admission:
    """The one place where workspaces ask for room; shared by all vector envs of a process.

    Other processes are seen by the memory they leave. Who waits is served in the order of coming.

    Args:
        envs_max: workspaces at a time; None is `envs_per_cpu` times the processors.
        envs_per_cpu: see there.
        env_bytes: what one more workspace is expected to take.
        reserve_bytes: memory that must stay free.
        wait_s: how long to wait for room; 0 refuses at once, None waits for ever.
        makers: how many workspaces may be in the making at a time; None is the processors and one.
        available: how much memory can be had; None asks the machine.
    """

    def __init__(
        self,
        *,
        envs_max: int | None = None,
        envs_per_cpu: int = 64,
        env_bytes: int = 96 * _MIB,
        reserve_bytes: int = 512 * _MIB,
        wait_s: float | None = 0.0,
        makers: int | None = None,
        available: Callable[[], int] | None = None,
    ) -> None:
        cpus = len(os.sched_getaffinity(0))
        self.envs_max = envs_per_cpu * cpus if envs_max is None else envs_max
        self.env_bytes, self.reserve_bytes, self.wait_s = env_bytes, reserve_bytes, wait_s
        self.makers = cpus + 1 if makers is None else makers
        for name in ("envs_max", "env_bytes", "makers"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name} is 1 or more, not {getattr(self, name)}")
        self._available = available or available_bytes
        self._changed = threading.Condition()
        self._permits: set[Permit] = set()
        self._queue: deque[object] = deque()
        self._turnstile = threading.BoundedSemaphore(self.makers)

    @property
    def admitted(self) -> int:
        """Workspaces that have room now."""
        with self._changed:
            return sum(permit._count for permit in self._permits)

    def admit(self, count: int) -> Permit:
        """Room for `count` workspaces, all of it or none.

        Raises:
            ResourceError: there is no room, or none came free in time; the message says what is short.
        """
        ticket = object()
        end_s = None if self.wait_s is None else time.monotonic() + self.wait_s
        with self._changed:
            self._queue.append(ticket)
            try:
                while True:
                    short = self._short_of(count) if self._queue[0] is ticket else "others wait for room already"
                    if not short:
                        permit = Permit(self, count)
                        self._permits.add(permit)
                        return permit
                    self._wait(count, short, end_s)
            finally:
                self._queue.remove(ticket)
                self._changed.notify_all()

    @contextlib.contextmanager
    def making(self) -> Iterator[None]:
        """Held while a workspace is made: more at a time would only make each of them slower."""
        with self._turnstile:
            yield

    def _wait(self, count: int, short: str, end_s: float | None) -> None:
        left_s = _LOOK_AGAIN_S if end_s is None else end_s - time.monotonic()
        if count > self.envs_max or left_s <= 0:
            raise ResourceError(
                f"no room for {count} workspaces: {short}; close envs, ask for fewer, or pass "
                "admission=Admission(...) with other limits or with wait_s"
            )
        # Memory that other processes free announces itself to nobody.
        self._changed.wait(min(left_s, _LOOK_AGAIN_S))

    def _short_of(self, count: int) -> str:
        """What is missing, or nothing. Called with the lock held."""
        here = sum(permit._count for permit in self._permits)
        if here + count > self.envs_max:
            return f"{here} of at most {self.envs_max} are there"
        coming = sum(permit.reserved for permit in self._permits) + count
        need, free = coming * self.env_bytes, self._available() - self.reserve_bytes
        if need <= free:
            return ""
        return (
            f"{coming} to come at {self.env_bytes // _MIB} MiB each need {need // _MIB} MiB, and "
            f"{max(free, 0) // _MIB} MiB can be had beside the reserve of {self.reserve_bytes // _MIB} MiB"
        )

    def _give_back(self, permit: Permit) -> None:
        with self._changed:
            self._permits.discard(permit)
            self._changed.notify_all()

    def __deepcopy__(self, memo: object) -> Self:
        """Itself: a vector env's spec, which holds it, may be copied."""
        return self


def available_bytes(root: Path = Path("/")) -> int:
    """Memory that can be had without swapping: the machine's, or less if our memory cgroup's limit says so."""
    with (root / "proc/meminfo").open() as lines:
        machine = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    return min([machine, *_left_in_cgroups(root)])


def _left_in_cgroups(root: Path) -> Iterator[int]:
    """What the limits of our memory cgroup and those above it leave."""
    for line in (root / "proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            base, limit, usage = root / "sys/fs/cgroup", "memory.max", "memory.current"
        elif "memory" in controllers.split(","):
            base, limit, usage = root / "sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes"
        else:
            continue
        here = base / path.lstrip("/")
        for folder in (here, *(parent for parent in here.parents if parent.is_relative_to(base))):
            # No such file: not mounted, above our namespace, or the root, which has no limit.
            with contextlib.suppress(FileNotFoundError):
                most = (folder / limit).read_text().strip()
                if most != "max":
                    yield max(0, int(most) - int((folder / usage).read_text()))


_shared: Admission | None = None
_shared_lock: Final = threading.Lock()


def shared_admission() -> Admission:
    """This process's admission, with the default limits."""
    global _shared
    with _shared_lock:
        if _shared is None:
            _shared = Admission()
        return _shared
