# SPDX-License-Identifier: Apache-2.0
"""A wrapper that runs the likely next step while the agent thinks."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Mapping
from typing import Any, Final, Self

import gymnasium

from bunshin_gym.errors import UsageError
from bunshin_gym.speculate.env_workspace import (
    AnyEnv,
    EnvWorkspace,
    call_of,
    effects_of,
    find_forkable,
    parser_of,
    put_in_place,
)
from bunshin_gym.speculate.governor import Governor, default_governor
from bunshin_gym.speculate.protocols import Predictor
from bunshin_gym.speculate.runner import SpeculativeRunner
from bunshin_gym.speculate.runner_snapshot import RunnerSnapshot
from bunshin_gym.speculate.stats import Stats
from bunshin_gym.types import ToolCall, ToolEffect, ToolResult

__all__ = ["SpeculativeStep"]

_totals_lock: Final = threading.Lock()


class _Speculating(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Sits around the env that is forked. Its `env` is another one after each right guess."""

    def __init__(
        self,
        env: AnyEnv,
        predictor: Predictor,
        *,
        governor: Governor | None,
        effects: Mapping[str, ToolEffect] | None,
        task: str | None,
        totals: Stats,
    ) -> None:
        super().__init__(env)
        self.governor = governor if governor is not None else default_governor()
        self.predictor, self._effects, self._task = predictor, effects, task
        self.parse = parser_of(env)
        self.effect = effects_of(env, effects, self.parse)
        self.totals = totals
        self.runner: SpeculativeRunner[EnvWorkspace] | None = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self.release()
        with self.governor.real_call():
            observation, info = self.env.reset(seed=seed, options=options)
        self.runner = SpeculativeRunner(
            EnvWorkspace(self.env),
            self.predictor,
            effect=self.effect,
            task=self._task if self._task is not None else str(info.get("task", "")),
            observation=observation,
            governor=self.governor,
        )
        return observation, info

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if self.runner is None:
            raise gymnasium.error.ResetNeeded("there is no episode: call reset() first")
        try:
            result = self.runner.run(call_of(action, self.parse))
        finally:
            self.env = self.runner.workspace.env
        observation = self._as_written(result.observation, action)
        return observation, result.reward, result.terminated, result.truncated, dict(result.info)

    def release(self) -> None:
        """Ends the episode's speculation; the env goes on as it is."""
        runner, self.runner = self.runner, None
        if runner is not None:
            self.env = runner.release().env
            with _totals_lock:
                self.totals.add(runner.stats)

    def close(self) -> None:
        self.release()
        super().close()

    def _as_written(self, observation: Any, action: Any) -> Any:
        """An observation that repeats the action does so in the agent's words, not in the guess's."""
        space = self.observation_space
        if not (isinstance(action, str) and isinstance(observation, dict) and "last_action" in observation):
            return observation
        limit = getattr(space["last_action"], "max_length", None) if isinstance(space, gymnasium.spaces.Dict) else None
        if limit is not None and len(action) > limit:
            return observation
        return {**observation, "last_action": action}


class _Snapshot:
    """What `SpeculativeStep.snapshot` returns."""

    def __init__(
        self,
        held: RunnerSnapshot[EnvWorkspace],
        wrap: Callable[[SpeculativeRunner[EnvWorkspace]], SpeculativeStep],
    ) -> None:
        self._held, self._wrap = held, wrap

    @property
    def unique_bytes(self) -> int:
        return self._held.unique_bytes

    def branch(self) -> SpeculativeStep:
        return self._wrap(self._held.branch())

    def branch_confined(self) -> SpeculativeStep:
        return self._wrap(self._held.branch_confined())

    def hurry(self) -> None:
        self._held.hurry()

    def close(self) -> None:
        self._held.close()


