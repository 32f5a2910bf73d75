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

import atexit
import contextlib
import json
import logging
import os
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any, Final, NoReturn, Protocol, Self

from bunshin_gym.durable import check_target, load, persist
from bunshin_gym.errors import ClosedError, PrivilegeError, UsageError
from bunshin_gym.native import GcReport, NativeCore, NativeSnapshot, NativeWorkspace, Spec
from bunshin_gym.paths import criu_path, home_path
from bunshin_gym.records import list_snapshots, list_workspaces
from bunshin_gym.reseed import family, wipe_marked
from bunshin_gym.runtime import runtime_layer
from bunshin_gym.types import ExecResult, ForkStats, WorkspaceStats

__all__ = ["Core", "ImageLike", "Snapshot", "Workspace", "core", "list_snapshots", "list_workspaces"]

_log: Final = logging.getLogger(__name__)
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


class Core:
    """One state directory in this process; get it from `core()`."""

    def __init__(self, home: Path, criu: Path) -> None:
        self.home = home
        self.native = NativeCore(home, criu)
        self._collected = False
        self._lock = threading.Lock()

    def features(self) -> dict[str, str]:
        """What kernel and machine offer, by name."""
        return self.native.features()

    def gc(self) -> GcReport:
        """Reaps what processes left that were killed; touches nothing of living ones."""
        return self.native.gc()

    def collect_once(self) -> None:
        """gc, the first time in this process. What cannot be reaped hinders no one: it is logged."""
        with self._lock:
            if self._collected:
                return
            self._collected = True
        try:
            report = self.gc()
        except Exception as error:  # noqa: BLE001 - another's remains must not keep us from starting
            _log.warning("remains of earlier processes could not be reaped: %s", error)
            return
        if report.workspaces or report.snapshots:
            _log.info("reaped %d workspaces and %d snapshots", report.workspaces, report.snapshots)


_cores: Final[dict[tuple[int, Path, Path], Core]] = {}
_cores_lock: Final = threading.Lock()


def core(home: Path | str | None = None, criu: Path | str | None = None) -> Core:
    """This process's core of a state directory (default: $BUNSHIN_HOME)."""
    home_chosen = Path(home).resolve() if home else home_path().resolve()
    criu_chosen = Path(criu) if criu else criu_path(home_chosen)
    with _cores_lock:
        key = (os.getpid(), home_chosen, criu_chosen)
        if key not in _cores:
            _cores[key] = Core(home_chosen, criu_chosen)
        return _cores[key]


_open: Final[weakref.WeakSet[Workspace | Snapshot]] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    for kind in (Workspace, Snapshot):
        for handle in [handle for handle in _open if isinstance(handle, kind)]:
            try:
                handle.close()
            except Exception as error:  # noqa: BLE001 - the others must be closed all the same
                _log.warning("at exit: %s", error)


def _refuse_copy(what: str) -> NoReturn:
    raise UsageError(f"{what} cannot be copied or pickled: fork(n) makes branches, and each process makes its own")


