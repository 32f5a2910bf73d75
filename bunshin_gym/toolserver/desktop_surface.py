# SPDX-License-Identifier: Apache-2.0
"""The desktop surface: the tools of an image that has a whole desktop, used by mouse and keyboard."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import shutil
import signal
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .atspi import Accessibility
from .atspi_xml import focused_terminal, render
from .desktop import parse_screen_size
from .quiet import settle
from .registry import ActionError, Handler, Registry, Tool, ToolRefusedError
from .screen import Screen
from .session import Session
from .sudo import SudoBroker

__all__ = ["DesktopSurface"]

_ACTION_TIMEOUT_S = 90.0
_SETTLE_S = 2.0
_TREE_CHARACTERS = 500_000
_USER = "user"
_LONGEST_WAIT_S = 60.0
_KILLED = "the process that runs actions was killed"


class DesktopSurface:
    """A user's desktop, actions and observations; one call at a time."""

    def __init__(self, registry: Registry, *, openbox_config: str) -> None:
        size = parse_screen_size(os.environ.get("BUNSHIN_SCREEN", "1920x1080"))
        self.session = Session(size=size, user=_USER, openbox_config=openbox_config)
        self.desktop = self.session.desktop
        self._registry = registry
        self._runner = _Runner(self.session)
        self._accessibility = Accessibility(self.session.bus_address, self.session.account.pw_uid)
        self._sudo = SudoBroker(_USER)
        self._screen: Screen | None = None
        self._turn = asyncio.Lock()
        self._last_error = ""
        self._launched: list[asyncio.subprocess.Process] = []
        registry.add("action", {"pyautogui": self.pyautogui, "wait": self.wait})
        registry.add("function", self._functions())

    async def start(self) -> None:
        """Returns when the desktop is up and agents' actions can be run."""
        await self.session.start()
        await self._sudo.start()
        await self._runner.start()
        await self._accessibility.connect()
        self._screen = Screen(with_cursor=True)

    def _functions(self) -> dict[str, Handler]:
        names = "describe_tools launch observe picture put_file rest run run_source seed step terminal tree"
        return {name: getattr(self, name) for name in names.split()}

    # ---- actions

    async def pyautogui(self, source: str) -> None:
        """Runs Python source with pyautogui and time at hand."""
        done = await self._runner.run(f"import pyautogui, time\n{source}", _ACTION_TIMEOUT_S)
        if done["timed_out"]:
            raise ActionError(f"the action took longer than {_ACTION_TIMEOUT_S:g} s and was ended")
        if done["exit_code"] != 0:
            raise ActionError((done["error"].strip().splitlines() or [f"exit code {done['exit_code']}"])[-1])

    async def wait(self, seconds: float = 2.0) -> None:
        """Lets time pass."""
        if not 0 <= seconds <= _LONGEST_WAIT_S:
            raise ActionError(f"seconds must be 0 to {_LONGEST_WAIT_S:g}")
        await asyncio.sleep(seconds)

    async def run_action(self, tool: Tool, args: Mapping[str, Any]) -> dict[str, Any]:
        """Runs an action; what went wrong is in the result, for the agent."""
        async with self._turn:
            return await self._act(tool, args)

    async def _act(self, tool: Tool, args: Mapping[str, Any]) -> dict[str, Any]:
        started = time.monotonic()
        self._last_error = ""
        try:
            await tool.bind(args)
        except (ActionError, ToolRefusedError, TypeError, ValueError, OSError) as error:
            self._last_error = f"{tool.name}: {error}"
        return {"last_action_error": self._last_error, "action_ms": (time.monotonic() - started) * 1e3}

    # ---- what is seen

    async def observe(self, screenshot: bool = True, tree: bool = True, dom: bool = False) -> dict[str, Any]:
        """What the agent sees now."""
        async with self._turn:
            return await self._observe(screenshot=screenshot, tree=tree, settle_s=0.0)

    async def step(
        self,
        name: str,
        args: dict[str, Any],
        screenshot: bool = True,
        tree: bool = True,
        settle_s: float = _SETTLE_S,
    ) -> dict[str, Any]:
        """An action, what it sets off, and an observation, in one call."""
        tool = self._registry.find(name)
        if tool.kind != "action":
            raise ToolRefusedError(f"{name} is not an action")
        async with self._turn:
            acted = await self._act(tool, args)
            seen = await self._observe(screenshot=screenshot, tree=tree, settle_s=settle_s)
            seen["action_ms"] = acted["action_ms"]
            return seen

    async def _observe(self, *, screenshot: bool, tree: bool, settle_s: float) -> dict[str, Any]:
        started = time.monotonic()
        settled = await settle(settle_s) if settle_s else True
        at_rest = time.monotonic()
        shot = await self.picture() if screenshot else None
        shown = time.monotonic()
        read = await self.tree() if tree else {"text": "", "cut": False, "terminal": None}
        ended = time.monotonic()
        return {
            "screenshot": shot,
            "accessibility_tree": read["text"],
            "accessibility_cut": read["cut"],
            "terminal": read["terminal"],
            "settled": settled,
            "last_action_error": self._last_error,
            "timings_ms": {
                "settle": (at_rest - started) * 1e3,
                "screenshot": (shown - at_rest) * 1e3,
                "tree": (ended - shown) * 1e3,
            },
        }

    async def picture(self) -> dict[str, Any]:
        """The screen alone, with the pointer."""
        assert self._screen is not None
        return await asyncio.to_thread(self._screen.capture)

    async def tree(self) -> dict[str, Any]:
        """The accessibility tree as XML, whether it was cut, and what the focused terminal shows."""
        apps = await self._accessibility.read()
        text, cut = render(apps, max_characters=_TREE_CHARACTERS)
        return {"text": text, "cut": cut, "terminal": focused_terminal(apps)}

    async def terminal(self) -> str | None:
        """What the focused terminal shows; None when there is none."""
        return focused_terminal(await self._accessibility.read("gnome-terminal-server"))

    # ---- what tasks do

    async def run(
        self,
        command: str | Sequence[str],
        shell: bool = False,
        timeout_s: float = 120.0,
        env: dict[str, str] | None = None,
        cwd: str = "",
    ) -> dict[str, Any]:
        """Runs a command as the user to its end: exit_code, stdout, stderr, timed_out."""
        return await self.session.run(_argv(command, shell), timeout_s=timeout_s, env=env, cwd=cwd)

    async def run_source(self, source: str, timeout_s: float = _ACTION_TIMEOUT_S) -> dict[str, Any]:
        """Runs Python source as the user, with pyautogui loaded: exit_code, output, error, timed_out."""
        return await self._runner.run(source, timeout_s)

    async def launch(self, command: str | Sequence[str], shell: bool = False) -> int:
        """Starts a program as the user and leaves it running; returns its process id."""
        process = await self.session.start_process(_argv(command, shell))
        self._launched = [*(p for p in self._launched if p.returncode is None), process]
        return process.pid

    async def put_file(self, path: str, data: bytes, mode: int = 0o644) -> int:
        """Writes a file that belongs to the user, with the folders above it."""

        def write() -> None:
            file = Path(path)
            account = self.session.account
            missing = [folder for folder in (file.parent, *file.parent.parents) if not folder.exists()]
            file.parent.mkdir(parents=True, exist_ok=True)
            scratch = file.with_name(f".{file.name}.bunshin-new")
            scratch.write_bytes(data)
            scratch.chmod(mode)
            for made in (*missing, scratch):
                os.chown(made, account.pw_uid, account.pw_gid)
            scratch.replace(file)

        await asyncio.to_thread(write)
        return len(data)

    async def rest(self, longest_cpu_s: float = _SETTLE_S) -> bool:
        """Waits until the desktop has come to rest; False when it had used that much processor time before it did."""
        return await settle(longest_cpu_s)

    async def seed(self, value: int) -> None:
        """Seeds the server's own random numbers."""
        random.seed(value)

    async def describe_tools(self) -> dict[str, dict[str, str]]:
        """All tools, with their kinds and signatures."""
        return self._registry.describe()


