# SPDX-License-Identifier: Apache-2.0
"""Calls, boots, results and snapshots that fail: the attempt says so, and stands where it stood."""

from __future__ import annotations

from typing import Any

import pytest
from cache_fakes import MakeRig, Rig, World, call

from bunshin_gym.cache.keys import Context
from bunshin_gym.cache.sequence import CachePolicy
from bunshin_gym.cache.tiers import Budgets
from bunshin_gym.errors import ClosedError, ResourceError, UsageError, WorkspaceDied
from bunshin_gym.types import ToolCall, ToolResult

NEVER = Budgets(memory_bytes=0)
EAGER = CachePolicy(snapshot_share=1.0)


def test_a_call_that_dies_leaves_the_attempt_where_it_was(rig: Rig) -> None:
    with rig.attempt() as attempt:
        attempt.start()
        attempt.step(call("write", text="a"))
        with pytest.raises(WorkspaceDied):
            attempt.step(call("die"))
        assert not attempt.has_live
        step = attempt.step(call("write", text="b"))
        assert "notes ['a', 'b']" in step.result.observation["text"]


def test_off_the_tree_a_dead_workspace_is_the_end(rig: Rig) -> None:
    with rig.attempt() as attempt:
        attempt.start()
        attempt.step(call("roll"))
        with pytest.raises(WorkspaceDied):
            attempt.step(call("die"))
        with pytest.raises(ClosedError, match="reset"):
            attempt.step(call("look"))


def test_a_boot_that_fails_while_materialising_can_be_tried_again(make_rig: MakeRig) -> None:
    rig = make_rig(budgets=NEVER)
    rig.walk(call("write", text="a"))
    with rig.attempt() as attempt:
        attempt.start()
        attempt.step(call("write", text="a"))
        rig.fail_boots = 1
        with pytest.raises(ResourceError):
            attempt.step(call("look"))
        assert attempt.step(call("look")).source == "run"


def test_a_result_that_cannot_be_stored_says_so_and_leaves_nothing(make_rig: MakeRig) -> None:
    class Odd(World):
        def run(self, call: ToolCall) -> ToolResult:
            result = super().run(call)
            return ToolResult(observation=result.observation, info={"handle": object()})

    rig = make_rig(kind=Odd)
    with rig.attempt() as attempt:
        attempt.start()
        with pytest.raises(UsageError, match=r"value\[1\]\.handle: object cannot be stored"):
            attempt.step(call("look"))


def test_a_snapshot_that_fails_does_not_disturb_the_attempt(make_rig: MakeRig) -> None:
    rig = make_rig(policy=EAGER)
    rig.host.fail_forks = 1
    assert rig.walk(call("write", text="a")) == ["boot", "run"]


def test_a_snapshot_that_fails_in_an_unknown_way_is_not_swallowed(make_rig: MakeRig) -> None:
    class Broken(World):
        def snapshot(self) -> Any:
            raise ZeroDivisionError("a mistake in the engine")

    rig = make_rig(kind=Broken)
    attempt = rig.attempt()
    attempt.start()
    with pytest.raises(ZeroDivisionError):
        attempt.step(call("look"))
    attempt.close()
    rig.tree.credit.earn(1e12)
    another = rig.attempt(Context(image="i", task="t", seed=9))
    another.start()
    with pytest.raises(ZeroDivisionError):
        another.close()