class Workspace:
    """A running container: processes, files, desktop, network of its own."""

    def __init__(
        self, native: NativeWorkspace, core: Core, *, env: Mapping[str, str], label: Mapping[str, Any]
    ) -> None:
        self._native = native
        self._core = core
        self._env = dict(env)
        self._label = dict(label)
        self._last_fork: ForkStats | None = None
        self._branch_stats: ForkStats | None = None
        _open.add(self)

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
            memory_max_bytes, pids_max: limits; None for none.
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
        core = core or _default_core()
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
    def id(self) -> str:
        """Names it in the registry, in cgroups and in messages."""
        return self._native.id

    @property
    def pid(self) -> int:
        """Its process 1, as the host sees it; 0 after its end."""
        return self._native.pid

    @property
    def closed(self) -> bool:
        """Whether it was closed, or belongs to another process."""
        return self._native.closed

    @property
    def core(self) -> Core:
        """The state directory it is in."""
        return self._core

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
            uid, gid: user and group to run as.

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

    def close(self) -> None:
        """Ends it and removes all it had; idempotent. Branches and snapshots of it live on."""
        if self._native.closed:
            return
        self._native.stop()
        self._native.release()
        _open.discard(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> NoReturn:
        _refuse_copy("a workspace")

    def __repr__(self) -> str:
        return f"<Workspace {self.id} {'running' if self.alive else 'ended'}>"


class Snapshot:
    """A frozen state of a workspace, from which branches are made; immutable."""

    def __init__(
        self,
        native: NativeSnapshot,
        core: Core,
        *,
        stats: ForkStats,
        env: Mapping[str, str],
        label: Mapping[str, Any],
        workspace_id: str,
    ) -> None:
        self._native = native
        self._core = core
        self._env = env
        self._label = label
        self._workspace_id = workspace_id
        self._writers: list[Future[Path]] = []
        self.stats: Final = stats
        _open.add(self)

    @property
    def id(self) -> str:
        """Names it in the registry and in messages."""
        return self._native.id

    @property
    def closed(self) -> bool:
        """Whether it was closed, or belongs to another process."""
        return self._native.closed

    @property
    def core(self) -> Core:
        """The state directory it is in."""
        return self._core

    @property
    def engine(self) -> str:
        """What carries its processes and memory."""
        return self._native.engine

    def branch(self, *, cpu_weight: int = 0, io_weight: int = 0) -> Workspace:
        """Makes a workspace in this state; several threads may at once.

        Args:
            cpu_weight, io_weight: as `Workspace.weigh`; they hold for the making too.

        Raises:
            EngineError: it cannot be made; nothing is left of it.
        """
        label = {**self._label, "kind": "branch", "snapshot": self.id, "workspace": self._workspace_id}
        native, stats = self._native.branch(json.dumps(label), cpu_weight=cpu_weight, io_weight=io_weight)
        workspace = Workspace(native, self._core, env=self._env, label=self._label)
        workspace._branch_stats = stats
        return workspace

    def hurry(self) -> None:
        """Somebody waits now: branches that are being made, in other threads, get the weights of their source."""
        self._native.hurry()

    def spawn(self, n: int) -> list[Workspace]:
        """Makes n branches at the same time: all of them, or none and the first error."""
        if n < 1:
            raise UsageError(f"n: {n} branches")
        if n == 1:
            return [self.branch()]
        with ThreadPoolExecutor(max_workers=min(n, 2 * (os.cpu_count() or 1))) as pool:
            futures = [pool.submit(self.branch) for _ in range(n)]
        errors = [future.exception() for future in futures]
        failed = next((error for error in errors if error is not None), None)
        if failed is None:
            return [future.result() for future in futures]
        with contextlib.ExitStack() as stack:
            for future, error in zip(futures, errors, strict=True):
                if error is None:
                    stack.callback(future.result().close)
        raise failed

    def persist(self, path: Path | str) -> Future[Path]:
        """Starts to write it to path, in the background; neither its source nor its branches wait for that.

        What the future brings is path, once all of it is on the disk; until then path does not exist, whatever
        happens. Closing the snapshot waits for its writers.

        Raises:
            UsageError: path exists, or its directory does not.
            ClosedError: the snapshot is closed. (Later failures are the future's.)
        """
        target = Path(os.path.abspath(path))
        check_target(target)
        with self._native.held():
            writer = ThreadPoolExecutor(max_workers=1, thread_name_prefix="bunshin-persist")
            future = writer.submit(
                persist,
                self._native,
                target,
                home=self._core.home,
                workspace=self._workspace_id,
                env=self._env,
                label=self._label,
            )
            self._writers.append(future)
        writer.shutdown(wait=False)
        return future

    @classmethod
    def load(cls, path: Path | str, *, engine: str | None = None, core: Core | None = None) -> Self:
        """A snapshot in memory again of what `persist` wrote, in any process, also after a reboot.

        It keeps nothing of path: that may be removed afterwards. Any engine reads what any wrote; default: the one
        that took the snapshot.

        Raises:
            UsageError: no snapshot is there.
            SnapshotDamaged: a file of it is missing or changed; the message names it.
            ImageNotFoundError, UnsupportedError: the image, or the runtime layer, that it stands on is not here.
        """
        core = core or _default_core()
        core.collect_once()
        begun_ns = time.monotonic_ns()
        native, durable = load(core.native, Path(os.path.abspath(path)), home=core.home, engine=engine)
        total_ns = time.monotonic_ns() - begun_ns
        stats = ForkStats(total_ns=total_ns, frozen_ns=0, copied_bytes=0, shared_bytes=0, layer_bytes=0, phases=())
        return cls(native, core, stats=stats, env=durable.env, label=durable.label, workspace_id=durable.workspace)

    def close(self) -> None:
        """Gives it up, once what `persist` began is written; idempotent. Branches live on."""
        if self._native.closed:
            return
        wait(self._writers)
        self._native.drop()
        self._native.release()
        _open.discard(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> NoReturn:
        _refuse_copy("a snapshot")

    def __repr__(self) -> str:
        return f"<Snapshot {self.id} by {self.engine}>"


_default_core: Final[Callable[[], Core]] = core
