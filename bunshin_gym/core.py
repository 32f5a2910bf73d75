# SPDX-License-Identifier: Apache-2.0
"""State directories in this process: where its workspaces are recorded, and what killed processes left is reaped."""

from __future__ import annotations

import logging
import os
import threading
from pathlib import Path
from typing import Final

from bunshin_gym.native import GcReport, NativeCore
from bunshin_gym.paths import criu_path, home_path

__all__ = ["Core", "core"]

_log: Final = logging.getLogger(__name__)


class Core:
    """One state directory in this process; get it from `core()`."""

    def __init__(self, home: Path, criu: Path) -> None:
        self.home = home
        self.native = NativeCore(home, criu)
        self._collected = False
        self._lock = threading.Lock()

    def features(self) -> dict[str, str]:
        """What kernel and machine offer, by name."""
        return self.native.features()

    def gc(self) -> GcReport:
        """Reaps what processes left that were killed; touches nothing of living ones."""
        return self.native.gc()

    def collect_once(self) -> None:
        """gc, the first time in this process. What cannot be reaped hinders no one: it is logged."""
        with self._lock:
            if self._collected:
                return
            self._collected = True
        try:
            report = self.gc()
        except Exception as error:  # noqa: BLE001 - another's remains must not keep us from starting
            _log.warning("remains of earlier processes could not be reaped: %s", error)
            return
        if report.workspaces or report.snapshots:
            _log.info("reaped %d workspaces and %d snapshots", report.workspaces, report.snapshots)


_cores: Final[dict[tuple[int, Path, Path], Core]] = {}
_cores_lock: Final = threading.Lock()


def core(home: Path | str | None = None, criu: Path | str | None = None) -> Core:
    """This process's core of a state directory (default: $BUNSHIN_HOME)."""
    home_chosen = Path(home).resolve() if home else home_path().resolve()
    criu_chosen = Path(criu) if criu else criu_path(home_chosen)
    with _cores_lock:
        key = (os.getpid(), home_chosen, criu_chosen)
        if key not in _cores:
            _cores[key] = Core(home_chosen, criu_chosen)
        return _cores[key]
