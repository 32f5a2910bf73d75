# SPDX-License-Identifier: Apache-2.0
"""A workspace's files: all that one can see of them, and changes at random."""

from __future__ import annotations

import hashlib
import os
import random
import shutil
from contextlib import suppress
from pathlib import Path

from bunshin_gym.workspace import Workspace


def tree(workspace: Workspace, top: str = "/data") -> dict[str, str]:
    """Every entry under a directory with all that one can see of it: type, mode, owner, time, links, content."""
    found = {}
    first_names: dict[int, str] = {}
    root = workspace.root / top.lstrip("/")
    for path in sorted(root.rglob("*")):
        st = path.lstat()
        what = f"{st.st_mode:o} {st.st_uid}:{st.st_gid} {st.st_rdev}"
        if path.is_symlink():
            what += f" -> {os.readlink(path)}"
        elif path.is_file():
            what += f" {st.st_size} {st.st_mtime_ns} {hashlib.sha256(path.read_bytes()).hexdigest()[:12]}"
            what += f" {[(name, os.getxattr(path, name)) for name in sorted(os.listxattr(path))]}"
            what += f" = {first_names.setdefault(st.st_ino, str(path.relative_to(root)))}"
        elif path.is_dir():
            what += f" {st.st_mtime_ns}"
        found[str(path.relative_to(root))] = what
    return found


def change_at_random(root: Path, rng: random.Random) -> None:
    """One change to a tree: any that a program could make, on entries of the image or of its own."""
    entries = sorted(path for path in root.rglob("*") if not path.is_symlink())
    directories = [root, *(path for path in entries if path.is_dir())]
    files = [path for path in entries if path.is_file()]
    new = rng.choice(directories) / f"n{rng.randrange(30)}"
    old = rng.choice(entries) if entries else new
    file = rng.choice(files) if files else new
    kind = rng.choice(
        ["write", "write", "append", "truncate", "mkdir", "remove", "move", "link", "soft", "mode", "note"]
    )
    with suppress(OSError):  # what cannot be done there is no change
        if kind == "write":
            new.write_text(f"{rng.random()}")
        elif kind == "append":
            with file.open("a") as out:
                out.write(f"{rng.random()}")
        elif kind == "truncate":
            os.truncate(file, rng.randrange(100))
        elif kind == "mkdir":
            (new / "sub").mkdir(parents=True)
        elif kind == "remove":
            shutil.rmtree(old) if old.is_dir() else old.unlink()
        elif kind == "move":
            old.rename(new)
        elif kind == "link":
            os.link(file, new)
        elif kind == "soft":
            new.symlink_to(f"target-{rng.randrange(9)}")
        elif kind == "mode":
            old.chmod(rng.choice([0o700, 0o755, 0o777]))
        else:
            os.setxattr(old, "user.note", f"{rng.random()}".encode())
