# SPDX-License-Identifier: Apache-2.0
"""The X desktop: a virtual X server and a window manager, each known to be ready by its own word."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Desktop", "ScreenSize", "parse_screen_size", "read_word"]

_LOGS = Path("/var/log/bunshin")
_START_TIMEOUT_S = 60.0
_SMALLEST, _LARGEST = 320, 7680


@dataclass(frozen=True, slots=True, kw_only=True)
class ScreenSize:
    """Size of the screen in pixels."""

    width: int
    height: int


def parse_screen_size(text: str) -> ScreenSize:
    """Reads `WIDTHxHEIGHT`.

    Raises:
        ValueError: it is no such thing, or out of bounds.
    """
    match = re.fullmatch(r"(\d+)x(\d+)", text)
    if match is None:
        raise ValueError(f"screen size {text!r}: write it as 1280x720")
    size = ScreenSize(width=int(match[1]), height=int(match[2]))
    if not all(_SMALLEST <= n <= _LARGEST for n in (size.width, size.height)):
        raise ValueError(f"screen size {text!r}: each side must be {_SMALLEST} to {_LARGEST} pixels")
    return size


class Desktop:
    """Runs Xvfb and openbox for as long as the server lives."""

    def __init__(
        self,
        *,
        display: int,
        size: ScreenSize,
        openbox_config: str,
        spawn: Callable[[Sequence[str], str], Awaitable[object]] | None = None,
    ) -> None:
        """`spawn` starts the window manager, given its command line and the name of its log: as a user, say."""
        self.size = size
        self._spawn = spawn or _spawn
        self._display = display
        self._openbox_config = openbox_config
        self._x_server: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        """Returns once windows can be opened and are managed.

        Raises:
            RuntimeError: one of the two did not come up; the message names its log.
        """
        _LOGS.mkdir(parents=True, exist_ok=True)
        self._remove_stale_lock()
        await self._start_x_server()
        os.environ["DISPLAY"] = f":{self._display}"
        await self._start_window_manager()

    async def wait_ended(self) -> int:
        """Waits until the X server ends, which it never does by itself; returns its exit status."""
        assert self._x_server is not None
        return await self._x_server.wait()

    def _remove_stale_lock(self) -> None:
        """A killed X server leaves its lock and its socket; nobody is behind them at our start."""
        for path in (f"/tmp/.X{self._display}-lock", f"/tmp/.X11-unix/X{self._display}"):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)

    async def _start_x_server(self) -> None:
        ready, theirs = os.pipe()
        screen = f"{self.size.width}x{self.size.height}x24"
        argv = ["Xvfb", f":{self._display}", "-screen", "0", screen, "-dpi", "96"]
        argv += ["-nolisten", "tcp", "-noreset", "-ac", "-displayfd", str(theirs)]
        try:
            with (_LOGS / "xvfb.log").open("ab") as out:
                self._x_server = await asyncio.create_subprocess_exec(
                    *argv, stdin=asyncio.subprocess.DEVNULL, stdout=out, stderr=out, pass_fds=(theirs,)
                )
        finally:
            os.close(theirs)
        await read_word(ready, "Xvfb")

    async def _start_window_manager(self) -> None:
        """Openbox runs its startup command when it manages windows: that opens the fifo for us."""
        fifo = Path("/run/bunshin/window-manager.ready")
        fifo.unlink(missing_ok=True)
        os.mkfifo(fifo)
        fifo.chmod(0o666)  # the window manager may be a user's
        ready = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        # Keeps the fifo from reporting its end before the first writer has come.
        held = os.open(fifo, os.O_WRONLY | os.O_CLOEXEC)
        try:
            startup = f"/bin/sh -c 'echo ready > {fifo}'"
            await self._spawn(["openbox", "--config-file", self._openbox_config, "--startup", startup], "openbox")
            await read_word(ready, "openbox")
        finally:
            os.close(held)
            fifo.unlink()


async def _spawn(argv: Sequence[str], log: str) -> None:
    with (_LOGS / f"{log}.log").open("ab") as out:
        await asyncio.create_subprocess_exec(*argv, stdin=asyncio.subprocess.DEVNULL, stdout=out, stderr=out)


async def read_word(descriptor: int, who: str) -> None:
    """Waits until a line is written to a pipe, and closes it; not before, or its writer would break."""
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[None] = loop.create_future()
    line = bytearray()

    def take() -> None:
        data = os.read(descriptor, 64)
        line.extend(data)
        if (not data or line.endswith(b"\n")) and not ended.done():
            ended.set_result(None)

    loop.add_reader(descriptor, take)
    try:
        await asyncio.wait_for(ended, _START_TIMEOUT_S)
    except TimeoutError:
        line.clear()
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)
    if not line.endswith(b"\n"):
        raise RuntimeError(f"{who} did not come up; see {_LOGS}/{who.lower()}.log in the workspace")
