# SPDX-License-Identifier: Apache-2.0
"""Builds the programs of tests/guests into a root file system and talks with them through their FIFOs."""

from __future__ import annotations

import os
import select
import subprocess
from pathlib import Path

from bunshin_gym.workspace import Workspace

SOURCES = Path(__file__).resolve().parent.parent / "guests"
KINDS = sorted(path.stem for path in SOURCES.glob("*.c"))
ANSWER_TIMEOUT_S = 60.0


def furnish(rootfs: Path) -> None:
    """Makes what the guests need: their FIFOs, and a file of the lower layer for them to delete."""
    guest = rootfs / "guest"
    if guest.exists():
        return
    guest.mkdir()
    for name in ("ready", "go", "result"):
        os.mkfifo(guest / name)
        (guest / name).chmod(0o666)
    (guest / "lower-deleted").write_text("lower")


def build(rootfs: Path, kind: str) -> str:
    """Compiles a guest; its path inside the root file system."""
    furnish(rootfs)
    program = rootfs / "guest" / f"guest-{kind}"
    if not program.exists():
        flags = ["-std=gnu17", "-D_GNU_SOURCE", "-O1", "-Wall", "-Wextra", "-Werror", "-static", "-pthread"]
        done = subprocess.run(
            ["cc", *flags, "-o", program, SOURCES / f"{kind}.c"], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
    return f"/guest/guest-{kind}"


def _read(fd: int, what: str) -> str:
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    assert poll.poll(ANSWER_TIMEOUT_S * 1000), f"no {what} from the guest within {ANSWER_TIMEOUT_S} s"
    return os.read(fd, 4096).decode().strip()


def wait_ready(workspace: Workspace) -> None:
    """Returns once the guest has set up its resource."""
    fd = os.open(workspace.root / "guest" / "ready", os.O_RDONLY | os.O_NONBLOCK)
    try:
        assert _read(fd, "word that it is ready") == "ready"
    finally:
        os.close(fd)


def tell(workspace: Workspace, tag: str) -> str:
    """Sends a tag and returns the guest's answer: "ok", or what was wrong with the tag before."""
    result = os.open(workspace.root / "guest" / "result", os.O_RDONLY | os.O_NONBLOCK)
    try:
        go = os.open(workspace.root / "guest" / "go", os.O_WRONLY)
        os.write(go, tag.encode())
        os.close(go)
        return _read(result, "answer")
    finally:
        os.close(result)
