# SPDX-License-Identifier: Apache-2.0
"""Looks for what a state directory's workspaces and snapshots have left on the machine."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from bunshin_gym.workspace import Core


def leftovers(opened: Core) -> list[str]:
    """All that is there of a state directory's workspaces and snapshots: should be nothing when all are closed."""
    home = opened.home
    info = home.stat()
    key = f"{info.st_dev:x}-{info.st_ino:x}"
    left = [str(path) for kind in ("workspaces", "snapshots", "trash") for path in (home / kind).glob("*")]
    left += [str(path) for path in (home / "layers").glob("*") if not path.name.startswith("runtime-")]
    for mounts in _all_mount_tables():
        left += [line for line in mounts if str(home) in line]
    for root, directories, _ in os.walk("/sys/fs/cgroup"):
        left += [f"{root}/{name}" for name in directories if name == key]
    return left


def _all_mount_tables() -> Iterator[list[str]]:
    """Of every mount namespace that a process is in."""
    seen = set()
    for process in Path("/proc").glob("[0-9]*"):
        try:
            namespace = os.readlink(process / "ns" / "mnt")
            if namespace not in seen:
                seen.add(namespace)
                yield (process / "mountinfo").read_text().splitlines()
        except (FileNotFoundError, ProcessLookupError, OSError):
            continue  # ended meanwhile, or a zombie
