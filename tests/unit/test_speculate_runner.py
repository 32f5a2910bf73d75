# SPDX-License-Identifier: Apache-2.0
"""The runner over fake workspaces: equal results with and without guesses, and no branch left."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Self

import pytest

from bunshin_gym.errors import ClosedError, UsageError, WorkspaceDied
from bunshin_gym.speculate.costs import CostModel
from bunshin_gym.speculate.governor import Budget, Governor
from bunshin_gym.speculate.policy import Policy
from bunshin_gym.speculate.runner import SpeculativeRunner
from bunshin_gym.speculate.state import Attempt, Prediction, State, call_key
from bunshin_gym.testing import FAKE_TOOLS, FakeHost, FakeWorkspace
from bunshin_gym.types import ToolCall, ToolEffect, ToolResult

WAIT_S = 20.0


class Gates:
    """Holds fork and run of fake branches at will, and tells how far they are."""

    def __init__(self) -> None:
        self.fork, self.run = threading.Event(), threading.Event()
        self.forking, self.running, self.ran = threading.Semaphore(0), threading.Semaphore(0), threading.Semaphore(0)
        self.log: list[str] = []
        self.fail: Exception | None = None
        self.left = False
        self.open()

    def open(self) -> None:
        self.fork.set()
        self.run.set()


class GatedHost(FakeHost):
    gates: Gates


class GatedWorkspace(FakeWorkspace):
    """A fake whose branches stop at gates; calls in a workspace that was not forked do not."""

    host: GatedHost
    branch = False
    aborted: threading.Event

    def fork(self) -> Self:
        self.host.gates.forking.release()
        assert self.host.gates.fork.wait(WAIT_S)
        twin = super().fork()
        twin.branch, twin.aborted = True, threading.Event()
        return twin

    def run(self, call: ToolCall) -> ToolResult:
        gates = self.host.gates
        if not self.branch:
            return super().run(call)
        gates.running.release()
        assert gates.run.wait(WAIT_S)
        if gates.fail is not None:
            raise gates.fail
        if self.aborted.is_set():
            raise WorkspaceDied("aborted")
        result = super().run(call)
        gates.ran.release()
        return result


class ConfinableWorkspace(GatedWorkspace):
    def confine(self) -> None:
        self.host.gates.log.append("confine")

    def hurry(self) -> None:
        self.host.gates.log.append("hurry")

    def unconfine(self) -> None:
        self.host.gates.log.append("unconfine")

    def tried_to_leave(self) -> bool:
        return self.host.gates.left

    def abort(self) -> None:
        self.host.gates.log.append("abort")
        self.aborted.set()
        self.host.gates.run.set()


class Oracle:
    """Predicts what it is told, by the number of calls made so far."""

    def __init__(self, *plans: Sequence[ToolCall], probability: float = 0.9) -> None:
        self.plans, self.probability = plans, probability
        self.learnt: list[Attempt] = []

    def predict(self, state: State, *, k: int = 3) -> list[Prediction]:
        place = len(state.steps)
        if place >= len(self.plans):
            return []
        return [Prediction(call=call, probability=self.probability) for call in self.plans[place][:k]]

    def learn(self, attempt: Attempt) -> None:
        self.learnt.append(attempt)


def effect(call: ToolCall) -> ToolEffect:
    return FAKE_TOOLS.get(call.name, "deterministic")


def wait_call(ms: int) -> ToolCall:
    return ToolCall(name="wait", args={"ms": ms})


MOVE = ToolCall(name="move", args={"step": 1})
LOOK = ToolCall(name="look")
WRITE = ToolCall(name="write", args={"text": "a"})


@pytest.fixture
def host() -> GatedHost:
    host = GatedHost(boot_ns=0, fork_ns=0)
    host.gates = Gates()
    return host


@pytest.fixture
def governor() -> Iterator[Governor]:
    policy = Policy(chain=3, limit_floor_ns=int(WAIT_S * 1e9))
    governor = Governor(
        budget=Budget(branches=6, running=6, cores=8), policy=policy, costs=CostModel(fork_ns=1_000_000)
    )
    yield governor
    assert governor.held == 0
    governor.close()


RunnerMaker = Callable[..., SpeculativeRunner[Any]]


@pytest.fixture
def make(host: GatedHost, governor: Governor) -> Iterator[RunnerMaker]:
    runners: list[SpeculativeRunner[Any]] = []

    def maker(oracle: Any, kind: type[FakeWorkspace] = GatedWorkspace, seed: int = 3) -> SpeculativeRunner[Any]:
        workspace = kind(seed=seed, host=host)
        runners.append(SpeculativeRunner(workspace, oracle, effect=effect, task="fake", governor=governor))
        return runners[-1]

    yield maker
    host.gates.open()
    for runner in runners:
        runner.close()
    assert host.open == 0


def plain(calls: Sequence[ToolCall], seed: int = 3) -> list[tuple[Any, float, bool]]:
    with FakeWorkspace(seed=seed) as workspace:
        results = [workspace.run(call) for call in calls]
    return [(result.observation, result.reward, result.terminated) for result in results]


def seen(results: Sequence[ToolResult]) -> list[tuple[Any, float, bool]]:
    return [(result.observation, result.reward, result.terminated) for result in results]


def acquire(semaphore: threading.Semaphore) -> None:
    assert semaphore.acquire(timeout=WAIT_S)


def settle(runner: SpeculativeRunner[Any], phase: str, guesses: int = 1) -> None:
    """Waits until every guess of the round is in that phase, and there are so many."""
    with runner._changed:
        assert runner._changed.wait_for(
            lambda: len(runner._alive) >= guesses and all(guess.phase == phase for guess in runner._alive),
            timeout=WAIT_S,
        )


def test_right_guess_is_adopted(make: RunnerMaker, host: GatedHost) -> None:
    runner = make(Oracle([MOVE]))
    first = runner.workspace
    settle(runner, "done")
    result = runner.run(MOVE)
    assert result.info["speculation"] == "hit"
    assert seen([result]) == plain([MOVE])
    assert runner.workspace is not first
    assert host.runs == {"move": 1}
    runner.close()
    assert first.closed
    assert (runner.stats.hits, runner.stats.misses, runner.stats.failed) == (1, 0, 0)


def test_wrong_guess_is_never_seen(make: RunnerMaker, host: GatedHost) -> None:
    runner = make(Oracle([WRITE, LOOK], []))
    settle(runner, "done", guesses=2)
    results = [runner.run(MOVE), runner.run(LOOK)]
    assert [result.info["speculation"] for result in results] == ["miss", "none"]
    assert seen(results) == plain([MOVE, LOOK])
    runner.close()
    assert runner.stats.guesses == 2
    assert host.open == 0


def test_call_before_the_fork_cancels_it(make: RunnerMaker, host: GatedHost, governor: Governor) -> None:
    """Every worker is busy when the agent's call comes: the guess never forks."""
    busy = threading.Event()
    for _ in range(2 * governor.budget.branches + 4):
        governor.spawn(busy.wait, WAIT_S)
    runner = make(Oracle([MOVE]))
    result = runner.run(MOVE)
    busy.set()
    assert result.info["speculation"] == "none"
    assert seen([result]) == plain([MOVE])
    runner.close()
    assert host.forks == 0


