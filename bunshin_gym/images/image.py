# SPDX-License-Identifier: Apache-2.0
"""An image: a root file system (a lower layer) plus how to start it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from bunshin_gym.errors import ImageError

__all__ = ["DEFAULT_PATH", "FORMAT", "Image", "ImageConfig", "load_image", "save_config"]

FORMAT = 1
DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_CONFIG_FILE = "image.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageConfig:
    """How to start what a root file system holds.

    Attributes:
        env: environment of the start command, complete.
        argv: start command; empty when the image names none.
        user: user of the start command: a name of the image's /etc/passwd, or `uid[:gid]`.
        workdir: absolute directory inside the image.
        services: name of a service to the absolute path of its Unix socket inside.
    """

    env: Mapping[str, str] = field(default_factory=dict)
    argv: tuple[str, ...] = ()
    user: str = "root"
    workdir: str = "/"
    services: Mapping[str, str] = field(default_factory=dict)

    def with_defaults(self) -> ImageConfig:
        """The same with PATH set, for programs that do without a shell's default."""
        return replace(self, env={"PATH": DEFAULT_PATH, **self.env})


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """A root file system in the store, ready to be a workspace's lowest layer.

    Attributes:
        name: what the image was last built as.
        digest: 64 hexadecimal digits; identifies the definition or the content it came from.
        rootfs: directory of the root file system; never written to once stored.
        env, argv, user, workdir, services: as in ImageConfig.
        created: ISO 8601 time of the build, UTC.
        size_bytes: disk space of the root file system.
    """

    name: str
    digest: str
    rootfs: Path
    env: Mapping[str, str]
    argv: tuple[str, ...]
    user: str
    workdir: str
    services: Mapping[str, str]
    created: str
    size_bytes: int

    def ids(self) -> tuple[int, int]:
        """Numeric (uid, gid) of `user`, looked up in the image's own account files."""
        name, _, group = self.user.partition(":")
        uid, gid = _lookup_user(self.rootfs, name)
        return uid, _lookup_group(self.rootfs, group) if group else gid


def save_config(folder: Path, *, name: str, digest: str, config: ImageConfig, created: str, size_bytes: int) -> None:
    """Writes image.json beside the root file system."""
    record: dict[str, Any] = {
        "format": FORMAT,
        "name": name,
        "digest": digest,
        "created": created,
        "size_bytes": size_bytes,
        **asdict(config),
    }
    (folder / _CONFIG_FILE).write_text(json.dumps(record, indent=2, sort_keys=True) + "\n")


def load_image(folder: Path) -> Image:
    """Reads a stored image.

    Raises:
        ImageError: image.json is absent, damaged or of another format.
    """
    path = folder / _CONFIG_FILE
    try:
        record = json.loads(path.read_text())
        if record["format"] != FORMAT:
            raise ImageError(f"{path}: format {record['format']}, this version reads {FORMAT}")
        return Image(
            name=record["name"],
            digest=record["digest"],
            rootfs=folder / "rootfs",
            env=MappingProxyType(dict(record["env"])),
            argv=tuple(record["argv"]),
            user=record["user"],
            workdir=record["workdir"],
            services=MappingProxyType(dict(record["services"])),
            created=record["created"],
            size_bytes=record["size_bytes"],
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ImageError(f"{path}: not readable as an image: {error!r}") from error


def _lookup_user(rootfs: Path, name: str) -> tuple[int, int]:
    if name.isdigit():
        uid = int(name)
        for entry in _accounts(rootfs, "etc/passwd"):
            if entry[2] == name:
                return uid, int(entry[3])
        return uid, 0
    for entry in _accounts(rootfs, "etc/passwd"):
        if entry[0] == name:
            return int(entry[2]), int(entry[3])
    if name in ("", "root"):
        return 0, 0
    raise ImageError(f"user {name!r} is not in the image's /etc/passwd ({rootfs})")


def _lookup_group(rootfs: Path, name: str) -> int:
    if name.isdigit():
        return int(name)
    for entry in _accounts(rootfs, "etc/group"):
        if entry[0] == name:
            return int(entry[2])
    raise ImageError(f"group {name!r} is not in the image's /etc/group ({rootfs})")


def _accounts(rootfs: Path, file: str) -> list[list[str]]:
    path = rootfs / file
    if path.is_symlink() or not path.is_file():
        return []
    lines = path.read_text(errors="replace").splitlines()
    return [entry for line in lines if len(entry := line.split(":")) >= 3 and entry[2].isdigit()]
