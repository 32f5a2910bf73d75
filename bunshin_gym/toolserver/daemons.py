# SPDX-License-Identifier: Apache-2.0
"""Programs that run beside the tool server from boot on: the web sites of an image, their databases.

The image lists them in a file; they start in order, each after the one before says that it serves.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import pwd
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["DAEMONS_FILE", "Daemon", "Daemons", "read_daemons"]

log = logging.getLogger(__name__)

DAEMONS_FILE = Path("/etc/bunshin/daemons.json")
_LOGS = Path("/var/log/bunshin")
_READY_TIMEOUT_S = 110.0
_ANSWER_TIMEOUT_S = 60.0
_POLL_S = 0.02
_LOG_BYTES = 2000


@dataclass(frozen=True, slots=True, kw_only=True)
class Daemon:
    """One program; the image's definition says what each field means."""

    name: str
    argv: list[str]
    user: str = "root"
    workdir: str = "/"
    env: Mapping[str, str] = field(default_factory=dict)
    ready: str = ""
    root: str = "/"


def read_daemons(file: Path = DAEMONS_FILE) -> list[Daemon]:
    """The image's list; empty when it has none."""
    if not file.exists():
        return []
    return [Daemon(**row) for row in json.loads(file.read_text())]


class Daemons:
    """Starts them, and says of each that ends that it did."""

    def __init__(self, daemons: list[Daemon]) -> None:
        self._daemons = daemons
        self._processes: dict[str, asyncio.subprocess.Process] = {}
        self._watchers: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Returns when all serve.

        Raises:
            RuntimeError: one does not come up; the message has the end of its log.
        """
        _LOGS.mkdir(parents=True, exist_ok=True)
        for daemon in self._daemons:
            process = await _spawn(daemon)
            self._processes[daemon.name] = process
            await _await_ready(daemon, process)
            self._watchers.append(asyncio.create_task(_watch(daemon, process)))


async def _spawn(daemon: Daemon) -> asyncio.subprocess.Process:
    argv = daemon.argv
    if daemon.root != "/":
        # Accounts are those of the other root: chroot looks them up there.
        change = ["chroot", f"--userspec={daemon.user}", daemon.root, "/bin/sh", "-c", 'cd "$0" && exec "$@"']
        argv = [*change, daemon.workdir, *argv]
    own = daemon.root == "/" and daemon.user != "root"
    account = pwd.getpwnam(daemon.user) if own else None
    with (_LOGS / f"{daemon.name}.log").open("ab") as out:
        return await asyncio.create_subprocess_exec(
            *argv,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            cwd=daemon.workdir if daemon.root == "/" else "/",
            env={**_environment(), **daemon.env},
            user=account.pw_uid if account else None,
            group=account.pw_gid if account else None,
            extra_groups=os.getgrouplist(daemon.user, account.pw_gid) if account else None,
            start_new_session=True,
        )


def _environment() -> dict[str, str]:
    """Ours without what is meant for the tool server."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("BUNSHIN_", "PYTHON"))}


async def _await_ready(daemon: Daemon, process: asyncio.subprocess.Process) -> None:
    if not daemon.ready:
        return
    try:
        async with asyncio.timeout(_READY_TIMEOUT_S):
            while not await _serves(daemon.ready, daemon.root):
                if process.returncode is not None:
                    raise RuntimeError(f"{daemon.name} ended with status {process.returncode}: {_tail(daemon)}")
                await asyncio.sleep(_POLL_S)
    except TimeoutError as error:
        raise RuntimeError(f"{daemon.name} does not serve {daemon.ready}: {_tail(daemon)}") from error


async def _serves(ready: str, root: str) -> bool:
    kind, _, rest = ready.partition(":")
    if kind in ("http", "https"):
        return await _answers(ready)
    try:
        if kind == "tcp":
            _, writer = await asyncio.open_connection("127.0.0.1", int(rest))
        else:
            _, writer = await asyncio.open_unix_connection(root.rstrip("/") + rest)
    except OSError:
        return False
    writer.close()
    await writer.wait_closed()
    return True


async def _answers(url: str) -> bool:
    import aiohttp  # here alone: an image without a web site starts quicker without it

    timeout = aiohttp.ClientTimeout(total=_ANSWER_TIMEOUT_S)
    try:
        async with aiohttp.ClientSession(timeout=timeout) as session, session.get(url) as answer:
            await answer.read()
            return bool(answer.status < 500)
    except (OSError, aiohttp.ClientError):
        return False


async def _watch(daemon: Daemon, process: asyncio.subprocess.Process) -> None:
    status = await process.wait()
    log.error("%s ended with status %d", daemon.name, status)


def _tail(daemon: Daemon) -> str:
    return (_LOGS / f"{daemon.name}.log").read_bytes()[-_LOG_BYTES:].decode(errors="replace")
