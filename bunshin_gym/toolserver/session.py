# SPDX-License-Identifier: Apache-2.0
"""A user's desktop session: message bus, accessibility, window manager, panel, desktop, each waited for."""

from __future__ import annotations

import asyncio
import os
import pwd
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from .desktop import Desktop, ScreenSize, read_word

__all__ = ["Session"]

_LOGS = Path("/var/log/bunshin")
_START_TIMEOUT_S = 60.0
_OUTPUT_BYTES = 16 << 20


class Session:
    """What runs as the desktop's user, and how to start more of it."""

    def __init__(self, *, size: ScreenSize, user: str, openbox_config: str) -> None:
        self.account = pwd.getpwnam(user)
        self.runtime_dir = f"/run/user/{self.account.pw_uid}"
        self.bus_address = f"unix:path={self.runtime_dir}/bus"
        self.desktop = Desktop(display=0, size=size, openbox_config=openbox_config, spawn=self.spawn)
        self._display = ":0"

    @property
    def env(self) -> dict[str, str]:
        """The environment of the user's programs."""
        home = self.account.pw_dir
        return {
            "DBUS_SESSION_BUS_ADDRESS": self.bus_address,
            "DISPLAY": self._display,
            "GNOME_ACCESSIBILITY": "1",
            "ACCESSIBILITY_ENABLED": "1",
            "GTK_MODULES": "gail:atk-bridge",
            "HOME": home,
            "LANG": os.environ.get("LANG", "C.UTF-8"),
            "LOGNAME": self.account.pw_name,
            "PATH": f"{home}/.local/bin:/usr/local/bin:/usr/bin:/bin:/usr/local/games:/usr/games",
            "QT_ACCESSIBILITY": "1",
            "QT_LINUX_ACCESSIBILITY_ALWAYS_ON": "1",
            "SHELL": self.account.pw_shell,
            "TZ": os.environ.get("TZ", "UTC"),
            "USER": self.account.pw_name,
            "XDG_CURRENT_DESKTOP": "XFCE",
            "XDG_RUNTIME_DIR": self.runtime_dir,
            "XDG_SESSION_TYPE": "x11",
        }

    async def start(self) -> None:
        """Returns when the desktop is drawn and programs can be started on it.

        Raises:
            RuntimeError: a part of it did not come up; the message names its log.
        """
        self._make_runtime_dir()
        _name_this_machine()
        await self._start_bus()
        await self.desktop.start()
        await self._start_accessibility()
        await self._start_shell()

    async def start_process(self, argv: Sequence[str], **options: Any) -> asyncio.subprocess.Process:
        """Starts a program as the user, in a session of its own."""
        settings: dict[str, Any] = {
            "stdin": asyncio.subprocess.DEVNULL,
            "stdout": asyncio.subprocess.DEVNULL,
            "stderr": asyncio.subprocess.DEVNULL,
            "cwd": self.account.pw_dir,
            "env": self.env,
            "start_new_session": True,
            "user": self.account.pw_uid,
            "group": self.account.pw_gid,
            "extra_groups": [],
            **options,
        }
        return await asyncio.create_subprocess_exec(*argv, **settings)

    async def spawn(self, argv: Sequence[str], log: str) -> None:
        """Starts a program as the user; what it writes goes to a log."""
        with (_LOGS / f"{log}.log").open("ab") as out:
            await self.start_process(argv, stdout=out, stderr=out)

    async def run(
        self, argv: Sequence[str], *, timeout_s: float, env: Mapping[str, str] | None = None, cwd: str = ""
    ) -> dict[str, Any]:
        """Runs a program as the user to its end: exit_code, stdout, stderr, timed_out.

        It writes into files, not pipes: what it leaves running in the background holds nobody up.
        """
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            process = await self.start_process(
                argv, stdout=out, stderr=err, env={**self.env, **(env or {})}, cwd=cwd or self.account.pw_dir
            )
            ended = asyncio.ensure_future(process.wait())
            done, _ = await asyncio.wait({ended}, timeout=timeout_s)
            if not done:
                os.killpg(process.pid, 9)
            code = await ended
            return {
                "exit_code": code if code >= 0 else 128 - code,
                "stdout": _content(out),
                "stderr": _content(err),
                "timed_out": not done,
            }

    def _make_runtime_dir(self) -> None:
        _LOGS.mkdir(parents=True, exist_ok=True)
        folder = Path(self.runtime_dir)
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o700)
        os.chown(folder, self.account.pw_uid, self.account.pw_gid)

    async def _start_bus(self) -> None:
        """The bus prints its address when it listens."""
        ready, theirs = os.pipe()
        try:
            argv = ["dbus-daemon", "--session", "--nofork", f"--address={self.bus_address}"]
            await self.start_process([*argv, f"--print-address={theirs}"], pass_fds=(theirs,))
        finally:
            os.close(theirs)
        await read_word(ready, "dbus")

    async def _start_accessibility(self) -> None:
        """Asks for the accessibility bus, which starts it, and tells programs that somebody listens."""
        status = ("org.a11y.Bus", "/org/a11y/bus", "org.freedesktop.DBus.Properties.Set", "org.a11y.Status")
        await self._ask("org.a11y.Bus", "/org/a11y/bus", "org.a11y.Bus.GetAddress")
        for name in ("IsEnabled", "ScreenReaderEnabled"):
            await self._ask(*status, name, "<true>")

    async def _start_shell(self) -> None:
        await self.spawn(["xfdesktop"], "xfdesktop")
        await self.spawn(["xfce4-panel"], "panel")
        # The panel owns its name on the bus once its windows are up.
        for name in ("org.xfce.Panel", "org.xfce.xfdesktop"):
            await self._checked(["gdbus", "wait", "--session", "--timeout", str(int(_START_TIMEOUT_S)), name])

    async def _ask(self, destination: str, path: str, method: str, *args: str) -> None:
        argv = ["gdbus", "call", "--session", "--dest", destination, "--object-path", path, "--method", method]
        await self._checked([*argv, *args])

    async def _checked(self, argv: Sequence[str]) -> None:
        result = await self.run(argv, timeout_s=_START_TIMEOUT_S)
        if result["exit_code"] != 0:
            raise RuntimeError(f"{' '.join(argv)}: {result['stderr'].decode(errors='replace').strip()}")


def _name_this_machine() -> None:
    """Lets programs find `localhost` and this workspace's own name; there is nobody else to ask."""
    hosts = Path("/etc/hosts")
    if not hosts.exists():
        hosts.write_text(f"127.0.0.1 localhost\n127.0.1.1 {os.uname().nodename}\n::1 localhost ip6-localhost\n")


def _content(file: IO[bytes]) -> bytes:
    file.seek(0)
    return file.read(_OUTPUT_BYTES)
