# SPDX-License-Identifier: Apache-2.0
"""Tool calls and snapshots take turns."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from bunshin_gym.errors import UsageError
from bunshin_gym.gate import Gate

LONG_S = 20.0


def test_calls_pass_together() -> None:
    gate, meeting = Gate(), threading.Barrier(3)

    def call() -> None:
        with gate.passing():
            meeting.wait(LONG_S)

    with ThreadPoolExecutor(3) as pool:
        for done in [pool.submit(call) for _ in range(3)]:
            done.result(LONG_S)


def test_shut_waits_for_those_inside_and_holds_up_those_who_come() -> None:
    gate, order = Gate(), list[str]()
    inside, leave = threading.Event(), threading.Event()

    def first() -> None:
        with gate.passing():
            inside.set()
            assert leave.wait(LONG_S)
            order.append("first call")

    def snapshot() -> None:
        with gate.shut(LONG_S):
            order.append("snapshot")

    def second() -> None:
        with gate.passing():
            order.append("second call")

    with ThreadPoolExecutor(3) as pool:
        called = pool.submit(first)
        assert inside.wait(LONG_S)
        taken = pool.submit(snapshot)
        while not gate._wanted:
            assert not taken.done()
        late = pool.submit(second)
        leave.set()
        for done in (called, taken, late):
            done.result(LONG_S)
    assert order == ["first call", "snapshot", "second call"]


def test_shut_gives_up_and_says_why_and_the_gate_works_on() -> None:
    gate = Gate()
    with gate.passing(), pytest.raises(UsageError, match=r"1 tool call.*within 0.01 s"), gate.shut(0.01):
        raise AssertionError
    with gate.passing():
        pass
    with gate.shut(0.01):
        pass


def test_an_error_inside_opens_it_again() -> None:
    gate = Gate()
    with pytest.raises(ZeroDivisionError), gate.shut(0.01):
        _ = 1 / 0
    with pytest.raises(ZeroDivisionError), gate.passing():
        _ = 1 / 0
    with gate.shut(0.01):
        pass
