# SPDX-License-Identifier: Apache-2.0
"""Every task starts; scripted policies solve theirs; where a workspace comes from does not matter."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from bunshin_gym.bases import BaseKey
from bunshin_gym.surfaces import Episode
from bunshin_gym.tasks.miniwob import env_names, make_task
from bunshin_gym.tasks.miniwob_names import camel_case
from bunshin_gym.tasks.scripted import SCRIPTED, solve
from bunshin_gym.workspace_guest import WorkspaceGuest, boot_workspace

KEYS = ("axtree_txt", "screenshot", "goal", "url", "focused_element_bid")
DRAWN_LATE = {"drag-cube"}
"""Pages drawn in depth: Chromium completes the picture frames after it says so, and rounds edges either way."""
ROUNDING_LEVELS = 8


def _unequal(left: dict[str, Any], right: dict[str, Any]) -> list[str]:
    return [key for key in KEYS if not np.array_equal(left[key], right[key])]


def _round_alike(left: dict[str, Any], right: dict[str, Any]) -> None:
    """Lets the second picture be the first one, if all that is between them is rounding."""
    apart = np.abs(left["screenshot"].astype(int) - right["screenshot"].astype(int)).max()
    if apart <= ROUNDING_LEVELS:
        right["screenshot"] = left["screenshot"]


@pytest.fixture(scope="module")
def booted() -> Iterator[Callable[[BaseKey], WorkspaceGuest]]:
    """One booted workspace for each size of the screen, for tests that only load pages into it."""
    guests: dict[BaseKey, WorkspaceGuest] = {}

    def get(key: BaseKey) -> WorkspaceGuest:
        if key not in guests:
            guests[key], _ = boot_workspace(key)
        return guests[key]

    yield get
    for guest in guests.values():
        guest.close()


@pytest.mark.slow
@pytest.mark.parametrize("name", list(env_names()))
def test_every_task_starts_alike_and_takes_an_action(
    make: Callable[..., Any], booted: Callable[[BaseKey], WorkspaceGuest], name: str
) -> None:
    env = make(name.removeprefix("MiniWoB-")).unwrapped
    guest = booted(replace(env._base_key, task=None))
    late = env.task.name in DRAWN_LATE
    look = env.surface.parse("noop(1000)") if late else ()
    starts = []
    for _ in range(2):
        guest.client.call("reset_browser")
        env.task.prepare(guest)
        setup = env.task.setup(guest, 1)
        starts.append(env.surface.observation(guest.act(look).view, Episode(goal=setup.goal), env.screen))
    assert starts[0] in env.observation_space
    assert starts[0]["goal"]
    assert starts[0]["axtree_txt"]
    if late:
        _round_alike(*starts)
    assert env.task.timed or _unequal(*starts) == []
    seen = guest.act(env.surface.parse("noop(0)"))
    assert seen.error == ""
    assert env.surface.observation(seen.view, Episode(goal=setup.goal), env.screen) in env.observation_space
    verdict = env.task.validate(guest, setup.state, ())
    assert (verdict.reward, verdict.done) == (0.0, False)


@pytest.mark.parametrize("task_id", list(SCRIPTED))
def test_a_script_solves(make: Callable[..., Any], task_id: str) -> None:
    env = make(camel_case(task_id.removeprefix("miniwob.")))
    seen, _ = env.reset(seed=11)
    actions = solve(task_id, seen)
    results = [env.step(action) for action in actions]
    assert [result[0]["last_action_error"] for result in results] == [""] * len(actions)
    assert [result[1] for result in results] == [0.0] * (len(actions) - 1) + [1.0]
    assert results[-1][2]


@pytest.mark.parametrize("name", ["login-user", "click-checkboxes", "social-media"])
def test_a_booted_workspace_and_a_branch_show_and_score_the_same(make: Callable[..., Any], name: str) -> None:
    """What a fork is worth depends on it being the same as a boot."""
    env = make(camel_case(name))
    seen, info = env.reset(seed=5)
    task = make_task(name)
    guest, _ = boot_workspace(env.unwrapped._base_key)
    try:
        task.prepare(guest)
        setup = task.setup(guest, info["task_seed"])
        view = guest.act(()).view
        assert setup.goal == seen["goal"]
        assert view["axtree_txt"] == seen["axtree_txt"]
        assert np.array_equal(view["screenshot"], seen["screenshot"])
        if task.id in SCRIPTED:
            for action in solve(task.id, seen):
                reward = env.step(action)[1]
                guest.act(env.unwrapped.surface.parse(action))
            assert task.validate(guest, setup.state, ()).reward == reward == 1.0
    finally:
        guest.close()


@pytest.mark.parametrize("name", ["ClickTest", "LoginUser", "ClickCheckboxes", "FlightAA", "UseAutocomplete"])
def test_the_first_observation_that_is_kept_is_what_its_branch_shows(make: Callable[..., Any], name: str) -> None:
    env = make(name)
    starts = [env.reset(options={"task_seed": 5}) for _ in range(3)]
    assert [info["measured"].look_ns == 0 for _, info in starts] == [False, False, True]
    assert all(_unequal(starts[0][0], seen) == [] for seen, _ in starts)
    assert starts[0][1] == starts[2][1]
    assert _unequal(starts[2][0], env.unwrapped.observe()) == []
    (branch,) = env.unwrapped.fork()
    try:
        assert _unequal(starts[2][0], branch.observe()) == []
        assert branch.state_digest() == env.unwrapped.state_digest()
    finally:
        branch.close()
    other, _ = env.reset(options={"task_seed": 6})
    again, info = env.reset(options={"task_seed": 5})
    assert info["measured"].look_ns == 0
    assert _unequal(starts[0][0], again) == []
    assert other["screenshot"].shape == again["screenshot"].shape


def test_scores_do_not_depend_on_what_ran_before(make: Callable[..., Any]) -> None:
    first, other = make("ClickButton"), make("EnterText")
    before, _ = first.reset(seed=9)
    other.reset(seed=2)
    other.step("fill('16', 'left over')")
    first.step("keyboard_type('left over')")
    first.reset(seed=1)
    after, _ = first.reset(seed=9)
    assert _unequal(before, after) == []
    for action in solve("miniwob.click-button", after):
        reward = first.step(action)[1]
    assert reward == 1.0


def test_leaving_the_page_ends_the_episode(make: Callable[..., Any]) -> None:
    env = make("ClickTest")
    env.reset(seed=1)
    _, reward, terminated, _, info = env.step("goto('about:blank')")
    assert (reward, terminated) == (0.0, True)
    assert "left the task's page" in info["message"]


def test_the_time_limit_never_strikes(make: Callable[..., Any]) -> None:
    """The page's own clock is put forward by a day: that is what a long freeze looks like to it."""
    env = make("ClickTest")
    seen, _ = env.reset(seed=1)
    guest = env.unwrapped._guest
    assert guest.evaluate("() => core.EPISODE_MAX_TIME") == 2147483647
    guest.evaluate("() => { core.ept0 -= 24 * 3600 * 1000; }")
    (action,) = solve("miniwob.click-test", seen)
    assert env.step(action)[1:3] == (1.0, True)
