# SPDX-License-Identifier: Apache-2.0
"""The C core as Python objects; the only module that sees cffi.

Calls release the GIL and may come from any thread. Handles belong to the process that made
them: in a forked child they raise ClosedError and are left alone, whatever the child does with them.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final

from bunshin_gym._native import ffi, lib
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
from bunshin_gym.types import ExecResult, ForkStats, GroupStats, MemoryAccount, Phase, WorkspaceStats

__all__ = [
    "GcReport",
    "NativeCore",
    "NativeSnapshot",
    "NativeWorkspace",
    "Spec",
    "arm_fault",
    "engine_names",
    "fault_points",
]

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """How to start a workspace.

    Attributes:
        layers: lower directories, top first, absolute.
        argv: the main command.
        env: its environment; also that of later commands unless they bring one.
        cwd: its working directory.
        hostname: the same in all branches.
        label: free text kept in the registry.
        uid: user of the main command.
        gid: group of the main command.
        pids_max: limit of processes and threads; 0: none.
        cpu_weight: 1 to 10000, 100 is normal; 0: leave it.
        memory_max_bytes: limit of memory; 0: none.
        shm_bytes: size of /dev/shm; 0: 1 GiB.
    """

    layers: Sequence[str]
    argv: Sequence[str]
    env: Mapping[str, str]
    cwd: str = "/"
    hostname: str = "bunshin"
    label: str = ""
    uid: int = 0
    gid: int = 0
    pids_max: int = 0
    cpu_weight: int = 0
    memory_max_bytes: int = 0
    shm_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class GcReport:
    """What a collection found without a living owner, and reaped.

    Attributes:
        strays: workspaces whose state directory was deleted as a whole; they are counted nowhere else.
    """

    workspaces: int
    snapshots: int
    processes: int
    cgroups: int
    layers: int
    strays: int


def _check(code: int, error: Any) -> None:
    if code >= 0:
        return
    message = ffi.string(error.msg).decode("utf-8", "replace") or os.strerror(-code)
    kind = ERRORS.get(-code, BunshinError)
    raise kind(-code, message) if issubclass(kind, OSError) else kind(message)


def _call(function: Callable[..., int], *args: Any) -> None:
    error = ffi.new("struct bsh_error *")
    _check(function(*args, error), error)


def _text(value: str, what: str) -> Any:
    if "\0" in value:
        raise UsageError(f"{what}: a NUL character in {value!r}")
    return ffi.new("char[]", value.encode("utf-8", "surrogateescape"))


class _Arena:
    """Keeps C strings alive for the length of one call."""

    def __init__(self) -> None:
        self._kept: list[Any] = []

    def text(self, value: str, what: str) -> Any:
        self._kept.append(_text(value, what))
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


def _fork_stats(stats: Any) -> ForkStats:
    phases = (stats.phases[i] for i in range(stats.n_phases))
    return ForkStats(
        total_ns=stats.total_ns,
        frozen_ns=stats.frozen_ns,
        copied_bytes=stats.copied_bytes,
        shared_bytes=stats.shared_bytes,
        layer_bytes=stats.layer_bytes,
        phases=tuple(
            Phase(name=ffi.string(phase.name).decode(), start_ns=phase.start_ns, length_ns=phase.length_ns)
            for phase in phases
        ),
    )


def _account(account: Any) -> MemoryAccount:
    return MemoryAccount(**{field.name: getattr(account, field.name) for field in fields(MemoryAccount)})


class _Handle:
    """Owns one C object; closing is idempotent, and a no-op in a process that did not make it."""

    def __init__(self, what: str, pointer: Any, free: Any, owner: object = None) -> None:
        self._what = what
        self._pid = os.getpid()
        self._owner = owner
        self._idle = threading.Condition()
        self._users = 0
        # The C function itself: it must work in whatever order objects go at the interpreter's end.
        self._pointer = ffi.gc(pointer, free)

    def _check_process(self) -> None:
        if os.getpid() != self._pid:
            raise ClosedError(
                f"{self._what} belongs to process {self._pid}; this is its child {os.getpid()}: "
                "make workspaces after forking, or start processes by 'spawn'"
            )

    @contextmanager
    def _use(self) -> Iterator[Any]:
        """The pointer, which another thread's release() will not free meanwhile."""
        self._check_process()
        with self._idle:
            if self._pointer is None:
                raise ClosedError(f"{self._what} has been closed")
            pointer = self._pointer
            self._users += 1
        try:
            yield pointer
        finally:
            with self._idle:
                self._users -= 1
                self._idle.notify_all()

    @contextmanager
    def held(self) -> Iterator[None]:
        """Not freed meanwhile. Raises ClosedError if it is, or belongs to another process."""
        with self._use():
            yield

    def _call(self, function: Callable[..., int], *args: Any) -> None:
        with self._use() as pointer:
            _call(function, pointer, *args)

    @property
    def closed(self) -> bool:
        return self._pointer is None or os.getpid() != self._pid

    def release(self) -> None:
        """Frees the C object once no other thread is in a call on it."""
        if os.getpid() != self._pid:
            return
        with self._idle:
            pointer, self._pointer = self._pointer, None
            while self._users:
                self._idle.wait()
        if pointer is not None:
            ffi.release(pointer)


