# SPDX-License-Identifier: Apache-2.0
"""Replays batches of recorded attempts in four settings: plain, cache, speculation, both."""

from __future__ import annotations

import math
import random
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from recordings import Record, call_of
from replay_env import Costs, Machine, ReplayEnv, Script

from bunshin_gym.cache import CachePolicy
from bunshin_gym.cache.tree import SnapshotTree
from bunshin_gym.speculate.costs import CostModel
from bunshin_gym.speculate.governor import Budget, Governor
from bunshin_gym.speculate.protocols import Predictor
from bunshin_gym.speculate.stats import Stats
from bunshin_gym.wrappers.speculative_step import SpeculativeStep
from bunshin_gym.wrappers.tool_sequence_cache import ToolSequenceCache

__all__ = ["SETTINGS", "Epoch", "Setting", "batches", "replay"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """Which wrappers are on, and what speculation may take.

    Attributes:
        think_s: median thinking time, in seconds; log-normal with sigma 0.5.
        batch: attempts at once.
        speed: how many times faster than recorded everything passes.
    """

    name: str
    cache: bool = False
    speculation: bool = False
    think_s: float = 0.5
    batch: int = 8
    speed: float = 4.0
    budget: Budget = Budget(branches=2, running=2, memory_bytes=24 << 20)  # noqa: RUF009  # frozen


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
    peak_bytes: int = 0
    cpu_s: float = 0.0
    guess_cpu_s: float = 0.0
    rewards: dict[tuple[str, int, int], float] = field(default_factory=dict)
    stats: Stats = field(default_factory=Stats)
    steps: int = 0
    errors: list[str] = field(default_factory=list)


def batches(records: Sequence[Record], size: int) -> list[list[Record]]:
    """Groups at one task and seed, put together to batches of `size` attempts."""
    ordered = sorted(records, key=lambda r: (r["seed"], r["task"], r["attempt"]))
    return [ordered[start : start + size] for start in range(0, len(ordered) - size + 1, size)]


def think_s(record: Record, step: int, median_s: float) -> float:
    """The same for a step in every setting."""
    draw = random.Random(f"{record['task']} {record['seed']} {record['attempt']} {step}").gauss(0.0, 0.5)
    return median_s * math.exp(draw)


def replay(records: Sequence[Record], setting: Setting, predictor: Predictor | None) -> Epoch:
    """Runs an epoch: batch after batch, each until its last attempt is done."""
    epoch = Epoch()
    scripts = _scripts(records)
    machine = Machine(speed=setting.speed, costs=Costs())
    scale = 1e9 / setting.speed
    costs = CostModel(
        branch_bytes=18 << 20,
        run_ns=int(0.15 * scale),
        think_ns=int(setting.think_s * scale),
        fork_ns=int(0.15 * scale),
        hold_ns=int(0.05 * scale),
    )
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bunshin-epoch-")))
        tree = stack.enter_context(_closing(SnapshotTree(folder / "tree")))
        governor = Governor(budget=setting.budget, costs=costs)
        stack.callback(governor.close)
        for batch in batches(records, setting.batch):
            start = time.monotonic()
            threads = [
                threading.Thread(
                    target=_attempt, args=(record, scripts, machine, setting, tree, governor, predictor, epoch)
                )
                for record in batch
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            epoch.wall_s += (time.monotonic() - start) * setting.speed
    epoch.peak_bytes = machine.peak_bytes
    epoch.cpu_s, epoch.guess_cpu_s = machine.busy_ns / 1e9, machine.guess_ns / 1e9
    if machine.open:
        epoch.errors.append(f"{machine.open} workspaces are left")
    return epoch


class _closing:  # noqa: N801  # as contextlib.closing, for what has no __exit__
    def __init__(self, held: Any) -> None:
        self._held = held

    def __enter__(self) -> Any:
        return self._held

    def __exit__(self, *_: object) -> None:
        self._held.close()


def _scripts(records: Sequence[Record]) -> dict[tuple[str, int], Script]:
    groups: dict[tuple[str, int], list[Record]] = {}
    for record in records:
        groups.setdefault((record["task"], record["seed"]), []).append(record)
    return {key: Script.of(group) for key, group in groups.items()}


_results: Final = threading.Lock()


def _attempt(
    record: Record,
    scripts: dict[tuple[str, int], Script],
    machine: Machine,
    setting: Setting,
    tree: SnapshotTree,
    governor: Governor,
    predictor: Predictor | None,
    epoch: Epoch,
) -> None:
    """Makes the recorded calls; notes the rewards, and any error: a thread has nobody to raise to."""
    env: Any = ReplayEnv(machine, scripts[record["task"], record["seed"]])
    try:
        speculative = None
        if setting.speculation:
            assert predictor is not None
            env = speculative = SpeculativeStep(env, predictor, governor=governor)
        if setting.cache:
            env = ToolSequenceCache(env, tree, policy=CachePolicy())
        start = time.monotonic()
        env.reset()
        total = 0.0
        for number, step in enumerate(record["steps"]):
            machine.sleep(think_s(record, number, setting.think_s) * 1e9)
            _, reward, terminated, _, _ = env.step(call_of(step))
            total += float(reward)
            if terminated:
                break
        spent = (time.monotonic() - start) * setting.speed
        env.close()
        with _results:
            epoch.rewards[record["task"], record["seed"], record["attempt"]] = total
            epoch.attempts_s += spent
            epoch.steps += len(record["steps"])
            if speculative is not None:
                epoch.stats.add(speculative.stats)
    except Exception as error:  # noqa: BLE001  # told with the results
        env.close()
        with _results:
            epoch.errors.append(f"{record['task']} {record['attempt']}: {type(error).__name__}: {error}")
