# SPDX-License-Identifier: Apache-2.0
"""The vector env's arguments, read and dealt out to its slots."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypedDict

import gymnasium
import numpy as np
from gymnasium.wrappers import TimeLimit
from numpy.typing import NDArray

from bunshin_gym.bases import BasePool
from bunshin_gym.envs import BunshinEnv
from bunshin_gym.errors import UsageError
from bunshin_gym.tasks import Task
from bunshin_gym.vector.nursery import Nursery
from bunshin_gym.vector.slot import Seat

__all__ = ["EnvOptions", "Wrap", "deal_seeds", "maker", "own_options", "read_mask"]

Wrap = Callable[[gymnasium.Env[Any, Any]], gymnasium.Env[Any, Any]]


class EnvOptions(TypedDict, total=False):
    """Options of `BunshinEnv`, for every slot."""

    image: str | None
    screen: tuple[int, int] | None
    engine: str | None
    memory_max_bytes: int | None
    measure_memory: bool
    elapsed_time: bool
    tree: bool
    render_mode: str | None
    home: str | None
    bases: BasePool | None


def maker(
    task: str | Task, options: EnvOptions, nursery: Nursery, max_episode_steps: int | None, wrap: Wrap | None
) -> Callable[[], tuple[gymnasium.Env[Any, Any], Seat]]:
    def make() -> tuple[gymnasium.Env[Any, Any], Seat]:
        seat = Seat(BunshinEnv(task, **options), nursery)
        env: gymnasium.Env[Any, Any] = seat
        if max_episode_steps is not None:
            env = TimeLimit(env, max_episode_steps)
        return env if wrap is None else wrap(env), seat

    return make


def deal_seeds(seed: int | Sequence[int | None] | None, num_envs: int, group_size: int) -> list[int | None]:
    """One seed for each slot: of a number, the first group has it and each next one has one more."""
    if seed is None:
        return [None] * num_envs
    if isinstance(seed, int | np.integer):
        return [int(seed) + index // group_size for index in range(num_envs)]
    given = list(seed)
    if len(given) == num_envs // group_size:
        return [given[index // group_size] for index in range(num_envs)]
    if len(given) != num_envs:
        raise UsageError(f"{len(given)} seeds for {num_envs} envs")
    for index, one in enumerate(given):
        if one != given[index - index % group_size]:
            raise UsageError(f"slot {index} has another seed than the first of its group, and begins as that does")
    return given


def read_mask(given: object, num_envs: int) -> NDArray[np.bool_]:
    if given is None:
        return np.ones(num_envs, dtype=np.bool_)
    if not isinstance(given, np.ndarray) or given.dtype != np.bool_ or given.shape != (num_envs,) or not given.any():
        raise UsageError(f"reset_mask is a bool array of shape ({num_envs},) with a True in it, not {given!r}")
    return given


def own_options(options: Mapping[str, Any], index: int, num_envs: int) -> dict[str, Any] | None:
    own = dict(options)
    seeds = own.get("task_seed")
    if isinstance(seeds, Sequence | np.ndarray):
        if len(seeds) != num_envs:
            raise UsageError(f"{len(seeds)} task seeds for {num_envs} envs")
        own["task_seed"] = int(seeds[index])
    return own or None
