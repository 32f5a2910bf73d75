# SPDX-License-Identifier: Apache-2.0
"""The same reward wherever a workspace comes from: booted, forked at the start, forked midway, through the cache."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from bunshin_gym.cache import CachePolicy
from bunshin_gym.cache.tiers import Budgets
from bunshin_gym.cache.tree import SnapshotTree
from bunshin_gym.envs import BunshinEnv
from bunshin_gym.images import ImageStore
from bunshin_gym.tasks import Message, PreparedTask, load_task
from bunshin_gym.tasks.script import play
from bunshin_gym.tasks.scripted import SCRIPTED, solve
from bunshin_gym.tasks.sites import SITES, SiteTask, definitions
from bunshin_gym.workspace_guest import boot_workspace
from bunshin_gym.wrappers.tool_sequence_cache import ToolSequenceCache

ALL = os.environ.get("BUNSHIN_ALL_TASKS") == "1"
SEED = 11
SITE_TASKS = [
    f"{site}.{name}"
    for site in SITES
    for name in definitions(site)
    if ALL or f"{site}.{name}" in ("shop.add-to-cart-1", "shop.cheapest-in-category-1", "forum.write-answer-1")
]
TASKS = [*(SCRIPTED if ALL else ("miniwob.login-user",)), *SITE_TASKS]


@pytest.fixture(scope="module", autouse=True)
def _images() -> None:
    for name in {load_task(task_id).image for task_id in TASKS}:
        ImageStore().build(name)


@pytest.fixture
def tree(tmp_path: Path) -> Iterator[SnapshotTree]:
    with SnapshotTree(tmp_path / "tree", budgets=Budgets(memory_bytes=8 << 30)) as tree:
        yield tree


def actions_of(env: Any, task_id: str) -> tuple[list[str], float]:
    """Solves a task; the actions that it took, and the reward."""
    seen, _ = env.reset(options={"task_seed": SEED})
    task = load_task(task_id)
    if isinstance(task, SiteTask):
        played = list(play(env.step, seen, task.solution()))
        done = [action for action, stepped in played if "Timeout" not in stepped[0]["last_action_error"]]
        return done, played[-1][1][1]
    actions = solve(task_id, seen)
    return actions, [env.step(action)[1] for action in actions][-1]


def booted_reward(env: BunshinEnv, actions: list[str]) -> float:
    """The reward of the same actions in a workspace that was never forked."""
    guest, _ = boot_workspace(env._base_key)
    with closing(guest):
        if isinstance(env.task, PreparedTask):
            env.task.prepare(guest)
        setup = env.task.setup(guest, SEED)
        guest.act(())
        messages: list[Message] = []
        for action in actions:
            (call,) = env.surface.parse(action)
            if call.name == "send_msg_to_user":
                messages.append(Message(role="assistant", text=call.args["text"]))
                guest.act(())
            else:
                assert guest.act([call]).error == "", action
        return env.task.validate(guest, setup.state, messages).reward


@pytest.mark.slow
@pytest.mark.parametrize("task_id", TASKS)
def test_the_reward_is_the_same_wherever_a_workspace_comes_from(task_id: str, tree: SnapshotTree) -> None:
    rewards: dict[str, float] = {}
    with ExitStack() as stack:
        env = stack.enter_context(closing(BunshinEnv(load_task(task_id))))
        actions, rewards["forked at the start"] = actions_of(env, task_id)
        half = len(actions) // 2
        env.reset(options={"task_seed": SEED})
        for action in actions[:half]:
            env.step(action)
        (branch,) = env.fork()
        stack.enter_context(closing(branch))
        rewards["forked midway"] = [branch.step(action)[1] for action in actions[half:]][-1]
        rewards["its source"] = [env.step(action)[1] for action in actions[half:]][-1]
        rewards["booted"] = booted_reward(env, actions)
        for name in ("filling the cache", "through the cache"):
            with ToolSequenceCache(
                BunshinEnv(load_task(task_id)), tree, policy=CachePolicy(snapshot_share=1.0)
            ) as cached:
                cached.reset(options={"task_seed": SEED})
                stepped = [cached.step(action) for action in actions]
                rewards[name] = stepped[-1][1]
                sources = {step[4]["cache"].source for step in stepped}
        assert sources == {"hit"}
    assert rewards == dict.fromkeys(rewards, 1.0)
