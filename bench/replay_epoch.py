# SPDX-License-Identifier: Apache-2.0
"""Replays batches of recorded attempts in several settings: plain, cache, speculation, both."""

from __future__ import annotations

import math
import random
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from recordings import Record, call_of
from worlds import World

from bunshin_gym.cache import Budgets, CachePolicy, SnapshotTree
from bunshin_gym.speculate.governor import Budget, Governor
from bunshin_gym.speculate.policy import Reliability
from bunshin_gym.speculate.protocols import Predictor
from bunshin_gym.speculate.stats import Stats
from bunshin_gym.wrappers.speculative_step import SpeculativeStep
from bunshin_gym.wrappers.tool_sequence_cache import ToolSequenceCache

__all__ = ["SETTINGS", "Epoch", "Setting", "batches", "replay_all"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """Which wrappers are on, and what they may take.

    Attributes:
        think_s: median thinking time, in seconds; log-normal with sigma 0.5.
        batch: attempts at once.
        ahead: as in `CachePolicy`.
        credulous: predictions are believed however often they were wrong.
    """

    name: str
    cache: bool = False
    speculation: bool = False
    think_s: float = 2.0
    batch: int = 8
    ahead: float = CachePolicy().ahead
    credulous: bool = False
    budget: Budget = Budget(branches=2, running=2, memory_bytes=48 << 20)  # noqa: RUF009  # frozen
    budgets: Budgets = Budgets(memory_bytes=256 << 20)  # noqa: RUF009  # frozen


SETTINGS: Final = (
    Setting(name="plain"),
    Setting(name="cache", cache=True),
    Setting(name="speculation", speculation=True),
    Setting(name="both", cache=True, speculation=True),
)


@dataclass(slots=True)
class Epoch:
    """What an epoch came to. Times are as recorded, not as replayed."""

    wall_s: float = 0.0
    attempts_s: float = 0.0
    waited_s: float = 0.0
    peak_bytes: int = 0
    cpu_s: float = 0.0
    guess_cpu_s: float = 0.0
    rewards: dict[tuple[str, int, int], float] = field(default_factory=dict)
    stats: Stats = field(default_factory=Stats)
    steps: int = 0
    sources: dict[str, int] = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)


def batches(records: Sequence[Record], size: int) -> list[list[Record]]:
    """Groups at one task and seed, put together to batches of `size` attempts."""
    ordered = sorted(records, key=lambda r: (r["seed"], r["task"], r["attempt"]))
    return [ordered[start : start + size] for start in range(0, len(ordered) - size + 1, size)]


def think_s(record: Record, step: int, median_s: float) -> float:
    """The same for a step in every setting."""
    draw = random.Random(f"{record['task']} {record['seed']} {record['attempt']} {step}").gauss(0.0, 0.5)
    return median_s * math.exp(draw)


class _Credulous(Reliability):
    """Believes whatever happened before."""

    def believe(self, task: str, probability: float) -> float:
        """The probability as it is."""
        return probability


def _start(record: Record) -> dict[str, Any]:
    return {"task_seed": record["seed"]}


