# SPDX-License-Identifier: Apache-2.0
"""Workspaces and their snapshots.

    with Workspace.start(image) as workspace:
        workspace.exec(["sh", "-c", "echo hello > /tmp/note"])
        for branch in workspace.fork(4):
            ...
            branch.close()

Both may be used from any thread. They belong to the process that made them: in a forked child every call
raises ClosedError, and neither the child's end nor its garbage collection touches them. At the
end of their own process all that is left is closed; what a killed process leaves is reaped by the next one.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Protocol, Self

from bunshin_gym.core import Core, core
from bunshin_gym.core import core as default_core
from bunshin_gym.errors import ClosedError, PrivilegeError, UsageError
from bunshin_gym.handle import Handle
from bunshin_gym.native import NativeWorkspace, Spec
from bunshin_gym.records import list_snapshots, list_workspaces
from bunshin_gym.reseed import family, wipe_marked
from bunshin_gym.runtime import runtime_layer
from bunshin_gym.snapshot import Snapshot
from bunshin_gym.types import ExecResult, ForkStats, WorkspaceStats

__all__ = ["Core", "ImageLike", "Snapshot", "Workspace", "core", "list_snapshots", "list_workspaces"]

_DEFAULT_ENV: Final = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}


class ImageLike(Protocol):
    """What a workspace is started from; `bunshin_gym.images.Image` is one."""

    @property
    def rootfs(self) -> Path: ...
    @property
    def env(self) -> Mapping[str, str]: ...
    @property
    def argv(self) -> Sequence[str]: ...
    @property
    def workdir(self) -> str: ...
    @property
    def digest(self) -> str: ...
    def ids(self) -> tuple[int, int]: ...


class _Folder:
    """A plain directory as an image without a digest."""

    def __init__(self, rootfs: Path) -> None:
        self.rootfs = rootfs
        self.env: Mapping[str, str] = _DEFAULT_ENV
        self.argv: Sequence[str] = ()
        self.workdir = "/"
        self.digest = ""

    def ids(self) -> tuple[int, int]:
        return 0, 0


class Workspace(Handle[NativeWorkspace]):
    """A running container: processes, files, desktop, network of its own."""

    _what = "a workspace"
    _closed_last = False

    def __init__(
        self, native: NativeWorkspace, core: Core, *, env: Mapping[str, str], label: Mapping[str, Any]
    ) -> None:
        super().__init__(native, core)
        self._env = dict(env)
        self._label = dict(label)
        self._last_fork: ForkStats | None = None
        self._branch_stats: ForkStats | None = None

    @classmethod
    def start(
        cls,
        image: ImageLike | Path | str,
        *,
        argv: Sequence[str] | None = None,
        env: Mapping[str, str] | None = None,
        screen: tuple[int, int] | None = None,
        memory_max_bytes: int | None = None,
        pids_max: int | None = None,
        cpu_weight: int | None = None,
        shm_bytes: int | None = None,
        hostname: str = "bunshin",
        label: str | None = None,
        core: Core | None = None,
    ) -> Self:
        """Starts a workspace; returns once its main command runs.

        Args:
            image: an image, or the directory of a root file system.
            argv: main command; default: the image's.
            env: added to the image's environment.
            screen: width and height of its desktop, in pixels.
            memory_max_bytes: limit; None for none.
            pids_max: likewise, of processes and threads.
            cpu_weight: share of the processor, 1 to 10000, 100 is normal.
            shm_bytes: size of its /dev/shm; default 1 GiB.
            hostname: the same in every branch.
            label: a note for `bunshin ps`.
            core: the state directory to use.

        Raises:
            UsageError: no such directory, no command, or the command cannot be run.
            PrivilegeError: not root.
            UnsupportedError: this machine lacks something; the message says what.
        """
        core = core or default_core()
        source: ImageLike = _Folder(Path(image).resolve()) if isinstance(image, str | Path) else image
        command = list(source.argv if argv is None else argv)
        if not command:
            raise UsageError("argv: the image has no start command, and none was given")
        if os.geteuid() != 0:
            raise PrivilegeError("a workspace needs root: run this as root, for example by sudo")
        full_env = {**_DEFAULT_ENV, **source.env, **(env or {})}
        if screen is not None:
            full_env["BUNSHIN_SCREEN"] = f"{screen[0]}x{screen[1]}"
        core.collect_once()
        notes = {"kind": "workspace", "image": source.digest, "name": getattr(source, "name", str(source.rootfs))}
        if label:
            notes["note"] = label
        uid, gid = source.ids()
        spec = Spec(
            layers=[str(runtime_layer(core.home)), str(source.rootfs)],
            argv=command,
            env=full_env,
            cwd=source.workdir,
            hostname=hostname,
            label=json.dumps(notes),
            uid=uid,
            gid=gid,
            pids_max=pids_max or 0,
            cpu_weight=cpu_weight or 0,
            memory_max_bytes=memory_max_bytes or 0,
            shm_bytes=shm_bytes or 0,
        )
        return cls(core.native.start(spec), core, env=full_env, label=notes)

    @property
    def pid(self) -> int:
        """Its process 1, as the host sees it; 0 after its end."""
        return self._native.pid

    @property
    def root(self) -> Path:
        """Its root directory, as the host sees it. Do not follow symbolic links in it: they are the workspace's."""
        return Path(f"/proc/{self.pid}/root")

    @property
    def alive(self) -> bool:
        """Whether its process 1 runs."""
        return self._native.alive

    @property
    def last_fork(self) -> ForkStats | None:
        """What its last snapshot cost; of a branch that had none yet: what making it cost."""
        return self._last_fork or self._branch_stats

    @property
    def branch_stats(self) -> ForkStats | None:
        """What making it cost, if it is a branch."""
        return self._branch_stats

    def exec(
        self,
        argv: Sequence[str],
        *,
        timeout_s: float | None = None,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        input: bytes = b"",
        output_max_bytes: int = 64 << 20,
        uid: int = 0,
        gid: int = 0,
    ) -> ExecResult:
        """Runs a command in it, confined as everything there, and waits for its end.

        Args:
            argv: program and arguments; the program is looked up in the PATH of its environment.
            timeout_s: when over, the command and all it started are killed.
            env: added to the workspace's environment.
            cwd: its working directory; default "/".
            input: bytes for its standard input.
            output_max_bytes: of each output stream; more is read and dropped.
            uid: user to run as.
            gid: and group.

        Raises:
            CallTimeout: it took too long and was killed.
            UsageError: no such program or directory, or the workspace is frozen.
            WorkspaceDied: the workspace is gone.
        """
        if output_max_bytes < 1:
            raise UsageError(f"output_max_bytes: {output_max_bytes} is less than 1")
        return self._native.exec(
            argv,
            env=None if env is None else {**self._env, **env},
            cwd=cwd or "/",
            stdin=input,
            output_max_bytes=output_max_bytes,
            timeout_s=timeout_s,
            uid=uid,
            gid=gid,
        )

    def freeze(self) -> None:
        """Stops all its processes where they are; returns once they stand still. Idempotent."""
        self._native.freeze()

    def thaw(self) -> None:
        """Lets them go on. Idempotent."""
        self._native.thaw()

    def reseed(self) -> None:
        """Lets random number generators inside seed themselves anew from the kernel, as after a process's fork.

        Without it, what branches draw from state that they had at the fork is the same in all of them, also where it
        makes keys. Reached are generators that ask the kernel whether they were forked (MADV_WIPEONFORK): Chromium's
        TLS and `crypto`, the C library's over the vDSO. Others, such as Python's `random`, go on as they were.
        """
        self.freeze()
        try:
            for pid in family(self.pid):
                wipe_marked(pid)
        finally:
            self.thaw()

    def weigh(self, *, cpu: int = 0, io: int = 0) -> None:
        """Sets what it gets of CPU and disks while others want them too; branches of it start as it was started.

        Args:
            cpu: 1 to 10000, 100 is normal; 1: only while nobody else wants it; 0: what it was started with.
            io: likewise, where the kernel weighs disks (BFQ, or io.weight); elsewhere nothing happens.

        Raises:
            UsageError: no such weight.
            UnsupportedError: no cgroup hierarchy of this machine weighs the CPU.
            WorkspaceDied: the workspace is gone.
        """
        if min(cpu, io) < 0:
            raise UsageError(f"weights are from 1 to 10000, not {cpu} of CPU and {io} of IO")
        self._native.weigh(cpu, io)

    def kill(self) -> None:
        """Kills its processes, from any thread: what another waits for raises WorkspaceDied. `close` remains
        to be called; idempotent, also after that."""
        with contextlib.suppress(ClosedError):
            self._native.kill()

    def escapes(self) -> int:
        """How often something in it wanted to send to an address beyond its loopback; each was refused."""
        return self._native.escapes()

    def stats(self) -> WorkspaceStats:
        """What it takes now."""
        return self._native.stats()

    def snapshot(self, *, engine: str | None = None) -> Snapshot:
        """Takes a snapshot; this workspace goes on.

        Raises:
            UnsupportedError: something in it cannot be carried; the message names process and descriptor.
            EngineError: the engine failed. Either way the workspace runs on, and nothing is left.
        """
        native, stats = self._native.snapshot(engine)
        self._last_fork = stats
        return Snapshot(native, self._core, stats=stats, env=self._env, label=self._label, workspace_id=self.id)

    def fork(self, n: int = 1, *, engine: str | None = None) -> list[Workspace]:
        """Makes n branches of what runs now; this workspace goes on. Raises as `snapshot` does."""
        if n < 1:
            raise UsageError(f"n: {n} branches")
        with self.snapshot(engine=engine) as snapshot:
            return snapshot.spawn(n)

    def _end(self) -> None:
        self._native.stop()

    def __repr__(self) -> str:
        return f"<Workspace {self.id} {'running' if self.alive else 'ended'}>"
