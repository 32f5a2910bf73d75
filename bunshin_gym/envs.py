# SPDX-License-Identifier: Apache-2.0
"""The Gymnasium env: parse, run, observe. What is right or wrong is the task's to say."""

from __future__ import annotations

import contextlib
import copy
import functools
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Self

import gymnasium
import numpy as np
from numpy.typing import NDArray

from bunshin_gym.bases import BaseKey, BasePool
from bunshin_gym.cache.keys import Context
from bunshin_gym.cache.stamps import StampKind
from bunshin_gym.env_guests import EnvGuests
from bunshin_gym.env_hooks import EnvHooks, NotCopied
from bunshin_gym.env_snapshot import STAMPS, EnvSnapshot, context_of, load_snapshot
from bunshin_gym.episode import Measured, Run
from bunshin_gym.errors import UsageError
from bunshin_gym.guest import Answered, Guest, Seen
from bunshin_gym.surfaces import ActionError, BrowserSurface, DesktopSurface, Episode, Screen, Surface
from bunshin_gym.surfaces.actions import render_call
from bunshin_gym.tasks import AskingTask, Message, PreparedTask, Task, Verdict, load_task
from bunshin_gym.types import ToolCall, ToolEffect, WorkspaceStats
from bunshin_gym.view import View, open_view

__all__ = ["BunshinEnv"]

_SURFACES: Final[Mapping[str, Surface]] = {"browser": BrowserSurface(), "desktop": DesktopSurface()}
_USER_TOOLS: Final = {
    "send_msg_to_user": ("assistant", "text"),
    "report_infeasible": ("infeasible", "reason"),
    "done": ("done", "answer"),
}
_OPTIONS: Final = frozenset({"task_seed"})


