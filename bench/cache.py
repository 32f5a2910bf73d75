# SPDX-License-Identifier: Apache-2.0
"""The tool-sequence cache against the same attempts without it, on MiniWoB++ in real Chromium.

Three parts. Record: groups of randomised attempts at each task, every step timed, with the state (screen, DOM, files)
after it. Walk: the same attempts through `ToolSequenceCache` over one tree. States: every node of the tree
materialised, and its state compared with the recorded one.

    python bench/cache.py --tasks 20 --attempts 8 --json cache.json

Snapshots are taken while the agent thinks, so the walk takes its time before each step (`--think-ms`); no number
has that time in it.
"""

from __future__ import annotations

import json
import random
import shutil
import statistics
import sys
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parent))
from scripted import POLICIES, attempt_calls

from bunshin_gym.cache import CachePolicy
from bunshin_gym.cache.attempt import CachedStep
from bunshin_gym.cache.stamps import pixels_agree
from bunshin_gym.cache.tiers import Budgets
from bunshin_gym.cache.tree import SnapshotTree
from bunshin_gym.envs import BunshinEnv
from bunshin_gym.errors import BunshinError, ReplayDiverged
from bunshin_gym.tasks import load_task
from bunshin_gym.trajectory import Difference, Trajectory, read_trajectory, replay
from bunshin_gym.wrappers.record_trajectory import RecordTrajectory
from bunshin_gym.wrappers.tool_sequence_cache import ToolSequenceCache

console = Console(stderr=True)

# -- record


def record(directory: Path, task: str, number: int, *, seed: int, env_options: dict[str, Any]) -> None:
    """One attempt without a cache, with the state after each step."""
    name = f"{task}-{number:02d}"
    if (directory / f"{name}.states.json").exists():
        return
    (directory / f"{name}.jsonl").unlink(missing_ok=True)  # of a run that was cut off
    env = RecordTrajectory(
        BunshinEnv(f"miniwob.{task}", **env_options), directory, name=lambda: name, notes={"task": task}
    )
    with env:
        inside: Any = env.unwrapped
        observation, _ = env.reset(options={"task_seed": seed})
        states = [dict(inside.state_parts())]
        calls = attempt_calls(task, observation, random.Random(f"{task} {seed} {number}"))
        try:
            call = next(calls)
            while True:
                observation, _, terminated, truncated, _ = env.step(call)
                states.append(dict(inside.state_parts()))
                if terminated or truncated:
                    break
                call = calls.send(observation)
        except StopIteration:
            pass  # the agent gave up
    (directory / f"{name}.states.json").write_text(json.dumps(states))


def recorded(
    directory: Path, tasks: list[str], attempts: int
) -> Iterator[tuple[str, Trajectory, list[dict[str, str]]]]:
    """The attempts by group."""
    for task in tasks:
        for number in range(attempts):
            name = f"{task}-{number:02d}"
            states = json.loads((directory / f"{name}.states.json").read_text())
            yield task, read_trajectory(directory / f"{name}.jsonl"), states


# -- walk


@dataclass
class Walk:
    """What the attempts with the cache came to, in ns."""

    hit_walls: list[int] = field(default_factory=list)
    hit_saved: int = 0
    miss_ran: int = 0
    miss_own: int = 0  # what misses took beside making a workspace
    made: int = 0
    replayed: int = 0
    kept: int = 0
    ahead: int = 0
    misses: int = 0
    bound: int = 0  # what repeats an earlier attempt's sequence, as long as the first who ran it took
    first: dict[str, int] = field(default_factory=dict)
    differences: list[str] = field(default_factory=list)
    noise: list[str] = field(default_factory=list)  # where records of one sequence differ among themselves
    rewards_differ: int = 0
    failed: list[str] = field(default_factory=list)

    def add(self, step: CachedStep | None, sequence: str) -> None:
        """One reset or step, and all calls up to it."""
        assert step is not None
        if sequence in self.first:
            self.bound += self.first[sequence]
        else:
            self.first[sequence] = step.spent.ran_ns
        if step.source in ("hit", "waited"):
            self.hit_walls.append(step.wall_ns)
            self.hit_saved += step.saved_ns
        else:
            self.misses += 1
            self.miss_ran += step.spent.ran_ns
            self.miss_own += step.wall_ns - step.spent.made_ns
        self.made += step.spent.made_ns
        self.replayed += step.spent.replayed_ns
        self.kept += step.spent.kept_ns
        self.ahead += step.spent.ahead_ns


