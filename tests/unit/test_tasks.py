# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium
import pytest

import bunshin_gym
from bunshin_gym.errors import ToolError, UsageError
from bunshin_gym.tasks import Message, load_task
from bunshin_gym.tasks.miniwob import MiniWoBTask, env_names
from bunshin_gym.tasks.miniwob_names import FLIGHT_SITES, PAGES, TIMED, camel_case


class ScriptedPage:
    """Answers evaluate() with what it was given."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.opened: list[str] = []
        self.asked: list[tuple[str, Any]] = []
        self.called: list[str] = []

    def open(self, url: str) -> None:
        self.opened.append(url)

    def evaluate(self, script: str, arg: Any = None) -> Any:
        self.asked.append((script, arg))
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def call(self, name: str, args: Mapping[str, Any] | None = None, *, timeout_s: float | None = None) -> Any:
        self.called.append(name)

    def execute(self, argv: Sequence[str], *, timeout_s: float = 60.0) -> str:
        raise AssertionError("no command is needed")


def _state(**changes: Any) -> dict[str, Any]:
    return {"done": False, "raw_reward": 0, "reason": None, "ready": True, "started": True, **changes}


def test_every_page_is_registered_once() -> None:
    ids = [env_id for env_id in gymnasium.registry if env_id.startswith("bunshin/MiniWoB-")]
    assert len(ids) == len(PAGES) + len(FLIGHT_SITES) == 133
    assert "bunshin/MiniWoB-ClickTest-v0" in ids
    assert "bunshin/MiniWoB-EmailInboxForwardNlTurk-v0" in ids
    assert "bunshin/MiniWoB-FlightAlaskaAuto-v0" in ids
    assert set(PAGES) >= TIMED


def test_registering_again_changes_nothing() -> None:
    before = dict(gymnasium.registry)
    bunshin_gym.register_envs()
    assert dict(gymnasium.registry) == before


def test_specs_say_what_goes_by_the_clock() -> None:
    assert gymnasium.spec("bunshin/MiniWoB-MovingItems-v0").nondeterministic
    assert not gymnasium.spec("bunshin/MiniWoB-ClickTest-v0").nondeterministic


@pytest.mark.parametrize(
    ("name", "id_part"), [("click-tab-2-hard", "ClickTab2Hard"), ("flight.AA", "FlightAA"), ("terminal", "Terminal")]
)
def test_camel_case(name: str, id_part: str) -> None:
    assert camel_case(name) == id_part


def test_tasks_by_id() -> None:
    assert load_task("miniwob.click-test") == MiniWoBTask(name="click-test")
    with pytest.raises(UsageError, match="no task 'click-nothing'"):
        load_task("miniwob.click-nothing")
    with pytest.raises(UsageError, match="no task family 'chess'"):
        load_task("chess.opening")
    for name in env_names().values():
        assert load_task(f"miniwob.{name}").id == f"miniwob.{name}"


def test_the_page_is_opened_and_drawn_once_and_seeded_each_time() -> None:
    page = ScriptedPage(None, "Click the button.")
    task = MiniWoBTask(name="click-test")
    task.prepare(page)
    assert page.opened == ["file:///opt/bunshin/miniwob/miniwob/click-test.html"]
    assert page.called == ["rest"]
    setup = task.setup(page, (1 << 31) + 5)
    assert [arg for _, arg in page.asked] == [None, "5"]
    assert setup.goal == "Click the button."
    assert setup.info == {"seed": 5}


def test_a_page_without_a_goal_is_an_error() -> None:
    with pytest.raises(ToolError, match="has no goal"):
        MiniWoBTask(name="click-test").setup(ScriptedPage(None), 1)


@pytest.mark.parametrize(
    ("answer", "reward", "done", "message"),
    [
        (_state(), 0.0, False, ""),
        (_state(done=True, raw_reward=1), 1.0, True, ""),
        (_state(done=True, raw_reward=-1, reason="wrong"), -1.0, True, ""),
        (_state(done=True, raw_reward=0.25), 0.25, True, ""),
        (None, 0.0, True, "the agent left the task's page"),
        (_state(started=False), 0.0, True, "the agent left the task's page"),
        (ToolError("navigated"), 0.0, True, "the agent left the task's page"),
    ],
)
def test_verdicts(answer: Any, reward: float, done: bool, message: str) -> None:
    verdict = MiniWoBTask(name="click-test").validate(ScriptedPage(answer), {}, ())
    assert (verdict.reward, verdict.done, verdict.message) == (reward, done, message)


def test_giving_up_ends_the_task() -> None:
    said = [Message(role="infeasible", text="no such button")]
    verdict = MiniWoBTask(name="click-test").validate(ScriptedPage(), {}, said)
    assert (verdict.reward, verdict.done) == (0.0, True)


def test_import_needs_neither_the_core_nor_an_image() -> None:
    script = (
        "import sys, bunshin_gym, gymnasium; gymnasium.spec('bunshin/MiniWoB-ClickTest-v0');"
        "heavy = {'bunshin_gym.native', 'bunshin_gym.workspace', 'PIL', 'docker'} & set(sys.modules);"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


def test_all_names_can_be_had() -> None:
    for name in bunshin_gym.__all__:
        if name in ("Workspace", "Snapshot"):
            continue  # needs the built core; tests/core imports them
        assert getattr(bunshin_gym, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        bunshin_gym.nothing  # noqa: B018
