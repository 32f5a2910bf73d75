# SPDX-License-Identifier: Apache-2.0
"""Snapshots of workspaces: branches are made of them, and they go to disk and back."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

from bunshin_gym.core import Core
from bunshin_gym.core import core as default_core
from bunshin_gym.durable import check_target, load, persist
from bunshin_gym.errors import UsageError
from bunshin_gym.handle import Handle
from bunshin_gym.native import NativeSnapshot
from bunshin_gym.types import ForkStats

if TYPE_CHECKING:
    from bunshin_gym.workspace import Workspace

__all__ = ["Snapshot"]


class Snapshot(Handle[NativeSnapshot]):
    """A frozen state of a workspace, from which branches are made; immutable."""

    _what = "a snapshot"
    _closed_last = True

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
        super().__init__(native, core)
        self._env = env
        self._label = label
        self._workspace_id = workspace_id
        self._writers: list[Future[Path]] = []
        self.stats: Final = stats

    @property
    def engine(self) -> str:
        """What carries its processes and memory."""
        return self._native.engine

    def branch(self, *, cpu_weight: int = 0, io_weight: int = 0) -> Workspace:
        """Makes a workspace in this state; several threads may at once.

        Args:
            cpu_weight: as for `Workspace.weigh`; it holds for the making too.
            io_weight: likewise.

        Raises:
            EngineError: it cannot be made; nothing is left of it.
        """
        from bunshin_gym.workspace import Workspace

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
        core = core or default_core()
        core.collect_once()
        begun_ns = time.monotonic_ns()
        native, durable = load(core.native, Path(os.path.abspath(path)), home=core.home, engine=engine)
        total_ns = time.monotonic_ns() - begun_ns
        stats = ForkStats(total_ns=total_ns, frozen_ns=0, copied_bytes=0, shared_bytes=0, layer_bytes=0, phases=())
        return cls(native, core, stats=stats, env=durable.env, label=durable.label, workspace_id=durable.workspace)

    def _end(self) -> None:
        wait(self._writers)
        self._native.drop()

    def __repr__(self) -> str:
        return f"<Snapshot {self.id} by {self.engine}>"