class SpeculativeStep(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Runs likely next steps in branches ahead of the agent, and adopts the one it asks for.

    Observations, rewards and ends are those of the env alone. An info has, beside the env's:
    `speculation`: "hit" (the step had been run), "miss" (branches were made, none of this step) or
    "none" (no branch was made); and `saved_ns`: how much sooner the step returned, in nanoseconds.

    The env, or one inside its wrappers, must have `fork`: speculation takes place around that one,
    and the wrappers outside of it see steps as always. `unwrapped` is another env after a hit, so
    do not keep it. Use one wrapper from one thread at a time; any number of them share a predictor
    and a budget. `close()`, `reset()` and exceptions leave no branch behind.

    Args:
        env: owned from now on.
        predictor: proposes steps, and learns from each episode that ends.
        governor: budget and policy shared with other attempts; None is this process's.
        effects: what running each tool again means, instead of what the env declares.
        task: what attempts that may resemble each other share; None is `task` in reset's info.

    Raises:
        UsageError: nothing in the env can be forked, or its tools' effects are not declared.
    """

    def __init__(
        self,
        env: AnyEnv,
        predictor: Predictor,
        *,
        governor: Governor | None = None,
        effects: Mapping[str, ToolEffect] | None = None,
        task: str | None = None,
    ) -> None:
        outer, inner = find_forkable(env)
        self._totals = Stats()
        self._core = _Speculating(inner, predictor, governor=governor, effects=effects, task=task, totals=self._totals)
        super().__init__(put_in_place(env, outer, self._core))

    @property
    def stats(self) -> Stats:
        """What guesses came to: in the episodes that ended, of this env and of those made of it, and in
        the one that runs here."""
        total = Stats()
        with _totals_lock:
            total.add(self._totals)
        if self._core.runner is not None:
            total.add(self._core.runner.stats)
        return total

    @property
    def effects(self) -> Mapping[str, ToolEffect]:
        """The tools' effects, as they are used here."""
        effects = self._core._effects if self._core._effects is not None else self._core.env.get_wrapper_attr("effects")
        return dict(effects)

    def parse(self, action: Any) -> tuple[ToolCall, ...]:
        """Reads an action as the env does."""
        return self._core.parse(action)

    async def step_async(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """As `step`, without blocking the event loop."""
        observation, reward, terminated, truncated, info = await asyncio.to_thread(self.step, action)
        return observation, float(reward), terminated, truncated, info

    def run(self, call: ToolCall) -> ToolResult:
        """A step as a `Forkable` does it."""
        observation, reward, terminated, truncated, info = self.step(call)
        return ToolResult(
            observation=observation, reward=float(reward), terminated=terminated, truncated=truncated, info=info
        )

    def confine(self) -> None:
        """Nobody waits for it, nor thinks about it: it yields to others, and guesses nothing.

        Raises:
            ResetNeeded: there is no episode.
        """
        runner = self._running()
        runner.pause()
        runner.workspace.confine()

    def unconfine(self) -> None:
        """Takes `confine` back; raises as it does."""
        runner = self._running()
        runner.resume()
        runner.workspace.unconfine()

    def snapshot(self) -> _Snapshot:
        """The env as it is now: `branch()` makes a speculating env of it, as often as wanted.

        Raises:
            ResetNeeded: there is no episode.
        """
        return _Snapshot(self._running().snapshot(), self._branch)

    def fork(self, n: int = 1) -> list[Self]:
        """Envs that go on from here, speculating too; wrappers in between are not copied.

        Raises:
            UsageError: n is below 1.
            ResetNeeded: there is no episode.
        """
        if n < 1:
            raise UsageError(f"fork makes 1 branch or more, not {n}")
        runner = self._running()
        if n == 1:
            return [self._branch(runner.fork())]
        branches: list[Self] = []
        with contextlib.closing(runner.snapshot()) as start:
            try:
                for _ in range(n):
                    branches.append(self._branch(start.branch()))
            except BaseException:
                for branch in branches:
                    branch.close()
                raise
        return branches

    def _running(self) -> SpeculativeRunner[EnvWorkspace]:
        if self._core.runner is None:
            raise gymnasium.error.ResetNeeded("there is no episode: call reset() first")
        return self._core.runner

    def _branch(self, runner: SpeculativeRunner[EnvWorkspace]) -> Self:
        core = self._core
        branch = type(self)(
            runner.workspace.env, core.predictor, governor=core.governor, effects=core._effects, task=core._task
        )
        branch._totals = branch._core.totals = self._totals
        branch._core.runner = runner
        return branch