class _Run:
    """One setting's epoch: what lasts from batch to batch, and what came of it."""

    def __init__(self, world: World, setting: Setting, predictor: Predictor | None, stack: ExitStack) -> None:
        self.world, self.setting, self.predictor = world, setting, predictor
        self.epoch = Epoch()
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bunshin-epoch-")))
        self.tree = stack.enter_context(SnapshotTree(folder / "tree", budgets=setting.budgets))
        self.governor = Governor(budget=setting.budget, costs=world.costs(setting.think_s))
        stack.callback(self.governor.close)
        if setting.credulous:
            self.governor.reliability = _Credulous()
        self._results = threading.Lock()
        self._after: Sequence[Record] = ()
        self._announced: dict[tuple[str, int], tuple[Any, SpeculativeStep | None]] = {}

    def batch(self, records: Sequence[Record], after: Sequence[Record]) -> None:
        """All its attempts at once, until the last is done; `after` is the batch that comes next."""
        self._after = after
        with self.world.measured(self.setting.name) as memory:
            busy_ns, guess_ns = memory.busy_ns, memory.guess_ns
            start = time.monotonic()
            threads = [threading.Thread(target=self._attempt, args=(record,)) for record in records]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            self.epoch.wall_s += (time.monotonic() - start) * self.world.speed
        self.epoch.peak_bytes = max(self.epoch.peak_bytes, memory.peak_bytes)
        self.epoch.cpu_s += (memory.busy_ns - busy_ns) / 1e9
        self.epoch.guess_cpu_s += (memory.guess_ns - guess_ns) / 1e9

    def _attempt(self, record: Record) -> None:
        """Makes the recorded calls; notes the rewards, and any error: a thread has nobody to raise to."""
        env, speculative = self._env(record)
        epoch = self.epoch
        sources: list[str] = []
        try:
            start = time.monotonic()
            thought_s = total = 0.0
            info = env.reset(options=_start(record))[1]
            sources.append(info["cache"].source if "cache" in info else "")
            for number, step in enumerate(record["steps"]):
                pause_s = think_s(record, number, self.setting.think_s)
                self.world.think(pause_s)
                thought_s += pause_s
                _, reward, terminated, _, info = env.step(call_of(step))
                sources.append(info["cache"].source if "cache" in info else "")
                total += float(reward)
                if terminated:
                    break
            spent_s = (time.monotonic() - start) * self.world.speed
            env.close()
            self._announce()
            with self._results:
                epoch.rewards[record["task"], record["seed"], record["attempt"]] = total
                epoch.attempts_s += spent_s
                epoch.waited_s += spent_s - thought_s
                epoch.steps += len(record["steps"])
                for source in sources:
                    epoch.sources[source] = epoch.sources.get(source, 0) + 1
                if speculative is not None:
                    epoch.stats.add(speculative.stats)
        except Exception as error:  # noqa: BLE001  # told with the results
            env.close()
            with self._results:
                epoch.errors.append(f"{record['task']} {record['attempt']}: {type(error).__name__}: {error}")

    def _announce(self) -> None:
        """A driver knows its next batch: each of its starts is got ready once the first attempt of this one is done."""
        if not self.setting.cache or not self.setting.ahead:
            return
        with self._results:
            after, self._after = self._after, ()
            firsts = {(record["task"], record["seed"]): record for record in reversed(after)}
            for key, record in firsts.items():
                self._announced[key] = self._new_env(record)
                self._announced[key][0].prefetch(options=_start(record))

    def _env(self, record: Record) -> tuple[Any, SpeculativeStep | None]:
        with self._results:
            announced = self._announced.pop((record["task"], record["seed"]), None)
        return self._new_env(record) if announced is None else announced

    def _new_env(self, record: Record) -> tuple[Any, SpeculativeStep | None]:
        env: Any = self.world.env(record)
        speculative = None
        if self.setting.speculation:
            assert self.predictor is not None
            env = speculative = SpeculativeStep(env, self.predictor, governor=self.governor)
        if self.setting.cache:
            policy = CachePolicy(ahead=self.setting.ahead, reuse_stochastic=1.0)
            env = ToolSequenceCache(env, self.tree, policy=policy)
        return env, speculative


def replay_all(
    world: World, records: Sequence[Record], settings: Sequence[Setting], predictors: Mapping[str, Predictor]
) -> dict[str, Epoch]:
    """Runs an epoch in each setting, batch by batch in turn, so that a machine's moods meet all of them alike."""
    with ExitStack() as stack:
        runs = [_Run(world, setting, predictors.get(setting.name), stack) for setting in settings]
        parts = batches(records, settings[0].batch)
        for number, (batch, after) in enumerate(zip(parts, [*parts[1:], []], strict=True)):
            for place in range(len(runs)):
                runs[(number + place) % len(runs)].batch(batch, after)
    for run in runs:
        if left := world.left():
            run.epoch.errors.append(f"{left} workspaces are left")
    return {run.setting.name: run.epoch for run in runs}
