# SPDX-License-Identifier: Apache-2.0
"""The tool-sequence cache over real workspaces: the same screens, pages and rewards, and nothing left."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bunshin_gym.cache import CachePolicy
from bunshin_gym.cache.stamps import pixels_agree
from bunshin_gym.cache.tiers import Budgets
from bunshin_gym.cache.tree import SnapshotTree
from bunshin_gym.envs import BunshinEnv
from bunshin_gym.wrappers.tool_sequence_cache import ToolSequenceCache

TASK = "miniwob.enter-text"
START = {"task_seed": 11}


def bid(observation: dict[str, Any], role: str) -> str:
    """The id of the first element of that role."""
    line = next(line for line in observation["axtree_txt"].splitlines() if f"] {role}" in line)
    return line.strip().removeprefix("[").partition("]")[0]


def inside(env: Any) -> dict[str, Any]:
    """What the workspace itself shows now."""
    bare = env.materialise() if isinstance(env, ToolSequenceCache) else env
    html = bare._episode()[0].evaluate("() => document.documentElement.outerHTML")
    # The inner env has its own words for the last action.
    return {**bare.observe(), "last_action": "", "html": html}


def same(one: dict[str, Any], other: dict[str, Any]) -> None:
    """Equal, but for pixels that nobody could tell apart."""
    assert pixels_agree(one.pop("screenshot"), other.pop("screenshot"))
    np.testing.assert_equal(one, other)


@pytest.fixture(params=["snapshots", "replay"])
def tree(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SnapshotTree]:
    memory_bytes = 8 << 30 if request.param == "snapshots" else 0
    with SnapshotTree(tmp_path / "tree", budgets=Budgets(memory_bytes=memory_bytes)) as tree:
        yield tree


def test_an_attempt_that_leaves_the_known_path_is_in_the_same_state_as_without_a_cache(tree: SnapshotTree) -> None:
    policy = CachePolicy(snapshot_share=1.0)
    with ToolSequenceCache(BunshinEnv(TASK), tree, policy=policy) as env:
        observation, _ = env.reset(options=START)
        box, button = bid(observation, "textbox"), bid(observation, "button")
        env.step(f"fill('{box}', 'first')")
        env.step(f"click('{button}')")
    ways = [f"fill('{box}', 'first')", f"press('{box}', 'Shift+Home')", f"click('{button}')"]
    with ToolSequenceCache(BunshinEnv(TASK), tree, policy=policy) as env, BunshinEnv(TASK) as bare:
        shown, _ = env.reset(options=START)
        same(shown, bare.reset(options=START)[0])
        sources = []
        for action in ways:
            got, want = env.step(action), bare.step(action)
            same(got[0], want[0])
            assert got[1:4] == want[1:4]
            sources.append(got[4]["cache"].source)
            same(inside(env), inside(bare))
        assert sources == ["hit", "run", "run"]
    ratios = []
    with ToolSequenceCache(BunshinEnv(TASK), tree, policy=policy) as env:
        for _ in range(20):
            env.reset(options=START)
            for action in ways:
                assert env.step(action)[4]["cache"].source == "hit"
                assert env.last is not None
                ratios.append(env.last.wall_ns / env.last.saved_ns)
        assert not env._core.attempt.has_live  # type: ignore[union-attr]
    assert statistics.median(ratios) < 0.01, "a hit takes more than a hundredth of the call"
