# SPDX-License-Identifier: Apache-2.0
"""A folder of OSWorld tasks: a user's checkout, its `evaluation_examples`, or any folder of task files.

ROOT/evaluation_examples/examples/DOMAIN/ID.json     a checkout
ROOT/examples/DOMAIN/ID.json, ROOT/files/ID/NAME     a mirror, with the files that tasks download
ROOT/DOMAIN/ID.json
ROOT/cache/TASK/NAME                                 the original's cache folder
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final

from bunshin_gym.errors import UsageError
from bunshin_gym.osworld.definition import Definition, Download, Need, load_definition

__all__ = ["Collection", "find_collection"]

_VARIABLE: Final = "BUNSHIN_OSWORLD"
_CACHE_VARIABLE: Final = "BUNSHIN_OSWORLD_CACHE"
_PLACES: Final = ("evaluation_examples/examples", "examples", "")


@dataclass(frozen=True)
class Collection:
    """Tasks below one folder.

    Attributes:
        root: the folder.
        cache: where downloaded files are kept, a folder a task; None for `cache` in the root.
        files: a mirror of what is downloaded, a folder a task; None for `files` in the root.
    """

    root: Path
    cache: Path | None = None
    files: Path | None = None

    @cached_property
    def _paths(self) -> dict[str, Path]:
        folder = next((self.root / place for place in _PLACES if self._holds_tasks(self.root / place)), None)
        if folder is None:
            raise UsageError(f"{self.root} holds no OSWorld tasks (examples/DOMAIN/ID.json)")
        return {path.stem: path for path in sorted(folder.glob("*/*.json"))}

    @staticmethod
    def _holds_tasks(folder: Path) -> bool:
        return any(True for _ in folder.glob("*/*.json"))

    def names(self) -> dict[str, str]:
        """Task id to domain; reads no task."""
        return {name: path.parent.name for name, path in self._paths.items()}

    def get(self, name: str) -> Definition:
        """The task of that id, or of the only id that begins so.

        Raises:
            UsageError: there is none, or more than one.
        """
        found = [known for known in self._paths if known == name] or [n for n in self._paths if n.startswith(name)]
        if len(found) != 1:
            many = (
                f"{len(found)} tasks begin so"
                if found
                else f"there are {len(self._paths)}, such as {next(iter(self._paths), '')}"
            )
            raise UsageError(f"no OSWorld task {name!r} in {self.root}: {many}")
        return load_definition(self._paths[found[0]])

    def __iter__(self) -> Iterator[Definition]:
        return (load_definition(path) for path in self._paths.values())

    def problems(self) -> list[str]:
        """What is wrong with the files: what cannot be read, and what is no task."""
        found = []
        for path in self._paths.values():
            try:
                load_definition(path)
            except UsageError as error:
                found.append(str(error))
        return found

    def cache_folder(self, task: Definition) -> Path:
        """Where the task's downloaded files are kept."""
        return (self.cache or self.root / "cache") / task.id

    def file_of(self, task: Definition, download: Download) -> Path | None:
        """A local copy of a file that the task downloads: from the cache, or from the mirror."""
        mirror = (self.files or self.root / "files") / task.id
        places = (
            self.cache_folder(task) / download.cache_name,
            mirror / download.base_name,
            mirror / download.cache_name,
        )
        return next((path for path in places if path.is_file()), None)

    def needs(self, task: Definition) -> tuple[Need, ...]:
        """What a task wants that is not here: an account, the network, files, programs; empty when it can be run."""
        missing = [d for d in task.downloads() if self.file_of(task, d) is None]
        found = list(task.needs())
        if missing:
            names = ", ".join(d.base_name for d in missing[:3]) + (", ..." if len(missing) > 3 else "")
            found.append(Need(kind="files", detail=f"{len(missing)} not in {self.cache_folder(task)}: {names}"))
        history = self.cache_folder(task) / "history_new.sqlite"
        own = (self.root / "desktop_env").is_dir()
        return tuple(
            need
            for need in found
            if not (need.detail.startswith(history.name) and history.is_file())
            and not (need.kind == "evaluator" and own)
        )

    def fill_cache(self, task: Definition, folder: Path) -> None:
        """Copies what there is of a task's files into a folder, under the original's cache names."""
        kept = self.cache_folder(task)
        if kept.is_dir():
            shutil.copytree(kept, folder, dirs_exist_ok=True)
        for download in task.downloads():
            source = self.file_of(task, download)
            if source is not None and not (folder / download.cache_name).exists():
                shutil.copyfile(source, folder / download.cache_name)


def find_collection(root: str | os.PathLike[str] | None = None) -> Collection | None:
    """The collection at a folder; without one, at $BUNSHIN_OSWORLD; None if neither is given.

    Raises:
        UsageError: there is no such folder.
    """
    chosen = os.fspath(root) if root is not None else os.environ.get(_VARIABLE, "")
    if not chosen:
        return None
    folder = Path(chosen).resolve()
    if not folder.is_dir():
        raise UsageError(f"{folder}: no such folder of OSWorld tasks")
    cache = os.environ.get(_CACHE_VARIABLE)
    return Collection(folder, Path(cache) if cache else None)
