# SPDX-License-Identifier: Apache-2.0
"""Element features, clicks as numbers, and seeds drawn from a set."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.wrappers import PassiveEnvChecker

from bunshin_gym.errors import UsageError
from bunshin_gym.tasks.scripted import parse_tree
from bunshin_gym.types import ToolCall
from bunshin_gym.wrappers.click_elements import FEATURES, ClickElements, element_features
from bunshin_gym.wrappers.task_seeds import TaskSeeds

TREE = "RootWebArea 'x'\n\t[13] button 'Cancel'\n\t[14] button 'Ok now'\n\t[15] textbox '', focused\n\t[16] textbox ''"


class Page(gymnasium.Env[Any, Any]):
    """Shows a tree and remembers the calls."""

    observation_space = gymnasium.spaces.Dict()
    action_space = gymnasium.spaces.Text(9)

    def __init__(self) -> None:
        self.calls: list[ToolCall] = []
        self.options: list[Any] = []

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.options.append(options)
        return {"goal": 'Click "Ok now".', "axtree_txt": TREE}, {}

    def step(self, action: ToolCall) -> Any:
        self.calls.append(action)
        return {"goal": "Focus into the 2nd textbox.", "axtree_txt": TREE}, 1.0, False, False, {}


def names(row: Any) -> set[str]:
    return {name for name, value in zip(FEATURES, row, strict=True) if value == 1.0}


def test_features_say_what_the_goal_names() -> None:
    nodes = parse_tree(TREE)
    cancel, ok, *_, nothing = element_features('Click "Ok now".', nodes, 6)
    assert names(cancel) == {"is there", "is a button", "has a name"}
    assert names(ok) >= {"is a button", "its name is quoted in the goal", "share of its words that the goal has"}
    assert not nothing.any()
    _, _, first, second = element_features("Focus into the 2nd textbox.", nodes, 4)
    ordinal = FEATURES.index("its place among those of its role, if the goal has an ordinal for it")
    assert (first[ordinal], second[ordinal]) == (0.0, 1.0)
    assert "is focused" in names(first) - names(second)


def test_numbers_are_clicks() -> None:
    page = Page()
    env = ClickElements(page, most=6)
    seen, _ = env.reset(seed=1)
    assert env.observation_space.contains(seen)
    env.step(np.int64(1))
    env.step(5)
    assert [(call.name, call.args.get("bid")) for call in page.calls] == [("click", "14"), ("noop", None)]
    assert env.last["goal"].startswith("Focus")
    with pytest.raises(UsageError):
        ClickElements(page, most=0)


def test_gymnasium_accepts_it() -> None:
    env = PassiveEnvChecker(ClickElements(Page()))
    env.reset(seed=1)
    env.step(env.action_space.sample())


def test_seeds_are_drawn_from_the_set_and_repeat_with_the_seed() -> None:
    page = Page()
    env = TaskSeeds(page, [3, 5, 8])
    for seed in (7, None, None, None, 7, None, None, None):
        env.reset(seed=seed)
    drawn = [options["task_seed"] for options in page.options]
    assert drawn[:4] == drawn[4:]
    assert set(drawn) <= {3, 5, 8}
    env.reset(options={"task_seed": 99})
    assert page.options[-1] == {"task_seed": 99}
    with pytest.raises(UsageError):
        TaskSeeds(page, [])
