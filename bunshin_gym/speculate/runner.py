# SPDX-License-Identifier: Apache-2.0
"""Runs an attempt's calls, and likely next ones ahead of it while its agent thinks."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Generic, Self, TypeVar

from bunshin_gym.errors import ClosedError
from bunshin_gym.speculate.governor import Governor, default_governor
from bunshin_gym.speculate.guess import RAN_TOO_LONG, Guess, with_children
from bunshin_gym.speculate.protocols import Foreknowing, Predictor, Snapshotting
from bunshin_gym.speculate.round import Round
from bunshin_gym.speculate.runner_snapshot import RunnerSnapshot
from bunshin_gym.speculate.seat import Seat
from bunshin_gym.speculate.state import Attempt, Prediction, State, call_key, view_of
from bunshin_gym.speculate.stats import Outcome, Stats
from bunshin_gym.types import Forkable, ToolCall, ToolEffect, ToolResult

__all__ = ["SpeculativeRunner"]

F = TypeVar("F", bound=Forkable)


class SpeculativeRunner(Generic[F]):
    """Owns a workspace and runs calls in it, or in branches ahead of time.

    What an agent sees is the same as without it, but for the time: a guess is seen only if the agent
    makes just that call; others are closed unseen. External tools are never guessed.

    Every method may be called from any thread; calls of one attempt come one after the other.
    After one raised, `close` remains, and `run` if the workspace still can.

    Args:
        workspace: owned from now on, and closed by `close`.
        predictor: proposes calls; shared by attempts.
        effect: what running a call again means.
        task: what attempts that may resemble each other share.
        observation: the first one.
        instruction: what the task asks for, where observations do not say it.
        governor: the budget; that of the process if None.
        paused: no agent thinks yet: nothing is guessed until `resume`.
    """

    def __init__(
        self,
        workspace: F,
        predictor: Predictor,
        *,
        effect: Callable[[ToolCall], ToolEffect],
        task: str = "",
        observation: Any = None,
        instruction: str = "",
        governor: Governor | None = None,
        paused: bool = False,
    ) -> None:
        self._paused = paused
        self._predictor, self._effect = predictor, effect
        self._governor = governor if governor is not None else default_governor()
        self._seat: Seat[F] = Seat(workspace)
        self._calls = threading.Lock()
        self._changed = threading.Condition()
        self._alive: set[Guess[F]] = set()
        self._jobs = 0
        self._closed = False
        self._reward = 0.0
        self._over = False
        self._learnt = 0
        self.stats = Stats()
        self._state = State(task=task, view=view_of(observation, instruction=instruction))
        self._number = self._governor.enter(task)
        self._round: Round[F] | None = None
        self._begin_round([])

    @property
    def workspace(self) -> F:
        """The workspace that the last call ran in; another one after a hit."""
        return self._seat.workspace

    @property
    def state(self) -> State:
        """What the predictor knows of the attempt."""
        return self._state

    def run(self, call: ToolCall) -> ToolResult:
        """Runs a call, or adopts the branch that already did.

        Returns:
            The workspace's result; its info has `speculation`: "hit", "miss" or "none", and
            `saved_ns`: the time not waited.

        Raises:
            ClosedError: the runner was closed.
            UsageError: an argument is no JSON value; nothing was changed.
            Exception: what the workspace raises.
        """
        arrival_ns, key = time.monotonic_ns(), call_key(call)
        with self._calls:
            round_ = self._end_round(arrival_ns)
            think_ns = arrival_ns - round_.began_ns
            right = self._match(round_, key)
            if right is None or (result := self._adopt(right)) is None:
                outcome: Outcome = "miss" if any(guess.started for guess in round_.guesses) else "none"
                result, saved_ns, children = self._run_here(call, arrival_ns), 0, []
                run_ns = time.monotonic_ns() - arrival_ns
            else:
                outcome, run_ns, children = "hit", right.run_ns, right.children
                saved_ns = max(0, run_ns - (time.monotonic_ns() - arrival_ns))
            self.stats.count(outcome, saved_ns)
            self._reward += result.reward
            self._state = self._state.after(call, result, run_ns=run_ns, think_ns=think_ns)
            self._over = result.terminated or result.truncated
            self._begin_round(children)
        return replace(result, info={**result.info, "speculation": outcome, "saved_ns": saved_ns})

    def pause(self) -> None:
        """No agent thinks in this state: its guesses are given up, and no more are made until `resume`."""
        with self._calls:
            self._paused = True
            self._drop_round("nobody thinks")
            self._begin_round([])

    def resume(self) -> None:
        """An agent thinks again; guesses begin with the next state."""
        self._paused = False

    async def run_async(self, call: ToolCall) -> ToolResult:
        """As `run`, for drivers that must not block their event loop."""
        return await asyncio.to_thread(self.run, call)

    def snapshot(self) -> RunnerSnapshot[F]:
        """The attempt as it is now, to make branches of later; it guesses nothing itself.

        Raises:
            ClosedError: the runner was closed.
            Exception: what the workspace's snapshot, or fork, raises.
        """
        with self._calls:
            self._check_open()
            with self._seat.lock:
                workspace = self._seat.workspace
                held: Any = workspace.snapshot() if isinstance(workspace, Snapshotting) else None
                frozen = workspace.fork() if held is None else None
            state, reward, over = self._state, self._reward, self._over

        def make(branch: F, paused: bool) -> SpeculativeRunner[F]:
            return self._twin(branch, state, reward, over=over, paused=paused)

        return RunnerSnapshot(held, frozen, make)

    def fork(self) -> Self:
        """An attempt that goes its own way from here; guesses stay with this one.

        Raises:
            ClosedError: the runner was closed.
            Exception: what the workspace's fork raises.
        """
        with self._calls:
            self._check_open()
            with self._seat.lock:
                branch = self._seat.workspace.fork()
            return self._twin(branch, self._state, self._reward, over=self._over)

    def release(self) -> F:
        """Ends the attempt and hands its workspace over, open; every branch is closed.

        The predictor learns from the attempt. Idempotent; `run` and `fork` raise from now on.
        """
        with self._calls:
            if not self._closed:
                self._drop_round("the attempt is over")
                with self._changed:
                    self._closed = True
                self._settle()
                self._governor.leave(self._number, finished=self._over)
                self._learn()
                with self._seat.lock:
                    left = self._seat.moves_on()
                if left is not None:
                    left()
            return self._seat.workspace

    def close(self) -> None:
        """Ends the attempt, its workspace and every branch; idempotent.

        Raises what closing the workspace raises, after everything else is closed.
        """
        self.release().close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("the speculative runner was closed")

    def _twin(self, branch: F, state: State, reward: float, *, over: bool, paused: bool = False) -> Self:
        twin = type(self)(
            branch, self._predictor, effect=self._effect, task=state.task, governor=self._governor, paused=True
        )
        twin._take_over(state, reward, over=over, paused=paused)
        return twin

    def _take_over(self, state: State, reward: float, *, over: bool, paused: bool) -> None:
        """Takes over where another attempt stands."""
        self._drop_round("another state")
        self._paused = paused
        self._state, self._reward, self._over = state, reward, over
        self._learnt = len(state.steps)
        self._begin_round([])

    def _settle(self) -> None:
        """Waits until no branch of this attempt is left and no job touches it."""
        for guess in self._alive.copy():
            guess.let_end()
        with self._changed:
            self._changed.wait_for(lambda: not self._alive and not self._jobs)

    def _learn(self) -> None:
        steps = self._state.steps
        if len(steps) > self._learnt:
            attempt = Attempt(task=self._state.task, steps=steps, reward=self._reward, learnt=self._learnt)
            self._governor.spawn(self._predictor.learn, attempt)

    def _begin_round(self, guesses: list[Guess[F]]) -> None:
        """The agent thinks from now on; guesses are made in a worker thread."""
        if self._over:
            for guess in guesses:
                guess.discard("the attempt is over")
            guesses = []
        round_ = Round(self._state, self._seat, time.monotonic_ns(), guesses)
        with self._changed:
            self._round = round_
        if not self._over:
            self._spawn(self._plan, round_)

    def _end_round(self, arrival_ns: int) -> Round[F]:
        """The agent's call is there: nothing is guessed in this state any more."""
        self._check_open()
        with self._changed:
            round_, self._round = self._round, None
        if round_ is None:  # the call before raised
            round_ = Round(self._state, self._seat, arrival_ns, [])
        elif self._state.steps:
            self._governor.costs.record_think(self._state.task, arrival_ns - round_.began_ns)
        return round_

    def _drop_round(self, why: str) -> None:
        with self._changed:
            round_, self._round = self._round, None
            guesses = list(self._alive)
        if round_ is not None:
            guesses += round_.guesses
        for guess in guesses:
            guess.discard(why)

    def _plan(self, round_: Round[F]) -> None:
        """Predicts in the round's state and offers what pays."""
        if self._paused:
            return
        round_.predictions = self._predictor.predict(round_.state, k=self._governor.policy.k)
        self._offer(round_, round_.seat, round_.state, round_.predictions, chance=1.0, parent=None)

    def _plan_ahead(self, round_: Round[F], parent: Guess[F]) -> None:
        """The same one call further, in a branch that has run its guess."""
        if parent.result is None or parent.seat is None or parent.result.terminated or parent.result.truncated:
            return
        state = parent.state.after(parent.call, parent.result, run_ns=parent.run_ns)
        predictions = self._predictor.predict(state, k=self._governor.policy.k)
        self._offer(round_, parent.seat, state, predictions, chance=parent.probability, parent=parent)

    def _offer(
        self,
        round_: Round[F],
        seat: Seat[F],
        state: State,
        predictions: Sequence[Prediction],
        *,
        chance: float,
        parent: Guess[F] | None,
    ) -> None:
        elapsed_ns = time.monotonic_ns() - round_.began_ns
        known = {call_key(guess.call) for guess in round_.guesses} if parent is None else set()
        for prediction in predictions:
            if call_key(prediction.call) in known:
                continue
            call, believed = prediction.call, chance * prediction.probability
            stored = isinstance(seat.workspace, Foreknowing) and seat.workspace.known(call)
            if stored or self._effect(call) == "external":
                continue
            gain_ns = self._governor.gain_ns(self._number, state.task, call, believed, elapsed_ns)
            if gain_ns < self._governor.policy.gain_min_ns:
                continue
            guess = Guess(
                governor=self._governor,
                changed=self._changed,
                source=seat,
                state=state,
                prediction=prediction,
                gain_ns=gain_ns,
                depth=1 if parent is None else parent.depth + 1,
                on_done=self._guess_done,
                on_gone=self._guess_gone,
            )
            if self._enlist(round_, guess, parent):
                self._governor.offer(guess)

    def _enlist(self, round_: Round[F], guess: Guess[F], parent: Guess[F] | None) -> bool:
        """Adds the guess to its round, unless the agent's call came meanwhile."""
        with self._changed:
            current = self._round is round_ or (parent is not None and parent in self._guesses())
            if not current or self._closed or (parent is not None and parent.phase != "done"):
                return False
            (round_.guesses if parent is None else parent.children).append(guess)
            self._alive.add(guess)
            return True

    def _guesses(self) -> list[Guess[F]]:
        """Every guess of the round, those further ahead included; with the condition held."""
        return with_children(self._round.guesses) if self._round is not None else []

    def _guess_done(self, guess: Guess[F]) -> None:
        with self._changed:
            round_ = self._round
            wanted = guess in self._guesses()
        if round_ is not None and wanted and guess.depth < self._governor.policy.chain:
            self._spawn(self._plan_ahead, round_, guess)

    def _guess_gone(self, guess: Guess[F]) -> None:
        with self._changed:
            self._alive.discard(guess)
            self.stats.guesses += guess.started
            self.stats.failed += guess.phase == "failed" or guess.why == RAN_TOO_LONG
            if guess.phase != "adopted":
                self.stats.wasted_ns += guess.run_ns
            self._changed.notify_all()

    def _match(self, round_: Round[F], key: str) -> Guess[F] | None:
        """Finds the guess of this call; all others are discarded."""
        for prediction in round_.predictions:
            matched = call_key(prediction.call) == key
            self._governor.reliability.score(round_.state.task, prediction.probability, matched=matched)
        right = None
        for guess in round_.guesses:
            if call_key(guess.call) == key and guess.phase in ("running", "done"):
                right = guess
            else:
                guess.discard("the agent made another call")
        return right

    def _adopt(self, guess: Guess[F]) -> ToolResult | None:
        """Waits for the guess and puts its branch in the workspace's place; None if it failed."""
        seat = guess.adopt() if guess.wait() else None
        if seat is None or guess.result is None:
            guess.discard("it came to nothing")
            return None
        old, self._seat = self._seat, seat
        self._spawn(self._replace, old, guess)
        return guess.result

    @staticmethod
    def _replace(old: Seat[F], guess: Guess[F]) -> None:
        try:
            old.close()
        finally:
            guess.adopted()

    def _run_here(self, call: ToolCall, arrival_ns: int) -> ToolResult:
        with self._seat.lock, self._governor.real_call():
            if (left := self._seat.moves_on()) is not None:
                self._spawn(left)
            start_ns = time.monotonic_ns()
            self.stats.delayed_ns += start_ns - arrival_ns
            workspace = self._seat.workspace
            stored = isinstance(workspace, Foreknowing) and workspace.known(call)
            result = workspace.run(call)
            if not stored:
                self._governor.costs.record_run(self._state.task, call, time.monotonic_ns() - start_ns)
            return result

    def _spawn(self, job: Callable[..., None], *args: Any) -> None:
        """Runs a job in a worker; `close` waits for it."""
        with self._changed:
            self._jobs += 1
        self._governor.spawn(self._job, job, *args)

    def _job(self, job: Callable[..., None], *args: Any) -> None:
        try:
            job(*args)
        finally:
            with self._changed:
                self._jobs -= 1
                self._changed.notify_all()