def test_call_during_the_fork_waits_for_it_and_runs_itself(make: RunnerMaker, host: GatedHost) -> None:
    host.gates.fork.clear()
    runner = make(Oracle([MOVE]))
    acquire(host.gates.forking)
    results: list[ToolResult] = []
    thread = threading.Thread(target=lambda: results.append(runner.run(MOVE)))
    thread.start()
    with runner._changed:
        assert runner._changed.wait_for(lambda: runner._round is None, timeout=WAIT_S)
    host.gates.fork.set()
    thread.join(WAIT_S)
    assert seen(results) == plain([MOVE])
    assert host.runs == {"move": 1}
    assert runner.stats.delayed_ns > 0


def test_call_during_the_run_waits_for_the_branch(make: RunnerMaker, host: GatedHost) -> None:
    host.gates.run.clear()
    runner = make(Oracle([MOVE]), ConfinableWorkspace)
    acquire(host.gates.running)
    results: list[ToolResult] = []
    thread = threading.Thread(target=lambda: results.append(runner.run(MOVE)))
    thread.start()
    with runner._changed:
        assert runner._changed.wait_for(lambda: runner._round is None, timeout=WAIT_S)
    host.gates.run.set()
    thread.join(WAIT_S)
    assert results[0].info["speculation"] == "hit"
    assert seen(results) == plain([MOVE])
    assert host.runs == {"move": 1}
    assert host.gates.log == ["confine", "hurry", "unconfine"]


