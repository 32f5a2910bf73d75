# SPDX-License-Identifier: Apache-2.0
"""Workers of the evaluation environment: which of them are asked again."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bunshin_gym.osworld.evaluator import Evaluator, OSWorldError, _Worker

# The names that the worker takes from OSWorld, with an evaluation that does what its task says.
THEIRS = {
    "controllers/python.py": """
class PythonController:
    def __init__(self, **_): pass
""",
    "controllers/setup.py": """
class SetupController:
    def __init__(self, **_): pass
    def reset_cache_dir(self, folder): pass
""",
    "desktop_env.py": """
import os, time
class DesktopEnv:
    def _set_task_info(self, task): self.task = task
    def evaluate(self):
        if self.task == "end":
            os._exit(3)
        if self.task == "hang up":
            os.closerange(3, 64)
            time.sleep(600)
        if self.task == "fail":
            raise ValueError("no such file")
        return 0.5
""",
}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    for name, text in THEIRS.items():
        file = tmp_path / "source" / "desktop_env" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return tmp_path / "source"


@pytest.fixture
def evaluator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Evaluator]:
    made = Evaluator(tmp_path)
    monkeypatch.setattr(made, "install", lambda: Path(sys.executable))
    yield made
    made.close()


def evaluate(evaluator: Evaluator, source: Path, task: str) -> tuple[_Worker, Any]:
    """Which worker was asked, and its answer or error."""
    request = {"op": "evaluate", "task": task, "screen": [640, 480], "cache": "", "password": ""}
    ports = {"server": 1, "chromium": 2, "vlc": 3}
    answer: Any = None
    try:
        with evaluator._worker(source) as worker:
            answer = worker.ask({**request, "ports": ports}, task)
    except OSWorldError as error:
        answer = str(error)
    return worker, answer


def test_a_worker_is_asked_again_after_a_score_and_after_an_error(evaluator: Evaluator, source: Path) -> None:
    first, score = evaluate(evaluator, source, "score")
    assert score == 0.5
    again, told = evaluate(evaluator, source, "fail")
    assert told.startswith("fail: ValueError: no such file")
    assert evaluate(evaluator, source, "score") == (first, 0.5)
    assert again is first


@pytest.mark.parametrize("task", ["end", "hang up"])
def test_a_worker_that_ended_is_not_asked_again(evaluator: Evaluator, source: Path, task: str) -> None:
    first, told = evaluate(evaluator, source, task)
    assert told.startswith(f"{task}: OSWorld's code ended by itself")
    assert not first.alive
    other, score = evaluate(evaluator, source, "score")
    assert other is not first
    assert score == 0.5


def test_a_worker_whose_asker_was_interrupted_is_not_asked_again(
    evaluator: Evaluator, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(_: object) -> str:
        raise KeyboardInterrupt

    first, _ = evaluate(evaluator, source, "score")
    with monkeypatch.context() as patch:
        patch.setattr("bunshin_gym.osworld.evaluator.json.dumps", interrupt)
        with pytest.raises(KeyboardInterrupt):
            evaluate(evaluator, source, "score")
    other, score = evaluate(evaluator, source, "score")
    assert other is not first
    assert score == 0.5
