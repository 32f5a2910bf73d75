# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import threading

import pytest

from bunshin_gym.errors import ClosedError, WorkspaceDied
from bunshin_gym.testing import FAKE_TOOLS, FakeHost, FakeWorkspace
from bunshin_gym.types import ToolCall


def _call(name: str, **args: object) -> ToolCall:
    return ToolCall(name=name, args=args)


@pytest.mark.parametrize("seed", range(8))
def test_the_solution_solves(seed: int) -> None:
    with FakeWorkspace(seed=seed) as world:
        results = [world.run(call) for call in world.solution()]
        assert [result.terminated for result in results] == [False] * (len(results) - 1) + [True]
        assert sum(result.reward for result in results) == 1.0


def test_equal_seeds_make_equal_worlds_with_other_dice() -> None:
    host = FakeHost()
    left, right = FakeWorkspace(seed=3, host=host), FakeWorkspace(seed=3, host=host)
    assert left.run(_call("look")).observation == right.run(_call("look")).observation
    rolls = [[w.run(_call("roll", sides=1 << 20)).observation["text"] for _ in range(3)] for w in (left, right)]
    assert rolls[0] != rolls[1]


def test_a_fork_has_state_and_dice_and_goes_its_own_way() -> None:
    source = FakeWorkspace(seed=1)
    source.run(_call("write", text="before"))
    branch = source.fork()
    roll = _call("roll", sides=1 << 20)
    assert source.run(roll).observation == branch.run(roll).observation
    branch.run(_call("write", text="only here"))
    assert "only here" not in source.run(_call("look")).observation["text"]
    branch.close()
    branch.close()
    assert source.run(_call("look")).observation["last_action_error"] == ""
    with pytest.raises(ClosedError):
        branch.run(_call("look"))
    assert (source.host.open, source.host.forks, source.host.boots) == (1, 1, 1)


def test_paying_is_outside_and_is_never_undone() -> None:
    source = FakeWorkspace()
    branch = source.fork()
    branch.run(_call("pay", amount=5))
    branch.close()
    source.run(_call("pay", amount=7))
    assert source.host.paid == [5, 7]


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (_call("fly"), "unknown tool"),
        (_call("move"), "missing"),
        (_call("move", step=3), "step is -1 or 1"),
        (_call("take", thing="moon"), "no moon here"),
        (_call("wait", ms=-1), "negative"),
        (_call("roll", sides=0), "below 1"),
    ],
)
def test_errors_are_observations(call: ToolCall, says: str) -> None:
    result = FakeWorkspace().run(call)
    assert says in result.observation["last_action_error"]
    assert not result.terminated


def test_death_and_failing_forks_raise() -> None:
    host = FakeHost(fail_forks=1)
    world = FakeWorkspace(host=host)
    with pytest.raises(WorkspaceDied, match="told to fail"):
        world.fork()
    world.fork().close()
    with pytest.raises(WorkspaceDied):
        world.run(_call("die"))
    with pytest.raises(WorkspaceDied):
        world.run(_call("look"))


def test_costs_and_budget() -> None:
    host = FakeHost(boot_ns=0, fork_ns=0)
    world = FakeWorkspace(host=host, steps_max=2)
    assert world.run(_call("wait", ms=30)).info["cost_ns"] == host.clock_ns == 30_000_000
    assert world.run(_call("look")).truncated
    assert host.total_runs == 2


def test_counters_are_exact_under_threads() -> None:
    host = FakeHost()
    source = FakeWorkspace(host=host)

    def work() -> None:
        for _ in range(50):
            with source.fork() as branch:
                branch.run(_call("pay", amount=1))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (host.forks, host.open, len(host.paid), host.runs) == (200, 1, 200, {"pay": 200})


def test_every_effect_is_there() -> None:
    assert set(FAKE_TOOLS.values()) == {"deterministic", "stochastic", "external"}