class NativeCore(_Handle):
    """One state directory and one CRIU."""

    def __init__(self, home: Path, criu: Path) -> None:
        pointer = ffi.new("struct bsh_core **")
        home_text, criu_text = _text(os.fspath(home), "home"), _text(os.fspath(criu), "criu")
        _call(lib.bsh_core_open, home_text, criu_text, pointer)
        super().__init__(f"the core of {home}", pointer[0], lib.bsh_core_free)

    def features(self) -> dict[str, str]:
        """What kernel and machine offer, by name."""
        text = ffi.new("char **")
        self._call(lib.bsh_core_features, text)
        try:
            lines = ffi.string(text[0]).decode().splitlines()
        finally:
            lib.bsh_string_free(text[0])
        return dict(line.split("=", 1) for line in lines)

    def gc(self) -> GcReport:
        """Reaps what dead owners left."""
        report = ffi.new("struct bsh_gc_report *")
        self._call(lib.bsh_gc, report)
        return GcReport(
            workspaces=report.workspaces,
            snapshots=report.snapshots,
            processes=report.processes,
            cgroups=report.cgroups,
            layers=report.layers,
            strays=report.strays,
        )

    def account(self, ids: Sequence[str]) -> GroupStats:
        """What workspaces and snapshots take, of whichever process; one that is gone takes nothing."""
        arena = _Arena()
        each, total = ffi.new("struct bsh_account[]", len(ids) + 1), ffi.new("struct bsh_account *")
        self._call(lib.bsh_account, arena.array(ids, "ids"), each, total)
        members = {name: _account(each[number]) for number, name in enumerate(ids)}
        return GroupStats(total=_account(total), members=members)

    def start(self, spec: Spec) -> NativeWorkspace:
        """Starts a workspace; returns once its main command runs."""
        arena = _Arena()
        for name in ("pids_max", "cpu_weight", "memory_max_bytes", "shm_bytes", "uid", "gid"):
            if getattr(spec, name) < 0:
                raise UsageError(f"{name}: {getattr(spec, name)} is negative")
        c_spec = ffi.new("struct bsh_workspace_spec *")
        c_spec.layers = arena.array(spec.layers, "layers")
        c_spec.argv = arena.array(spec.argv, "argv")
        c_spec.env = arena.environment(spec.env)
        c_spec.cwd = arena.text(spec.cwd, "cwd")
        c_spec.hostname = arena.text(spec.hostname, "hostname")
        c_spec.label = arena.text(spec.label, "label") if spec.label else ffi.NULL
        c_spec.uid, c_spec.gid = spec.uid, spec.gid
        c_spec.pids_max, c_spec.cpu_weight = spec.pids_max, spec.cpu_weight
        c_spec.memory_max_bytes, c_spec.shm_bytes = spec.memory_max_bytes, spec.shm_bytes
        pointer = ffi.new("struct bsh_workspace **")
        self._call(lib.bsh_workspace_start, c_spec, pointer)
        return NativeWorkspace(pointer[0], self)

    def load(self, folder: Path, *, engine: str | None, base: Sequence[Path]) -> NativeSnapshot:
        """A snapshot of what `NativeSnapshot.save` wrote, above these layers (top first)."""
        arena = _Arena()
        name = ffi.NULL if engine is None else arena.text(engine, "engine")
        layers = arena.array([str(layer) for layer in base], "base")
        pointer = ffi.new("struct bsh_snapshot **")
        self._call(lib.bsh_snapshot_load, arena.text(str(folder), "path"), name, layers, pointer)
        return NativeSnapshot(pointer[0], self)


