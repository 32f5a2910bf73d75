# SPDX-License-Identifier: Apache-2.0
"""Results that are known already are run again, and compared with what is known."""

from __future__ import annotations

from dataclasses import replace

import pytest
from cache_fakes import CONTEXT, MakeRig, World, call, solution

from bunshin_gym.cache.sequence import CachePolicy
from bunshin_gym.cache.tiers import Budgets
from bunshin_gym.errors import ReplayDiverged
from bunshin_gym.types import ToolCall, ToolResult

NEVER = Budgets(memory_bytes=0)


class Fickle(World):
    """A world whose `look` says it is deterministic, and is not."""

    looks = 0

    def _tool_look(self) -> tuple[int, str, str]:
        Fickle.looks += 1
        return 1, "", f"look {Fickle.looks}; "


class Drifting(World):
    """A world where `wait` shows the same and leaves another state behind."""

    drift = 0

    def state_digest(self) -> bytes:
        return super().state_digest() + bytes([Drifting.drift % 256])

    def _tool_wait(self, *, ms: int) -> tuple[int, str, str]:
        Drifting.drift += 1
        return super()._tool_wait(ms=ms)


def test_audit_agrees_where_tools_are_deterministic(make_rig: MakeRig) -> None:
    rig = make_rig(policy=CachePolicy(audit=1.0))
    rig.walk(*solution())
    assert rig.walk(*solution()) == ["hit", *["audit"] * len(solution())]
    assert rig.walk(*solution()) == ["hit", *["audit"] * len(solution())]
    rows = {row.name: row for row in rig.tree.ledger.tools()}
    assert sum(row.audits for row in rows.values()) == 2 * len(solution())
    assert sum(row.disagreements for row in rows.values()) == 0


def test_audit_reports_results_that_differ_by_tool(make_rig: MakeRig) -> None:
    rig = make_rig(policy=CachePolicy(audit=1.0), kind=Fickle)
    rig.walk(call("move", step=1), call("look"))
    with rig.attempt() as attempt:
        attempt.start()
        assert attempt.step(call("move", step=1)).source == "audit"
        step = attempt.step(call("look"))
        assert step.source == "audit"
        assert step.key is None, "an attempt that saw something else must not stay on the tree"
        assert attempt.step(call("move", step=1)).source == "off_tree"
    rows = {row.name: row for row in rig.tree.ledger.tools()}
    assert rows["look"].disagreements == 1
    assert rows["move"].disagreements == 0


def test_audit_reports_states_that_differ_behind_equal_observations(make_rig: MakeRig) -> None:
    rig = make_rig(policy=CachePolicy(audit=1.0), kind=Drifting)
    for _ in range(3):
        rig.walk(call("wait", ms=1))
    rows = {row.name: row for row in rig.tree.ledger.tools()}
    assert (rows["wait"].audits, rows["wait"].disagreements) == (2, 2), "the run notes the state"


def test_a_tool_that_disagrees_goes_into_quarantine_and_comes_back_by_command(make_rig: MakeRig) -> None:
    rig = make_rig(policy=CachePolicy(audit=1.0, quarantine_after=2), kind=Fickle)
    for _ in range(3):
        rig.walk(call("look"))
    row = rig.tree.ledger.tool(CONTEXT.task, "look")
    assert row is not None
    assert row.quarantined is not None
    assert "2 disagreements" in row.quarantined
    assert rig.walk(call("look"), call("move", step=1)) == ["hit", "off_tree", "off_tree"]
    rig.tree.ledger.quarantine(CONTEXT.task, "look", None)
    assert rig.walk(call("look"))[1] == "audit"


def test_a_replay_that_differs_is_an_error_and_never_a_wrong_state(make_rig: MakeRig) -> None:
    rig = make_rig(budgets=NEVER, kind=Fickle, policy=CachePolicy(quarantine_after=1))
    rig.walk(call("look"), call("move", step=1))
    with rig.attempt() as attempt:
        attempt.start()
        attempt.step(call("look"))
        with pytest.raises(ReplayDiverged, match="look"):
            attempt.step(call("move", step=-1))
        assert not attempt.has_live
    row = rig.tree.ledger.tool(CONTEXT.task, "look")
    assert row is not None
    assert row.quarantined is not None


class OddOnce(World):
    """A world that is seen too early the first time that anybody looks."""

    early = True

    def run(self, call: ToolCall) -> ToolResult:
        result = super().run(call)
        if call.name != "look" or not OddOnce.early:
            return result
        OddOnce.early = False
        return replace(result, observation={**result.observation, "text": "loading"})


def test_what_two_replays_agree_in_replaces_what_was_stored(make_rig: MakeRig) -> None:
    OddOnce.early = True
    rig = make_rig(budgets=NEVER, kind=OddOnce)
    rig.walk(call("look"), call("move", step=1))
    for _ in range(2):
        with rig.attempt() as attempt:
            attempt.start()
            assert attempt.step(call("look")).result.observation["text"] == "loading"
            with pytest.raises(ReplayDiverged, match="look"):
                attempt.step(call("move", step=-1))
    assert rig.walk(call("look"), call("move", step=-1)) == ["hit", "hit", "run"]
    with rig.attempt() as attempt:
        attempt.start()
        assert attempt.step(call("look")).result.observation["text"] != "loading"