def test_wrong_guess_in_mid_run_is_aborted(make: RunnerMaker, host: GatedHost) -> None:
    host.gates.run.clear()
    runner = make(Oracle([MOVE], []), ConfinableWorkspace)
    acquire(host.gates.running)
    result = runner.run(LOOK)
    assert result.info["speculation"] == "miss"
    runner.close()
    assert host.gates.log == ["confine", "abort"]
    assert host.runs == {"look": 1}
    assert host.open == 0


@pytest.mark.parametrize("error", [WorkspaceDied("told to"), RuntimeError("a bug"), TimeoutError("late")])
def test_failed_guess_is_discarded_and_the_call_runs(
    make: RunnerMaker, host: GatedHost, governor: Governor, error: Exception
) -> None:
    host.gates.fail = error
    runner = make(Oracle([MOVE]))
    with runner._changed:
        assert runner._changed.wait_for(lambda: runner.stats.failed, timeout=WAIT_S)
    result = runner.run(MOVE)
    assert result.info["speculation"] == "miss"
    assert seen([result]) == plain([MOVE])
    assert host.open == 1


class SnapshotWorkspace(GatedWorkspace):
    """A fake whose forks come in two parts; the second stops at the fork's gate."""

    def snapshot(self) -> Any:
        frozen = FakeWorkspace.fork(self)
        gates = self.host.gates

        class Snapshot:
            def branch(self) -> Any:
                gates.forking.release()
                assert gates.fork.wait(WAIT_S)
                twin = FakeWorkspace.fork(frozen)
                twin.branch, twin.aborted = True, threading.Event()
                return twin

            def close(self) -> None:
                gates.log.append("snapshot closed")
                frozen.close()

        gates.log.append("snapshot")
        return Snapshot()


def test_guesses_of_one_state_share_a_snapshot_and_calls_do_not_wait_for_branches(
    make: RunnerMaker, host: GatedHost
) -> None:
    host.gates.fork.clear()
    runner = make(Oracle([MOVE, WRITE], []), SnapshotWorkspace)
    acquire(host.gates.forking)
    acquire(host.gates.forking)
    result = runner.run(LOOK)  # while both branches are still being made
    assert seen([result]) == plain([LOOK])
    host.gates.fork.set()
    runner.close()
    assert host.gates.log == ["snapshot", "snapshot closed"]
    assert host.open == 0


def test_a_snapshot_that_served_is_closed_when_its_guess_is_adopted(make: RunnerMaker, host: GatedHost) -> None:
    runner = make(Oracle([MOVE], []), SnapshotWorkspace)
    settle(runner, "done")
    assert runner.run(MOVE).info["speculation"] == "hit"
    runner.close()
    assert host.gates.log == ["snapshot", "snapshot closed"]
    assert host.open == 0


def test_failing_fork_leaves_the_attempt_alone(make: RunnerMaker, host: GatedHost) -> None:
    host.fail_forks = 1
    runner = make(Oracle([MOVE]))
    with runner._changed:
        assert runner._changed.wait_for(lambda: runner.stats.failed, timeout=WAIT_S)
    assert seen([runner.run(MOVE)]) == plain([MOVE])


