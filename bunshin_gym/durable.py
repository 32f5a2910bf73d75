# SPDX-License-Identifier: Apache-2.0
"""Snapshots on disk: written whole or not at all, checked when read.

    PATH/manifest.json   written last: what must be there, and the digest of each entry
    PATH/images/         complete CRIU images, pages included
    PATH/layer/          the workspace's files, as one overlay layer
    PATH/record          limits, environment and names, as in the state directory
    PATH/processors      which processors threads are pinned to

A writer works under another name beside PATH, has everything on the disk before the manifest and the manifest before
the rename. What has PATH as its name is whole; whatever a killed writer leaves has another one, and the next
writer there removes it. The base (image and runtime layer) is not in it, but named by its digest.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import secrets
import shutil
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from bunshin_gym import faults
from bunshin_gym.errors import BunshinError, ImageNotFoundError, SnapshotDamaged, UnsupportedError, UsageError
from bunshin_gym.images import ImageStore
from bunshin_gym.images.archive import file_digest, tree_digest
from bunshin_gym.native import NativeCore, NativeSnapshot
from bunshin_gym.records import record_layers
from bunshin_gym.runtime import runtime_layer

__all__ = ["Durable", "check_target", "load", "persist", "read_manifest"]

_FORMAT: Final = 1
_MANIFEST: Final = "manifest.json"
_SUFFIX: Final = ".bunshin-new"


@dataclass(frozen=True, slots=True, kw_only=True)
class Durable:
    """What a manifest says.

    Attributes:
        engine: what carried the snapshot when it was taken.
        workspace: id of the workspace that it was taken of.
        env: environment of commands in its branches.
        label: what its maker noted.
        base: the layers below its own, top first: {"kind", "name", "digest"}.
        entries: each file, directory and link in it, and what is to be found there.
    """

    engine: str
    workspace: str
    env: Mapping[str, str]
    label: Mapping[str, Any]
    base: Sequence[Mapping[str, str]]
    entries: Mapping[str, str]


# ---- writing -------------------------------------------------------------------


def check_target(path: Path) -> None:
    """Raises UsageError where nothing could be written."""
    if os.path.lexists(path):
        raise UsageError(f"path: {path} is there already; give the snapshot a name of its own")
    if not path.parent.is_dir():
        raise UsageError(f"path: {path.parent} is no directory")


def persist(
    native: NativeSnapshot,
    path: Path,
    *,
    home: Path,
    workspace: str,
    env: Mapping[str, str],
    label: Mapping[str, Any],
) -> Path:
    """Writes a snapshot to path, which must not exist, and returns it."""
    check_target(path)
    _remove_stale(path.parent)
    with _temporary(path) as folder:
        native.save(folder)
        faults.point("durable.saved")
        base = [_name_base(layer, home, label) for layer in record_layers((folder / "record").read_text())]
        durable = Durable(
            engine=native.engine, workspace=workspace, env=env, label=label, base=base, entries=_entries(folder)
        )
        faults.point("durable.hashed")
        _write_manifest(folder, durable)
        faults.point("durable.manifest_written")
        _sync(folder)
        faults.point("durable.before_rename")
        check_target(path)
        folder.rename(path)
        faults.point("durable.renamed")
    _sync(path.parent)
    return path


@contextmanager
def _temporary(path: Path) -> Iterator[Path]:
    """A directory beside path, locked as long as its writer lives; gone afterwards unless it was renamed."""
    while True:
        folder = path.parent / f".{path.name[:40]}.{secrets.token_hex(6)}{_SUFFIX}"
        folder.mkdir(mode=0o700)
        # Until it is locked it may be taken for a dead writer's and removed.
        try:
            lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError:
            continue
        fcntl.flock(lock, fcntl.LOCK_EX)
        if folder.is_dir():
            break
        os.close(lock)
    try:
        faults.point("durable.begun")
        yield folder
    finally:
        with suppress(FileNotFoundError):
            shutil.rmtree(folder)
        os.close(lock)


def _remove_stale(parent: Path) -> None:
    """What killed writers left beside the target."""
    for folder in parent.glob(f".*{_SUFFIX}"):
        try:
            lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError:
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
        except BlockingIOError:
            continue  # its writer lives
        finally:
            os.close(lock)


def _name_base(layer: Path, home: Path, label: Mapping[str, Any]) -> dict[str, str]:
    if layer.parent == home / "layers":
        return {"kind": "runtime", "name": layer.name, "digest": layer.name.removeprefix("runtime-")}
    if label.get("image"):
        return {"kind": "image", "name": str(label.get("name", "")), "digest": str(label["image"])}
    return {"kind": "folder", "name": str(layer), "digest": tree_digest(layer)}


def _entries(folder: Path) -> dict[str, str]:
    """Everything below it but the manifest: type, mode, owner, attributes, content."""
    found = {}
    for parent, names, files in os.walk(folder):
        for name in (*names, *files):
            path = Path(parent, name)
            found[str(path.relative_to(folder))] = _describe(path)
    found.pop(_MANIFEST, None)
    return dict(sorted(found.items()))


def _describe(path: Path) -> str:
    info = path.lstat()
    words = [f"{info.st_mode:o}", f"{info.st_uid}:{info.st_gid}"]
    if stat.S_ISREG(info.st_mode):
        words += [str(info.st_size), file_digest(path)]
    elif stat.S_ISLNK(info.st_mode):
        words.append(os.readlink(path))
    elif not stat.S_ISDIR(info.st_mode):
        words.append(f"{os.major(info.st_rdev)},{os.minor(info.st_rdev)}")
    for name in sorted(os.listxattr(path, follow_symlinks=False)):
        value = os.getxattr(path, name, follow_symlinks=False)
        words.append(f"{name}={hashlib.sha256(value).hexdigest()[:16]}")
    return " ".join(words)


def _seal(body: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()


def _write_manifest(folder: Path, durable: Durable) -> None:
    body = {"format": _FORMAT} | {name: getattr(durable, name) for name in Durable.__slots__}
    with (folder / _MANIFEST).open("x") as file:
        json.dump({**body, "sha256": _seal(body)}, file, indent=1)
        file.flush()
        faults.point("durable.manifest_unsynced")
        os.fsync(file.fileno())


def _sync(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


# ---- reading ---------------------------------------------------------------------


def load(native: NativeCore, path: Path, *, home: Path, engine: str | None) -> tuple[NativeSnapshot, Durable]:
    """A snapshot in memory again of what `persist` wrote.

    Raises:
        UsageError: nothing is there.
        SnapshotDamaged: something in it is missing or was changed; the message names it.
        ImageNotFoundError, UnsupportedError: its image, or its runtime layer, is not on this machine.
    """
    durable = read_manifest(path)
    _verify(path, durable)
    base = [_find_base(layer, home, path) for layer in durable.base]
    return native.load(path, engine=engine, base=base), durable


def read_manifest(path: Path) -> Durable:
    """What the snapshot at path is; its files are not looked at."""
    if not path.is_dir():
        raise UsageError(f"path: no snapshot at {path}")
    try:
        body = json.loads((path / _MANIFEST).read_text())
        seal = body.pop("sha256")
    except FileNotFoundError:
        raise SnapshotDamaged(f"{path} has no {_MANIFEST}: it is no snapshot, or not a whole one") from None
    except (ValueError, KeyError, AttributeError) as error:
        raise SnapshotDamaged(f"{path / _MANIFEST} is damaged: {error}") from error
    if seal != _seal(body):
        raise SnapshotDamaged(f"{path / _MANIFEST} is damaged: it is not what was written")
    version = body.pop("format", None)
    if version != _FORMAT:
        raise SnapshotDamaged(f"{path} has format {version}; this version reads {_FORMAT}")
    return Durable(**body)


def _verify(path: Path, durable: Durable) -> None:
    found = _entries(path)
    for name, what in durable.entries.items():
        if name not in found:
            raise SnapshotDamaged(f"{path / name} is missing")
        if found[name] != what:
            raise SnapshotDamaged(f"{path / name} is damaged: it is {found[name]!r}, and was written as {what!r}")
    for name in found.keys() - durable.entries.keys():
        raise SnapshotDamaged(f"{path / name} is no part of the snapshot")


def _find_base(layer: Mapping[str, str], home: Path, path: Path) -> Path:
    if layer["kind"] == "runtime":
        return _find_runtime(layer["name"], home, path)
    if layer["kind"] == "image":
        return _find_image(layer, home, path)
    folder = Path(layer["name"])
    if not folder.is_dir():
        raise UnsupportedError(f"{path} stands on the folder {folder}, which is not here")
    if tree_digest(folder) != layer["digest"]:
        raise UnsupportedError(f"{path} stands on the folder {folder}, which has been changed since")
    return folder


def _find_runtime(name: str, home: Path, path: Path) -> Path:
    current = runtime_layer(home)
    layer = home / "layers" / name
    if not layer.is_dir():
        raise UnsupportedError(
            f"{path} stands on {name}, which is not in {home / 'layers'}: another version of bunshin_gym made it "
            f"(this one makes {current.name})"
        )
    return layer


def _find_image(layer: Mapping[str, str], home: Path, path: Path) -> Path:
    """In the state directory's store, else in the default one."""
    failed: BunshinError | None = None
    for store in (ImageStore(home), ImageStore()):
        try:
            return store.get(layer["digest"]).rootfs
        except ImageNotFoundError as error:
            failed = failed or error
    raise ImageNotFoundError(f"{path} stands on the image {layer['name']!r}: {failed}") from failed
