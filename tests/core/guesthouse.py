# SPDX-License-Identifier: Apache-2.0
"""Builds the programs of tests/guests into a root file system and talks with them through their FIFOs."""

from __future__ import annotations

import os
import select
import subprocess
import time
from pathlib import Path
from typing import Self

from bunshin_gym.workspace import Workspace

SOURCES = Path(__file__).resolve().parent.parent / "guests"
KINDS = sorted(path.stem for path in SOURCES.glob("*.c"))
ANSWER_TIMEOUT_S = 60.0


def furnish(rootfs: Path) -> None:
    """Makes what the guests need: their FIFOs, and files of the lower layer for them to delete and move."""
    guest = rootfs / "guest"
    if guest.exists():
        return
    guest.mkdir()
    for name in ("ready", "go", "result"):
        os.mkfifo(guest / name)
        (guest / name).chmod(0o666)
    (guest / "lower-deleted").write_text("lower")
    (guest / "tree" / "in").mkdir(parents=True)
    for name in ("file", "untouched"):
        (guest / "tree" / "in" / name).write_text("lower")


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


class _Ear:
    """Reads what the guest writes to one of its FIFOs."""

    def __init__(self, workspace: Workspace, name: str) -> None:
        self._path = workspace.root / "guest" / name
        self._fd = self._open()

    def _open(self) -> int:
        return os.open(self._path, os.O_RDONLY | os.O_NONBLOCK)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)

    def hear(self) -> str:
        deadline = time.monotonic() + ANSWER_TIMEOUT_S
        while True:
            poll = select.poll()
            poll.register(self._fd, select.POLLIN)
            left_s = deadline - time.monotonic()
            assert left_s > 0, f"nothing from the guest on {self._path.name} within {ANSWER_TIMEOUT_S} s"
            if not poll.poll(left_s * 1000):
                continue
            if text := os.read(self._fd, 4096):
                return text.decode().strip()
            # The end of what it wrote before: only a new descriptor forgets it. The old one goes
            # last, since a FIFO without any reader loses what is in it.
            fresh = self._open()
            os.close(self._fd)
            self._fd = fresh


def wait_ready(workspace: Workspace) -> None:
    """Returns once the guest has set up its resource."""
    with _Ear(workspace, "ready") as ear:
        assert ear.hear() == "ready"


def tell(workspace: Workspace, tag: str) -> str:
    """Sends a tag and returns the guest's answer: "ok", or what was wrong with the tag before."""
    with _Ear(workspace, "result") as ear:
        go = os.open(workspace.root / "guest" / "go", os.O_WRONLY)
        os.write(go, tag.encode())
        os.close(go)
        return ear.hear()
