# SPDX-License-Identifier: Apache-2.0
"""`bunshin view` in a real Chromium: one in a workspace, to whose loopback the page is served."""

from __future__ import annotations

import asyncio
import ctypes
import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from bunshin_gym.accounting import account_ids
from bunshin_gym.broadcast import is_watched
from bunshin_gym.envs import BunshinEnv
from bunshin_gym.paths import home_path
from bunshin_gym.tasks.scripted import solve
from bunshin_gym.vector import make_group
from bunshin_gym.viewer.app import make_app, serve

TOKEN = "a-token-for-this-test"
CLONE_NEWNET = 0x40000000


def listen_inside(pid: int) -> socket.socket:
    """A listening socket on the loopback of a workspace's network namespace."""
    found: list[socket.socket] = []

    def enter() -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        with Path(f"/proc/{pid}/ns/net").open() as namespace:
            if libc.setns(namespace.fileno(), CLONE_NEWNET) != 0:
                raise OSError(ctypes.get_errno(), "setns")
        found.append(socket.create_server(("127.0.0.1", 0)))

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    return found[0]


class Served:
    """The page, served by a thread of this process on a given socket."""

    def __init__(self, sock: socket.socket) -> None:
        def memory(ids: list[str]) -> dict[str, int]:
            return {name: member.machine_bytes for name, member in account_ids(ids).members.items()}

        ready = threading.Event()

        async def run() -> None:
            self._task = asyncio.current_task()
            self._loop = asyncio.get_running_loop()
            app = make_app(home_path(), TOKEN, memory)
            await serve(app, sock, lambda port: (setattr(self, "port", port), ready.set()))

        def main() -> None:
            try:
                asyncio.run(run())
            except asyncio.CancelledError:
                return

        self.port = 0
        self._thread = threading.Thread(target=main)
        self._thread.start()
        assert ready.wait(30)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._task.cancel)  # type: ignore[union-attr]
        self._thread.join()


@pytest.fixture
def browser() -> Iterator[BunshinEnv]:
    env = BunshinEnv("miniwob.click-test", screen=(1000, 800))
    env.reset(seed=1)
    yield env
    env.close()


def until(look: Callable[[], str], *wanted: str) -> str:
    """Looks until all is there."""
    end_s = time.monotonic() + 60
    while not all(text in (seen := look()) for text in wanted):
        assert time.monotonic() < end_s, f"{wanted} did not come: {seen}"
    return seen


def test_a_group_is_seen_to_diverge(browser: BunshinEnv) -> None:
    guest: Any = browser._guest
    served = Served(listen_inside(guest.workspace.pid))
    group = make_group("miniwob.click-test-2", 3)
    try:
        seen, _ = group.reset(seed=4)
        (right,) = solve("miniwob.click-test-2", {key: seen[key][0] for key in seen})
        group.step([right, "mouse_click(5, 5)", "noop(0)"])
        browser.step(f"goto('http://127.0.0.1:{served.port}/?token={TOKEN}')")
        names = [env.unwrapped.workspace_id for env in group.envs]  # type: ignore[attr-defined]

        def look() -> str:
            return str(browser.step("noop(300)")[0]["axtree_txt"])

        tree = until(look, *(f"{name} miniwob.click-test-2" for name in names), "branches of snapshot")
        assert "1 steps, reward 1" in tree
        assert "1 steps, reward 0" in tree
        until(look, "MiB of its own")
        sizes = browser._guest.evaluate(  # type: ignore[union-attr]
            "names => names.map(n => document.querySelector(`#workspace-${n} img`).naturalWidth)", names
        )
        assert sizes == [320] * 3
        group.close()
        until(lambda: "gone" if names[0] not in look() else "there", "gone")
    finally:
        group.close()
        served.close()
    assert not is_watched(home_path())


def test_nobody_comes_in_without_the_token() -> None:
    served = Served(socket.create_server(("127.0.0.1", 0)))
    base = f"http://127.0.0.1:{served.port}"
    try:
        for path in ("/", "/api/state", "/frame/0123456789ab", "/?token=wrong"):
            assert httpx.get(base + path).status_code == 403
        assert httpx.get(f"{base}/?token={TOKEN}", headers={"Host": "evil.example"}).status_code == 403
        with httpx.Client(base_url=base) as client:
            assert client.get("/", params={"token": TOKEN}).status_code == 200
            assert client.get("/api/state").status_code == 200
            assert client.get("/view.js").headers["content-type"].startswith("text/javascript")
            assert client.get("/frame/0123456789ab").status_code == 404
            assert client.get("/app.py").status_code == 404
    finally:
        served.close()


def test_the_command_prints_an_address_and_ends() -> None:
    # Tests that run in the background of a script are started with the signal ignored, and would hand that on.
    heed = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
    script = f"{heed}; import sys; from bunshin_gym.cli import main; sys.argv = ['bunshin', 'view']; main()"
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, env=os.environ) as command:
        try:
            assert command.stdout is not None
            address = re.fullmatch(r"(http://127\.0\.0\.1:\d+/\?token=\S+)\n", command.stdout.readline())
            assert address is not None
            assert "Workspaces" in httpx.get(address[1]).text
            assert is_watched(home_path())
            command.send_signal(2)
            assert command.wait(20) == 0
        finally:
            command.kill()
