# SPDX-License-Identifier: Apache-2.0
"""The HTTP interface of an OSWorld machine, in front of a workspace: what OSWorld's controllers and agents talk to.

It listens on a free port of the host's loopback while it is open, and serves one workspace. Beside it, ports of the
loopback lead to the browser's and the player's own ports inside.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from types import MappingProxyType
from typing import Any, Final, Protocol, Self

from aiohttp import web

from bunshin_gym.osworld.routes import Routes
from bunshin_gym.osworld.tunnel import forward

__all__ = ["Endpoint", "Machine"]

_LARGEST_BODY_BYTES: Final = 1 << 30
PORTS_INSIDE: Final[Mapping[str, int]] = MappingProxyType({"chromium": 9222, "vlc": 8080})


class Machine(Protocol):
    """What the endpoint needs of a workspace; `WorkspaceGuest` is one."""

    def call(self, name: str, args: Mapping[str, Any] | None = None, *, timeout_s: float | None = None) -> Any: ...

    @property
    def pid(self) -> int: ...


class Endpoint:
    """Serves a workspace from `__enter__` to `__exit__`; afterwards nothing outside is connected to it."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._loop = asyncio.new_event_loop()
        self._thread: threading.Thread | None = None
        self._runner: web.AppRunner | None = None
        self._tunnels: list[asyncio.Server] = []
        self.port = 0
        self.chromium_port = 0
        self.vlc_port = 0

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self._loop.run_forever, name="bunshin-osworld", daemon=True)
        self._thread.start()
        try:
            self._await(self._open())
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._await(self._close())
        finally:
            self._stop()

    @property
    def url(self) -> str:
        """Its address."""
        return f"http://127.0.0.1:{self.port}"

    def _await(self, work: Any) -> None:
        future: Future[None] = asyncio.run_coroutine_threadsafe(work, self._loop)
        future.result()

    def _stop(self) -> None:
        assert self._thread is not None
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _open(self) -> None:
        application = web.Application(client_max_size=_LARGEST_BODY_BYTES)
        application.add_routes(Routes(self._call).table())
        self._runner = web.AppRunner(application, access_log=None, handle_signals=False)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.port = self._runner.addresses[0][1]
        for port in PORTS_INSIDE.values():
            self._tunnels.append(await forward(self._machine.pid, port))
        self.chromium_port, self.vlc_port = (server.sockets[0].getsockname()[1] for server in self._tunnels)

    async def _close(self) -> None:
        for server in self._tunnels:
            server.close()
        if self._runner is not None:
            await self._runner.cleanup()
        others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        await self._loop.shutdown_default_executor()

    async def _call(self, name: str, args: Mapping[str, Any], timeout_s: float) -> Any:
        call: Callable[..., Any] = self._machine.call
        return await asyncio.to_thread(call, name, args, timeout_s=timeout_s)
