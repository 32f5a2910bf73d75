# SPDX-License-Identifier: Apache-2.0
"""Speculation over real workspaces: adopted calls are the calls, and no branch is left."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest
from support.cgroups import controls
from support.inside import IN_BACKGROUND

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


NOOP = ToolCall(name="noop", args={"wait_ms": 1500.0})
LONG = ToolCall(name="noop", args={"wait_ms": 30_000.0})


class Fixed:
    """Foretells one call, in the first state."""

    def __init__(self, call: ToolCall) -> None:
        self.call = call

    def predict(self, state: State, *, k: int = 3) -> list[Prediction]:
        return [] if state.steps else [Prediction(call=self.call, probability=1.0)]

    def learn(self, attempt: Attempt) -> None:
        pass


def phase(env: SpeculativeStep, wanted: str) -> Any:
    """Waits until the state's guess has come so far; returns it."""
    runner = env._core.runner
    assert runner is not None
    with runner._changed:
        assert runner._changed.wait_for(
            lambda: runner._round and runner._round.guesses and runner._round.guesses[0].phase == wanted,
            timeout=WAIT_S,
        )
        assert runner._round is not None
        return runner._round.guesses[0]


def weights(guest: Any) -> dict[str, str]:
    return controls(guest.workspace, "cpu.idle", "cpu.shares", "cpu.weight")


@pytest.fixture
def started(governor: Governor) -> Iterator[Callable[[ToolCall], SpeculativeStep]]:
    """An env in an episode, whose predictor foretells that call."""
    envs = []

    def start(call: ToolCall) -> SpeculativeStep:
        env = SpeculativeStep(BunshinEnv("miniwob.enter-text"), Fixed(call), governor=governor)
        envs.append(env)
        env.reset(options={"task_seed": 11})
        return env

    yield start
    for env in envs:
        env.close()


@pytest.mark.parametrize("moment", ["before", "during", "after"])
def test_the_agents_call_comes(governor: Governor, started: Any, moment: str) -> None:
    with BunshinEnv("miniwob.enter-text") as bare, ExitStack() as busy:
        bare.reset(options={"task_seed": 11})
        expected = bare.step(NOOP)
        state = bare.state_digest()
        if moment == "before":  # no guess starts while agents wait for as many calls as there are cores
            for _ in range(governor.budget.cores):
                busy.enter_context(governor.real_call())
        env = started(NOOP)
        if moment == "during":
            guess = phase(env, "running")
            normal = weights(env.unwrapped._guest)
            assert weights(guess._branch.env._guest) != normal, "the guess is not confined"
        elif moment == "after":
            settled(env)
        *result, info = env.step(NOOP)
        assert info["speculation"] == ("none" if moment == "before" else "hit")
        same(result[0], expected[0])
        assert tuple(result[1:]) == expected[1:4]
        assert env.unwrapped.state_digest() == state
        if moment == "during":
            assert weights(env.unwrapped._guest) == normal, "the adopted branch is still confined"


def test_a_wrong_guess_is_ended_in_the_midst_of_its_call(governor: Governor, started: Any) -> None:
    env = started(LONG)
    guess = phase(env, "running")
    guest = guess._branch.env._guest
    begun = time.monotonic()
    assert env.step(NOOP)[4]["speculation"] == "miss"
    runner = env._core.runner
    with runner._changed:
        assert runner._changed.wait_for(lambda: guess not in runner._alive, timeout=WAIT_S)
    assert time.monotonic() - begun < LONG.args["wait_ms"] / 1000, "the guess ran to its end"
    assert not guest.workspace.alive
    assert governor.held == 0


def test_a_guess_that_wants_out_is_thrown_away_even_if_it_was_right(started: Any) -> None:
    out = ToolCall(name="goto", args={"url": "http://192.0.2.1/"})
    env = started(out)
    runner = env._core.runner
    with runner._changed:
        assert runner._changed.wait_for(lambda: runner.stats.failed == 1, timeout=WAIT_S)
    *result, info = env.step(out)
    assert info["speculation"] == "miss"
    assert result[0]["last_action_error"]


SITE = f"""{IN_BACKGROUND}
import http.server
open("/etc/hosts", "a").write("127.0.0.1 site.test www.site.test\\n")
server = http.server.ThreadingHTTPServer(("127.0.0.1", 80), http.server.SimpleHTTPRequestHandler)
in_background()
server.serve_forever()
"""


def test_a_browser_that_opens_a_site_of_its_workspace_by_name_does_not_reach_for_the_outside() -> None:
    with BunshinEnv("miniwob.enter-text") as env:
        env.reset(options={"task_seed": 11})
        env._episode()[0].execute(["python3", "-c", SITE])
        env.confine()
        # More than one host, and one that is not there: a browser looks for an internet again and again.
        for host, there in (("site.test", True), ("www.site.test", True), ("other.test", False)):
            seen, *_ = env.step(ToolCall(name="goto", args={"url": f"http://{host}/"}))
            assert (seen["last_action_error"] == "") == there
            assert seen["url"].startswith(f"http://{host}/") == there
            assert not env.tried_to_leave(), host


def test_what_reaches_for_the_outside_is_seen() -> None:
    with BunshinEnv("miniwob.enter-text") as env:
        env.reset(options={"task_seed": 11})
        env.confine()
        guest = env._episode()[0]
        inside_only = (
            "import socket; s = socket.create_server(('127.0.0.1', 0)); socket.create_connection(s.getsockname())"
        )
        guest.execute(["python3", "-c", inside_only])
        assert not env.tried_to_leave()
        for family, kind, address in (
            ("AF_INET", "SOCK_STREAM", "192.0.2.1"),
            ("AF_INET", "SOCK_DGRAM", "192.0.2.1"),
            ("AF_INET6", "SOCK_DGRAM", "2001:db8::1"),
        ):
            env.confine()
            reach = f"import socket; print(socket.socket(socket.{family}, socket.{kind}).connect_ex(('{address}', 80)))"
            guest.execute(["python3", "-c", reach])
            assert env.tried_to_leave(), f"{family} {kind}"
