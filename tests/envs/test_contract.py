# SPDX-License-Identifier: Apache-2.0
"""Gymnasium's contract and ours, on real tasks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from bunshin_gym.tasks.scripted import solve
from bunshin_gym.testing import check_fork


@pytest.fixture(autouse=True)
def _no_display(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DISPLAY", raising=False)


@pytest.mark.parametrize("name", ["ClickTest", "EmailInbox"])
def test_gymnasium_accepts_it(make: Callable[..., Any], name: str) -> None:
    check_env(make(name).unwrapped)


@pytest.mark.parametrize(
    "name",
    [
        "ClickCheckboxes",
        "ClickTest",
        "ChooseDate",
        "DragItems",
        "LoginUser",
        "SocialMedia",
        "TextEditor",
        "UseAutocomplete",
    ],
)
def test_it_forks_as_promised(make: Callable[..., Any], name: str) -> None:
    check_fork(make(name), actions=["noop(0)", "mouse_move(5, 5)"])


def test_a_task_by_the_clock_forks_as_promised(make: Callable[..., Any]) -> None:
    check_fork(make("MovingItems"), actions=["noop(0)"])


def test_a_half_filled_form_forks(make: Callable[..., Any]) -> None:
    env = make("LoginUser")
    seen, _ = env.reset(seed=3)
    fill_user, fill_password, login = solve("miniwob.login-user", seen)
    env.step(fill_user)
    right, wrong = env.unwrapped.fork(2)
    wrong.step("keyboard_press('End')\nkeyboard_type('x')")
    for branch, reward in ((wrong, -1.0), (right, 1.0)):
        branch.step(fill_password)
        assert branch.step(login)[1:3] == (reward, True)
    env.step(fill_password)
    assert env.step(login)[1:3] == (1.0, True)
    right.close()
    wrong.close()


def test_a_fork_of_a_fork_of_a_fork(make: Callable[..., Any]) -> None:
    env = make("EnterText")
    seen, _ = env.reset(seed=1)
    fill, submit = solve("miniwob.enter-text", seen)
    line = [env.unwrapped]
    for depth in range(4):
        line[-1].step(f"send_msg_to_user('{depth}')")
        line += line[-1].fork(1)
    line[-1].step(fill)
    assert line[-1].step(submit)[1] == 1.0
    assert [len(member._run.messages) for member in line] == [1, 2, 3, 4, 4]
    assert all("value=" not in member.observe()["axtree_txt"] for member in line[:-1])
    for member in line[1:]:
        member.close()


def test_tabs_are_forked(make: Callable[..., Any]) -> None:
    env = make("ClickTest")
    env.reset(seed=1)
    (branch,) = env.unwrapped.fork(1)
    seen, _, terminated, _, info = branch.step("new_tab()")
    assert seen["active_page_index"].tolist() == [1]
    assert len(seen["open_pages_urls"].splitlines()) == 2
    assert terminated
    assert "left the task's page" in info["message"]
    seen, _, terminated, *_ = env.step("noop(0)")
    assert seen["active_page_index"].tolist() == [0]
    assert not terminated
    branch.close()


def test_infos_have_what_it_cost(make: Callable[..., Any]) -> None:
    env = make("ClickTest", measure_memory=True)
    _, info = env.reset(seed=1)
    (branch,) = env.unwrapped.fork(1)
    costs = branch.fork_costs()
    for measured in (info["measured"], costs):
        assert measured.branch.total_ns > 0
        assert measured.frozen_ns > 0
        assert measured.unique_bytes > 0
    assert env.step("noop(20)")[4]["measured"].tool_ns >= 20_000_000
    branch.close()


def test_without_the_tree_it_is_not_read_and_all_else_is_the_same(make: Callable[..., Any]) -> None:
    blind, seeing = make("ClickButton", tree=False), make("ClickButton")
    (seen, _), (wanted, _) = blind.reset(seed=3), seeing.reset(seed=3)
    (action,) = solve("miniwob.click-button", wanted)
    for _ in range(2):
        assert set(wanted) - set(seen) == {"axtree_txt"}
        assert all(np.array_equal(seen[key], wanted[key]) for key in seen)
        assert "axtree_txt" not in blind.observation_space.spaces
        (seen, *after), (wanted, *wanted_after) = blind.step(action), seeing.step(action)
        assert after[:3] == wanted_after[:3]
    blind.reset(seed=3)
    check_fork(blind)
