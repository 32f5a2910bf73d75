# SPDX-License-Identifier: Apache-2.0
"""The tool-sequence cache: what is reused, what is run, and that nobody can tell the difference."""

from __future__ import annotations

from typing import Any

import pytest
from cache_fakes import CONTEXT, Rig, World, call, plain, solution
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bunshin_gym.cache.keys import Context
from bunshin_gym.cache.sequence import RESET, CachePolicy
from bunshin_gym.cache.tiers import Budgets
from bunshin_gym.errors import ClosedError, UsageError
from bunshin_gym.types import ToolCall


def test_a_known_sequence_runs_nothing_and_brings_the_same(rig: Rig) -> None:
    rig.walk(*solution())
    runs, boots = rig.host.total_runs, rig.host.boots
    with rig.attempt() as attempt:
        assert attempt.start().source == "hit"
        results = [attempt.step(one).result for one in solution()]
        assert not attempt.has_live
    assert (rig.host.total_runs, rig.host.boots) == (runs, boots)
    wanted = plain(solution())
    assert [r.observation for r in results] == [r.observation for r in wanted]
    assert [(r.reward, r.terminated, r.truncated) for r in results] == [
        (r.reward, r.terminated, r.truncated) for r in wanted
    ]


def test_a_single_matching_command_is_no_hit(rig: Rig) -> None:
    rig.walk(call("write", text="a"), call("look"))
    assert rig.walk(call("look")) == ["hit", "run"]
    assert rig.walk(call("write", text="b"), call("look")) == ["hit", "run", "run"]
    assert rig.walk(call("look"), call("write", text="a")) == ["hit", "hit", "run"]


def test_contexts_do_not_mix(rig: Rig) -> None:
    rig.walk(call("look"))
    other = Context(image=CONTEXT.image, task=CONTEXT.task, seed=4)
    assert rig.walk(call("look"), context=other) == ["boot", "run"]


def test_without_a_seed_nothing_is_shared(rig: Rig) -> None:
    unseeded = Context(image="i", task="t")
    assert rig.walk(call("look"), context=unseeded) == ["off_tree"] * 2
    assert rig.walk(call("look"), context=unseeded) == ["off_tree"] * 2


def test_leaving_the_known_path_goes_on_in_the_right_state(rig: Rig) -> None:
    rig.walk(call("write", text="a"), call("write", text="b"))
    with rig.attempt() as attempt:
        attempt.start()
        attempt.step(call("write", text="a"))
        assert not attempt.has_live
        step = attempt.step(call("write", text="c"))
        assert step.source == "run"
        assert "notes ['a', 'c']" in step.result.observation["text"]
        assert attempt.step(call("look")).source == "run"


def test_results_are_fresh_objects(rig: Rig) -> None:
    rig.walk(call("look"))
    for _ in range(2):
        with rig.attempt() as attempt:
            attempt.start()
            observation = attempt.step(call("look")).result.observation
            assert "spoilt" not in observation
            observation["spoilt"] = True


_CALLS = st.sampled_from(
    [
        call("look"),
        call("move", step=1),
        call("move", step=-1),
        call("take", thing="key"),
        call("take", thing="red stone"),
        call("write", text="x"),
        call("open"),
        call("wait", ms=2500),
        call("roll", sides=6),
        call("pay", amount=1),
        call("nonsense", a=1),
        call("move", step=5),
    ]
)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    sequences=st.lists(st.lists(_CALLS, min_size=1, max_size=8), min_size=1, max_size=6),
    memory_mb=st.sampled_from([0, 12, 30, 1000]),
    share=st.sampled_from([0.0, 0.04, 1.0]),
)
def test_no_attempt_can_tell_that_there_is_a_cache(
    tmp_path_factory: pytest.TempPathFactory, sequences: list[list[ToolCall]], memory_mb: int, share: float
) -> None:
    budgets = Budgets(memory_bytes=memory_mb << 20)
    rig = Rig(tmp_path_factory.mktemp("tree"), budgets=budgets, policy=CachePolicy(snapshot_share=share))
    for sequence in sequences:
        with rig.attempt() as attempt, World(seed=3) as world:
            attempt.start()
            for one in sequence:
                got, want = attempt.step(one).result, world.run(one)
                if one.name == "roll":  # the dice are not seeded: compare what does not depend on them
                    assert got.observation["text"].partition(";")[2] == want.observation["text"].partition(";")[2]
                else:
                    assert got.observation == want.observation
                assert (got.reward, got.terminated, got.truncated) == (want.reward, want.terminated, want.truncated)
                if got.terminated:
                    break
            if not want.terminated:
                assert attempt.live()._world.text() == world._world.text()
    payments = sum(one.name == "pay" for s in sequences for one in _until_over(s))
    assert len(rig.host.paid) == payments, "an outside effect was repeated or lost"
    rig.close()
    assert rig.host.open == 0


def _until_over(sequence: list[ToolCall]) -> list[ToolCall]:
    with World(seed=3) as world:
        for i, one in enumerate(sequence):
            if world.run(one).terminated:
                return sequence[: i + 1]
    return sequence


def test_a_fork_of_an_attempt_stands_where_it_stands(rig: Rig) -> None:
    with rig.attempt() as attempt:
        attempt.start()
        attempt.step(call("write", text="a"))
        with attempt.fork() as twin:
            assert not twin.has_live
            assert "['a', 'twin']" in twin.step(call("write", text="twin")).result.observation["text"]
        assert "['a', 'first']" in attempt.step(call("write", text="first")).result.observation["text"]
        attempt.step(call("roll"))
        with attempt.fork() as twin:
            assert twin.has_live, "off the tree only a real fork has the state"
            assert twin.step(call("look")).source == "off_tree"


def test_an_attempt_that_is_over_or_closed_says_so(rig: Rig) -> None:
    attempt = rig.attempt()
    with pytest.raises(ClosedError):
        attempt.step(call("look"))
    attempt.start()
    with pytest.raises(ClosedError):
        attempt.start()
    for one in solution():
        attempt.step(one)
    with pytest.raises(UsageError, match="over"):
        attempt.step(call("look"))
    attempt.close()
    attempt.close()
    with pytest.raises(ClosedError):
        attempt.step(call("look"))


@pytest.mark.parametrize("policy", [{"audit": 1.5}, {"reuse_stochastic": -0.1}, {"fresh_every": -1}])
def test_policies_are_checked(policy: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=next(iter(policy))):
        CachePolicy(**policy)


def test_tools_are_counted(rig: Rig) -> None:
    rig.walk(call("move", step=1))
    rig.walk(call("move", step=1))
    rows = {row.name: row for row in rig.tree.ledger.tools()}
    assert (rows["move"].runs, rows["move"].hits) == (1, 1)
    assert (rows[RESET].runs, rows[RESET].hits) == (1, 1)
    assert rows["move"].run_ns >= 20_000_000
    rates = rig.tree.ledger.rates()
    assert sum(rate.hits for rate in rates) == 2
    assert sum(rate.misses for rate in rates) == 2
    assert sum(rate.saved_ns for rate in rates) >= 20_000_000
