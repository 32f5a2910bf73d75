# SPDX-License-Identifier: Apache-2.0
"""The server: one connection a call on a Unix socket, MessagePack both ways, each to the end of the stream.

    {name, args}  ->  {ok: true, value} or {ok: false, error}

Answers when everything is up, or failed to come up. Between two calls no connection is open and no timer runs, so the
server can be forked then; the first call in each branch writes to few pages, which HTTP would make four times as many.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgpack

from . import system
from .daemons import Daemons, read_daemons
from .registry import Registry, ToolRefusedError

__all__ = ["main"]

log = logging.getLogger("toolserver")

_SOCKET = Path("/run/bunshin/tool.sock")
_LOG = Path("/var/log/bunshin/toolserver.log")
_OPENBOX_CONFIG = "/etc/bunshin/openbox.xml"
_COLLECTED_OBJECTS = 20_000


class Server:
    """Answers calls from a registry of tools."""

    def __init__(self) -> None:
        self.registry = Registry()
        self.registry.add("function", {"ready": _ready, **system.functions()})
        self.stopped: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._surface: Any = None
        self._desktop: Any = None
        self._ready: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """Starts what the image asks for, in the background."""
        self._ready = asyncio.create_task(self._start(os.environ.get("BUNSHIN_SURFACE", "")))

    async def _start(self, surface: str) -> None:
        daemons = Daemons(read_daemons())
        self._daemons = daemons
        await asyncio.gather(daemons.start(), self._start_surface(surface))
        # What is there now stays. A collector that looks through it again and again takes time, and writes into all of
        # it, so that each branch would come to own a copy.
        gc.collect()
        gc.freeze()
        gc.set_threshold(_COLLECTED_OBJECTS)

    async def _start_surface(self, surface: str) -> None:
        if surface == "":
            return
        if surface == "browser":
            from .desktop import Desktop, parse_screen_size
            from .surface import BrowserSurface

            size = parse_screen_size(os.environ.get("BUNSHIN_SCREEN", "1280x720"))
            self._desktop = Desktop(display=0, size=size, openbox_config=_OPENBOX_CONFIG)
            self._surface = BrowserSurface(self._desktop, self.registry)
        elif surface == "desktop":
            from .desktop_surface import DesktopSurface

            self._surface = DesktopSurface(self.registry, openbox_config=_OPENBOX_CONFIG)
            self._desktop = self._surface.desktop
        else:
            raise ValueError(f"BUNSHIN_SURFACE={surface!r}: this server knows 'browser' and 'desktop'")
        await self._surface.start()
        self._watcher = asyncio.create_task(self._watch_desktop())

    async def _watch_desktop(self) -> None:
        status = await self._desktop.wait_ended()
        log.error("the X server ended with status %d: nothing to show any more", status)
        self.stop(1)

    def stop(self, status: int) -> None:
        """Makes the server end with an exit status; the first one counts."""
        if not self.stopped.done():
            self.stopped.set_result(status)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection."""
        with contextlib.closing(writer):
            writer.write(msgpack.packb(await self._answer(await reader.read()), default=str))

    async def _answer(self, call: bytes) -> dict[str, Any]:
        try:
            body = msgpack.unpackb(call)
            name, args = body["name"], body.get("args") or {}
        except (ValueError, KeyError, TypeError, msgpack.UnpackException) as error:
            return {"ok": False, "error": f"not a call: {error!r}"}
        try:
            return {"ok": True, "value": await self._run(str(name), args)}
        except asyncio.CancelledError:
            raise
        except ToolRefusedError as error:
            return {"ok": False, "error": str(error)}
        except Exception as error:
            log.warning("call of %s failed", name, exc_info=error)
            return {"ok": False, "error": f"{name}: {type(error).__name__}: {error}"}

    async def _run(self, name: str, args: dict[str, Any]) -> Any:
        assert self._ready is not None
        await asyncio.shield(self._ready)
        tool = self.registry.find(name)
        if tool.kind == "action":
            return await self._surface.run_action(tool, args)
        return await tool.bind(args)


async def _ready() -> None:
    """Nothing more than that everything is up, which is waited for before any call."""


async def _serve() -> int:
    loop = asyncio.get_running_loop()
    # Each thread is one more to carry into every branch; the second is for a file that makes its reader wait.
    loop.set_default_executor(ThreadPoolExecutor(2))
    server = Server()
    _SOCKET.parent.mkdir(parents=True, exist_ok=True)
    _SOCKET.unlink(missing_ok=True)
    listening = await asyncio.start_unix_server(server.serve, _SOCKET)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, server.stop, 0)
    server.begin()
    status = await server.stopped
    listening.close()
    return status


def _detach() -> None:
    """Own files for standard input and output: a descriptor of the host's would keep us from being forked."""
    _LOG.parent.mkdir(parents=True, exist_ok=True)
    null = os.open("/dev/null", os.O_RDONLY)
    out = os.open(_LOG, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(null, 0)
    os.dup2(out, 1)
    os.dup2(out, 2)
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))


def main() -> int:
    """Runs until told to stop, or until the desktop ends."""
    if len(sys.argv) > 1:
        print(f"{sys.argv[0]}: takes no arguments; it is set up by the environment", file=sys.stderr)
        return 2
    _detach()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    return asyncio.run(_serve())
