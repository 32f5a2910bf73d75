# SPDX-License-Identifier: Apache-2.0
"""Joins a workspace and its tool server into what an env needs; the real `Guest` and `GuestBase`."""

from __future__ import annotations

import os
import select
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from http.client import HTTPException
from pathlib import Path
from typing import Any, Final

from bunshin_gym.bases import BaseKey
from bunshin_gym.errors import ToolError, WorkspaceDied
from bunshin_gym.gate import Gate
from bunshin_gym.guest import Seen
from bunshin_gym.images import ImageStore
from bunshin_gym.runtime import runtime_layer
from bunshin_gym.toolclient import TOOL_SOCKET, ToolClient
from bunshin_gym.types import ForkStats, ToolCall, WorkspaceStats
from bunshin_gym.workspace import Snapshot, Workspace, core

__all__ = ["WorkspaceBase", "WorkspaceGuest", "boot_base", "boot_workspace", "image_digest"]

_READY_TIMEOUT_S: Final = 120.0
_CALL_TIMEOUT_S: Final = 180.0
_DEATH_TIMEOUT_S: Final = 2.0
_CONFINED_WEIGHT: Final = 1
_PERSISTED, _SOCKET = "snapshot", "socket"


class WorkspaceGuest:
    """A workspace and the client of its tool server; owns both."""

    def __init__(
        self, workspace: Workspace, *, socket: str, engine: str | None, snapshot_stats: ForkStats | None = None
    ) -> None:
        self.workspace = workspace
        self.snapshot_stats = snapshot_stats
        self._socket = socket
        self._engine = engine
        self._escapes = 0
        self._gate = Gate()
        self.client = ToolClient(workspace.root, socket=socket, timeout_s=_CALL_TIMEOUT_S)

    @property
    def branch_stats(self) -> ForkStats | None:
        """What making this workspace cost; None if it was booted."""
        return self.workspace.branch_stats

    def open(self, url: str) -> None:
        """See `Page`."""
        with self._watched():
            error = self.client.call("goto", {"url": url})["last_action_error"]
        if error:
            raise ToolError(error)

    def evaluate(self, script: str, arg: Any = None) -> Any:
        """See `Page`."""
        with self._watched():
            return self.client.evaluate(script, arg)

    @property
    def pid(self) -> int:
        """Process 1 of the workspace, as the host sees it."""
        return self.workspace.pid

    def call(self, name: str, args: Mapping[str, Any] | None = None, *, timeout_s: float | None = None) -> Any:
        """See `Page`."""
        with self._watched():
            return self.client.call(name, args, timeout_s=timeout_s)

    def execute(self, argv: Sequence[str], *, timeout_s: float = 60.0) -> str:
        """See `Page`."""
        with self._gate.passing():
            done = self.workspace.exec(argv, timeout_s=timeout_s)
        if done.exit_code != 0:
            raise ToolError(f"{argv[0]}: exit code {done.exit_code}: {done.stderr.decode(errors='replace').strip()}")
        return done.stdout.decode(errors="replace")

    def act(self, calls: Sequence[ToolCall], *, tree: bool = True, question: str = "") -> Seen:
        """See `Guest`."""
        wanted: dict[str, Any] = {"tree": tree, **({"script": question} if question else {})}
        begun_ns = time.monotonic_ns()
        tool_ns = 0
        with self._watched():
            for number, call in enumerate(calls, start=1):
                if number == len(calls):
                    view = self.client.step(call.name, call.args, **wanted)
                    tool_ns += int(view["action_ms"] * 1e6)
                    error = view["last_action_error"]
                    break
                acted = self.client.call(call.name, call.args)
                tool_ns += int(acted["action_ms"] * 1e6)
                error = acted["last_action_error"]
                if error:
                    view = self.client.observe(**wanted)
                    break
            else:
                view, error, number = self.client.observe(**wanted), "", 0
        look_ns = time.monotonic_ns() - begun_ns - tool_ns
        answer = view.get("answer")
        return Seen(view=view, error=error, run=number, tool_ns=tool_ns, look_ns=look_ns, answer=answer)

    def fork(self, count: int) -> list[WorkspaceGuest]:
        """See `Guest`."""
        with self._take() as snapshot:
            return _guests(snapshot.spawn(count), socket=self._socket, engine=self._engine, stats=snapshot.stats)

    def snapshot(self) -> WorkspaceBase:
        """See `Guest`."""
        return WorkspaceBase(self._take(), socket=self._socket, engine=self._engine)

    def _take(self) -> Snapshot:
        """Between tool calls of whatever threads."""
        with self._gate.shut(_CALL_TIMEOUT_S):
            return self.workspace.snapshot(engine=self._engine)

    def stats(self) -> WorkspaceStats:
        """What it takes now."""
        return self.workspace.stats()

    def reseed(self) -> None:
        """See `Guest`."""
        self.workspace.reseed()

    def confine(self) -> None:
        """See `Guest`."""
        self.workspace.weigh(cpu=_CONFINED_WEIGHT, io=_CONFINED_WEIGHT)
        self._escapes = self.workspace.escapes()

    def hurry(self) -> None:
        """See `Guest`."""
        self.workspace.weigh()

    def wanted_out(self) -> bool:
        """See `Guest`."""
        return self.workspace.escapes() > self._escapes

    def close(self) -> None:
        """Ends the workspace; idempotent."""
        self.client.close()
        self.workspace.close()

    @contextmanager
    def _watched(self) -> Iterator[None]:
        """Turns the silence of a tool server whose workspace is gone into what it is."""
        if not self.workspace.alive:
            raise WorkspaceDied(f"workspace {self.workspace.id} has ended")
        try:
            with self._gate.passing():
                yield
        except ToolError as error:
            # Its processes go before its process 1 does: a broken connection may be the first we hear of it.
            broken = isinstance(error.__cause__, ConnectionError | TimeoutError | HTTPException)
            patience_s = _DEATH_TIMEOUT_S if broken else 0.0
            if not _ends(self.workspace, patience_s):
                raise
            raise WorkspaceDied(f"workspace {self.workspace.id} ended by itself: {error}") from error


