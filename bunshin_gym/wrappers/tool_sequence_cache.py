# SPDX-License-Identifier: Apache-2.0
"""A wrapper that runs nothing which was run before from the same start."""

from __future__ import annotations

import copy
import logging
import os
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Self

import gymnasium
import numpy as np
from gymnasium.utils import seeding
from numpy.typing import NDArray

from bunshin_gym.cache.attempt import Attempt, CachedStep, Source
from bunshin_gym.cache.keys import Context, ToolSpec
from bunshin_gym.cache.materialise import Booted
from bunshin_gym.cache.sequence import CachePolicy, SequenceCache
from bunshin_gym.cache.stamps import Stamps
from bunshin_gym.cache.tiers import Budgets
from bunshin_gym.cache.tree import SnapshotTree
from bunshin_gym.errors import BunshinError, UsageError
from bunshin_gym.speculate.env_workspace import call_of, effects_of, find_forkable, parser_of, put_in_place
from bunshin_gym.types import ToolCall, ToolEffect, ToolResult
from bunshin_gym.wrappers.cached_states import EnvState, HomeState, handle_of, offered

__all__ = ["CacheInfo", "ToolSequenceCache"]

AnyEnv = gymnasium.Env[Any, Any]
_SEEDS: Final = 1 << 31
_log: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheInfo:
    """How a step came about. Two of them always compare equal, since it makes no difference to what came of it.

    Attributes:
        source: where the result came from.
        saved_ns: how long running it took whoever ran it; 0 unless it was stored.
        wall_ns: how long the caller waited.
    """

    source: Source = field(compare=False)
    saved_ns: int = field(compare=False)
    wall_ns: int = field(compare=False)


class _Fetched:
    """An attempt that a thread starts before it is asked for."""

    def __init__(self, context: Context, attempt: Attempt) -> None:
        self.context, self.attempt = context, attempt
        self.step: CachedStep | None = None
        self._thread = threading.Thread(target=self._start, name="bunshin-prefetch")
        self._thread.start()

    def _start(self) -> None:
        try:
            self.step = self.attempt.start()
        except BunshinError as error:  # the reset tries again, and says what is wrong
            _log.info("a start ahead failed: %s", error)

    def join(self) -> None:
        """Waits for its end."""
        self._thread.join()


