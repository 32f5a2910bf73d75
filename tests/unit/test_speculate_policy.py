# SPDX-License-Identifier: Apache-2.0
"""When a guess pays, whose comes first, and what all may take together."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from bunshin_gym.errors import UsageError
from bunshin_gym.speculate.costs import CostModel
from bunshin_gym.speculate.governor import Budget, Governor, default_governor
from bunshin_gym.speculate.policy import Load, Policy, Reliability
from bunshin_gym.types import ToolCall

MS = 1_000_000
CALL = ToolCall(name="open", args={"what": "page"})
IDLE = Load(cores=4)
BUSY = Load(cores=2, real_calls=2, guesses=2)


def costs(*, run_ms: int, think_ms: int, fork_ms: int = 50) -> CostModel:
    model = CostModel(fork_ns=fork_ms * MS)
    for _ in range(20):
        model.record_run("t", CALL, run_ms * MS)
        model.record_think("t", think_ms * MS)
    return model


def gain(model: CostModel, probability: float, *, elapsed_ms: int = 0, load: Load = IDLE) -> float:
    return Policy().gain_ns(model, "t", CALL, probability, elapsed_ns=elapsed_ms * MS, load=load) / MS


def test_long_calls_during_long_thoughts_pay() -> None:
    model = costs(run_ms=800, think_ms=3000)
    assert gain(model, 0.9) == pytest.approx(0.9 * 800, rel=0.1)
    assert gain(model, 0.9) > gain(model, 0.5) > gain(model, 0.2) > 0


def test_short_calls_short_thoughts_and_late_starts_do_not() -> None:
    assert gain(costs(run_ms=2, think_ms=3000), 0.9) < 5
    assert gain(costs(run_ms=800, think_ms=30), 0.9) < 0
    assert gain(costs(run_ms=800, think_ms=3000), 0.9, elapsed_ms=2900) < gain(costs(run_ms=800, think_ms=3000), 0.9)
    assert gain(costs(run_ms=800, think_ms=3000), 0.9, elapsed_ms=3100) == float("-inf")


def test_cpu_has_a_price_when_no_core_is_idle() -> None:
    model = costs(run_ms=800, think_ms=3000)
    dear = Policy(price_busy=0.6)
    gains = [dear.gain_ns(model, "t", CALL, 0.3, elapsed_ns=0, load=load) for load in (IDLE, BUSY)]
    assert gains[0] > 0 > gains[1]
    assert gain(model, 0.3, load=BUSY) < gain(model, 0.3, load=IDLE)


def test_a_fork_takes_from_others_what_the_host_has_not_free() -> None:
    """Also while a core happens to be idle."""
    short, long = costs(run_ms=150, think_ms=3000, fork_ms=150), costs(run_ms=2000, think_ms=3000, fork_ms=150)
    for load in (Load(cores=2, usage=0.9), Load(cores=2, real_calls=2)):
        assert gain(short, 0.7, load=load) < 0 < gain(short, 0.7, load=Load(cores=2))
        assert gain(long, 0.7, load=load) > 0


def test_usage_is_what_real_calls_took_of_late() -> None:
    governor = Governor(budget=Budget(cores=1))
    assert governor.load().usage == 0.0
    with governor.real_call():
        first, second = governor.load().usage, governor.load().usage
        assert 0.0 < first < second < 1.0
    assert 0.0 < governor.load().usage < 1.0
    governor.close()


def test_costs_go_from_the_general_to_the_special() -> None:
    model = CostModel(run_ns=100 * MS)
    other = ToolCall(name="open", args={"what": "file"})
    assert model.run_ns("t", CALL) == 100 * MS
    for _ in range(30):
        model.record_run("t", CALL, 1000 * MS)
    assert model.run_ns("t", CALL) == pytest.approx(1000 * MS, rel=0.05)
    assert model.run_ns("t", other) == pytest.approx(1000 * MS, rel=0.1)
    for _ in range(30):
        model.record_run("t", other, 10 * MS)
    assert model.run_ns("t", other) < model.run_ns("t", CALL) / 5
    assert model.think_samples_ns("t") == (1_000_000_000,)
    assert model.attempt_ns("t") == 0


def test_belief_falls_with_misses_and_returns_with_hits() -> None:
    reliability = Reliability(memory=20)
    assert reliability.believe("t", 0.8) == 0.8
    for _ in range(40):
        reliability.score("t", 0.8, matched=False)
    assert reliability.believe("t", 0.8) < 0.15
    assert reliability.believe("new", 0.8) < 0.3
    for _ in range(80):
        reliability.score("t", 0.8, matched=True)
    assert reliability.believe("t", 0.8) > 0.7
    assert reliability.believe("t", 0.8) <= 0.8


@pytest.mark.parametrize(
    "make",
    [
        lambda: Policy(k=0),
        lambda: Policy(chain=0),
        lambda: Policy(probability_min=1.5),
        lambda: Policy(straggler=0.5),
        lambda: Budget(branches=-1),
    ],
)
def test_knobs_out_of_range(make: object) -> None:
    with pytest.raises(UsageError):
        make()  # type: ignore[operator]


class FakeTicket:
    def __init__(self, governor: Governor, gain_ns: float, memory_bytes: int = 1 << 20) -> None:
        self.governor, self.gain_ns, self.memory_bytes = governor, gain_ns, memory_bytes
        self.started, self.finish, self.discarded = threading.Event(), threading.Event(), threading.Event()

    def work(self) -> None:
        self.started.set()
        assert self.finish.wait(20)
        self.governor.ran(self)

    def discard(self, why: str) -> None:
        self.discarded.set()
        self.governor.give_back(self)


@pytest.fixture
def governor() -> Iterator[Governor]:
    governor = Governor(budget=Budget(branches=2, running=1, memory_bytes=2 << 20, cores=2))
    yield governor
    governor.close()


def test_the_most_promising_first(governor: Governor) -> None:
    first = FakeTicket(governor, 1.0)
    governor.offer(first)
    assert first.started.wait(20)
    poor, rich = FakeTicket(governor, 2.0), FakeTicket(governor, 3.0)
    governor.offer(poor)
    governor.offer(rich)
    assert not rich.started.is_set()
    first.finish.set()
    assert rich.started.wait(20)
    assert not poor.started.is_set()
    assert governor.held == 2
    rich.finish.set()
    assert governor.withdraw(poor)
    assert not governor.withdraw(poor)
    first.discard("")
    rich.discard("")
    assert governor.held == 0


def test_a_much_better_guess_takes_an_idle_ones_place(governor: Governor) -> None:
    held = [FakeTicket(governor, gain) for gain in (1.0, 5.0)]
    for ticket in held:
        governor.offer(ticket)
        assert ticket.started.wait(20)
        ticket.finish.set()
    equal, better = FakeTicket(governor, 1.5), FakeTicket(governor, 2.5)
    for ticket in (equal, better):
        ticket.finish.set()
    governor.spawn(lambda: None).result(20)
    governor.offer(equal)
    assert not equal.started.is_set()
    governor.offer(better)
    assert held[0].discarded.wait(20)
    assert better.started.wait(20)
    assert not held[1].discarded.is_set()


def test_memory_is_never_exceeded(governor: Governor) -> None:
    large = FakeTicket(governor, 9.0, memory_bytes=3 << 20)
    governor.offer(large)
    assert not large.started.is_set()
    assert governor.held_bytes == 0
    governor.withdraw(large)
    small = FakeTicket(governor, 1.0)
    governor.offer(small)
    assert small.started.wait(20)
    small.finish.set()


def test_real_calls_have_the_cores_first(governor: Governor) -> None:
    ticket = FakeTicket(governor, 9.0)
    ticket.finish.set()
    with governor.real_call(), governor.real_call():
        governor.offer(ticket)
        assert governor.held == 0
    assert ticket.started.wait(20)


def test_a_bad_hour_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0]
    monkeypatch.setattr(time, "monotonic_ns", lambda: now[0])
    model = CostModel(fork_ns=100 * MS)
    for _ in range(5):
        model.record_fork(9_000 * MS)
    assert model.fork_ns() == pytest.approx(9_000 * MS)
    now[0] += 120_000 * MS
    assert model.fork_ns() == pytest.approx(100 * MS, rel=0.5)
    model.record_fork(200 * MS)
    assert model.fork_ns() < 300 * MS


def test_no_budget_no_guess() -> None:
    governor = Governor(budget=Budget(branches=0))
    ticket = FakeTicket(governor, 9.0)
    governor.offer(ticket)
    assert governor.held == 0
    governor.close()
    assert not ticket.started.is_set()


def test_attempts_that_hold_the_batch_up_weigh_more(governor: Governor) -> None:
    for _ in range(10):
        governor.costs.record_attempt("slow", 60_000 * MS)
        governor.costs.record_attempt("quick", 1_000 * MS)
    slow, quick = governor.enter("slow"), governor.enter("quick")
    assert governor.weight(slow) > 1.0 > governor.weight(quick)
    governor.leave(quick, finished=True)
    assert governor.weight(slow) == 1.0
    governor.leave(slow, finished=False)


def test_one_governor_for_a_process() -> None:
    assert default_governor() is default_governor()