class NativeWorkspace(_Handle):
    """A running workspace."""

    def __init__(self, pointer: Any, owner: object) -> None:
        self.id: str = ffi.string(lib.bsh_workspace_id(pointer)).decode()
        self.dir = Path(os.fsdecode(ffi.string(lib.bsh_workspace_dir(pointer))))
        super().__init__(f"workspace {self.id}", pointer, lib.bsh_workspace_free, owner)

    @property
    def pid(self) -> int:
        """Process 1 of the workspace, as the host sees it."""
        with self._use() as pointer:
            return int(lib.bsh_workspace_pid(pointer))

    @property
    def alive(self) -> bool:
        """Whether process 1 runs; False once closed, and in another process than its maker."""
        try:
            with self._use() as pointer:
                return bool(lib.bsh_workspace_alive(pointer))
        except ClosedError:
            return False

    def stop(self) -> None:
        self._call(lib.bsh_workspace_stop)

    def freeze(self) -> None:
        self._call(lib.bsh_workspace_freeze)

    def thaw(self) -> None:
        self._call(lib.bsh_workspace_thaw)

    def weigh(self, cpu_weight: int, io_weight: int) -> None:
        """What it gets of CPU and disks beside others; 0 is what it was started with."""
        self._call(lib.bsh_workspace_weigh, cpu_weight, io_weight)

    def kill(self) -> None:
        """Kills its processes at once; `stop` remains to be called."""
        self._call(lib.bsh_workspace_kill)

    def escapes(self) -> int:
        """How often something in it wanted to send beyond its loopback."""
        count = ffi.new("unsigned long long *")
        self._call(lib.bsh_workspace_escapes, count)
        return int(count[0])

    def stats(self) -> WorkspaceStats:
        stats = ffi.new("struct bsh_stats *")
        self._call(lib.bsh_workspace_stats, stats)
        return WorkspaceStats(
            processes=stats.processes,
            threads=stats.threads,
            pss_bytes=stats.pss_bytes,
            unique_bytes=stats.unique_bytes,
            shared_bytes=stats.shared_bytes,
            page_table_bytes=stats.page_table_bytes,
            kernel_bytes=stats.kernel_bytes,
            layer_bytes=stats.layer_bytes,
        )

    def exec(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None,
        cwd: str,
        stdin: bytes,
        output_max_bytes: int,
        timeout_s: float | None,
        uid: int,
        gid: int,
    ) -> ExecResult:
        """Runs a command to its end. Raises CallTimeout after its processes are killed."""
        arena = _Arena()
        request = ffi.new("struct bsh_exec_request *")
        request.argv = arena.array(argv, "argv")
        request.env = ffi.NULL if env is None else arena.environment(env)
        request.cwd = arena.text(cwd, "cwd")
        input_buffer = ffi.from_buffer(stdin)
        request.input, request.input_len = input_buffer, len(stdin)
        request.output_max_bytes = output_max_bytes
        request.timeout_ms = -1 if timeout_s is None else max(0, round(timeout_s * 1000))
        request.uid, request.gid = uid, gid
        with _exec_result() as result:
            self._call(lib.bsh_workspace_exec, request, result)
            if result.timed_out:
                raise CallTimeout(f"exec in {self.id}: {argv[0]} took longer than {timeout_s} s and was killed")
            return ExecResult(
                exit_code=result.exit_code,
                stdout=_bytes(result.out, result.out_len),
                stderr=_bytes(result.errout, result.errout_len),
                truncated=bool(result.truncated),
            )

    def snapshot(self, engine: str | None) -> tuple[NativeSnapshot, ForkStats]:
        name = ffi.NULL if engine is None else _text(engine, "engine")
        pointer, stats = ffi.new("struct bsh_snapshot **"), ffi.new("struct bsh_fork_stats *")
        self._call(lib.bsh_snapshot_take, name, pointer, stats)
        return NativeSnapshot(pointer[0], self._owner), _fork_stats(stats)


class NativeSnapshot(_Handle):
    """A frozen state of a workspace."""

    def __init__(self, pointer: Any, owner: object) -> None:
        self.id: str = ffi.string(lib.bsh_snapshot_id(pointer)).decode()
        self.dir = Path(os.fsdecode(ffi.string(lib.bsh_snapshot_dir(pointer))))
        self.engine: str = ffi.string(lib.bsh_snapshot_engine(pointer)).decode()
        super().__init__(f"snapshot {self.id}", pointer, lib.bsh_snapshot_free, owner)

    def branch(self, label: str, *, cpu_weight: int = 0, io_weight: int = 0) -> tuple[NativeWorkspace, ForkStats]:
        pointer, stats = ffi.new("struct bsh_workspace **"), ffi.new("struct bsh_fork_stats *")
        text = _text(label, "label")
        self._call(lib.bsh_snapshot_branch_weighed, text, cpu_weight, io_weight, pointer, stats)
        return NativeWorkspace(pointer[0], self._owner), _fork_stats(stats)

    def hurry(self) -> None:
        """Gives branches that are being made the weights that their source was started with."""
        self._call(lib.bsh_snapshot_hurry)

    def save(self, folder: Path) -> None:
        """Writes it into an empty directory, and that to the disk."""
        self._call(lib.bsh_snapshot_save, _text(str(folder), "path"))

    def drop(self) -> None:
        self._call(lib.bsh_snapshot_drop)


@contextmanager
def _exec_result() -> Iterator[Any]:
    result = ffi.new("struct bsh_exec_result *")
    try:
        yield result
    finally:
        lib.bsh_exec_result_release(result)


def _bytes(pointer: Any, length: int) -> bytes:
    return bytes(ffi.buffer(pointer, length)) if length else b""


def engine_names() -> list[str]:
    """The engines that this build has, the default first."""
    return _names(lib.bsh_engine_name)


def fault_points() -> list[str]:
    """Where `arm_fault` can make an operation fail; for tests."""
    return _names(lib.bsh_fault_name)


def arm_fault(name: str | None) -> None:
    """The next operation of this process that comes to the point fails there, once; None disarms."""
    _call(lib.bsh_fault_arm, ffi.NULL if name is None else _text(name, "fault point"))


def _names(name_of: Callable[[int], Any]) -> list[str]:
    names: list[str] = []
    while (name := name_of(len(names))) != ffi.NULL:
        names.append(ffi.string(name).decode())
    return names