class _Caching(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Sits around the env that is forked. Its `env` is whichever has the episode's state, or the one given."""

    def __init__(
        self,
        env: AnyEnv,
        tree: SnapshotTree,
        *,
        policy: CachePolicy | None,
        tools: Mapping[str, ToolSpec] | None,
        effects: Mapping[str, ToolEffect] | None,
        stamps: Stamps | None,
    ) -> None:
        super().__init__(env)
        self.settings: dict[str, Any] = {"policy": policy, "tools": tools, "effects": effects, "stamps": stamps}
        self.arguments: dict[str, Any] = {}
        self.seeds: np.random.Generator | None = None
        self.home = env
        self.loans = [0]
        self.parse = parser_of(env)
        declared = {name: spec.effect for name, spec in tools.items()} if tools is not None else effects
        self.words_max = _words_max(self.observation_space)
        if stamps is None:
            own = {"observation.last_action": "action"} if self.words_max is not None else {}
            stamps = Stamps(getattr(env.unwrapped, "stamps", own))
        effect = effects_of(env, declared, self.parse)
        load = offered(env, "load_snapshot")
        if load is not None:
            tree.offer_loader(lambda path: handle_of(load(path)))
        self.cache = SequenceCache(tree, tools or {}, stamps=stamps, policy=policy, effect=effect)
        self.attempt: Attempt | None = None
        self.last: CachedStep | None = None
        self._fetched: _Fetched | None = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        begun_ns = time.monotonic_ns()
        fetched = self._fetched
        if fetched is not None:
            fetched.join()  # it uses the home env
        else:
            self.release()
        context, self.arguments = self._plan(seed, options)
        if fetched is not None and fetched.context == context and fetched.step is not None:
            attempt, self._fetched = fetched.attempt, None
            self.last = replace(fetched.step, wall_ns=time.monotonic_ns() - begun_ns)
        else:
            self.release()
            attempt = self.cache.attempt(context, self._boot)
            self.last = self._begin(attempt)
        self.attempt = attempt
        self._follow()
        return self.last.result.observation, self._info(self.last)

    @staticmethod
    def _begin(attempt: Attempt) -> CachedStep:
        try:
            return attempt.start()
        except BaseException:
            attempt.close()
            raise

    def prefetch(self, seed: int | None, options: dict[str, Any] | None) -> None:
        """Begins a start in a thread; the random numbers are as if it had not."""
        self.release()
        bare = self.home.unwrapped
        drawn, seeds = copy.deepcopy(bare.np_random), copy.deepcopy(self.seeds)
        try:
            context, self.arguments = self._plan(seed, options)
        finally:
            bare.np_random, self.seeds = drawn, seeds
        self._fetched = _Fetched(context, self.cache.attempt(context, self._boot))

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if self.attempt is None:
            raise gymnasium.error.ResetNeeded("there is no episode: call reset() first")
        call = call_of(action, self.parse)
        try:
            self.last = self.attempt.step(call, action=self._words(action))
        finally:
            self._follow()
        result = self.last.result
        return result.observation, result.reward, result.terminated, result.truncated, self._info(self.last)

    def render(self) -> Any:
        if self.attempt is None:
            return self.home.render()
        shown = self.last.result.observation if self.last is not None else None
        if self.render_mode == "rgb_array" and not self.attempt.has_live and isinstance(shown, Mapping):
            screen: NDArray[np.uint8] | None = shown.get("screenshot")
            if screen is not None:
                return screen.copy()
        self.materialise()
        return self.env.render()

    def materialise(self) -> None:
        """Makes `env` the one that has the episode's state."""
        if self.attempt is None:
            raise gymnasium.error.ResetNeeded("there is no episode: call reset() first")
        try:
            self.attempt.live()
        finally:
            self._follow()

    def release(self) -> None:
        """Ends the attempt, and its workspace with it; also one that was begun ahead."""
        fetched, self._fetched = self._fetched, None
        if fetched is not None:
            fetched.join()
            fetched.attempt.close()
        attempt, self.attempt, self.env = self.attempt, None, self.home
        if attempt is not None:
            attempt.close()

    def close(self) -> None:
        self.release()
        super().close()

    def _plan(self, seed: int | None, options: dict[str, Any] | None) -> tuple[Context, dict[str, Any]]:
        plan = getattr(self.home, "plan", None) or getattr(self.home.unwrapped, "plan", None)
        if callable(plan):
            context, planned = plan(seed=seed, options=options)
            return context, {"options": planned}
        if seed is not None or self.seeds is None:
            self.seeds, _ = seeding.np_random(seed)
        drawn = seed if seed is not None else int(self.seeds.integers(_SEEDS))
        spec = self.home.spec
        context = Context(
            image="",
            task=str(spec.id) if spec is not None else type(self.home.unwrapped).__qualname__,
            params=dict(spec.kwargs) if spec is not None else {},
            seed=drawn,
            options=options or {},
        )
        return context, {"seed": drawn, "options": options}

    def take_over(self, attempt: Attempt, arguments: dict[str, Any]) -> None:
        """Goes on from where an attempt stands, with the env that was given here as its workspace."""
        self.arguments = arguments
        self.attempt = attempt.fork(boot=self._boot, live=HomeState(self.home, self.loans))

    def _boot(self) -> Booted:
        rng = self.home.unwrapped.np_random.bit_generator
        drawn = rng.state
        observation, info = self.home.reset(**self.arguments)
        if "seed" not in self.arguments:  # what was planned was drawn then, and not to be drawn again
            rng.state = drawn
        return Booted(live=HomeState(self.home, self.loans), result=ToolResult(observation=observation, info=info))

    def _words(self, action: Any) -> str | None:
        """The agent's words for a step, unless the observation has no room for them."""
        if not isinstance(action, str) or (self.words_max is not None and len(action) > self.words_max):
            return None
        return action

    def _follow(self) -> None:
        workspace = self.attempt.workspace if self.attempt is not None else None
        env = workspace.env if isinstance(workspace, EnvState) else self.home
        if env is not self.env and env is not self.home:
            # A snapshot has the random numbers of the env that it was taken of; this episode has its own.
            env.unwrapped.np_random = copy.deepcopy(self.home.unwrapped.np_random)
        self.env = env

    def _info(self, step: CachedStep) -> dict[str, Any]:
        entry = CacheInfo(source=step.source, saved_ns=step.saved_ns, wall_ns=step.wall_ns)
        return {**step.result.info, "cache": entry}


def _words_max(space: gymnasium.Space[Any]) -> int | None:
    """How long a `last_action` may be, as the env's observations have it; None if they have none."""
    if not isinstance(space, gymnasium.spaces.Dict) or "last_action" not in space.spaces:
        return None
    return int(getattr(space["last_action"], "max_length", sys.maxsize))


class ToolSequenceCache(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Gives out stored results along known sequences of steps, and runs what is new.

    As long as an attempt follows steps that some attempt took before it from the same start, nothing runs and no
    workspace exists. Its first new step makes a workspace in the right state, from the nearest snapshot. Observations,
    rewards and ends are those of the env alone; an info has a `CacheInfo` as `cache` beside the env's entries, and
    lacks what the env's `stamps` declare `drop`.

    The env, or one inside its wrappers, must have `fork`: the cache sits around that one, and the wrappers outside
    of it see steps as always. It declares `effects` (or the caller passes `effects` or `tools`), and may offer
    `plan` (what a reset starts), `snapshot`, `load_snapshot`, `state_digest`, `stamps` and `parse`, as `BunshinEnv`
    does. After `close`, its `reset` must work. `unwrapped` is the env whose workspace has the episode's state only
    after `materialise()`.

    Use one wrapper from one thread at a time; any number of them, in any number of processes, share a directory.

    Args:
        env: owned from now on.
        tree: a `SnapshotTree`, which the caller closes, or a directory to keep one in.
        budgets: what snapshots may take, of a tree that the wrapper makes; by default there are none on disk.
        policy: what is reused, checked and kept.
        tools: what is known of each tool; instead of `effects`.
        effects: what running each tool again means, instead of what the env declares.
        stamps: places in results that belong to the run; None takes the env's `stamps` or, if it declares none,
            takes a `last_action` in observations for the agent's words.

    Raises:
        UsageError: nothing in the env can be forked, or its tools' effects are not declared.
    """

    def __init__(
        self,
        env: AnyEnv,
        tree: SnapshotTree | str | os.PathLike[str],
        *,
        budgets: Budgets | None = None,
        policy: CachePolicy | None = None,
        tools: Mapping[str, ToolSpec] | None = None,
        effects: Mapping[str, ToolEffect] | None = None,
        stamps: Stamps | None = None,
    ) -> None:
        outer, inner = find_forkable(env)
        if isinstance(tree, SnapshotTree) and budgets is not None:
            raise UsageError("budgets: the tree has its own")
        self._owned = None if isinstance(tree, SnapshotTree) else SnapshotTree(tree, budgets=budgets)
        shared = tree if isinstance(tree, SnapshotTree) else self._owned
        assert shared is not None
        try:
            self._core = _Caching(inner, shared, policy=policy, tools=tools, effects=effects, stamps=stamps)
        except BaseException:
            if self._owned is not None:
                self._owned.close()
            raise
        super().__init__(put_in_place(env, outer, self._core))

    @property
    def tree(self) -> SnapshotTree:
        """Where results and snapshots are."""
        return self._core.cache.tree

    @property
    def last(self) -> CachedStep | None:
        """What the last reset or step brought, and how."""
        return self._core.last

    @property
    def effects(self) -> Mapping[str, ToolEffect]:
        """The tools' effects, as they are used here."""
        own = {name: spec.effect for name, spec in self._core.cache.tools.items()}
        return own or dict(self._core.home.get_wrapper_attr("effects"))

    def parse(self, action: Any) -> tuple[ToolCall, ...]:
        """Reads an action as the env does."""
        return self._core.parse(action)

    def known(self, call: ToolCall) -> bool:
        """Whether a step with this call would run nothing now."""
        return self._core.attempt is not None and self._core.attempt.known(call)

    def prefetch(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> None:
        """Says what the next reset will be, so that it is got ready meanwhile; between episodes only.

        A reset with other arguments is not affected, nor are random numbers. All who share the tree find the start.

        Raises:
            UsageError: an episode is under way, or the start is not decided by these arguments.
        """
        if self._core.attempt is not None:
            raise UsageError("prefetch: an episode is under way in this env; take another, or wait for its end")
        if seed is None and "task_seed" not in (options or {}):
            raise UsageError("prefetch: a start without a seed is known to nobody")
        self._core.prefetch(seed, options)

    def materialise(self) -> AnyEnv:
        """Makes a workspace in the episode's state if there is none, and returns its env, which stays the wrapper's.

        Raises:
            ResetNeeded: there is no episode.
            ReplayDiverged: its state cannot be rebuilt.
        """
        self._core.materialise()
        return self._core.env

    def fork(self, n: int = 1) -> list[Self]:
        """Envs that go on from here over the same tree; they have a workspace once they need one.

        Wrappers in between are not copied. Close each of them.

        Raises:
            UsageError: n is below 1.
            ResetNeeded: there is no episode.
        """
        if n < 1:
            raise UsageError(f"fork makes 1 branch or more, not {n}")
        if self._core.attempt is None:
            raise gymnasium.error.ResetNeeded("there is no episode: call reset() first")
        branches: list[Self] = []
        try:
            for _ in range(n):
                branches.append(self._branch(self._core.attempt))
        except BaseException:
            for branch in branches:
                branch.close()
            raise
        return branches

    def close(self) -> None:
        """Closes the env and, if the wrapper made it, the tree; idempotent."""
        super().close()
        if self._owned is not None:
            self._owned.close()

    def _branch(self, attempt: Attempt) -> Self:
        """Forks the workspace too: two attempts must not share the env that one of them resets."""
        self._core.materialise()
        state = attempt.live().fork()
        assert isinstance(state, EnvState)
        try:
            branch = type(self)(state.env, self.tree, **self._core.settings)
        except BaseException:
            state.close()
            raise
        branch._core.take_over(attempt, self._core.arguments)
        branch._core.last = self._core.last
        return branch
