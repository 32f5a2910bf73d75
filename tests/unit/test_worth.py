# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bunshin_gym.cache.worth import UNREACHABLE_NS, Credit, Estimate, Use, demand, reach, worth_ns


def use(id_: int, parent: int | None, wall_ns: int, **changes: object) -> Use:
    base = {"replayable": True, "over": False, "visits": 2, "misses": 1, "heat": 2.0}
    return Use(id=id_, parent=parent, wall_ns=wall_ns, **{**base, **changes})  # type: ignore[arg-type]


CHAIN = [use(0, None, 1000), use(1, 0, 10), use(2, 1, 500), use(3, 2, 20)]


def test_reach_takes_the_cheapest_way() -> None:
    assert reach(CHAIN, {}) == {0: 1000, 1: 1010, 2: 1510, 3: 1530}
    assert reach(CHAIN, {2: 50}) == {0: 1000, 1: 1010, 2: 50, 3: 70}
    assert reach(CHAIN, {0: 50, 2: 5000}) == {0: 50, 1: 60, 2: 560, 3: 580}, "a slow snapshot is passed by"


def test_what_cannot_be_run_again_is_out_of_reach_without_a_snapshot() -> None:
    chain = [use(0, None, 1000), use(1, 0, 10, replayable=False), use(2, 1, 5)]
    assert reach(chain, {})[2] == UNREACHABLE_NS
    assert reach(chain, {1: 50})[2] == 55


def test_a_snapshot_is_worth_the_way_it_saves_at_each_node_below() -> None:
    each = demand(CHAIN[0])
    assert worth_ns(CHAIN, 2, 50, {}) == pytest.approx(each * (1460 + 1460))
    assert worth_ns(CHAIN, 2, 50, {1: 50}) == pytest.approx(each * 2 * 500)
    assert worth_ns(CHAIN, 2, 50, {2: 50}) == 0, "it is there already"
    assert worth_ns(CHAIN, 1, 50, {}) > worth_ns(CHAIN, 3, 50, {}), "more nodes stand on it"


def test_demand_grows_with_heat_and_leaves_and_ends_with_the_episode() -> None:
    assert demand(use(0, None, 1, heat=4.0)) > demand(use(0, None, 1, heat=1.0))
    assert demand(use(0, None, 1, misses=2)) > demand(use(0, None, 1, misses=0))
    assert demand(use(0, None, 1, over=True)) == 0


@given(
    st.lists(st.tuples(st.integers(0, 10**9), st.booleans()), min_size=1, max_size=12),
    st.data(),
    st.dictionaries(st.integers(0, 11), st.integers(0, 10**9), max_size=4),
)
def test_a_snapshot_never_makes_anything_slower(
    calls: list[tuple[int, bool]], data: st.DataObject, starts: dict[int, int]
) -> None:
    uses = []
    for i, (wall_ns, replayable) in enumerate(calls):
        parent = None if i == 0 else data.draw(st.integers(0, i - 1))
        uses.append(use(i, parent, wall_ns, replayable=replayable))
    node = data.draw(st.integers(0, len(uses) - 1))
    start_ns = data.draw(st.integers(0, 10**9))
    assert worth_ns(uses, node, start_ns, starts) >= 0
    costs = reach(uses, starts)
    assert all(costs[one.id] <= starts.get(one.id, UNREACHABLE_NS) for one in uses)


def test_an_estimate_follows_what_is_measured() -> None:
    estimate = Estimate(0.0)
    assert not estimate.measured
    estimate.add(100.0)
    assert estimate.value == 100.0
    for _ in range(30):
        estimate.add(200.0)
    assert estimate.value == pytest.approx(200.0, rel=0.01)


def test_credit_is_a_share_overdrawn_by_one_at_most() -> None:
    credit = Credit()
    assert credit.allows(0.05), "or the first snapshot could never be taken"
    assert not credit.allows(0.0)
    credit.spend(100)
    assert not credit.allows(0.05)
    credit.earn(1999)
    assert not credit.allows(0.05)
    credit.earn(1)
    assert credit.allows(0.05)
