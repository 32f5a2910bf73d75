# SPDX-License-Identifier: Apache-2.0
"""The runtime layer: what we put into every workspace, above its image.

It holds /.bunshin/init, the workspace's process 1, and /.bunshin/toolserver; and /etc/resolv.conf, since an image's own
names servers of the machine it was built on, and each question to them is an attempt to leave the workspace. Its name
has the hash of its content, so that workspaces of two versions of this package stand beside each other.
"""

from __future__ import annotations

import fcntl
import hashlib
import shutil
from pathlib import Path

from bunshin_gym.errors import BunshinError
from bunshin_gym.paths import package_path

__all__ = ["runtime_layer"]


# There is nobody to ask: loopback says so at once.
_RESOLV_CONF = b"nameserver 127.0.0.1\n"


def _contents() -> dict[str, bytes]:
    """Files of the layer: path inside to what they hold."""
    package = package_path()
    init = package / "_runtime" / "init"
    if not init.exists():
        raise BunshinError(f"{init} is missing: build the C core (`make core`, or install the package again)")
    server = package / "toolserver"
    files = {f".bunshin/toolserver/{path.relative_to(server)}": path.read_bytes() for path in server.rglob("*.py")}
    return {".bunshin/init": init.read_bytes(), "etc/resolv.conf": _RESOLV_CONF, **files}


def _digest(files: dict[str, bytes]) -> str:
    digest = hashlib.sha256()
    for name, content in sorted(files.items()):
        digest.update(f"{name}\0{len(content)}\0".encode())
        digest.update(content)
    return digest.hexdigest()[:16]


def _fill(folder: Path, files: dict[str, bytes]) -> None:
    for name, content in files.items():
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
        target.chmod(0o755 if name == ".bunshin/init" else 0o644)
    for directory in (folder, *(path for path in folder.rglob("*") if path.is_dir())):
        directory.chmod(0o755)


def runtime_layer(home: Path) -> Path:
    """The layer's directory under home, made if it is not there yet.

    Raises:
        BunshinError: the package is not built.
    """
    files = _contents()
    layer = home / "layers" / f"runtime-{_digest(files)}"
    if layer.exists():
        return layer
    # The registry's lock: nobody sweeps meanwhile, and what has the name of one in the making is a killed maker's.
    with open(home / "lock", "a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for stale in (home / "layers").glob("runtime-*.new"):
            shutil.rmtree(stale)
        if not layer.exists():
            making = layer.with_name(f"{layer.name}.new")
            _fill(making, files)
            making.rename(layer)
    return layer