def test_guess_that_tries_to_leave_is_discarded(make: RunnerMaker, host: GatedHost) -> None:
    host.gates.left = True
    runner = make(Oracle([MOVE]), ConfinableWorkspace)
    with runner._changed:
        assert runner._changed.wait_for(lambda: runner.stats.failed, timeout=WAIT_S)
    result = runner.run(MOVE)
    assert result.info["speculation"] == "miss"
    assert host.gates.log == ["confine"]


def test_guess_that_runs_too_long_is_given_up(host: GatedHost) -> None:
    policy = Policy(limit_factor=1.0, limit_floor_ns=50_000_000)
    governor = Governor(policy=policy, costs=CostModel(run_ns=50_000_000, fork_ns=1_000_000))
    host.gates.run.clear()
    runner = SpeculativeRunner(ConfinableWorkspace(seed=3, host=host), Oracle([MOVE]), effect=effect, governor=governor)
    acquire(host.gates.running)
    result = runner.run(MOVE)
    assert result.info["speculation"] == "miss"
    assert seen([result]) == plain([MOVE])
    runner.close()
    assert runner.stats.failed == 1
    assert host.open == 0
    governor.close()


def test_external_calls_are_never_guessed(make: RunnerMaker, host: GatedHost) -> None:
    pay = ToolCall(name="pay", args={"amount": 5})
    runner = make(Oracle([pay, MOVE], [pay]))
    settle(runner, "done")
    assert host.paid == []
    assert runner.run(pay).info["speculation"] == "miss"
    assert host.paid == [5]


def test_a_chain_answers_calls_in_a_row(make: RunnerMaker, host: GatedHost) -> None:
    calls = [MOVE, WRITE, LOOK]
    runner = make(Oracle(*[[call] for call in calls]))
    for _ in calls:
        acquire(host.gates.ran)
    results = [runner.run(call) for call in calls]
    assert [result.info["speculation"] for result in results] == ["hit"] * 3
    assert seen(results) == plain(calls)
    assert host.runs == {"move": 1, "write": 1, "look": 1}


def test_a_chain_broken_at_its_second_call(make: RunnerMaker, host: GatedHost) -> None:
    runner = make(Oracle([MOVE], [WRITE], []))
    acquire(host.gates.ran)
    acquire(host.gates.ran)
    results = [runner.run(MOVE), runner.run(LOOK)]
    assert [result.info["speculation"] for result in results] == ["hit", "miss"]
    assert seen(results) == plain([MOVE, LOOK])


def test_close_at_every_stage_leaves_nothing(host: GatedHost, governor: Governor) -> None:
    for gate, reached in ((host.gates.fork, host.gates.forking), (host.gates.run, host.gates.running)):
        gate.clear()
        runner = SpeculativeRunner(GatedWorkspace(seed=3, host=host), Oracle([MOVE]), effect=effect, governor=governor)
        acquire(reached)
        closing = threading.Thread(target=runner.close)
        closing.start()
        with runner._changed:
            assert runner._changed.wait_for(
                lambda runner=runner: all(guess.phase == "discarded" for guess in runner._alive), timeout=WAIT_S
            )
        gate.set()
        closing.join(WAIT_S)
        assert host.open == 0
        runner.close()
        with pytest.raises(ClosedError):
            runner.run(MOVE)


def test_a_workspace_that_dies_takes_its_guesses_with_it(make: RunnerMaker, host: GatedHost) -> None:
    die = ToolCall(name="die")
    runner = make(Oracle([MOVE], [MOVE]))
    settle(runner, "done")
    with pytest.raises(WorkspaceDied):
        runner.run(die)
    with pytest.raises(WorkspaceDied):
        runner.run(MOVE)
    runner.close()
    assert host.open == 0


def test_a_guess_that_dies_is_not_the_attempts_death(make: RunnerMaker, host: GatedHost) -> None:
    runner = make(Oracle([ToolCall(name="die")]))
    with runner._changed:
        assert runner._changed.wait_for(lambda: runner.stats.failed, timeout=WAIT_S)
    assert seen([runner.run(LOOK)]) == plain([LOOK])


