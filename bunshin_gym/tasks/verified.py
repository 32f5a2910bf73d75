# SPDX-License-Identifier: Apache-2.0
"""webarena-verified as a judge, in a process and an environment of its own: its pins clash with ours."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from multiprocessing import util
from pathlib import Path
from typing import Any, Final

from bunshin_gym.errors import BunshinError, UsageError
from bunshin_gym.isolated import isolated_python

__all__ = ["VERIFIED", "Judgement", "VerifiedJudge", "verified_judge"]

VERIFIED: Final = "webarena-verified==1.2.3"
"""The release that judges."""

_WORKER: Final = Path(__file__).with_name("verified_worker.py")


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """What the judge says: score 0 or 1, its word for it, and what did not hold."""

    score: float
    status: str
    reasons: tuple[str, ...]


class VerifiedJudge:
    """Starts the judge when it is first asked; any number of threads may ask."""

    def __init__(self, python: Path | None = None) -> None:
        """`python` is an interpreter that has the package; by default one is made in the state directory."""
        self._python = python
        self._forget()
        os.register_at_fork(after_in_child=self._forget)

    def _forget(self) -> None:
        """A forked child asks a judge of its own."""
        self._lock = threading.Lock()
        self._process: subprocess.Popen[str] | None = None
        self._closer: util.Finalize | None = None

    def judge(
        self,
        task: Mapping[str, Any],
        *,
        response: str,
        entries: Sequence[Mapping[str, Any]],
        urls: Mapping[str, str],
    ) -> Judgement:
        """Judges an episode.

        Args:
            task: in webarena-verified's schema.
            response: what the agent said at the end.
            entries: HAR entries of what the browser asked for.
            urls: placeholders of sites, such as `__SHOPPING__`, and their addresses.

        Raises:
            UsageError: the task is not of the schema, or the judge cannot work with it.
            BunshinError: the judge cannot be started, or died.
        """
        # Without entries the package refuses to judge at all: nothing was asked of any site.
        if not entries:
            return Judgement(score=0.0, status="failure", reasons=("the browser asked no site for anything",))
        question = {"task": task, "response": response, "entries": entries, "urls": urls}
        answer = self._ask(question)
        return Judgement(score=answer["score"], status=answer["status"], reasons=tuple(answer["reasons"]))

    def check(self, task: Mapping[str, Any]) -> None:
        """Raises UsageError unless a task is of webarena-verified's schema."""
        self._ask({"check": task})

    def close(self) -> None:
        """Ends the judge; idempotent, and it can be asked again."""
        with self._lock:
            if self._process is not None:
                self._end(self._process)

    def _end(self, process: subprocess.Popen[str]) -> int:
        """Hangs up, and waits for its end; the lock is held."""
        assert process.stdin is not None
        assert process.stdout is not None
        self._process = None
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()
        process.stdout.close()
        status = process.wait()
        if self._closer is not None:
            self._closer.cancel()
        return status

    def _ask(self, question: Mapping[str, Any]) -> dict[str, Any]:
        with self._lock:
            process = self._process or self._start()
            line = self._exchange(process, json.dumps(question) + "\n")
            if not line:
                raise BunshinError(f"the judge {VERIFIED} ended with status {self._end(process)}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise UsageError(f"{VERIFIED}: {answer['error']}")
        return answer

    def _exchange(self, process: subprocess.Popen[str], question: str) -> str:
        """The next line that it says; empty if it has ended."""
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(question)
            process.stdin.flush()
            return process.stdout.readline()
        except BrokenPipeError:
            return ""
        except BaseException:
            process.kill()  # its answer would be taken for the next one's
            self._end(process)
            raise

    def _start(self) -> subprocess.Popen[str]:
        python = self._python or isolated_python("webarena-verified", [VERIFIED])
        process = subprocess.Popen(
            [str(python), "-I", str(_WORKER)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self._process = process
        self._closer = util.Finalize(None, self.close, exitpriority=40)
        if not self._exchange(process, ""):
            status = self._end(process)
            raise BunshinError(f"the judge {VERIFIED} does not start: exit status {status}; run {_WORKER} by {python}")
        return process


_shared: Final = VerifiedJudge()


def verified_judge() -> VerifiedJudge:
    """This process's judge."""
    return _shared
