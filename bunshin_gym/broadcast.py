# SPDX-License-Identifier: Apache-2.0
"""Last screens of this process's envs, as files for `bunshin view`; written only while somebody watches.

A viewer never connects to a workspace: a connection at the moment of a fork would be in its way. Envs write
what they saw under `$BUNSHIN_HOME/live`, a picture and its notes in one file that is replaced as a whole.
"""

from __future__ import annotations

import contextlib
import fcntl
import io
import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from PIL import Image

__all__ = ["Frame", "frames", "is_watched", "publish", "read_frame", "watching", "withdraw"]

_FOLDER: Final = "live"
_WATCHED: Final = ".watched"
_SEPARATOR: Final = b"\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """One env's last screen.

    Attributes:
        png: the picture.
        notes: task, goal, last action, steps, reward and whether the task is done.
        written_ns: when, nanoseconds since 1970; another one for each picture.
    """

    png: bytes
    notes: Mapping[str, Any]
    written_ns: int


@contextlib.contextmanager
def watching(home: Path) -> Iterator[None]:
    """While this is held, also by several at once, envs write their screens; when it was killed, they stop as well."""
    folder = home / _FOLDER
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor = os.open(folder / _WATCHED, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        yield
    finally:
        os.close(descriptor)


def is_watched(home: Path) -> bool:
    """Whether somebody does."""
    try:
        descriptor = os.open(home / _FOLDER / _WATCHED, os.O_RDWR | os.O_CLOEXEC)
    except (FileNotFoundError, PermissionError):
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def publish(home: Path, workspace_id: str, pixels: NDArray[np.uint8], notes: Mapping[str, Any]) -> None:
    """Writes a workspace's screen, instead of the one before."""
    picture = io.BytesIO()
    Image.fromarray(pixels).save(picture, format="PNG", compress_level=1)
    with tempfile.NamedTemporaryFile(dir=home / _FOLDER, prefix=".new-", delete=False) as scratch:
        scratch.write(json.dumps(dict(notes)).encode() + _SEPARATOR + picture.getvalue())
    os.replace(scratch.name, home / _FOLDER / workspace_id)


def withdraw(home: Path, workspace_id: str) -> None:
    """Removes it; idempotent."""
    (home / _FOLDER / workspace_id).unlink(missing_ok=True)


def frames(home: Path) -> list[str]:
    """What is there to `withdraw`: ids of workspaces, also of some that are gone, and what a killed writer left."""
    return [path.name for path in (home / _FOLDER).iterdir() if path.name != _WATCHED]


def read_frame(home: Path, workspace_id: str) -> Frame | None:
    """A workspace's last screen, or None if it showed none while somebody watched."""
    try:
        with (home / _FOLDER / workspace_id).open("rb") as file:
            notes, _, png = file.read().partition(_SEPARATOR)
            written_ns = os.fstat(file.fileno()).st_mtime_ns
    except FileNotFoundError:
        return None
    return Frame(png=png, notes=json.loads(notes), written_ns=written_ns)
