# SPDX-License-Identifier: Apache-2.0
"""Images for real: built ones, started in a plain chroot; a docker daemon of the test's own."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import need
from support.chroot import Chroot, wait_until

from bunshin_gym.images import Image, ImageStore
from bunshin_gym.toolclient import ToolClient


@pytest.fixture(scope="session")
def store() -> ImageStore:
    """The machine's own store: what is built stays for the next run."""
    need(os.geteuid() == 0, "building and starting images needs root")
    return ImageStore()


@pytest.fixture(scope="session")
def browser_image(store: ImageStore) -> Image:
    return store.build("browser")


@pytest.fixture(scope="session")
def minimal_image(store: ImageStore) -> Image:
    return store.build("minimal")


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
    dockerd = shutil.which("dockerd", path=os.environ["PATH"] + ":/usr/sbin")
    need(os.geteuid() == 0 and dockerd is not None, "root and dockerd are needed: apt-get install docker.io")
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
