# SPDX-License-Identifier: Apache-2.0
"""Runs the external programs that builders need, with their output as progress."""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
from collections import deque
from collections.abc import Callable, Sequence

from bunshin_gym.errors import ImageBuildError

__all__ = ["Report", "need_program", "run"]

log = logging.getLogger(__name__)

Report = Callable[[str], None]
"""Takes one line that says what is being done now."""

_KEPT_LINES = 15


def need_program(name: str, package: str) -> str:
    """Path of a program.

    Raises:
        ImageBuildError: it is not installed; the message says how to get it.
    """
    path = shutil.which(name, path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")
    if path is None:
        raise ImageBuildError(f"{name} is not installed: apt-get install {package}")
    return path


def run(argv: Sequence[str], report: Report, *, env: dict[str, str] | None = None) -> None:
    """Runs a program to its end; each line of its output goes to `report`.

    Raises:
        ImageBuildError: it failed; the message ends with the last lines it wrote.
    """
    log.debug("running %s", " ".join(argv))
    tail: deque[str] = deque(maxlen=_KEPT_LINES)
    with subprocess.Popen(
        argv,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env=env,
    ) as process:
        assert process.stdout is not None
        try:
            for line in process.stdout:
                tail.append(line.rstrip())
                log.debug("%s: %s", os.path.basename(argv[0]), tail[-1])
                report(tail[-1])
        except BaseException:
            process.terminate()
            raise
    if process.returncode != 0:
        said = "\n  ".join(tail)
        raise ImageBuildError(f"{' '.join(argv)}: exit status {process.returncode}:\n  {said}")
