# SPDX-License-Identifier: Apache-2.0
"""Python environments of their own, for packages whose pins clash with ours.

    $BUNSHIN_HOME/venvs/NAME-DIGEST/    an environment; the digest is of what it was asked to hold
    $BUNSHIN_HOME/venvs/NAME.lock       held by whoever makes one

One appears by a rename, whole. Nothing of ours is imported there: a helper script is run by its interpreter, and is
talked to through its standard input and output.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from bunshin_gym.errors import BunshinError
from bunshin_gym.paths import home_path

__all__ = ["isolated_path", "isolated_python"]

log = logging.getLogger(__name__)

_LAST_LINES = 12


def isolated_python(
    name: str, requirements: Sequence[str], *, without_dependencies: Sequence[str] = (), home: Path | None = None
) -> Path:
    """The interpreter of an environment that holds these packages, made if it is not there yet.

    Args:
        name: what it is for; part of its directory's name.
        requirements: pinned packages, installed with what they need.
        without_dependencies: pinned packages of which nothing else is wanted.
        home: the state directory; None is $BUNSHIN_HOME, or /var/lib/bunshin.

    Raises:
        BunshinError: it cannot be made; the message has what pip said, and nothing is left.
    """
    python = isolated_path(name, requirements, without_dependencies=without_dependencies, home=home)
    if python.exists():
        return python
    final = python.parent.parent
    folder = final.parent
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / f"{name}.lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not python.exists():
                _make(final, requirements, without_dependencies)
    except OSError as error:
        raise BunshinError(f"no environment for {name} can be made in {folder}: {error}") from error
    return python


def isolated_path(
    name: str, requirements: Sequence[str], *, without_dependencies: Sequence[str] = (), home: Path | None = None
) -> Path:
    """Where that interpreter is, or would be; arguments as for `isolated_python`."""
    asked = repr((sys.version_info[:2], sorted(requirements), sorted(without_dependencies)))
    folder = f"{name}-{hashlib.sha256(asked.encode()).hexdigest()[:12]}"
    return (home or home_path()) / "venvs" / folder / "bin" / "python"


def _make(final: Path, requirements: Sequence[str], without_dependencies: Sequence[str]) -> None:
    for stale in final.parent.glob(f"tmp-{final.name}-*"):
        shutil.rmtree(stale)  # of a maker that was killed: we hold its lock
    making = Path(tempfile.mkdtemp(prefix=f"tmp-{final.name}-", dir=final.parent))
    log.info("making %s with %s", final, ", ".join((*requirements, *without_dependencies)))
    try:
        _run([sys.executable, "-m", "venv", str(making)])
        pip = [str(making / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        if requirements:
            _run([*pip, *requirements])
        if without_dependencies:
            _run([*pip, "--no-deps", *without_dependencies])
        making.chmod(0o755)
        making.rename(final)
    except BaseException:
        shutil.rmtree(making)
        raise


def _run(argv: Sequence[str]) -> None:
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", check=False)
    if done.returncode != 0:
        said = "\n  ".join((done.stdout + done.stderr).splitlines()[-_LAST_LINES:])
        raise BunshinError(f"{' '.join(argv)}: exit status {done.returncode}:\n  {said}")
