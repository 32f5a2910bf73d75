# SPDX-License-Identifier: Apache-2.0
"""Images for real: built ones, started in a plain chroot; a docker daemon of the test's own."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tenacity import Retrying, retry_if_exception_type, stop_after_delay, wait_fixed

import bunshin_gym.toolserver
from bunshin_gym.images import Image, ImageStore
from bunshin_gym.toolclient import ToolClient

LAUNCHER = Path(__file__).with_name("launcher.py")


def lacking(what: str) -> None:
    """Skips, or fails where nothing may be skipped."""
    if os.environ.get("BUNSHIN_MUST_WORK") == "1":
        pytest.fail(what)
    pytest.skip(what)


def wait_until(condition: type[Exception], seconds: float) -> Retrying:
    """Tries again while `condition` is raised, for things that announce themselves to nobody."""
    return Retrying(
        retry=retry_if_exception_type(condition), stop=stop_after_delay(seconds), wait=wait_fixed(0.02), reraise=True
    )


@pytest.fixture(scope="session")
def store() -> ImageStore:
    """The machine's own store: what is built stays for the next run."""
    if os.geteuid() != 0:
        lacking("building and starting images needs root")
    return ImageStore()


@pytest.fixture(scope="session")
def browser_image(store: ImageStore) -> Image:
    return store.build("browser")


@pytest.fixture(scope="session")
def minimal_image(store: ImageStore) -> Image:
    return store.build("minimal")


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


@pytest.fixture(scope="session")
def chroot_factory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[object]:
    with contextlib.ExitStack() as stack:

        def start(image: Image, **env: str) -> Chroot:
            chroot = Chroot(image, tmp_path_factory.mktemp("chroot"), env)
            stack.callback(chroot.stop)
            return chroot

        yield start


@pytest.fixture(scope="session")
def desktop(browser_image: Image, chroot_factory: object) -> Chroot:
    chroot: Chroot = chroot_factory(browser_image)  # type: ignore[operator]
    with ToolClient(chroot.root) as client:
        client.wait_ready()
    return chroot


@pytest.fixture
def tools(desktop: Chroot) -> Iterator[ToolClient]:
    """The tools of a browser that remembers nothing of the test before."""
    with ToolClient(desktop.root) as client:
        client.call("reset_browser")
        yield client


@pytest.fixture(scope="session")
def docker_daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of a docker daemon that has all it needs in a folder of its own, and leaves nothing."""
    if os.geteuid() != 0 or shutil.which("dockerd", path=os.environ["PATH"] + ":/usr/sbin") is None:
        lacking("needs root and dockerd: apt-get install docker.io")
    home = tmp_path_factory.mktemp("docker")
    address = f"unix://{home}/docker.sock"
    argv = ["dockerd", f"--host={address}", f"--data-root={home}/data", f"--exec-root={home}/exec"]
    argv += [f"--pidfile={home}/docker.pid", "--bridge=none", "--iptables=false", "--ip6tables=false"]
    path = os.environ["PATH"] + ":/usr/sbin:/sbin"
    with (home / "docker.log").open("wb") as out:
        daemon = subprocess.Popen(argv, stdout=out, stderr=out, env={**os.environ, "PATH": path})
    try:
        for attempt in wait_until(subprocess.CalledProcessError, 60):
            with attempt:
                if daemon.poll() is not None:
                    pytest.fail(f"dockerd did not start: {(home / 'docker.log').read_text()[-2000:]}")
                subprocess.run(["docker", "--host", address, "version"], check=True, capture_output=True)
        yield address
    finally:
        daemon.terminate()
        daemon.wait(60)
        for line in reversed(Path("/proc/self/mounts").read_text().splitlines()):
            if str(home) in line.split()[1]:
                subprocess.run(["umount", line.split()[1]], check=True)
        shutil.rmtree(home)