class _Counted(ToolSequenceCache):
    """Notes every step."""

    walk: Walk
    sequence = ""

    def reset(self, **named: Any) -> Any:
        shown = super().reset(**named)
        self.sequence = f"{shown[1]['task']} {shown[1]['task_seed']}"
        self.walk.add(self.last, self.sequence)
        return shown

    def step(self, action: Any) -> Any:
        shown = super().step(action)
        self.sequence += f"\n{action!r}"
        self.walk.add(self.last, self.sequence)
        return shown


def walk_all(
    tree: SnapshotTree,
    attempts: list[tuple[str, Trajectory, Any]],
    policy: CachePolicy,
    env_options: dict[str, Any],
    *,
    think_s: float,
) -> Walk:
    """Every recorded attempt through the cache, one after the other."""
    walk, pause = Walk(), threading.Event().wait
    records: dict[str, list[Any]] = {}
    for task, one, _ in attempts:
        for length, seen in enumerate([one.observation, *(step.observation for step in one.steps)]):
            records.setdefault(_sequence(task, one, length), []).append(seen)
    for number, (task, one, _) in enumerate(track(attempts, "walk with the cache", console=console)):
        with _Counted(BunshinEnv(f"miniwob.{task}", **env_options), tree, policy=policy) as env:
            env.walk = walk
            try:
                found = replay(one, env, pixels=True, think=lambda _: pause(think_s))
            except BunshinError as error:
                walk.failed.append(f"{task} #{number}: {type(error).__name__}: {error}")
                continue
        walk.rewards_differ += sum(difference.what in ("reward", "terminated") for difference in found)
        for d in found:
            noted = walk.noise if _seen_by_another(d, records[_sequence(task, one, d.step)]) else walk.differences
            noted.append(f"{task} #{number} step {d.step}: {d.what}{_extent(d)}")
    return walk


def _sequence(task: str, one: Trajectory, length: int) -> str:
    """All that decides what an attempt sees after so many steps."""
    return f"{task} {one.options} {[step.action for step in one.steps[:length]]!r}"


def _seen_by_another(difference: Difference, observations: list[Any]) -> bool:
    """Whether a recorded attempt without a cache saw the very same: then the record is the odd one, not the cache."""
    _, _, key = difference.what.partition(".")
    return any(key in seen and pixels_agree(seen[key], difference.replayed) for seen in observations)


def _extent(difference: Difference) -> str:
    one, other = difference.recorded, difference.replayed
    if not (isinstance(one, np.ndarray) and isinstance(other, np.ndarray) and one.shape == other.shape):
        return ""
    levels = np.abs(one.astype(int) - other.astype(int))
    return f" ({int((levels > 0).any(axis=-1).sum())} pixels, by {int(levels.max())} at most)"


# -- states


def check_states(
    tree: SnapshotTree, attempts: list[tuple[str, Trajectory, Any]], env_options: dict[str, Any], limit: int
) -> tuple[int, list[str]]:
    """Materialises every node once; returns how many, and which states differ from the recorded ones."""
    done: set[bytes] = set()
    wrong: list[str] = []
    policy = CachePolicy(snapshot_share=0.0, ahead=0.0)
    for task, one, states in track(attempts, "compare states", console=console):
        for length in range(len(one.steps) + 1):
            with ToolSequenceCache(BunshinEnv(f"miniwob.{task}", **env_options), tree, policy=policy) as env:
                try:
                    env.reset(options=dict(one.options or {}))
                    for step in one.steps[:length]:
                        env.step(step.action)
                except ReplayDiverged as error:  # a step of an attempt that had left the tree
                    console.print(f"{task} step {length}: {error}", markup=False)
                    continue
                assert env.last is not None
                if env.last.key is None or env.last.key in done or (limit and len(done) >= limit):
                    continue
                done.add(env.last.key)
                inside: Any = None
                try:
                    inside = env.materialise()
                except ReplayDiverged as error:
                    wrong.append(f"{task} step {length}: {error}")
                    continue
                state = dict(inside.state_parts())
                seen = one.observation if length == 0 else one.steps[length - 1].observation
                if not pixels_agree(seen["screenshot"], inside.observe()["screenshot"]):
                    wrong.append(f"{task} step {length}: screen")
                wrong += [f"{task} step {length}: {part}" for part in state if state[part] != states[length][part]]
    return len(done), wrong


# -- report


