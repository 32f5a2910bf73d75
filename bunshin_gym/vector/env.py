# SPDX-License-Identifier: Apache-2.0
"""The vector env: every slot in a thread of its own, and none that can stop the others."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Final, NoReturn, Unpack

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space, concatenate, create_empty_array, iterate
from numpy.typing import NDArray

from bunshin_gym.envs import BunshinEnv
from bunshin_gym.errors import BunshinError, CallTimeout, UsageError
from bunshin_gym.tasks import Task
from bunshin_gym.vector.admission import Admission, Permit, shared_admission
from bunshin_gym.vector.arguments import EnvOptions, Wrap, deal_seeds, maker, own_options, read_mask
from bunshin_gym.vector.nursery import Nursery
from bunshin_gym.vector.slot import Outcome, Slot, Start, StuckError

__all__ = ["BunshinVectorEnv", "EnvOptions", "make_group"]

_ATTEMPTS: Final = 3

Batch = tuple[dict[str, Any], NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]]


class BunshinVectorEnv(VectorEnv[dict[str, Any], Any, NDArray[Any]]):
    """Workspaces stepped at the same time, in one process; `gymnasium.make_vec` gives it.

    All start from one booted workspace. A slot whose workspace dies, or takes too long, is truncated with
    the reason in `info["workspace_died"]`, keeps its last observation, and is refilled by a fork at its next
    reset, which the autoreset mode decides; the other slots notice nothing.

    Args:
        num_envs: how many.
        task: a task's id, or a `Task`; or several, dealt out to groups in turn.
        autoreset_mode: `NextStep`, `SameStep` or `Disabled`, as Gymnasium defines them.
        group_size: slots that begin alike. Above 1 the first of each group is set up, and the others
            are branches of it; an autoreset, or the reset of a part of a group, goes back to that moment.
        step_timeout_s: how long a step may take; then its workspace is ended.
        reset_timeout_s: likewise for the making of one workspace.
        max_episode_steps: puts a `TimeLimit` around each env.
        wrap: puts other wrappers around each env; called again for an env that replaces a stuck one.
        spares: workspaces that are made ahead, between calls, for resets to come.
        admission: who says whether there is room; None is this process's shared one.
        options: see `BunshinEnv`.

    Raises:
        UsageError: an argument is wrong.
        ResourceError: there is no room for that many.
    """

    metadata: dict[str, Any] = {  # noqa: RUF012 - Gymnasium's attribute
        **BunshinEnv.metadata,
        "autoreset_mode": AutoresetMode.NEXT_STEP,
    }

    def __init__(
        self,
        num_envs: int = 1,
        *,
        task: str | Task | Sequence[str | Task],
        autoreset_mode: str | AutoresetMode = AutoresetMode.NEXT_STEP,
        group_size: int = 1,
        step_timeout_s: float = 60.0,
        reset_timeout_s: float = 120.0,
        max_episode_steps: int | None = None,
        wrap: Wrap | None = None,
        spares: int = 0,
        admission: Admission | None = None,
        **options: Unpack[EnvOptions],
    ) -> None:
        if num_envs < 1 or group_size < 1 or num_envs % group_size:
            raise UsageError(f"{num_envs} envs are no whole number of groups of {group_size}")
        if not (0 < step_timeout_s < math.inf and 0 < reset_timeout_s < math.inf):
            raise UsageError(f"timeouts are above 0 and finite, not {step_timeout_s} and {reset_timeout_s}")
        self.num_envs, self.group_size = num_envs, group_size
        self.autoreset_mode = AutoresetMode(autoreset_mode)
        self.metadata = {**type(self).metadata, "autoreset_mode": self.autoreset_mode}
        self.render_mode = options.get("render_mode")
        self._step_timeout_s, self._reset_timeout_s = step_timeout_s, reset_timeout_s
        self._admission = admission or shared_admission()
        self._starts: dict[int, Start] = {}
        self._pending: list[Future[Outcome]] | None = None
        tasks = [task] if isinstance(task, str) or not isinstance(task, Sequence) else list(task)
        dealt = [tasks[index // group_size % len(tasks)] for index in range(num_envs)]
        self._nursery = Nursery(spares, self._admission)
        makers = [maker(one, options, self._nursery, max_episode_steps, wrap) for one in dealt]
        self._permit: Permit = self._admission.admit(num_envs + spares)
        try:
            self._slots = [Slot(index, make) for index, make in enumerate(makers)]
            self._set_spaces()
        except BaseException:
            self.close_extras()
            raise

    def _set_spaces(self) -> None:
        first = self._slots[0].env
        for slot in self._slots[1:]:
            if slot.env.observation_space != first.observation_space or slot.env.action_space != first.action_space:
                raise UsageError(
                    f"tasks {self._slots[0].inner.task.id} and {slot.inner.task.id} have other spaces; "
                    "give all of them one screen=(width, height)"
                )
        self.single_observation_space = first.observation_space
        self.observation_space = batch_space(first.observation_space, self.num_envs)
        self.single_action_space = first.action_space
        self.action_space = batch_space(first.action_space, self.num_envs)

    # ---- Gymnasium ------------------------------------------------------------------------------

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Begins episodes.

        Args:
            seed: a number, from which each group (each slot, if they are of one) counts on; or one for each
                slot or group.
            options: `reset_mask`, a bool array of num_envs, for some slots only; the rest is for `BunshinEnv`.
                `task_seed` may be a sequence with one for each slot.

        Returns:
            Observations of all slots, and infos of those that were reset.

        Raises:
            UsageError: an argument is wrong.
            BunshinError: a workspace cannot be made.
        """
        self._check_idle()
        options = dict(options or {})
        mask = read_mask(options.pop("reset_mask", None), self.num_envs)
        seeds = deal_seeds(seed, self.num_envs, self.group_size)
        each = [own_options(options, index, self.num_envs) for index in range(self.num_envs)]
        whole = [g for g in range(self.num_envs // self.group_size) if mask[self._members(g)].all()]
        if self.group_size > 1 and (seed is not None or options) and mask.sum() > len(whole) * self.group_size:
            raise UsageError("seeds and options are for whole groups: a part of one goes back to its group's start")
        self._nursery.pause()
        try:
            outcomes = self._reset_slots(np.flatnonzero(mask).tolist(), whole, seeds, each)
        finally:
            self._nursery.resume()
        self._permit.settle()
        infos: dict[str, Any] = {}
        for index in sorted(outcomes):
            infos = self._add_info(infos, outcomes[index].info, index)
        return self._batch(), infos

    def step(self, actions: Any) -> Batch:
        """One action for each slot: a batch of the action space, or a list with any of `BunshinEnv.step`'s forms."""
        self.step_async(actions)
        return self.step_wait()

    def step_async(self, actions: Any) -> None:
        """Begins a step; `step_wait` ends it.

        Raises:
            UsageError: not one action for each slot.
            ResetNeeded: a slot has no episode, and nothing resets it.
        """
        self._check_idle()
        each = list(actions if isinstance(actions, list | tuple) else iterate(self.action_space, actions))
        if len(each) != self.num_envs:
            raise UsageError(f"{len(each)} actions for {self.num_envs} envs")
        stale = [slot.index for slot in self._slots if slot.ended]
        if stale and self.autoreset_mode is AutoresetMode.DISABLED:
            raise gymnasium.error.ResetNeeded(f"slots {stale} have no episode: reset(options={{'reset_mask': ...}})")
        if any(slot.observation is None for slot in self._slots):
            raise gymnasium.error.ResetNeeded("there are no episodes: call reset() first")
        self._pending = [
            slot.worker.submit(lambda slot=slot, action=action: self._turn(slot, action))  # type: ignore[misc]
            for slot, action in zip(self._slots, each, strict=True)
        ]

    def step_wait(self) -> Batch:
        """Waits for what `step_async` began; no slot is waited for longer than its timeout."""
        if self._pending is None:
            raise UsageError("step_wait() without step_async()")
        futures, self._pending = dict(enumerate(self._pending)), None
        outcomes = self._gather(futures, step=True)
        if all(outcome.lost for outcome in outcomes.values()) and self.num_envs > 1:
            reasons = {outcome.info["workspace_died"] for outcome in outcomes.values()}
            raise BunshinError(f"every workspace is lost: {'; '.join(sorted(reasons))}")
        infos: dict[str, Any] = {}
        for index, outcome in outcomes.items():
            if outcome.final is not None:
                final = {"final_obs": outcome.final[0], "final_info": outcome.final[1]}
                infos = self._add_info(infos, final, index)
            infos = self._add_info(infos, outcome.info, index)
        rewards = np.array([outcome.reward for outcome in outcomes.values()], dtype=np.float64)
        terminated = np.array([outcome.terminated for outcome in outcomes.values()], dtype=np.bool_)
        truncated = np.array([outcome.truncated for outcome in outcomes.values()], dtype=np.bool_)
        return self._batch(), rewards, terminated, truncated, infos

    def render(self) -> tuple[Any, ...]:
        """What each slot shows, as its env renders it."""
        return self.call("render")

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Calls a method of each env in its own thread, or reads an attribute."""
        self._check_idle()

        def one(slot: Slot) -> Any:
            found = slot.env.get_wrapper_attr(name)
            return found(*args, **kwargs) if callable(found) else found

        futures = [slot.worker.submit(lambda slot=slot: one(slot)) for slot in self._slots]  # type: ignore[misc]
        return tuple(future.result() for future in futures)

    def get_attr(self, name: str) -> tuple[Any, ...]:
        """An attribute of each env."""
        return self.call(name)

    def set_attr(self, name: str, values: Any) -> None:
        """Sets an attribute of each env; a list or tuple has one value for each."""
        each = values if isinstance(values, list | tuple) else [values] * self.num_envs
        if len(each) != self.num_envs:
            raise UsageError(f"{len(each)} values for {self.num_envs} envs")
        for slot, value in zip(self._slots, each, strict=True):
            slot.env.set_wrapper_attr(name, value)

    def wait_for_spares(self) -> None:
        """Returns when as many workspaces are ready as `spares` says, and none is left to be ended."""
        self._nursery.wait_idle()

    @property
    def envs(self) -> tuple[gymnasium.Env[Any, Any], ...]:
        """The slots' envs as they are now; use them between steps only, `unwrapped.fork` for one."""
        return tuple(slot.env for slot in self._slots)

    @property  # type: ignore[misc]  # as Gymnasium's own vector envs
    def np_random(self) -> tuple[np.random.Generator, ...]:  # type: ignore[override]
        """Each slot's generator."""
        return tuple(slot.inner.np_random for slot in self._slots)

    @property
    def np_random_seed(self) -> tuple[int | None, ...]:  # type: ignore[override]  # as above
        """Each slot's seed."""
        return tuple(slot.inner.np_random_seed for slot in self._slots)

    def close_extras(self, **kwargs: Any) -> None:
        """Ends all workspaces and threads, and gives their room back."""
        slots, self._pending = self.__dict__.get("_slots", []), None
        futures = {slot.index: slot.worker.submit(slot.env.close) for slot in slots}
        end_s = time.monotonic() + self._step_timeout_s if slots else 0.0
        for slot in slots:
            try:
                futures[slot.index].result(max(0.0, end_s - time.monotonic()))
            except TimeoutError:
                slot.abort()
            slot.worker.stop()
        if "_nursery" in self.__dict__:
            self._nursery.close()
        for start in self.__dict__.get("_starts", {}).values():
            start.snapshot.close()
        if "_permit" in self.__dict__:
            self._permit.close()

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise UsageError(
            "live workspaces can be neither copied nor pickled; build the vector env in the process that uses it, "
            "or fork its envs: envs[0].unwrapped.fork(n)"
        )

    # ---- inside ---------------------------------------------------------------------------------

    def _check_idle(self) -> None:
        if self.closed:
            raise gymnasium.error.ClosedEnvironmentError("the vector env was closed")
        if self._pending is not None:
            raise UsageError("a step is under way: step_wait() first")

    def _members(self, group: int) -> slice:
        return slice(group * self.group_size, (group + 1) * self.group_size)

    def _reset_slots(
        self,
        chosen: Sequence[int],
        groups: Sequence[int],
        seeds: Sequence[int | None],
        each: Sequence[dict[str, Any] | None],
    ) -> dict[int, Outcome]:
        """Resets slots: those of whole groups begin a new start, parts of one go back to theirs."""

        def submit(index: int, begin: Callable[..., Outcome], *arguments: Any) -> Future[Outcome]:
            return self._slots[index].worker.submit(lambda: begin(self._slots[index], *arguments))

        if self.group_size == 1:
            return self._gather({index: submit(index, self._fresh, seeds[index], each[index]) for index in chosen})
        firsts = [group * self.group_size for group in groups]
        outcomes = self._gather({i: submit(i, self._begin_group, seeds[i], each[i]) for i in firsts})
        return outcomes | self._gather({i: submit(i, self._fresh) for i in chosen if i not in outcomes})

    def _fresh(self, slot: Slot, seed: int | None = None, options: dict[str, Any] | None = None) -> Outcome:
        with self._admission.making():
            return slot.reset(seed, options, attempts=_ATTEMPTS, timeout_s=self._reset_timeout_s)

    def _begin_group(self, slot: Slot, seed: int | None, options: dict[str, Any] | None) -> Outcome:
        """Sets the first of a group up and makes it the start of the others. In its thread."""
        for left in reversed(range(_ATTEMPTS)):
            slot.seat.start = None
            outcome = self._fresh(slot, seed, options)
            try:
                with slot.limit(self._reset_timeout_s):
                    start = slot.seat.make_start()
            except BunshinError:
                if left == 0:
                    raise
            else:
                break
        group = slot.index // self.group_size
        old, self._starts[group] = self._starts.get(group), start
        for member in self._slots[self._members(group)]:
            member.seat.start = start
        if old is not None:
            old.snapshot.close()
        return outcome

    def _turn(self, slot: Slot, action: Any) -> Outcome:
        """One slot's part of a step, in its thread."""
        if slot.ended:
            return self._refill(slot)
        outcome = slot.step(action, timeout_s=self._step_timeout_s)
        if self.autoreset_mode is AutoresetMode.SAME_STEP and slot.ended:
            fresh = self._refill(slot)
            if not fresh.lost:
                outcome.final = outcome.observation, outcome.info
                outcome.observation, outcome.info, outcome.lost = fresh.observation, dict(fresh.info), False
        return outcome

    def _refill(self, slot: Slot) -> Outcome:
        """Another episode; a slot that cannot have one now stays truncated, and the next step tries again."""
        try:
            return self._fresh(slot)
        except (UsageError, StuckError):
            raise
        except BunshinError as error:
            return slot.lose(f"it cannot be refilled: {slot.reason or error}")

    def _gather(self, futures: Mapping[int, Future[Outcome]], *, step: bool = False) -> dict[int, Outcome]:
        """All outcomes. What one of them raises is raised at the end, once no slot is under way."""
        outcomes: dict[int, Outcome] = {}
        failures: list[Exception] = []
        for index, future in futures.items():
            slot = self._slots[index]
            try:
                outcomes[index] = future.result()
            except StuckError as error:
                self._slots[index] = slot.successor()
                outcomes[index] = self._slots[index].lose(str(error))
                if not step:
                    failures.append(CallTimeout(f"slot {index}: {error}"))
            except Exception as error:  # noqa: BLE001 - raised below
                failures.append(error)
        if failures:
            raise failures[0]
        return outcomes

    def _batch(self) -> dict[str, Any]:
        space = self.single_observation_space
        seen = [slot.observation for slot in self._slots]
        empty: Any = create_empty_array(space, n=self.num_envs, fn=np.zeros)
        batch: Any = concatenate(space, seen, empty)
        return dict(batch)


def make_group(
    task: str | Task,
    n: int,
    *,
    step_timeout_s: float = 60.0,
    max_episode_steps: int | None = None,
    admission: Admission | None = None,
    **options: Unpack[EnvOptions],
) -> BunshinVectorEnv:
    """A group of n envs that begin alike, for group-relative training: one set-up, one snapshot, n - 1 branches.

    Nothing resets itself: each `reset(seed=)` begins a group anew. Arguments as `BunshinVectorEnv`.
    """
    return BunshinVectorEnv(
        n,
        task=task,
        group_size=n,
        autoreset_mode=AutoresetMode.DISABLED,
        step_timeout_s=step_timeout_s,
        max_episode_steps=max_episode_steps,
        admission=admission,
        **options,
    )
