# SPDX-License-Identifier: Apache-2.0
"""The core, a workspace and a snapshot: their C functions as methods."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bunshin_gym._native import ffi, lib
from bunshin_gym.errors import CallTimeout, ClosedError, UsageError
from bunshin_gym.native.call import Arena, call, text
from bunshin_gym.native.handle import NativeHandle
from bunshin_gym.native.values import GcReport, Spec, read_fork_stats, read_struct
from bunshin_gym.types import ExecResult, ForkStats, GroupStats, MemoryAccount, WorkspaceStats

__all__ = ["NativeCore", "NativeSnapshot", "NativeWorkspace"]


class NativeCore(NativeHandle):
    """One state directory and one CRIU."""

    def __init__(self, home: Path, criu: Path) -> None:
        pointer = ffi.new("struct bsh_core **")
        home_text, criu_text = text(os.fspath(home), "home"), text(os.fspath(criu), "criu")
        call(lib.bsh_core_open, home_text, criu_text, pointer)
        super().__init__(f"the core of {home}", pointer[0], lib.bsh_core_free)

    def features(self) -> dict[str, str]:
        """What kernel and machine offer, by name."""
        listed = ffi.new("char **")
        self._call(lib.bsh_core_features, listed)
        try:
            lines = ffi.string(listed[0]).decode().splitlines()
        finally:
            lib.bsh_string_free(listed[0])
        return dict(line.split("=", 1) for line in lines)

    def gc(self) -> GcReport:
        """Reaps what dead owners left."""
        report = ffi.new("struct bsh_gc_report *")
        self._call(lib.bsh_gc, report)
        return read_struct(GcReport, report)

    def account(self, ids: Sequence[str]) -> GroupStats:
        """What workspaces and snapshots take, of whichever process; one that is gone takes nothing."""
        arena = Arena()
        each, total = ffi.new("struct bsh_account[]", len(ids) + 1), ffi.new("struct bsh_account *")
        self._call(lib.bsh_account, arena.array(ids, "ids"), each, total)
        members = {name: read_struct(MemoryAccount, each[number]) for number, name in enumerate(ids)}
        return GroupStats(total=read_struct(MemoryAccount, total), members=members)

    def start(self, spec: Spec) -> NativeWorkspace:
        """Starts a workspace; returns once its main command runs."""
        arena = Arena()
        c_spec = ffi.new("struct bsh_workspace_spec *")
        for name in ("pids_max", "cpu_weight", "memory_max_bytes", "shm_bytes", "uid", "gid"):
            number = getattr(spec, name)
            if number < 0:
                raise UsageError(f"{name}: {number} is negative")
            setattr(c_spec, name, number)
        c_spec.layers = arena.array(spec.layers, "layers")
        c_spec.argv = arena.array(spec.argv, "argv")
        c_spec.env = arena.environment(spec.env)
        c_spec.cwd = arena.text(spec.cwd, "cwd")
        c_spec.hostname = arena.text(spec.hostname, "hostname")
        c_spec.label = arena.text(spec.label, "label") if spec.label else ffi.NULL
        pointer = ffi.new("struct bsh_workspace **")
        self._call(lib.bsh_workspace_start, c_spec, pointer)
        return NativeWorkspace(pointer[0], self)

    def load(self, folder: Path, *, engine: str | None, base: Sequence[Path]) -> NativeSnapshot:
        """A snapshot of what `NativeSnapshot.save` wrote, above these layers (top first)."""
        arena = Arena()
        name = ffi.NULL if engine is None else arena.text(engine, "engine")
        layers = arena.array([str(layer) for layer in base], "base")
        pointer = ffi.new("struct bsh_snapshot **")
        self._call(lib.bsh_snapshot_load, arena.text(str(folder), "path"), name, layers, pointer)
        return NativeSnapshot(pointer[0], self)


class NativeWorkspace(NativeHandle):
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
        return read_struct(WorkspaceStats, stats)

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
        arena = Arena()
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
        name = ffi.NULL if engine is None else text(engine, "engine")
        pointer, stats = ffi.new("struct bsh_snapshot **"), ffi.new("struct bsh_fork_stats *")
        self._call(lib.bsh_snapshot_take, name, pointer, stats)
        return NativeSnapshot(pointer[0], self._owner), read_fork_stats(stats)


class NativeSnapshot(NativeHandle):
    """A frozen state of a workspace."""

    def __init__(self, pointer: Any, owner: object) -> None:
        self.id: str = ffi.string(lib.bsh_snapshot_id(pointer)).decode()
        self.dir = Path(os.fsdecode(ffi.string(lib.bsh_snapshot_dir(pointer))))
        self.engine: str = ffi.string(lib.bsh_snapshot_engine(pointer)).decode()
        super().__init__(f"snapshot {self.id}", pointer, lib.bsh_snapshot_free, owner)

    def branch(self, label: str, *, cpu_weight: int = 0, io_weight: int = 0) -> tuple[NativeWorkspace, ForkStats]:
        pointer, stats = ffi.new("struct bsh_workspace **"), ffi.new("struct bsh_fork_stats *")
        self._call(lib.bsh_snapshot_branch_weighed, text(label, "label"), cpu_weight, io_weight, pointer, stats)
        return NativeWorkspace(pointer[0], self._owner), read_fork_stats(stats)

    def hurry(self) -> None:
        """Gives branches that are being made the weights that their source was started with."""
        self._call(lib.bsh_snapshot_hurry)

    def save(self, folder: Path) -> None:
        """Writes it into an empty directory, and that to the disk."""
        self._call(lib.bsh_snapshot_save, text(str(folder), "path"))

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
