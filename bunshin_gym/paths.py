# SPDX-License-Identifier: Apache-2.0
"""Where things are: the state directory, our CRIU, what ships inside this package."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

__all__ = ["NETWORK_LOG", "criu_path", "home_path", "package_path", "task_folder"]

DEFAULT_HOME = Path("/var/lib/bunshin")
NETWORK_LOG: Final = "/var/log/bunshin/network.jsonl"
"""Where, in a workspace, images with sites have their browser's requests written down."""


def home_path() -> Path:
    """The state directory: $BUNSHIN_HOME, else /var/lib/bunshin."""
    return Path(os.environ.get("BUNSHIN_HOME") or DEFAULT_HOME)


def criu_path(home: Path | None = None) -> Path:
    """Our CRIU: $BUNSHIN_CRIU, else the one of the state directory or, failing that, of the default one.

    The file need not exist: only forks need it.
    """
    chosen = os.environ.get("BUNSHIN_CRIU")
    if chosen:
        return Path(chosen)
    candidates = [base / "criu" / "current" / "sbin" / "criu" for base in (home or home_path(), DEFAULT_HOME)]
    return next((path for path in candidates if path.exists()), candidates[0])


def package_path() -> Path:
    """The directory of this package."""
    return Path(__file__).resolve().parent


def task_folder(name: str) -> Path | None:
    """Where a family's task files are: installed with the package, or in the checkout; None if they are not here."""
    package = package_path()
    places = (package / "_envs" / "tasks" / name, package.parent / "envs" / "tasks" / name)
    return next((place for place in places if place.is_dir()), None)