def _argv(command: str | Sequence[str], shell: bool) -> list[str]:
    """A command line of a command in any of OSWorld's forms; a list with `shell` is run by its first item."""
    if isinstance(command, str):
        return ["/bin/bash", "-c", command] if shell else [command]
    words = [os.path.expanduser(word) if word.startswith("~/") else word for word in command]
    if shell:
        return ["/bin/bash", "-c", words[0], *words[1:]] if len(words) == 1 else ["/bin/bash", "-c", " ".join(words)]
    return words


class _Runner:
    """The process that has pyautogui loaded; started again if it was killed."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._turn = asyncio.Lock()

    async def start(self) -> None:
        """Returns when it can run source."""
        ours, theirs = socket.socketpair()
        package = Path(__file__).resolve().parent
        env = {**self._session.env, "PYTHONPATH": os.environ.get("PYTHONPATH", "")}
        home = Path(self._session.account.pw_dir)
        if not (home / ".Xauthority").exists() and shutil.which("touch"):
            await self._session.run(["touch", str(home / ".Xauthority")], timeout_s=10)
        with contextlib.closing(theirs):
            await self._session.start_process([sys.executable, str(package / "pyrunner.py")], stdin=theirs, env=env)
        self._reader, self._writer = await asyncio.open_unix_connection(sock=ours, limit=4 << 20)
        if not await self._reader.readline():
            raise RuntimeError("pyautogui cannot be loaded in the workspace")

    async def run(self, source: str, timeout_s: float) -> dict[str, Any]:
        """Runs source, once: what was killed half way is told of, not begun anew."""
        async with self._turn:
            assert self._reader is not None
            if self._reader.at_eof():
                await self._start_again()
            line = await self._ask({"source": source, "timeout_s": timeout_s})
            if line:
                return dict(json.loads(line))
            await self._start_again()
            return {"exit_code": 128 + signal.SIGKILL, "output": "", "error": _KILLED, "timed_out": False}

    async def _ask(self, request: Mapping[str, Any]) -> bytes:
        """Its answer; none if it was killed."""
        assert self._reader is not None
        assert self._writer is not None
        with contextlib.suppress(ConnectionError):
            self._writer.write(json.dumps(request).encode() + b"\n")
            return await self._reader.readline()
        return b""

    async def _start_again(self) -> None:
        assert self._writer is not None
        self._writer.close()
        await self.start()
