# SPDX-License-Identifier: Apache-2.0
"""What a fork promises, as a check that anyone can call on an env."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np

from bunshin_gym.errors import UsageError

if TYPE_CHECKING:
    from bunshin_gym.envs import BunshinEnv

__all__ = ["check_fork", "same_observation"]


def check_fork(env: gymnasium.Env[Any, Any], *, seed: int = 0, actions: Sequence[Any] = (), branches: int = 2) -> None:
    """Checks that branches of an env equal it, go their own ways, and leave it alone.

    Resets the env, forks it in the middle of the episode, and checks that:

    - a branch observes what its source observes, in the same spaces, and had the source untouched;
    - by default it draws the same random numbers; with `reseed`, others, and not its siblings';
    - the same action brings the same observation in source and branch (unless the task goes on
      by the clock);
    - an action in one changes no other;
    - a branch can be forked; and outlives its source branch and its closed siblings;
    - closing twice is allowed, and the source steps and resets on after all branches are closed.

    The env is left reset, and open.

    Args:
        env: the env, wrapped or not.
        seed: of the reset.
        actions: run before the fork. Empty: two samples of the action space.
        branches: how many branches; 2 or more.

    Raises:
        AssertionError: a promise is broken; the message says which.
        UsageError: the env cannot fork at all, or the episode ended before the fork.
    """
    source: Any = env.unwrapped
    if not callable(getattr(source, "fork", None)):
        raise UsageError(f"{env} has no fork()")
    if branches < 2:
        raise UsageError("siblings need 2 branches or more")
    env.reset(seed=seed)
    env.action_space.seed(seed)
    for action in actions or [env.action_space.sample() for _ in range(2)]:
        _, _, terminated, truncated, _ = env.step(action)
        if terminated or truncated:
            raise UsageError(f"the episode ended at {action!r}, before the fork")
    with ExitStack() as stack:
        made = _forked(source, branches, stack)
        _check_random_numbers(source, made, stack)
        _check_divergence(source, made)
        _check_lifetimes(made, stack)
    _check_source_goes_on(env, seed)


def same_observation(left: Any, right: Any) -> bool:
    """Whether two observations are equal, arrays by value."""
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(same_observation(left[key], right[key]) for key in left)
    if isinstance(left, np.ndarray):
        return left.dtype == right.dtype and np.array_equal(left, right)
    return bool(left == right)


def _differing(left: dict[str, Any], right: dict[str, Any]) -> list[str]:
    return [key for key in left if not same_observation(left[key], right.get(key))]


def _timed(source: BunshinEnv) -> bool:
    return bool(source.task.timed)


def _forked(source: Any, count: int, stack: ExitStack) -> list[Any]:
    before = source.observe()
    made = source.fork(count)
    for branch in made:
        stack.callback(branch.close)
    assert len(made) == count, f"fork({count}) made {len(made)} branches"
    for index, branch in enumerate(made):
        assert branch is not source, "a branch is its source"
        assert branch.observation_space == source.observation_space, "a branch has another observation space"
        assert branch.action_space == source.action_space, "a branch has another action space"
        seen = branch.observe()
        assert seen in branch.observation_space, f"branch {index} observes something outside its space"
        if not _timed(source):
            assert not _differing(before, seen), f"branch {index} differs at the fork in {_differing(before, seen)}"
    after = source.observe()
    if not _timed(source):
        assert not _differing(before, after), f"the fork changed its source's {_differing(before, after)}"
    return list(made)


def _check_random_numbers(source: Any, made: list[Any], stack: ExitStack) -> None:
    state = source.np_random.bit_generator.state
    for branch in made:
        assert branch.np_random is not source.np_random, "a branch shares its source's generator"
        assert branch.np_random.bit_generator.state == state, "a branch draws other random numbers than its source"
    other = source.fork(2, reseed=True)
    for branch in other:
        stack.callback(branch.close)
    drawn = [int(branch.np_random.integers(1 << 62)) for branch in other]
    assert len(set(drawn)) == 2, "reseeded branches draw the same random numbers"
    assert source.np_random.bit_generator.state == state, "reseeding a branch changed its source's generator"
    for branch in other:
        branch.close()


def _check_divergence(source: Any, made: list[Any]) -> None:
    acting, idle = made[0], made[1]
    before = idle.observe()
    message = "send_msg_to_user('only here')"
    acting_seen, *_ = acting.step(message)
    assert acting_seen["last_action"] == message, "a branch does not know its own action"
    for name, other in (("source", source), ("sibling", idle)):
        assert other.observe()["last_action"] == before["last_action"], f"a branch's action shows in its {name}"
    for action in ("scroll(0, 40)", "keyboard_press('Tab')", "keyboard_type('only here')"):
        acting.step(action)
    changed = _differing(before, idle.observe())
    assert _timed(source) or not changed, f"a branch's actions changed its sibling's {changed}"
    if not _timed(source):
        same = "keyboard_press('Tab')"
        left, right = idle.step(same), source.step(same)
        changed = _differing(left[0], right[0])
        assert not changed, f"the same action brings another {changed} in source and branch"
        assert left[1:4] == right[1:4], "the same action brings another verdict in source and branch"


def _check_lifetimes(made: list[Any], stack: ExitStack) -> None:
    parent, sibling = made[0], made[1]
    (child,) = parent.fork(1)
    stack.callback(child.close)
    parent.close()
    parent.close()
    seen, *_ = child.step("noop(0)")
    assert seen in child.observation_space, "a branch does not outlive its source"
    seen, *_ = sibling.step("noop(0)")
    assert seen in sibling.observation_space, "a branch does not outlive its sibling"
    try:
        parent.step("noop(0)")
    except gymnasium.error.ResetNeeded:
        pass
    else:
        raise AssertionError("a closed branch still steps")


def _check_source_goes_on(env: gymnasium.Env[Any, Any], seed: int) -> None:
    source: Any = env.unwrapped
    seen, *_ = source.step("noop(0)")
    assert seen in source.observation_space, "the source does not go on after its branches are closed"
    first, _ = env.reset(seed=seed)
    again, _ = env.reset(seed=seed)
    if not _timed(source):
        assert not _differing(first, again), f"resets after forks differ in {_differing(first, again)}"
