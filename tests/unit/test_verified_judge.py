# SPDX-License-Identifier: Apache-2.0
"""The judge in its own process: each question gets its own answer."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from bunshin_gym.errors import BunshinError, UsageError
from bunshin_gym.tasks.verified import VerifiedJudge

# Speaks as the worker does; `interrupt` interrupts who asks, before it answers.
WORKER = """
import json, os, signal, sys, time
print(json.dumps({"ready": True}), flush=True)
for line in sys.stdin:
    name = json.loads(line)["check"]["name"]
    if name == "end":
        sys.exit(3)
    if name == "interrupt":
        os.kill(os.getppid(), signal.SIGUSR1)
        time.sleep(0.3)
    print(json.dumps({"error": f"told of {name}"}), flush=True)
"""


class Stopped(BaseException):
    """What ends a wait from outside."""


@pytest.fixture
def judge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[VerifiedJudge]:
    worker = tmp_path / "worker.py"
    worker.write_text(WORKER)
    monkeypatch.setattr("bunshin_gym.tasks.verified._WORKER", worker)
    made = VerifiedJudge(Path(sys.executable))
    yield made
    made.close()


@pytest.fixture
def _interruptible() -> Iterator[None]:
    def stop(*_: object) -> None:
        raise Stopped

    before = signal.signal(signal.SIGUSR1, stop)
    yield
    signal.signal(signal.SIGUSR1, before)


@pytest.mark.usefixtures("_interruptible")
def test_after_an_interrupted_question_the_next_one_gets_its_own_answer(judge: VerifiedJudge) -> None:
    with pytest.raises(Stopped):
        judge.check({"name": "interrupt"})
    with pytest.raises(UsageError, match="told of another"):
        judge.check({"name": "another"})


def test_a_judge_that_does_not_start_is_told_of(tmp_path: Path, judge: VerifiedJudge) -> None:
    (tmp_path / "worker.py").write_text("import sys; sys.exit(4)")
    with pytest.raises(BunshinError, match=r"does not start: exit status 4; run .*worker\.py"):
        judge.check({"name": "another"})


def test_a_judge_that_ended_is_started_again(judge: VerifiedJudge) -> None:
    with pytest.raises(BunshinError, match="ended with status 3"):
        judge.check({"name": "end"})
    with pytest.raises(UsageError, match="told of another"):
        judge.check({"name": "another"})
