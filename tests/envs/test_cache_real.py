# SPDX-License-Identifier: Apache-2.0
"""The tool-sequence cache over real workspaces: the same screens, pages and rewards, and nothing left."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
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
    with ToolSequenceCache(BunshinEnv(TASK), tree, policy=CachePolicy(ahead=0)) as env:
        for _ in range(20):
            env.reset(options=START)
            for action in ways:
                assert env.step(action)[4]["cache"].source == "hit"
                assert env.last is not None
                ratios.append(env.last.wall_ns / env.last.saved_ns)
        assert not env._core.attempt.has_live, "hits need no workspace"  # type: ignore[union-attr]
    assert statistics.median(ratios) < 0.01, "a hit takes more than a hundredth of the call"


SECOND_RUN = """
import json, sys
from bunshin_gym.bases import shared_bases
from bunshin_gym.cache import Budgets
from bunshin_gym.envs import BunshinEnv
from bunshin_gym.wrappers.tool_sequence_cache import ToolSequenceCache

directory, task, start, actions = json.loads(sys.argv[1])
budgets = Budgets(disk_bytes=4 << 30)
with ToolSequenceCache(BunshinEnv(task), directory, budgets=budgets) as env:
    env.reset(options=start)
    sources = [env.step(action)[4]["cache"].source for action in actions]
    inner = env.materialise()
    told = {
        "sources": sources, "parts": dict(inner.state_parts()), "booted": len(shared_bases()._kept),
        "drawn": inner.np_random.integers(1 << 30, size=3).tolist(),
    }
    told["reward"] = env.step(actions[-1])[1]
    print(json.dumps(told))
"""


def test_another_process_goes_on_from_disk_without_a_boot(tmp_path: Path) -> None:
    budgets = Budgets(disk_bytes=4 << 30)
    with ExitStack() as stack:
        tree = stack.enter_context(SnapshotTree(tmp_path / "tree", budgets=budgets))
        with ToolSequenceCache(BunshinEnv(TASK), tree, policy=CachePolicy(snapshot_share=1.0)) as env:
            observation, _ = env.reset(options=START)
            box, _button = bid(observation, "textbox"), bid(observation, "button")
            actions = [f"fill('{box}', 'first')", f"press('{box}', 'Shift+Home')"]
            for action in actions:
                env.step(action)
            attempt = env._core.attempt
            assert attempt is not None
            attempt._live.keep()  # whatever the policy thinks of a single attempt
    assert list((tmp_path / "tree" / "snapshots").glob("*/workspace/snapshot/manifest.json"))
    told = second_run(tmp_path, [*actions])
    assert told["sources"] == ["hit", "hit"]
    assert told["booted"] == 0, "it was booted, not read"
    with BunshinEnv(TASK) as bare:
        bare.reset(options=START)
        for action in actions:
            bare.step(action)
        assert told["parts"] == dict(bare.state_parts())
        assert told["reward"] == bare.step(actions[-1])[1]


def second_run(tmp_path: Path, actions: list[str]) -> dict[str, Any]:
    given = json.dumps([str(tmp_path / "tree"), TASK, START, actions])
    done = subprocess.run([sys.executable, "-c", SECOND_RUN, given], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return told


def test_audits_compare_page_and_files(tmp_path: Path) -> None:
    policy = CachePolicy(audit=1.0)
    with ToolSequenceCache(BunshinEnv(TASK), tmp_path / "tree", policy=policy) as env:
        observation, _ = env.reset(options=START)
        fill = f"fill('{bid(observation, 'textbox')}', 'first')"
        env.step(fill)
        env.reset(options=START)
        assert env.step(fill)[4]["cache"].source == "audit"
        env.tree.flush()
        rows = {row.name: row for row in env.tree.ledger.tools()}
        assert (rows["fill"].audits, rows["fill"].disagreements) == (1, 0)
        env.reset(options=START)
        inner: Any = env.materialise()
        inner._episode()[0].execute(["touch", "/root/left-over"])  # what no observation shows
        assert env.step(fill)[4]["cache"].source == "audit"
        env.tree.flush()
        rows = {row.name: row for row in env.tree.ledger.tools()}
        assert (rows["fill"].audits, rows["fill"].disagreements) == (2, 1)