class BunshinEnv(EnvGuests, EnvHooks, NotCopied, gymnasium.Env[dict[str, Any], str]):
    """A task in a live workspace that can be forked in the middle of an episode.

    Every reset is a branch of a workspace booted once in this process. Actions are text such as
    `click("12")`, one call a line; a `ToolCall`, or a mapping with `name` and `args`, is taken too.
    An action that fails is an observation with `last_action_error`, never an exception.

    An env is used by one thread at a time; different envs, branches of one env included, may be used
    in different threads at once. It holds no event loop, so it works inside a running one.

    Args:
        task: a task's id, such as `miniwob.click-test`, or a `Task`.
        image: the image to start from instead of the task's, by name.
        screen: (width, height) of the screen in pixels, instead of the task's.
        engine: how workspaces are forked; None is the best that this machine has.
        memory_max_bytes: limit of each workspace; None for none.
        measure_memory: whether infos of reset and fork have the workspace's memory; it takes time.
        elapsed_time: whether observations have `elapsed_time`, which makes each of them another one.
        tree: whether observations have the accessibility tree, which takes most of a look's time at a large page or a
            full desktop; an agent that goes by the picture need not wait for it.
        render_mode: `rgb_array`, or `human` for a window (without a display: a picture file).
        home: the state directory; None is `$BUNSHIN_HOME`, or /var/lib/bunshin.
        bases: where workspaces come from; None is this process's shared pool.

    Raises:
        UsageError: an argument is wrong, or there is no such task.
    """

    metadata: dict[str, Any] = {"render_modes": ["human", "rgb_array"], "render_fps": 5}  # noqa: RUF012

    def __init__(
        self,
        task: str | Task,
        *,
        image: str | None = None,
        screen: tuple[int, int] | None = None,
        engine: str | None = None,
        memory_max_bytes: int | None = None,
        measure_memory: bool = False,
        elapsed_time: bool = False,
        tree: bool = True,
        render_mode: str | None = None,
        home: str | None = None,
        bases: BasePool | None = None,
    ) -> None:
        if render_mode is not None and render_mode not in self.metadata["render_modes"]:
            raise UsageError(f"render_mode {render_mode!r} is none of {self.metadata['render_modes']}")
        self.task = load_task(task) if isinstance(task, str) else task
        if self.task.surface not in _SURFACES:
            raise UsageError(f"task {self.task.id} wants the surface {self.task.surface!r}, which there is not")
        self.surface = _SURFACES[self.task.surface]
        self.screen = self.task.screen if screen is None else Screen(width=screen[0], height=screen[1])
        self.render_mode = render_mode
        self.action_space = self.surface.action_space(self.screen)
        self._elapsed_time, self._tree = elapsed_time, tree
        self._unseen = () if tree else self.surface.tree_keys
        seen = self.surface.observation_space(self.screen, elapsed_time=elapsed_time).spaces
        self.observation_space = gymnasium.spaces.Dict({key: seen[key] for key in seen if key not in self._unseen})
        self._measure_memory = measure_memory
        self._bases = bases
        self._question = self.task.question if isinstance(self.task, AskingTask) else ""
        prepared = self.task if isinstance(self.task, PreparedTask) else None
        self._base_key = BaseKey(
            home=home or os.environ.get("BUNSHIN_HOME", "/var/lib/bunshin"),
            image=image or self.task.image,
            screen=self.screen,
            surface=self.task.surface,
            engine=engine,
            memory_max_bytes=memory_max_bytes,
            task=prepared,
            tree=tree or prepared is None,
        )
        self._guest: Guest | None = None
        self._run: Run | None = None
        self._view: View | None = None
        self._pixels: NDArray[np.uint8] | None = None

    # ---- Gymnasium ------------------------------------------------------------------------------

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Starts an episode in a fresh branch.

        Args:
            seed: seeds `np_random`, from which the task's own seed is drawn.
            options: `task_seed` (int) sets the task's seed itself.

        Returns:
            The observation, and an info with `task`, `task_seed`, the task's own entries and
            `measured`, a `Measured`.

        Raises:
            UsageError: an option is unknown or wrong.
            BunshinError: no workspace can be made; the env has none then, and may be reset again.
        """
        begun_ns = time.monotonic_ns()
        super().reset(seed=seed)
        task_seed = self._task_seed(options or {})
        self._wait_ended()
        used = self._leave()
        try:
            opening = self._begin(task_seed)
            guest, run = self._episode()
            observation = self._observation(opening.seen)
        except BaseException:
            self._give_up()
            raise
        finally:
            self._end_behind(used)
        info: dict[str, Any] = {"task": self.task.id, "task_seed": task_seed, **copy.deepcopy(dict(run.setup.info))}
        info["measured"] = self._measured("reset", guest, begun_ns, opening.seen, memory=self._measure_memory)
        self._show()
        return observation, info

    def step(
        self, action: str | ToolCall | Mapping[str, Any]
    ) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        """Runs an action and observes.

        Returns:
            Observation, the task's reward for this step, whether the task is over, False (a budget
            is a wrapper's), and an info with the task's entries, `message` and `measured`.

        Raises:
            ResetNeeded: there is no episode.
            WorkspaceDied: the workspace is gone; reset makes another.
        """
        begun_ns = time.monotonic_ns()
        guest, run = self._episode()
        calls, run.last_action, run.last_error = self._read(action)
        run.steps += 1
        question = "" if run.done else self._question
        seen = guest.act([c for c in calls if c.name not in _USER_TOOLS], tree=self._tree, question=question)
        page = guest if seen.answer is None else Answered(guest, question, seen.answer)
        run.last_error = run.last_error or seen.error
        run.messages += self._said(calls, seen)
        verdict = (
            Verdict(reward=0.0, done=True) if run.done else self.task.validate(page, run.setup.state, run.messages)
        )
        run.done, run.reward = verdict.done, float(verdict.reward)
        info: dict[str, Any] = {"task": self.task.id, "message": verdict.message, **copy.deepcopy(dict(verdict.info))}
        info["measured"] = self._measured("step", guest, begun_ns, seen, memory=False)
        observation = self._observation(seen)
        self._show()
        return observation, float(verdict.reward), bool(verdict.done), False, info

    def render(self) -> NDArray[np.uint8] | None:
        """Returns the last observed screen as (height, width, 3) uint8, or None in the mode `human`."""
        if self.render_mode == "rgb_array":
            self._episode()
            assert self._pixels is not None
            return self._pixels.copy()
        self._show()
        return None

    def close(self) -> None:
        """Ends the workspace and the view; idempotent. Branches of this env live on."""
        with contextlib.ExitStack() as stack:
            stack.callback(self._close_view)
            stack.callback(self._drop_spare)
            stack.callback(self._wait_ended)
            used = self._leave()
            if used is not None:
                stack.callback(used.close if self.bury is None else functools.partial(self.bury, used))

    def abort(self) -> None:
        """Ends the workspace from any thread; a call that is under way in another raises. The next reset makes one."""
        guest = self._guest
        if guest is not None:
            guest.close()

    # ---- forking --------------------------------------------------------------------------------

    def fork(self, n: int = 1, *, reseed: bool = False) -> list[Self]:
        """Makes n envs that go on from here, each on its own; so does this one.

        A branch has all of the workspace (processes, memory, files, pages), the task's state, the
        messages and `np_random`. Wrappers around this env are not copied: wrap the branches anew
        (`TimeLimit`, for one, starts to count again). A branch's view is its own.

        Args:
            n: how many.
            reseed: by default all branches draw the same random numbers as this env, so that what
                differs comes from the actions alone. True gives each its own `np_random`, and its
                page's random numbers too; which ones follows from this env's state.

        Returns:
            The branches, in no particular relation to each other; close each of them.

        Raises:
            UsageError: n is below 1.
            ResetNeeded: there is no episode.
            BunshinError: the workspace cannot be forked; it goes on, and no branch is left.
        """
        if n < 1:
            raise UsageError(f"fork makes 1 branch or more, not {n}")
        begun_ns = time.monotonic_ns()
        guest, run = self._episode()
        guests = guest.fork(n)
        self._forked(guests, begun_ns)
        try:
            branches = [self._adopt(branch) for branch in guests]
            for branch in branches:
                branch._show()
            run.forks += 1
            if reseed:
                for index, branch in enumerate(branches):
                    branch._reseed(run.forks, index)
        except BaseException:
            for branch_guest in guests:
                branch_guest.close()
            raise
        return branches

    def snapshot(self) -> EnvSnapshot:
        """Keeps the env as it is now: any number of branches can be made of it later. Raises as `fork`."""
        guest, _ = self._episode()
        return EnvSnapshot(guest.snapshot(), self._adopt(None), type(self)._adopt)

    def load_snapshot(self, path: Path | str) -> EnvSnapshot:
        """A snapshot again of what `EnvSnapshot.persist` wrote, in whichever process. Raises as `load_snapshot`."""
        return load_snapshot(self, Path(path))

    def plan(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Context, dict[str, Any]]:
        """What a reset with these arguments starts, and options that alone make a reset start it; raises as `reset`."""
        super().reset(seed=seed)
        task_seed = self._task_seed(options or {})
        return context_of(self, self._pool.image_digest(self._base_key), task_seed), {"task_seed": task_seed}

    @property
    def stamps(self) -> Mapping[str, StampKind]:
        """Places in observations and infos that tell of the run, not of what came of it."""
        return STAMPS

    def observe(self) -> dict[str, Any]:
        """Looks again without doing anything.

        Raises:
            ResetNeeded: there is no episode.
        """
        guest, _ = self._episode()
        return self._observation(guest.act((), tree=self._tree))

    def stats(self) -> WorkspaceStats:
        """What the workspace takes now: processes, threads, memory by who shares it, disk."""
        return self._episode()[0].stats()

    def fork_costs(self) -> Measured:
        """What making this env's workspace cost, with its memory as it is now."""
        guest, _ = self._episode()
        return self._measured("", guest, time.monotonic_ns(), Seen(view={}), memory=True)

    @property
    def effects(self) -> Mapping[str, ToolEffect]:
        """Every tool's name and what running it again means; all are stochastic in a timed task."""
        if self.task.timed:
            return dict.fromkeys(self.surface.effects, "stochastic")
        return self.surface.effects

    # ---- inside ---------------------------------------------------------------------------------

    def _episode(self) -> tuple[Guest, Run]:
        if self._guest is None or self._run is None:
            raise gymnasium.error.ResetNeeded("there is no episode: call reset() first")
        return self._guest, self._run

    def _running(self) -> tuple[Guest, str]:
        return self._episode()[0], self.task.surface

    def _task_seed(self, options: Mapping[str, Any]) -> int:
        unknown = set(options) - _OPTIONS
        if unknown:
            raise UsageError(f"unknown reset options {sorted(unknown)}; there are {sorted(_OPTIONS)}")
        drawn = int(self.np_random.integers(1 << 31))
        given = options.get("task_seed", drawn)
        if isinstance(given, bool) or not isinstance(given, int | np.integer) or given < 0:
            raise UsageError(f"task_seed is a number from 0, not {given!r}")
        return int(given)

    def _read(self, action: object) -> tuple[tuple[ToolCall, ...], str, str]:
        """Returns the calls, the action as text, and what is wrong with it."""
        try:
            calls = self.surface.parse(action)
        except ActionError as error:
            return (), action if isinstance(action, str) else repr(action), str(error)
        return calls, action if isinstance(action, str) else "\n".join(map(render_call, calls)), ""

    def _said(self, calls: tuple[ToolCall, ...], seen: Seen) -> tuple[Message, ...]:
        """What was said to the user up to the call that failed."""
        messages, run = [], 0
        for call in calls:
            if call.name in _USER_TOOLS:
                role, argument = _USER_TOOLS[call.name]
                messages.append(Message(role=role, text=call.args[argument]))
            elif (run := run + 1) >= seen.run and seen.error:
                break
        return tuple(messages)

    def _observation(self, seen: Seen) -> dict[str, Any]:
        _, run = self._episode()
        episode = Episode(
            goal=run.setup.goal,
            last_action=run.last_action,
            last_action_error=run.last_error,
            elapsed_ns=time.monotonic_ns() - run.started_ns if self._elapsed_time else None,
        )
        observation = self.surface.observation(seen.view, episode, self.screen)
        for key in self._unseen:
            del observation[key]
        self._pixels = observation["screenshot"].copy()
        return observation

    def _close_view(self) -> None:
        if self._view is not None:
            self._view.close()
            self._view = None

    def _show(self) -> None:
        if self._run is not None and self._pixels is not None:
            self._broadcast(self._pixels, self._run)
        if self.render_mode != "human" or self._pixels is None:
            return
        if self._view is None:
            self._view = open_view(self.task.id)
        self._view.show(self._pixels)

    def _adopt(self, guest: Guest | None) -> Self:
        """Makes the env of a branch; without a guest, one that only remembers the rest."""
        branch = type(self)(
            self.task,
            image=self._base_key.image,
            screen=(self.screen.width, self.screen.height),
            engine=self._base_key.engine,
            memory_max_bytes=self._base_key.memory_max_bytes,
            measure_memory=self._measure_memory,
            elapsed_time=self._elapsed_time,
            tree=self._tree,
            render_mode=self.render_mode,
            home=self._base_key.home,
            bases=self._bases,
        )
        branch.spec = self.spec
        branch._guest = guest
        branch._run = copy.deepcopy(self._run)
        branch._pixels = None if self._pixels is None else self._pixels.copy()
        branch._np_random = copy.deepcopy(self._np_random)
        branch._np_random_seed = self._np_random_seed
        branch.action_space = copy.deepcopy(self.action_space)
        return branch

    def _reseed(self, fork: int, index: int) -> None:
        """Draws new random numbers out of this branch's copy of its source's."""
        guest, _ = self._episode()
        self._np_random = np.random.default_rng([*self.np_random.integers(1 << 32, size=4), fork, index])
        guest.reseed()
        self.task.reseed(guest, int(self._np_random.integers(1 << 31)))
