# SPDX-License-Identifier: Apache-2.0
"""What is reused of a tool, by what running it again means."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from cache_fakes import MakeRig, Rig, call

from bunshin_gym.cache.sequence import CachePolicy
from bunshin_gym.cache.tiers import Budgets

NEVER = Budgets(memory_bytes=0)


def test_stochastic_and_external_calls_are_not_reused_and_lead_off_the_tree(rig: Rig) -> None:
    for name, args in (("roll", {}), ("pay", {"amount": 5})):
        for _ in range(2):
            assert rig.walk(call("look"), call(name, **args), call("look"))[2:] == ["off_tree", "off_tree"]
    assert rig.host.paid == [5, 5]


def test_an_undeclared_tool_is_external_unless_the_policy_says_otherwise(make_rig: MakeRig, tmp_path: Path) -> None:
    careful = make_rig(tmp_path / "a")
    assert careful.walk(call("strange")) == ["boot", "off_tree"]
    bold = make_rig(tmp_path / "b", policy=CachePolicy(unknown="deterministic"))
    assert bold.walk(call("strange")) == ["boot", "run"]
    assert bold.walk(call("strange")) == ["hit", "hit"]


def test_arguments_without_a_key_are_the_tools_to_refuse(rig: Rig) -> None:
    with rig.attempt() as attempt:
        attempt.start()
        step = attempt.step(call("move", step=float("nan")))
        assert step.source == "off_tree"
        assert step.result.observation["last_action_error"]


def test_stochastic_outcomes_are_reused_when_wanted_and_each_keeps_its_own_future(make_rig: MakeRig) -> None:
    policy = CachePolicy(reuse_stochastic=1.0, samples_max=3, snapshot_share=1.0)
    rig = make_rig(policy=policy)
    roll = call("roll", sides=1_000_000)
    with rig.attempt() as attempt:
        attempt.start()
        first = attempt.step(roll)
        assert first.source == "run"
        attempt.step(call("write", text="after"))
    with rig.attempt() as attempt:
        attempt.start()
        again = attempt.step(roll)
        assert again.source == "hit"
        assert again.result.observation == first.result.observation
        assert attempt.step(call("write", text="after")).source == "hit"
        # The dice of the snapshot are those of the run that was stored.
        assert "notes ['after', 'new']" in attempt.step(call("write", text="new")).result.observation["text"]
    assert rig.host.runs["roll"] == 1


def test_stochastic_outcomes_are_sampled_up_to_a_number(make_rig: MakeRig) -> None:
    policy = CachePolicy(reuse_stochastic=0.5, samples_max=3, snapshot_share=1.0)
    rig = make_rig(policy=policy, seed=7)
    roll = call("roll", sides=1_000_000)
    sources: Counter[str] = Counter(rig.walk(roll)[1] for _ in range(60))
    assert sources["run"] == 3
    assert 15 < sources["hit"] < 45
    assert sources["off_tree"] == 60 - 3 - sources["hit"]


def test_a_stochastic_outcome_without_a_snapshot_is_not_reused(make_rig: MakeRig) -> None:
    rig = make_rig(policy=CachePolicy(reuse_stochastic=1.0), budgets=NEVER)
    assert rig.walk(call("roll")) == ["boot", "run"]
    assert rig.walk(call("roll"), call("look")) == ["hit", "run", "run"]


def test_fresh_every_so_many_hits(make_rig: MakeRig) -> None:
    rig = make_rig(policy=CachePolicy(fresh_every=4))
    sources = [rig.walk(call("look"))[1] for _ in range(13)]
    assert sources == ["run", *["hit", "hit", "hit", "audit"] * 3]