def report(walk: Walk, attempts: list[Any], states: int, wrong: list[str], tree: SnapshotTree) -> dict[str, Any]:
    """The numbers, and a table of them."""
    total_ns = sum(one.wall_ns + sum(step.wall_ns for step in one.steps) for _, one, _ in attempts)
    bound_ns, saved_ns = max(1, walk.bound), walk.hit_saved
    spent_ns = walk.made + walk.kept + sum(walk.hit_walls)
    numbers = {
        "attempts": len(attempts),
        "steps": len(walk.hit_walls) + walk.misses,
        "hit_rate": len(walk.hit_walls) / max(1, len(walk.hit_walls) + walk.misses),
        "overlap": walk.bound / max(1, walk.bound + walk.miss_ran),
        "tool_time_without_s": total_ns / 1e9,
        "hit_ms": statistics.median(walk.hit_walls) / 1e6 if walk.hit_walls else None,
        "hit_p99_ms": sorted(walk.hit_walls)[int(len(walk.hit_walls) * 0.99)] / 1e6 if walk.hit_walls else None,
        "hit_ratio": sum(walk.hit_walls) / max(1, saved_ns),
        "miss_overhead": walk.miss_own / max(1, walk.miss_ran) - 1,
        "bound_share": (saved_ns - walk.replayed) / bound_ns,
        "bound_share_with_ahead": (saved_ns - walk.replayed - walk.ahead) / bound_ns,
        "wall_share": (saved_ns - spent_ns) / bound_ns,
        "tool_time_saved_s": (saved_ns - walk.replayed) / 1e9,
        "snapshots_in_memory_bytes": tree.ledger.tier_bytes("memory"),
        "contents_bytes": tree.contents.stored_bytes(),
        "rewards_equal": not walk.rewards_differ and not walk.failed,
        "observations_equal": not walk.differences,
        "records_differ_themselves": len(walk.noise),
        "states_checked": states,
        "states_equal": not wrong,
    }
    table = Table("what", "value", title="tool-sequence cache against none")
    for name, value in numbers.items():
        table.add_row(name, f"{value:.4f}" if isinstance(value, float) else str(value))
    Console().print(table)
    for line in [*walk.failed, *walk.differences[:20], *wrong[:20], *walk.noise[:20]]:
        console.print(line, markup=False)
    return {
        **numbers,
        "failed": walk.failed,
        "differences": walk.differences,
        "noise": walk.noise,
        "wrong_states": wrong,
    }


def main(
    tasks: Annotated[int, typer.Option(help="How many tasks; the first ones that do not go by the clock.")] = 20,
    attempts: Annotated[int, typer.Option(help="Attempts at each.")] = 8,
    seed: Annotated[int, typer.Option(help="Of the tasks and the agents.")] = 1,
    records: Annotated[Path | None, typer.Option(help="Where records are kept, and found again.")] = None,
    directory: Annotated[Path | None, typer.Option(help="Where the tree is kept; a temporary one by default.")] = None,
    engine: Annotated[str | None, typer.Option(help="How workspaces are forked.")] = None,
    memory_mib: Annotated[int, typer.Option(help="Budget for snapshots in memory.")] = 4096,
    share: Annotated[float, typer.Option(help="Time spent on snapshots, as a share of the time run.")] = 0.025,
    think_ms: Annotated[int, typer.Option(help="How long the agent thinks before each step of the walk.")] = 500,
    states: Annotated[int, typer.Option(help="How many nodes to materialise and compare; 0 for all.")] = 0,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the numbers there.")] = None,
) -> None:
    """Measures, prints a table, and ends with 1 if anything came out differently with the cache."""
    names = [name for name in POLICIES if not load_task(f"miniwob.{name}").timed][:tasks]
    env_options = {"engine": engine}
    home = Path(tempfile.mkdtemp(prefix="bunshin-bench-"))
    try:
        where = records if records is not None else home / "records"
        where.mkdir(parents=True, exist_ok=True)
        todo = [(task, number) for task in names for number in range(attempts)]
        for task, number in track(todo, "record without a cache", console=console):
            record(where, task, number, seed=seed, env_options=env_options)
        group = list(recorded(where, names, attempts))
        budgets = Budgets(memory_bytes=memory_mib << 20)
        with SnapshotTree(directory if directory is not None else home / "tree", budgets=budgets) as tree:
            walk = walk_all(tree, group, CachePolicy(snapshot_share=share), env_options, think_s=think_ms / 1e3)
            checked, wrong = check_states(tree, group, env_options, states)
            numbers = report(walk, group, checked, wrong, tree)
    finally:
        shutil.rmtree(home)
    if json_file is not None:
        json_file.write_text(json.dumps(numbers, indent=2) + "\n")
    if not (numbers["rewards_equal"] and numbers["states_equal"]):
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
