# SPDX-License-Identifier: Apache-2.0
"""One image out of several: a base, and whole root file systems inside it that run their own start command.

A web site that comes as a docker image has a system of its own: another distribution, its own libraries and
accounts. It is put below `/srv/sites/NAME`, and the tool server starts its command there, by chroot.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from bunshin_gym.errors import ImageError
from bunshin_gym.images.archive import copy_tree
from bunshin_gym.images.debian import write_daemons
from bunshin_gym.images.definition import DAEMONS_FILE, Daemon
from bunshin_gym.images.image import Image, ImageConfig
from bunshin_gym.images.run import Report
from bunshin_gym.paths import NETWORK_LOG

__all__ = ["SITES_DIR", "Part", "compose_digest", "composed_config", "fill_composed"]

SITES_DIR = "/srv/sites"
"""Where the other root file systems are; the workspace's init gives each of them /proc and /dev."""

_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One of the root file systems.

    Attributes:
        image: where it comes from, and how it is started.
        url: where it serves; its host name leads to the workspace itself, in every branch.
        env: what its environment has beside the image's.
        ready: an address that answers below 500 once it serves; `url` unless given.
    """

    image: Image
    url: str
    env: Mapping[str, str] = field(default_factory=dict)
    ready: str = ""


def compose_digest(base: Image, parts: Mapping[str, Part]) -> str:
    """What a composed image is known by."""
    meaning = [
        [name, part.image.digest, part.url, sorted(part.env.items()), part.ready]
        for name, part in sorted(parts.items())
    ]
    return hashlib.sha256(json.dumps([_VERSION, base.digest, meaning]).encode()).hexdigest()


def composed_config(base: Image) -> ImageConfig:
    """It starts as its base does, and what the browser asks of sites is written down."""
    return ImageConfig(
        env={**base.env, "BUNSHIN_NETWORK_LOG": NETWORK_LOG},
        argv=base.argv,
        user=base.user,
        workdir=base.workdir,
        services=dict(base.services),
    )


def fill_composed(base: Image, parts: Mapping[str, Part], rootfs: Path, report: Report) -> None:
    """Fills `rootfs`, absent before.

    Raises:
        ImageError: a part has no start command, or an address without a host name.
    """
    daemons = [_daemon(name, part) for name, part in parts.items()]
    copy_tree(base.rootfs, rootfs, report)
    hosts = sorted({str(urlsplit(part.url).hostname) for part in parts.values()})
    for name, part in parts.items():
        target = rootfs / SITES_DIR.lstrip("/") / name
        target.parent.mkdir(parents=True, exist_ok=True)
        copy_tree(part.image.rootfs, target, report)
        _name_hosts(target, hosts)
    _name_hosts(rootfs, hosts)
    before = rootfs / DAEMONS_FILE.lstrip("/")
    own = [Daemon(**row) for row in json.loads(before.read_text())] if before.exists() else []
    write_daemons([*own, *daemons], rootfs)


def _daemon(name: str, part: Part) -> Daemon:
    if not part.image.argv:
        raise ImageError(f"image {part.image.name} of site {name} has no start command")
    if not urlsplit(part.url).hostname:
        raise ImageError(f"site {name}: {part.url!r} is no address such as http://{name}.test")
    return Daemon(
        name=name.replace("_", "-"),
        argv=part.image.argv,
        user=part.image.user,
        workdir=part.image.workdir,
        env={**part.image.env, **part.env},
        ready=part.ready or part.url,
        root=f"{SITES_DIR}/{name}",
    )


def _name_hosts(root: Path, names: list[str]) -> None:
    """Lets these names lead to the workspace itself."""
    file = root / "etc" / "hosts"
    if file.is_symlink() or not file.parent.is_dir():
        raise ImageError(f"{root}: /etc/hosts cannot be written: it is a link, or there is no /etc")
    text = file.read_text() if file.exists() else "127.0.0.1 localhost\n::1 localhost\n"
    file.write_text(text.rstrip("\n") + "\n127.0.0.1 " + " ".join(names) + "\n")
