# SPDX-License-Identifier: Apache-2.0
"""An image's start command in a plain chroot, without the C core."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tenacity import Retrying, retry_if_exception_type, stop_after_delay, wait_fixed

import bunshin_gym.toolserver
from bunshin_gym.images import Image

__all__ = ["Chroot", "wait_until"]

LAUNCHER = Path(__file__).with_name("launcher.py")


def wait_until(condition: type[Exception], seconds: float) -> Retrying:
    """Tries again while `condition` is raised, for things that announce themselves to nobody."""
    return Retrying(
        retry=retry_if_exception_type(condition), stop=stop_after_delay(seconds), wait=wait_fixed(0.02), reraise=True
    )


class Chroot:
    """An image's start command, running; `root` is its root directory as the host sees it."""

    def __init__(self, image: Image, scratch: Path, env: dict[str, str]) -> None:
        self.log = scratch / "start.log"
        runtime = scratch / "runtime"
        source = Path(bunshin_gym.toolserver.__file__).parent
        shutil.copytree(source, runtime / ".bunshin/toolserver", ignore=shutil.ignore_patterns("__pycache__"))
        start = {"argv": list(image.argv), "env": {**image.env, **env}, "workdir": image.workdir}
        argv = ["unshare", "--mount", "--pid", "--net", "--ipc", "--uts", "--fork", "--kill-child", sys.executable]
        argv += [str(LAUNCHER), str(scratch), str(image.rootfs), str(runtime)]
        with self.log.open("wb") as out:
            self._process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=out, stderr=out, text=True)
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(start))
        self._process.stdin.close()
        self.pid = 0
        for attempt in wait_until(LookupError, 20):
            with attempt:
                self.pid = self._main_pid(f"{scratch}/merged")
        self.root = f"/proc/{self.pid}/root"

    def _main_pid(self, merged: str) -> int:
        if self._process.poll() is not None:
            pytest.fail(f"the image did not start: {self.log.read_text()}")
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children").read_text().split()
        if not children or os.readlink(f"/proc/{children[0]}/root") != merged:
            raise LookupError("not in its root yet")
        return int(children[0])

    def processes(self) -> dict[int, str]:
        """Pid on the host to command line, of all that runs inside."""
        mine = os.readlink(f"/proc/{self.pid}/ns/pid")
        found = {}
        for path in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if os.readlink(path / "ns/pid") == mine:
                    found[int(path.name)] = (path / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        return found

    def stop(self) -> None:
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()
