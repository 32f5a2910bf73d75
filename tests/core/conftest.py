# SPDX-License-Identifier: Apache-2.0
"""What the tests of the C core share: a root file system, a state directory of their own, and a look for leaks."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support import need
from support.leaks import leftovers

from bunshin_gym.workspace import Core, Workspace, core

HERE = Path(__file__).resolve().parent


@pytest.fixture(scope="session", autouse=True)
def _privileges() -> None:
    need(os.geteuid() == 0, "root is needed")


@pytest.fixture(scope="session")
def rootfs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small root file system: busybox with all its applets, and account files."""
    busybox = shutil.which("busybox")
    need(busybox is not None, "busybox-static is not installed")
    assert busybox is not None
    root = tmp_path_factory.mktemp("rootfs")
    for name in ("bin", "etc", "tmp", "root", "run", "var"):
        (root / name).mkdir()
    shutil.copy(busybox, root / "bin" / "busybox")
    applets = subprocess.run([busybox, "--list"], check=True, capture_output=True, text=True).stdout.split()
    for applet in applets:
        if applet != "busybox":
            (root / "bin" / applet).symlink_to("busybox")
    (root / "etc" / "passwd").write_text("root:x:0:0:root:/root:/bin/sh\nguest:x:1000:1000::/tmp:/bin/sh\n")
    (root / "etc" / "group").write_text("root:x:0:\ntty:x:5:\nguest:x:1000:\n")
    root.chmod(0o755)
    return root


@pytest.fixture(scope="session")
def probe(rootfs: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Path, inside the root file system, of tests/core/probe.c: makes one system call and says how it went."""
    built = tmp_path_factory.mktemp("probe") / "probe"
    subprocess.run(
        ["cc", "-O1", "-static", "-D_GNU_SOURCE", "-Wall", "-Werror", "-o", built, HERE / "probe.c"], check=True
    )
    shutil.copy(built, rootfs / "bin" / "probe")
    return "/bin/probe"


@pytest.fixture
def bunshin(tmp_path: Path) -> Iterator[Core]:
    """A core with a state directory of its own, which must be empty at the end of the test."""
    opened = core(tmp_path / "home")
    yield opened
    assert leftovers(opened) == []


@pytest.fixture
def start(bunshin: Core, rootfs: Path) -> Iterator[Callable[..., Workspace]]:
    """Starts workspaces that idle, unless told otherwise, and closes them at the end."""
    started: list[Workspace] = []

    def start_one(**options: object) -> Workspace:
        options.setdefault("argv", ["sleep", "1000000"])
        workspace = Workspace.start(rootfs, core=bunshin, **options)  # type: ignore[arg-type]
        started.append(workspace)
        return workspace

    yield start_one
    for workspace in started:
        workspace.close()


@pytest.fixture
def workspace(start: Callable[..., Workspace]) -> Workspace:
    """One idle workspace."""
    return start()
