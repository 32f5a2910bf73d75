# SPDX-License-Identifier: Apache-2.0
"""A Gymnasium env over the fake workspace, with text actions, that can be forked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, Self

import gymnasium
from gymnasium import spaces

from bunshin_gym.speculate.state import Attempt, Prediction, State, call_key
from bunshin_gym.surfaces.actions import Param, Tool, parse_actions, render_call
from bunshin_gym.surfaces.base import ActionError
from bunshin_gym.surfaces.spaces import Unicode
from bunshin_gym.testing import FAKE_TOOLS, FakeHost, FakeWorkspace
from bunshin_gym.types import ToolCall, ToolEffect

__all__ = ["FakeEnv", "Memory", "as_text"]

_PARAMS: Final[Mapping[str, tuple[Param, ...]]] = {
    "move": (Param("step", "int"),),
    "take": (Param("thing", "str"),),
    "write": (Param("text", "str"),),
    "wait": (Param("ms", "int"),),
    "roll": (Param("sides", "int", 6),),
    "pay": (Param("amount", "int"),),
}
TOOLS: Final = MappingProxyType(
    {name: Tool(name, _PARAMS.get(name, ()), name, effect=effect) for name, effect in FAKE_TOOLS.items()}
)


def as_text(call: ToolCall) -> str:
    """The call as an agent writes it: positional, so not as the env would render it."""
    return f"{call.name}({', '.join(map(repr, call.args.values()))})"


class FakeEnv(gymnasium.Env[dict[str, Any], str]):
    """Text in, text out; an action may be several calls."""

    effects: Mapping[str, ToolEffect] = FAKE_TOOLS

    def __init__(self, host: FakeHost | None = None) -> None:
        self.host = host if host is not None else FakeHost(boot_ns=0, fork_ns=0)
        self.action_space = Unicode(256, min_length=1)
        self.observation_space = spaces.Dict(
            {name: Unicode(2048) for name in ("text", "last_action", "last_action_error")}
        )
        self.workspace: FakeWorkspace | None = None

    def parse(self, action: object) -> tuple[ToolCall, ...]:
        return parse_actions(action, TOOLS)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        super().reset(seed=seed)
        self.close()
        self.workspace = FakeWorkspace(seed=int(self.np_random.integers(100)), host=self.host)
        return self._observation("", self.workspace.run(ToolCall(name="look")).observation), {"task": "fake"}

    def step(self, action: object) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        assert self.workspace is not None
        try:
            calls = self.parse(action)
        except ActionError as error:
            seen = self.workspace.run(ToolCall(name="look")).observation
            return self._observation(action, {**seen, "last_action_error": str(error)}), 0.0, False, False, {}
        results = [self.workspace.run(call) for call in calls]
        text = action if isinstance(action, str) else "\n".join(map(render_call, calls))
        last = results[-1]
        reward = sum(result.reward for result in results)
        return self._observation(text, last.observation), reward, last.terminated, last.truncated, {"task": "fake"}

    def fork(self, n: int = 1) -> list[Self]:
        assert self.workspace is not None
        branches = []
        for _ in range(n):
            branch = type(self)(self.host)
            branch.workspace = self.workspace.fork()
            branch._np_random = self._np_random
            branches.append(branch)
        return branches

    def close(self) -> None:
        if self.workspace is not None:
            self.workspace.close()
            self.workspace = None

    def _observation(self, action: object, seen: Mapping[str, str]) -> dict[str, Any]:
        return {"text": seen["text"], "last_action": str(action), "last_action_error": seen["last_action_error"]}


class Memory:
    """A predictor that remembers whole scripts by their first calls; pickles, as vector envs need."""

    def __init__(self, *scripts: Sequence[ToolCall], probability: float = 0.9) -> None:
        self.scripts, self.probability = scripts, probability
        self.learnt: list[Attempt] = []

    def predict(self, state: State, *, k: int = 3) -> list[Prediction]:
        done = [call_key(step.call) for step in state.steps]
        found: dict[str, ToolCall] = {}
        for script in self.scripts:
            if len(script) > len(done) and [call_key(call) for call in script[: len(done)]] == done:
                found.setdefault(call_key(script[len(done)]), script[len(done)])
        return [Prediction(call=call, probability=self.probability) for call in list(found.values())[:k]]

    def learn(self, attempt: Attempt) -> None:
        self.learnt.append(attempt)