def test_bad_arguments_change_nothing(make: RunnerMaker, host: GatedHost) -> None:
    runner = make(Oracle([MOVE]))
    settle(runner, "done")
    with pytest.raises(UsageError):
        runner.run(ToolCall(name="move", args={"step": float("nan")}))
    assert runner.run(MOVE).info["speculation"] == "hit"


def test_a_fork_goes_its_own_way(make: RunnerMaker, host: GatedHost) -> None:
    runner = make(Oracle([MOVE], [WRITE], []))
    runner.run(MOVE)
    with runner.fork() as twin:
        assert [call_key(step.call) for step in twin.state.steps] == [call_key(MOVE)]
        mine, its = runner.run(WRITE), twin.run(LOOK)
    assert seen([mine]) == plain([MOVE, WRITE])[1:]
    assert seen([its]) == plain([MOVE, LOOK])[1:]


def test_from_an_event_loop(make: RunnerMaker) -> None:
    runners = [make(Oracle([MOVE], [WRITE])) for _ in range(4)]

    async def drive(runner: SpeculativeRunner[Any]) -> list[ToolResult]:
        return [await runner.run_async(MOVE), await runner.run_async(WRITE)]

    async def drive_all() -> list[list[ToolResult]]:
        return await asyncio.gather(*(drive(runner) for runner in runners))

    for results in asyncio.run(drive_all()):
        assert seen(results) == plain([MOVE, WRITE])


def test_learns_from_what_was_done(make: RunnerMaker, governor: Governor) -> None:
    oracle = Oracle([MOVE])
    runner = make(oracle)
    runner.run(MOVE)
    runner.run(LOOK)
    runner.close()
    governor.spawn(lambda: None).result(WAIT_S)
    governor._workers.shutdown(wait=True)
    (attempt,) = oracle.learnt
    assert [step.call for step in attempt.steps] == [MOVE, LOOK]


def test_branches_do_not_teach_the_same_steps_again(make: RunnerMaker, governor: Governor) -> None:
    oracle = Oracle()
    runner = make(oracle)
    runner.run(MOVE)
    idle, busy = runner.fork(), runner.fork()
    busy.run(LOOK)
    for each in (idle, busy, runner):
        each.close()
    governor._workers.shutdown(wait=True)
    taught = sorted([step[1].name for step in attempt.states()] for attempt in oracle.learnt)
    assert taught == [["look"], ["move"]]


@pytest.mark.parametrize("seed", range(6))
def test_random_attempts_are_equal_with_and_without(host: GatedHost, governor: Governor, seed: int) -> None:
    """Eight attempts at once, half of the guesses right, real calls at any moment."""
    import random

    class Coin(Oracle):
        def predict(self, state: State, *, k: int = 3) -> list[Prediction]:
            place = len(state.steps)
            calls = [choices.choice(options), script[min(place, len(script) - 1)], choices.choice(options)]
            return [Prediction(call=call, probability=0.5) for call in calls[:k]]

    choices = random.Random(seed)
    options = [MOVE, LOOK, WRITE, wait_call(1), ToolCall(name="move", args={"step": -1}), ToolCall(name="die")]
    script = [choices.choice(options[:-1]) for _ in range(12)]
    host.real_time = True
    host.fork_ns = 2_000_000
    results: dict[int, list[ToolResult]] = {}

    def attempt(number: int) -> None:
        pace = random.Random(number)
        with SpeculativeRunner(
            GatedWorkspace(seed=seed, host=host), Coin(), effect=effect, task="coin", governor=governor
        ) as runner:
            pause = threading.Event()
            answers = []
            for call in script:
                pause.wait(pace.choice([0.0, 0.002, 0.01]))
                answers.append(runner.run(call))
            results[number] = answers

    threads = [threading.Thread(target=attempt, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    expected = plain(script, seed)
    assert len(results) == 8
    assert all(seen(answers) == expected for answers in results.values())
    assert host.open == 0
