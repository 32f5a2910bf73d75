# SPDX-License-Identifier: Apache-2.0
"""OSWorld's own code, in an environment of its own and in processes of their own, which serve one request at a time."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from bunshin_gym.errors import BunshinError
from bunshin_gym.isolated import isolated_python
from bunshin_gym.osworld.collection import Collection
from bunshin_gym.osworld.definition import Definition
from bunshin_gym.osworld.endpoint import Endpoint, Machine
from bunshin_gym.paths import home_path
from bunshin_gym.scratch import ScratchFolder

__all__ = ["Evaluator", "OSWorldError", "shared_evaluator"]

_HERE: Final = Path(__file__).resolve().parent
_REQUIREMENTS: Final = _HERE / "requirements.txt"
_WORKER: Final = _HERE / "worker.py"
_PASSWORD: Final = "password"
_LOG_BYTES: Final = 4000


class OSWorldError(BunshinError):
    """OSWorld's own set-up or evaluation failed; the message has its words."""


class Evaluator:
    """Workers of the evaluation environment; any number of threads may ask at once."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._idle: list[_Worker] = []
        self._lock = threading.Lock()
        os.register_at_fork(after_in_child=self._forget)

    def install(self) -> Path:
        """Makes the environment if it is not there yet; returns its Python. Takes a minute, and the network.

        Raises:
            BunshinError: pip failed; the message has its last words.
        """
        lines = _REQUIREMENTS.read_text().splitlines()
        pinned = [line for line in lines if line and not line.startswith("#")]
        return isolated_python("osworld", (), without_dependencies=pinned, home=self._home)

    def run_script(self, script: Path, *args: str) -> None:
        """Runs a Python script in the environment, whose libraries read and write all kinds of documents.

        Raises:
            OSWorldError: it failed; the message has its last words.
        """
        _run([str(self.install()), str(script), *args])

    def set_up(self, machine: Machine, tasks: Collection, task: Definition, screen: tuple[int, int]) -> None:
        """Runs the task's `config` by OSWorld's own controller.

        Raises:
            OSWorldError: a step failed.
        """
        self._ask(machine, tasks, task, {"op": "setup", "screen": screen})

    def evaluate(
        self,
        machine: Machine,
        tasks: Collection,
        task: Definition,
        screen: tuple[int, int],
        history: Sequence[str] = (),
    ) -> float:
        """Runs the task's `postconfig`, its getters and its metrics; returns the score.

        Args:
            history: the agent's actions; all that counts is whether the last is `FAIL`.

        Raises:
            OSWorldError: they broke, which is no verdict.
        """
        request = {"op": "evaluate", "screen": screen, "history": list(history)}
        return float(self._ask(machine, tasks, task, request))

    def close(self) -> None:
        """Ends the workers; the next request starts others. Idempotent."""
        with self._lock:
            idle, self._idle = self._idle, []
        for worker in idle:
            worker.close()

    def _ask(self, machine: Machine, tasks: Collection, task: Definition, request: Mapping[str, Any]) -> Any:
        with ScratchFolder("osworld") as cache, Endpoint(machine) as endpoint:
            folder = cache.path / task.id
            folder.mkdir()
            tasks.fill_cache(task, folder)
            ports = {"server": endpoint.port, "chromium": endpoint.chromium_port, "vlc": endpoint.vlc_port}
            whole = {**request, "task": dict(task.raw), "ports": ports, "cache": str(cache.path), "password": _PASSWORD}
            with self._worker(tasks.root) as worker:
                return worker.ask(whole, task.id)

    @contextlib.contextmanager
    def _worker(self, source: Path) -> Iterator[_Worker]:
        """An idle worker, or another; one that broke is not used again."""
        own = source if (source / "desktop_env").is_dir() else None
        with self._lock:
            found = next((worker for worker in self._idle if worker.source == own), None)
            if found is not None:
                self._idle.remove(found)
        worker = found or _Worker(self.install(), own)
        try:
            yield worker
        finally:
            if worker.alive:
                with self._lock:
                    self._idle.append(worker)
            else:
                worker.close()

    def _forget(self) -> None:
        """In a forked child: the workers are the parent's."""
        self._lock = threading.Lock()
        self._idle = []


class _Worker:
    """One process of the evaluation environment."""

    def __init__(self, python: Path, source: Path | None) -> None:
        self.source = source
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - closed in close()
        self._folder = ScratchFolder("osworld")
        self._process = subprocess.Popen(
            [str(python), str(_WORKER)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            bufsize=1,
            cwd=self._folder.path,
            env={**_clean_env(), **({"PYTHONPATH": str(source)} if source else {})},
        )

    @property
    def alive(self) -> bool:
        """Whether it can be asked again."""
        return self._process.poll() is None

    def ask(self, request: Mapping[str, Any], what: str) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._log.seek(0)
        self._log.truncate()
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        except BaseException:
            self._end()  # its answer would be taken for the next one's
            raise
        if not line:
            self._end()
            raise OSWorldError(f"{what}: OSWorld's code ended by itself:\n{self._words()}")
        reply = json.loads(line)
        if not reply["ok"]:
            raise OSWorldError(f"{what}: {reply['error']}\n{self._words()}")
        return reply["value"]

    def _words(self) -> str:
        """The end of what it wrote."""
        size = os.fstat(self._log.fileno()).st_size
        return os.pread(self._log.fileno(), _LOG_BYTES, max(0, size - _LOG_BYTES)).decode(errors="replace")

    def _end(self) -> None:
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._end()
        self._process.stdout.close()
        self._log.close()
        self._folder.close()


def _clean_env() -> dict[str, str]:
    """Ours without what would bring our own packages, a proxy for the loopback, or a virtual environment in."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    return {**env, "NO_PROXY": "127.0.0.1,localhost", "no_proxy": "127.0.0.1,localhost"}


def _run(argv: Sequence[str]) -> None:
    done = subprocess.run(argv, capture_output=True, text=True, env=_clean_env(), check=False)
    if done.returncode != 0:
        raise OSWorldError(f"{' '.join(argv[:4])} ...: {done.stderr.strip()[-_LOG_BYTES:]}")


_shared: Evaluator | None = None
_shared_lock: Final = threading.Lock()


def shared_evaluator() -> Evaluator:
    """This process's evaluator, ended with it."""
    global _shared
    with _shared_lock:
        if _shared is None:
            import atexit

            _shared = Evaluator(home_path())
            atexit.register(_shared.close)
        return _shared
