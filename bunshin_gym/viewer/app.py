# SPDX-License-Identifier: Apache-2.0
"""The page's server: aiohttp, on loopback only, for whoever has the token."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import logging
import secrets
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from importlib import resources
from pathlib import Path
from typing import Any, Final

from aiohttp import web

from bunshin_gym.broadcast import frames, read_frame, watching, withdraw
from bunshin_gym.errors import BunshinError
from bunshin_gym.records import Record, list_workspaces

__all__ = ["Accounts", "make_app", "new_token", "serve", "state_of"]

_log: Final = logging.getLogger(__name__)
_COOKIE: Final = "bunshin_view"
_HOSTS: Final = frozenset({"127.0.0.1", "localhost", "[::1]"})
Accounts = Callable[[list[str]], dict[str, int]]
"""Workspace ids to the memory that each one's end would give back."""
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

_HOME: Final = web.AppKey("home", Path)
_TOKEN: Final = web.AppKey("token", str)
_ACCOUNTS: Final[web.AppKey[Accounts]] = web.AppKey("accounts")
_MEMORY: Final[web.AppKey[dict[str, int]]] = web.AppKey("memory")
_ACCOUNT_EVERY_S: Final = 3.0


def new_token() -> str:
    """A secret that the page's address carries."""
    return secrets.token_urlsafe(24)


def _entry(record: Record, home: Path) -> dict[str, Any]:
    frame = read_frame(home, record.id)
    return {
        "id": record.id,
        "kind": record.label.get("kind", "workspace"),
        "image": record.label.get("name", ""),
        "snapshot": record.parent,
        "source": record.label.get("workspace"),
        "owner_pid": record.owner_pid,
        "created_ns": str(record.created_ns),
        "frame": None if frame is None else str(frame.written_ns),
        "notes": {} if frame is None else dict(frame.notes),
    }


def _living(home: Path) -> list[Record]:
    return [record for record in list_workspaces(home) if record.alive and record.owned]


def state_of(home: Path, memory: Mapping[str, int]) -> list[dict[str, Any]]:
    """All living workspaces, oldest first, with what they showed last, and their memory as far as it is known."""
    return [{**_entry(record, home), "memory_bytes": memory.get(record.id)} for record in _living(home)]


@web.middleware
async def _guard(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Lets nobody in without the token, nor under another name than loopback's: a page elsewhere may point at us."""
    host = request.host.rpartition(":")[0] if request.host.count(":") == 1 or "]:" in request.host else request.host
    if host not in _HOSTS:
        raise web.HTTPForbidden(text="this page is served to loopback names only")
    token = request.app[_TOKEN]
    given = request.query.get("token")
    known = request.cookies.get(_COOKIE, "") if given is None else given
    if not hmac.compare_digest(known.encode(), token.encode()):
        raise web.HTTPForbidden(text="open the address that `bunshin view` printed: it has the token")
    response = await handler(request)
    if given is not None:
        response.set_cookie(_COOKIE, token, httponly=True, samesite="Strict")
    response.headers["Content-Security-Policy"] = "default-src 'self'; frame-ancestors 'none'"
    response.headers["X-Content-Type-Options"] = "nosniff"
    response.headers["Referrer-Policy"] = "no-referrer"
    return response


async def _page(request: web.Request) -> web.Response:
    name = request.match_info.get("name") or "index.html"
    kinds = {"html": "text/html", "js": "text/javascript", "css": "text/css"}
    text = resources.files("bunshin_gym.viewer").joinpath("static", name).read_text()
    return web.Response(text=text, content_type=kinds[name.rpartition(".")[2]])


async def _state(request: web.Request) -> web.Response:
    app = request.app
    memory: dict[str, int] = app[_MEMORY]
    found = await asyncio.to_thread(state_of, app[_HOME], memory)
    return web.json_response(found, headers={"Cache-Control": "no-store"})


async def _frame(request: web.Request) -> web.Response:
    frame = await asyncio.to_thread(read_frame, request.app[_HOME], request.match_info["id"])
    if frame is None:
        raise web.HTTPNotFound(text="it has shown nothing yet")
    return web.Response(body=frame.png, content_type="image/png", headers={"Cache-Control": "no-store"})


async def _watch(app: web.Application) -> AsyncIterator[None]:
    home = app[_HOME]
    living = {record.id for record in list_workspaces(home) if record.alive}
    with watching(home):
        for name in set(frames(home)) - living:
            withdraw(home, name)
        yield


async def _account(app: web.Application) -> AsyncIterator[None]:
    """Accounts for memory now and then: it takes longer than looking at a screen may."""

    async def run() -> None:
        while True:
            ids = [record.id for record in await asyncio.to_thread(_living, app[_HOME])]
            try:
                memory = await asyncio.to_thread(app[_ACCOUNTS], ids) if ids else {}
            except BunshinError as error:
                _log.warning("memory is not accounted for: %s", error)
            else:
                app[_MEMORY].clear()
                app[_MEMORY].update(memory)
            await asyncio.sleep(_ACCOUNT_EVERY_S)

    task = asyncio.create_task(run())
    yield
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


def make_app(home: Path, token: str, accounts: Accounts) -> web.Application:
    """The page, its state and its pictures. Envs write their screens as long as it runs."""
    app = web.Application(middlewares=[_guard])
    app[_HOME], app[_TOKEN], app[_ACCOUNTS], app[_MEMORY] = home, token, accounts, {}
    app.router.add_get("/", _page)
    app.router.add_get("/{name:index\\.html|view\\.js|view\\.css}", _page)
    app.router.add_get("/api/state", _state)
    app.router.add_get("/frame/{id:[0-9a-f]{12}}", _frame)
    app.cleanup_ctx.extend([_watch, _account])
    return app


async def serve(app: web.Application, sock: socket.socket, ready: Callable[[int], None]) -> None:
    """Serves on a listening socket until cancelled; `ready` is told its port."""
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        await web.SockSite(runner, sock).start()
        ready(sock.getsockname()[1])
        await asyncio.Event().wait()
    finally:
        await runner.cleanup()
        _log.info("the view has ended")
