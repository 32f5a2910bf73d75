# SPDX-License-Identifier: Apache-2.0
"""The content-addressed image store.

    $BUNSHIN_HOME/images/
        index.json          name -> digest; replaced as a whole
        index.lock          held while the index changes or an image is removed
        DIGEST.lock         held exclusively by the builder of that image, shared by its users
        DIGEST/rootfs/      the root file system; read only by convention
        DIGEST/image.json   how it starts
        tmp-DIGEST-XXXX/    a build that is not finished; renamed to DIGEST when it is

An image appears by one rename, so a reader sees a whole one or none.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import logging
import os
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path

from bunshin_gym.errors import ImageError, ImageNotFoundError, PrivilegeError
from bunshin_gym.images import archive, debian
from bunshin_gym.images.compose import Part, compose_digest, composed_config, fill_composed
from bunshin_gym.images.definition import Definition, find_definition
from bunshin_gym.images.docker_source import DockerSource
from bunshin_gym.images.image import Image, ImageConfig, load_image, save_config
from bunshin_gym.images.progress import build_progress
from bunshin_gym.images.run import Report

__all__ = ["ImageStore", "default_home"]

log = logging.getLogger(__name__)

_DIGEST = re.compile(r"[0-9a-f]{64}")
_SHORTEST_PREFIX = 8
_STATE_FILE_BYTES = 1 << 20


def default_home() -> Path:
    """$BUNSHIN_HOME, or /var/lib/bunshin."""
    return Path(os.environ.get("BUNSHIN_HOME") or "/var/lib/bunshin")


class ImageStore:
    """Images below one state directory; any number of processes may share it."""

    def __init__(self, home: str | os.PathLike[str] | None = None) -> None:
        self._home = Path(home) if home is not None else default_home()
        self._folder = self._home / "images"

    def get(self, name: str) -> Image:
        """The stored image of that name or digest (8 digits or more of it).

        Raises:
            ImageNotFoundError: it was never built here, or was removed.
        """
        index = self._read_index()
        digest = index.get(name) or self._by_prefix(name)
        if digest is None or not (self._folder / digest).is_dir():
            known = ", ".join(sorted(index)) or "none"
            raise ImageNotFoundError(
                f"image {name!r} is not in {self._folder} (there: {known}); build it: bunshin image build {name}"
            )
        return load_image(self._folder / digest)

    def list(self) -> list[Image]:
        """All stored images; one that lost its name to a newer build is listed too."""
        if not self._folder.is_dir():
            return []
        names = sorted(p.name for p in self._folder.iterdir() if _DIGEST.fullmatch(p.name))
        return [load_image(self._folder / name) for name in names]

    def build(self, name: str | os.PathLike[str], *, rebuild: bool = False) -> Image:
        """Builds a definition found by name or path; at once if the same was built before.

        Args:
            name: of the definition, or the path of its folder.
            rebuild: build even so, for newer packages, and replace the stored one.

        Raises:
            ImageBuildError: the builder failed; the store is as before.
        """
        return self._build(find_definition(name), rebuild=rebuild)

    def _build(self, definition: Definition, *, rebuild: bool = False) -> Image:
        """Builds the base first, if there is one; that it is there already is enough."""
        base = self._build(definition.base) if definition.base is not None else None

        def fill(rootfs: Path, report: Report) -> None:
            if base is None:
                debian.build_rootfs(definition, rootfs, report)
                return
            with self.hold(base):
                debian.build_rootfs(definition, rootfs, report, base=base.rootfs)

        return self._add(definition.name, definition.digest(), definition.config, fill, rebuild=rebuild)

    def from_docker(self, ref: str, *, name: str | None = None, base_url: str | None = None) -> Image:
        """Takes a docker image: merged tree, environment, user, directory, start command.

        Args:
            ref: image name as docker knows it, pulled if absent.
            name: name in this store; the docker name unless given.
            base_url: address of the daemon; DOCKER_HOST and the like unless given.
        """
        with build_progress(f"docker image {ref}") as report:
            source = DockerSource(ref, base_url=base_url, report=report)
        return self._add(name or ref, source.digest, source.config, source.unpack)

    def compose(self, name: str, base: Image, parts: Mapping[str, Part]) -> Image:
        """Puts root file systems of other images into a copy of a base, each with its start command.

        Args:
            name: in this store.
            base: an image with a tool server.
            parts: by name; names are of letters, digits and `_`.

        Raises:
            ImageError: a part cannot be started, or its name is not usable.
        """
        for part in parts:
            if not re.fullmatch(r"[a-z][a-z0-9_]*", part):
                raise ImageError(f"{part!r} is no name for a site: use lower case letters, digits, '_'")

        def fill(rootfs: Path, report: Report) -> None:
            with ExitStack() as held:
                for image in (base, *(part.image for part in parts.values())):
                    held.enter_context(self.hold(image))
                fill_composed(base, parts, rootfs, report)

        return self._add(name, compose_digest(base, parts), composed_config(base), fill)

    def from_tarball(
        self, path: str | os.PathLike[str], *, name: str | None = None, config: ImageConfig | None = None
    ) -> Image:
        """Takes a tarball of a root file system, compressed or not."""
        file = Path(path)
        if not file.is_file():
            raise ImageNotFoundError(f"{file}: no such file")
        settings = (config or ImageConfig()).with_defaults()

        def fill(rootfs: Path, report: Report) -> None:
            archive.unpack_file(file, rootfs, report)

        digest = _combine(archive.file_digest(file), settings)
        return self._add(name or file.name.split(".")[0], digest, settings, fill)

    def from_folder(
        self, path: str | os.PathLike[str], *, name: str | None = None, config: ImageConfig | None = None
    ) -> Image:
        """Takes a copy of a folder that holds a root file system."""
        folder = Path(path)
        if not folder.is_dir():
            raise ImageNotFoundError(f"{folder}: no such folder")
        settings = (config or ImageConfig()).with_defaults()

        def fill(rootfs: Path, report: Report) -> None:
            archive.copy_tree(folder, rootfs, report)

        digest = _combine(archive.tree_digest(folder), settings)
        return self._add(name or folder.resolve().name, digest, settings, fill)

    @contextmanager
    def hold(self, image: Image) -> Iterator[Image]:
        """Keeps an image from being removed, until its user has recorded that it uses it.

        Raises:
            ImageNotFoundError: it has been removed meanwhile.
        """
        with _locked(self._lock_path(image.digest), fcntl.LOCK_SH):
            if not image.rootfs.is_dir():
                raise ImageNotFoundError(f"image {image.name} ({image.digest[:12]}) has been removed")
            yield image

    def remove(self, name: str) -> Image:
        """Removes an image.

        Raises:
            ImageNotFoundError: there is none.
            ImageError: a workspace or a snapshot uses it; nothing was changed.
        """
        image = self.get(name)
        with _locked(self._folder / "index.lock", fcntl.LOCK_EX):
            if not self._delete_unused(image.digest):
                raise ImageError(f"image {name} ({image.digest[:12]}) is in use by a workspace or snapshot")
            index = self._read_index()
            self._write_index({n: d for n, d in index.items() if d != image.digest})
        return image

    def gc(self) -> tuple[str, ...]:
        """Removes images without a name that nothing uses, and what dead builders left.

        Returns:
            The digests removed.
        """
        if not self._folder.is_dir():
            return ()
        with _locked(self._folder / "index.lock", fcntl.LOCK_EX):
            named = set(self._read_index().values())
            for path in self._folder.glob("tmp-*"):
                with _try_lock(self._lock_path(path.name.split("-")[1])) as ours:
                    if ours:
                        archive.remove_tree(path)
            for path in self._folder.glob("*.lock"):
                if _DIGEST.fullmatch(path.stem) and not (self._folder / path.stem).exists():
                    with _try_lock(path) as ours:
                        if ours and not (self._folder / path.stem).exists():
                            path.unlink()
            stored = [p.name for p in self._folder.iterdir() if _DIGEST.fullmatch(p.name)]
            return tuple(d for d in sorted(stored) if d not in named and self._delete_unused(d))

    def _add(
        self,
        name: str,
        digest: str,
        config: ImageConfig,
        fill: Callable[[Path, Report], None],
        *,
        rebuild: bool = False,
    ) -> Image:
        final = self._folder / digest
        self._folder.mkdir(parents=True, exist_ok=True)
        if rebuild or not final.is_dir():
            with build_progress(f"image {name}") as report:
                report("waiting for another builder of the same image")
                with _locked(self._lock_path(digest), fcntl.LOCK_EX):
                    if rebuild or not final.is_dir():
                        self._fill(name, digest, config, lambda rootfs: fill(rootfs, report))
        with _locked(self._folder / "index.lock", fcntl.LOCK_EX):
            index = self._read_index()
            if index.get(name) != digest:
                self._write_index({**index, name: digest})
        return load_image(final)

    def _fill(self, name: str, digest: str, config: ImageConfig, fill: Callable[[Path], None]) -> None:
        """Makes the image under a temporary name, then gives it its own. Lock held."""
        for stale in self._folder.glob(f"tmp-{digest}-*"):
            archive.remove_tree(stale)
        scratch = Path(tempfile.mkdtemp(prefix=f"tmp-{digest}-", dir=self._folder))
        try:
            scratch.chmod(0o755)
            fill(scratch / "rootfs")
            save_config(
                scratch,
                name=name,
                digest=digest,
                config=config,
                created=datetime.now(UTC).isoformat(timespec="seconds"),
                size_bytes=_disk_bytes(scratch / "rootfs"),
            )
            final = self._folder / digest
            if final.is_dir():
                if self._in_use(digest):
                    raise ImageError(f"image {name}: the stored one is in use, it cannot be replaced now")
                archive.remove_tree(final)
            os.rename(scratch, final)
        except BaseException:
            archive.remove_tree(scratch)
            raise
        log.info("image %s is stored as %s", name, digest[:12])

    def _delete_unused(self, digest: str) -> bool:
        with _try_lock(self._lock_path(digest)) as ours:
            if not ours or self._in_use(digest):
                return False
            doomed = Path(tempfile.mkdtemp(prefix=f"tmp-{digest}-", dir=self._folder))
            os.rename(self._folder / digest, doomed / "image")
            archive.remove_tree(doomed)
            self._lock_path(digest).unlink(missing_ok=True)
            return True

    def _in_use(self, digest: str) -> bool:
        """Whether a state file of a workspace, a snapshot or a layer mentions the digest."""
        needle = digest.encode()
        for kind in ("workspaces", "snapshots", "layers"):
            for path in (self._home / kind).glob("*/*"):
                try:
                    small = path.is_file() and path.stat().st_size <= _STATE_FILE_BYTES
                    if small and needle in path.read_bytes():
                        return True
                except FileNotFoundError:
                    continue  # a workspace that ended while we looked
        return False

    def _by_prefix(self, text: str) -> str | None:
        if len(text) < _SHORTEST_PREFIX or not re.fullmatch(r"[0-9a-f]+", text):
            return None
        found = [p.name for p in self._folder.glob(f"{text}*") if _DIGEST.fullmatch(p.name)]
        return found[0] if len(found) == 1 else None

    def _lock_path(self, digest: str) -> Path:
        return self._folder / f"{digest}.lock"

    def _read_index(self) -> dict[str, str]:
        try:
            return dict(json.loads((self._folder / "index.json").read_text()))
        except FileNotFoundError:
            return {}
        except ValueError as error:
            raise ImageError(f"{self._folder / 'index.json'} is damaged: {error}") from error

    def _write_index(self, index: dict[str, str]) -> None:
        scratch = self._folder / "index.json.new"
        with scratch.open("w") as file:
            json.dump(index, file, indent=2, sort_keys=True)
            file.flush()
            os.fsync(file.fileno())
        os.replace(scratch, self._folder / "index.json")


@contextmanager
def _locked(path: Path, kind: int) -> Iterator[None]:
    """Holds a lock file; one that was removed while we waited for it does not count."""
    while True:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            opened = path.open("a")
        except PermissionError as error:
            raise PrivilegeError(f"cannot write {path}: images and workspaces need root, run it by sudo") from error
        with opened as file:
            fcntl.flock(file, kind)
            if _same_file(file.fileno(), path):
                yield
                return


@contextmanager
def _try_lock(path: Path) -> Iterator[bool]:
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        yield _same_file(file.fileno(), path)


def _same_file(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def _combine(content: str, config: ImageConfig) -> str:
    """One digest of a content and of the way it is started."""
    parts = (content, *sorted(config.env.items()), *config.argv, config.user, config.workdir)
    services = sorted(config.services.items())
    return hashlib.sha256(repr((parts, services)).encode()).hexdigest()


def _disk_bytes(root: Path) -> int:
    seen: set[int] = set()
    total = 0
    for folder, _, files in os.walk(root):
        for name in files:
            info = os.lstat(os.path.join(folder, name))
            if info.st_ino not in seen:
                seen.add(info.st_ino)
                total += info.st_blocks * 512
    return total
