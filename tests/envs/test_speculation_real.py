# SPDX-License-Identifier: Apache-2.0
"""Speculation over real workspaces: adopted calls are the calls, and no branch is left."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from bunshin_gym.cache.stamps import pixels_agree
from bunshin_gym.envs import BunshinEnv
from bunshin_gym.speculate.costs import CostModel
from bunshin_gym.speculate.governor import Budget, Governor
from bunshin_gym.speculate.policy import Policy
from bunshin_gym.speculate.state import Attempt, Prediction, State, call_key
from bunshin_gym.types import ToolCall
from bunshin_gym.wrappers.speculative_step import SpeculativeStep

WAIT_S = 120.0
TASKS = {
    "enter-text": [("fill", "textbox", {"value": "first", "enable_autocomplete_menu": False}), ("click", "button", {})],
    "click-checkboxes": [("click", "checkbox", {}), ("click", "button", {})],
    "click-collapsible": [("click", "tab", {}), ("click", "button", {})],
    "choose-list": [("select_option", "combobox", {"options": None}), ("click", "button", {})],
}


class Script:
    """Foretells a script, call by call; or something else, when it is told to be wrong."""

    def __init__(self, calls: Sequence[ToolCall], *, right: bool) -> None:
        self.calls, self.right = calls, right

    def predict(self, state: State, *, k: int = 3) -> list[Prediction]:
        place = len(state.steps)
        if place >= len(self.calls):
            return []
        call = self.calls[place] if self.right else ToolCall(name="scroll", args={"delta_x": 0.0, "delta_y": 7.0})
        return [Prediction(call=call, probability=1.0)]

    def learn(self, attempt: Attempt) -> None:
        pass


@pytest.fixture
def governor() -> Iterator[Governor]:
    """Guesses always, whatever it costs on the machine that the test runs on."""
    policy = Policy(chain=1, gain_min_ns=-(1 << 62), price_idle=0.0, price_busy=0.0, limit_floor_ns=int(WAIT_S * 1e9))
    costs = CostModel(think_ns=int(WAIT_S * 1e9), fork_ns=1)
    governor = Governor(budget=Budget(branches=2, running=1, memory_bytes=8 << 30), policy=policy, costs=costs)
    yield governor
    assert governor.held == 0
    governor.close()


def script_of(observation: dict[str, Any], task: str) -> list[ToolCall]:
    calls = []
    for name, role, args in TASKS[task]:
        line = next(line for line in observation["axtree_txt"].splitlines() if f"] {role} '" in line)
        bid = line.strip().removeprefix("[").partition("]")[0]
        more = {"button": "left", "modifiers": []} if name == "click" else dict(args)
        if "options" in more:
            option = next(line for line in observation["axtree_txt"].splitlines() if "] option '" in line)
            more["options"] = option.split("'")[1]
        calls.append(ToolCall(name=name, args={"bid": bid, **more}))
    return calls


def settled(env: SpeculativeStep) -> None:
    """Waits until the state's guess has run."""
    runner = env._core.runner
    assert runner is not None
    with runner._changed:
        assert runner._changed.wait_for(
            lambda: runner._round and runner._round.guesses and all(g.phase == "done" for g in runner._round.guesses),
            timeout=WAIT_S,
        )


def inside(env: Any) -> dict[str, Any]:
    """What the workspace itself shows now: the screen, the texts, the page."""
    bare = env.unwrapped
    html = bare._episode()[0].evaluate("() => document.documentElement.outerHTML")
    return {**bare.observe(), "last_action": "", "html": html}


def same(one: dict[str, Any], other: dict[str, Any]) -> None:
    """Equal, but for pixels that nobody could tell apart."""
    one, other = dict(one), dict(other)
    assert pixels_agree(one.pop("screenshot"), other.pop("screenshot"))
    np.testing.assert_equal(one, other)


@pytest.mark.slow
@pytest.mark.parametrize("right", [True, False])
@pytest.mark.parametrize("task", list(TASKS))
def test_the_same_attempt_with_and_without_speculation(governor: Governor, task: str, right: bool) -> None:
    start = {"task_seed": 11}
    bare = BunshinEnv(f"miniwob.{task}")
    try:
        observation, _ = bare.reset(options=start)
        calls = script_of(observation, task)
        env = SpeculativeStep(BunshinEnv(f"miniwob.{task}"), Script(calls, right=right), governor=governor)
        try:
            same(env.reset(options=start)[0], observation)
            for call in calls:
                settled(env)
                *result, info = env.step(call)
                *expected, _ = bare.step(call)
                assert info["speculation"] == ("hit" if right else "miss")
                same(result[0], expected[0])
                assert result[1:] == expected[1:]
                same(inside(env), inside(bare))
            assert env.stats.hits == (len(calls) if right else 0)
        finally:
            env.close()
    finally:
        bare.close()


def test_a_guess_is_dropped_when_the_env_is_closed_meanwhile(governor: Governor) -> None:
    env = SpeculativeStep(BunshinEnv("miniwob.enter-text"), Script([], right=True), governor=governor)
    observation, _ = env.reset(options={"task_seed": 11})
    calls = script_of(observation, "enter-text")
    env._core.predictor = Script(calls, right=True)
    env.reset(options={"task_seed": 11})
    env.close()
    assert governor.held == 0
    assert call_key(calls[0]) != call_key(calls[1])