def _ends(workspace: Workspace, patience_s: float) -> bool:
    """Whether the workspace has ended, or does so within that time."""
    if not workspace.alive:
        return True
    try:
        process = os.pidfd_open(workspace.pid)
    except (ProcessLookupError, ValueError):
        return True
    try:
        readable, _, _ = select.select([process], [], [], patience_s)
    finally:
        os.close(process)
    return bool(readable)


def _guests(
    workspaces: Sequence[Workspace], *, socket: str, engine: str | None, stats: ForkStats
) -> list[WorkspaceGuest]:
    """All of them as guests, or none: then all are closed."""
    with ExitStack() as stack:
        for workspace in workspaces:
            stack.callback(workspace.close)
        guests = [WorkspaceGuest(w, socket=socket, engine=engine, snapshot_stats=stats) for w in workspaces]
        stack.pop_all()
    return guests


class WorkspaceBase:
    """A snapshot of a booted workspace with its desktop up and nothing done yet."""

    def __init__(self, snapshot: Snapshot, *, socket: str, engine: str | None) -> None:
        self.snapshot = snapshot
        self._socket = socket
        self._engine = engine

    @property
    def unique_bytes(self) -> int:
        """What was copied for it: memory, and files of its layer."""
        return self.snapshot.stats.copied_bytes + self.snapshot.stats.layer_bytes

    def branch(self, *, confined: bool = False) -> WorkspaceGuest:
        """See `GuestBase` and `GuestSnapshot`."""
        weight = _CONFINED_WEIGHT if confined else 0
        workspaces = [self.snapshot.branch(cpu_weight=weight, io_weight=weight)]
        (guest,) = _guests(workspaces, socket=self._socket, engine=self._engine, stats=self.snapshot.stats)
        return guest

    def hurry(self) -> None:
        """See `GuestSnapshot`."""
        self.snapshot.hurry()

    def persist(self, path: Path) -> None:
        """See `GuestSnapshot`."""
        path.mkdir()
        (path / _SOCKET).write_text(self._socket)
        self.snapshot.persist(path / _PERSISTED).result()

    @classmethod
    def load(cls, key: BaseKey, path: Path) -> WorkspaceBase:
        """What `persist` wrote, in memory again; nothing of `path` is needed afterwards. Raises as `Snapshot.load`."""
        socket = (path / _SOCKET).read_text()
        snapshot = Snapshot.load(path / _PERSISTED, engine=key.engine, core=core(Path(key.home)))
        return cls(snapshot, socket=socket, engine=key.engine)

    def close(self) -> None:
        """Gives the snapshot up; idempotent."""
        self.snapshot.close()


def boot_workspace(key: BaseKey) -> tuple[WorkspaceGuest, str]:
    """Boots a workspace and waits until its tool server has everything up.

    Returns:
        The guest, and its image's digest.

    Raises:
        ImageError: the image was never built here.
        ToolUnavailableError: it does not come up.
    """
    store = ImageStore(key.home)
    image = store.get(key.image)
    socket = image.services.get("tool", TOOL_SOCKET)
    with store.hold(image):
        workspace = Workspace.start(
            image,
            screen=(key.screen.width, key.screen.height),
            env={"BUNSHIN_SURFACE": key.surface},
            memory_max_bytes=key.memory_max_bytes,
            label=f"base of {key.image}",
            core=core(Path(key.home)),
        )
    try:
        guest = WorkspaceGuest(workspace, socket=socket, engine=key.engine)
        with guest._watched():
            guest.client.wait_ready(_READY_TIMEOUT_S)
            # The first look starts what later ones use: it is forked with the rest.
            guest.client.observe()
    except BaseException:
        workspace.close()
        raise
    return guest, image.digest


def image_digest(key: BaseKey) -> str:
    """What a base of that key is booted from: the image, and what we put above it.

    Raises:
        ImageError: the image was never built here.
    """
    return f"{ImageStore(key.home).get(key.image).digest}+{runtime_layer(Path(key.home)).name}"


def boot_base(key: BaseKey) -> WorkspaceBase:
    """Boots a workspace, takes its snapshot and ends it."""
    guest, _ = boot_workspace(key)
    with ExitStack() as stack:
        stack.callback(guest.close)
        snapshot = guest.workspace.snapshot(engine=key.engine)
        return WorkspaceBase(snapshot, socket=guest.client._path, engine=key.engine)
