# SPDX-License-Identifier: Apache-2.0
"""GRPO on five MiniWoB tasks: groups of eight by fork, and what the cache and speculation save.

    .venv/bin/python examples/grpo.py --save docs

A small policy scores the elements of a page; a group's attempts begin alike, as branches of one start, and each is
rewarded by how much better than its group it did. The same training runs plain, with the tool-sequence cache, with
speculation and with both: all draw the same numbers, so that what they learn is the same. `--think-s` stands for the
time a large model takes for each action. Needs torch (`make frameworks`) and root.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any

import gymnasium
import numpy as np
import torch
import typer
from rich.console import Console
from rich.table import Table

from bunshin_gym.cache.tree import SnapshotTree
from bunshin_gym.envs import BunshinEnv
from bunshin_gym.figures import pyplot
from bunshin_gym.notebook import MemoryWatch
from bunshin_gym.speculate.predictor import RankingPredictor
from bunshin_gym.wrappers.click_elements import FEATURES, ClickElements
from bunshin_gym.wrappers.speculative_step import SpeculativeStep
from bunshin_gym.wrappers.tool_sequence_cache import ToolSequenceCache

TASKS = ("click-test", "click-test-2", "click-button", "click-dialog", "focus-text-2")
SETTINGS = {"plain": (False, False), "cache": (True, False), "speculation": (False, True), "both": (True, True)}
MOST, WORKERS = 12, 4


class Policy(torch.nn.Module):
    """Scores each element by its features; what is not there is never chosen."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(len(FEATURES), 24), torch.nn.Tanh(), torch.nn.Linear(24, 1))

    def forward(self, features: torch.Tensor) -> torch.distributions.Categorical:
        """(..., elements, features) to a distribution over elements."""
        scores = self.layers(features).squeeze(-1)
        return torch.distributions.Categorical(logits=scores.masked_fill(features[..., 0] == 0, -1e9))


@dataclass(slots=True)
class Attempt:
    """One episode: what was seen, what was done, what came of it, how many calls ran and how long the env took."""

    features: list[np.ndarray] = field(default_factory=list)
    actions: list[int] = field(default_factory=list)
    reward: float = 0.0
    calls_run: int = 0
    env_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """How to train."""

    group: int = 8
    seeds: int = 1
    steps: int = 2
    think_s: float = 0.0
    seed: int = 0


@dataclass(slots=True)
class Curve:
    """What one setting came to, by epoch; rewards of all attempts in their order."""

    setting: str
    rewards: list[list[float]] = field(default_factory=list)
    wall_s: list[float] = field(default_factory=list)
    env_s: list[float] = field(default_factory=list)
    calls_run: list[int] = field(default_factory=list)
    peak_bytes: int = 0

    def interval(self, epoch: int) -> tuple[float, float]:
        """Mean reward and half of its 95 % interval."""
        values = np.array(self.rewards[epoch])
        return float(values.mean()), float(1.96 * values.std(ddof=1) / len(values) ** 0.5)


class Setting:
    """One way to run attempts. A group's envs begin at one task seed."""

    def __init__(self, name: str, scratch: Path, stack: ExitStack) -> None:
        self.cache, self.speculation = SETTINGS[name]
        self.tree = stack.enter_context(SnapshotTree(scratch / name)) if self.cache else None
        self.predictor = RankingPredictor()

    @contextmanager
    def group(self, task: str, seed: int, size: int) -> Iterator[list[Any]]:
        """Pairs of env and what it shows at first, as functions that a member's thread calls."""
        with ExitStack() as stack:
            if self.tree is None:
                leader = stack.enter_context(self._env(task))
                first, _ = leader.reset(options={"task_seed": seed})
                branches = leader.fork(size)
                for branch in branches:
                    stack.callback(branch.close)
                yield [lambda branch=branch: (branch, first) for branch in branches]
            else:
                envs = [stack.enter_context(self._env(task)) for _ in range(size)]
                yield [lambda env=env: (env, env.reset(options={"task_seed": seed})[0]) for env in envs]

    def _env(self, task: str) -> Any:
        env: gymnasium.Env[Any, Any] = BunshinEnv(f"miniwob.{task}")
        if self.speculation:
            env = SpeculativeStep(env, self.predictor)
        return env if self.tree is None else ToolSequenceCache(env, self.tree)


def attempt(begin: Any, policy: Policy, draws: np.random.Generator, run: Run) -> Attempt:
    """One member of a group acts until its task is over, or out of steps."""
    made, begun = Attempt(), time.monotonic()
    env, first = begin()
    made.env_s += time.monotonic() - begun
    page = ClickElements(env, most=MOST)
    features = page.see(first)
    for _ in range(run.steps):
        with torch.no_grad():
            chances = policy(torch.from_numpy(features)).probs.numpy().astype(np.float64)
        action = int(draws.choice(MOST, p=chances / chances.sum()))
        made.features.append(features)
        made.actions.append(action)
        time.sleep(run.think_s)
        begun = time.monotonic()
        features, reward, terminated, truncated, info = page.step(action)
        made.env_s += time.monotonic() - begun
        made.calls_run += "cache" not in info or info["cache"].source not in ("hit", "waited")
        made.reward += float(reward)
        if terminated or truncated:
            break
    return made


def improve(policy: Policy, optimizer: torch.optim.Optimizer, attempts: Sequence[Attempt]) -> None:
    """One step of GRPO: every action of an attempt gets its advantage over the group."""
    rewards = torch.tensor([one.reward for one in attempts])
    if rewards.std() == 0:
        return
    advantages = (rewards - rewards.mean()) / (rewards.std() + 1e-6)
    loss = torch.zeros(())
    for one, advantage in zip(attempts, advantages, strict=True):
        chosen = policy(torch.from_numpy(np.stack(one.features))).log_prob(torch.tensor(one.actions))
        loss = loss - advantage * chosen.sum() / len(attempts)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def train(name: str, tasks: Sequence[str], epochs: int, run: Run) -> Curve:
    """Trains one policy in one setting."""
    torch.manual_seed(run.seed)
    policy, curve = Policy(), Curve(setting=name)
    optimizer = torch.optim.Adam(policy.parameters(), lr=0.02)
    with tempfile.TemporaryDirectory() as scratch, ExitStack() as stack:
        pool = stack.enter_context(ThreadPoolExecutor(WORKERS))
        setting = Setting(name, Path(scratch), stack)
        memory = stack.enter_context(MemoryWatch(every_s=1.0))
        for epoch in range(epochs):
            begun, rewards, env_s, calls_run = time.monotonic(), [], 0.0, 0
            for number, (task, seed) in enumerate((task, seed) for seed in range(run.seeds) for task in tasks):
                forked = time.monotonic()
                with setting.group(task, seed, run.group) as members:
                    env_s += time.monotonic() - forked
                    rngs = [np.random.default_rng([run.seed, epoch, number, member]) for member in range(run.group)]
                    work = [
                        pool.submit(attempt, begin, policy, rng, run) for begin, rng in zip(members, rngs, strict=True)
                    ]
                    attempts = [future.result() for future in work]
                    memory.look()
                improve(policy, optimizer, attempts)
                rewards += [one.reward for one in attempts]
                env_s += sum(one.env_s for one in attempts)
                calls_run += sum(one.calls_run for one in attempts)
            curve.rewards.append(rewards)
            curve.wall_s.append(time.monotonic() - begun)
            curve.env_s.append(env_s)
            curve.calls_run.append(calls_run)
    curve.peak_bytes = memory.peak_bytes
    return curve


def table_of(curves: Sequence[Curve]) -> tuple[list[str], list[list[str]]]:
    """Head and rows: rewards by epoch with their intervals, times and memory."""
    epochs = range(len(curves[0].rewards))
    head = ["setting", *(f"reward, epoch {epoch + 1}" for epoch in epochs), "wall s", "env s", "peak MiB"]
    rows = []
    for curve in curves:
        rewards = ["{:+.2f} ± {:.2f}".format(*curve.interval(epoch)) for epoch in epochs]
        costs = [f"{sum(curve.wall_s):.0f}", f"{sum(curve.env_s):.0f}", f"{curve.peak_bytes / (1 << 20):.0f}"]
        rows.append([curve.setting, *rewards, *costs])
    return head, rows


def draw(curves: Sequence[Curve], path: Path) -> None:
    """Learning curves with their intervals, and the time that each epoch took."""
    plt = pyplot()
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
    for shift, curve in enumerate(curves):
        epochs = np.arange(len(curve.rewards)) + 1
        means, halves = zip(*(curve.interval(epoch) for epoch in range(len(epochs))), strict=True)
        left.errorbar(epochs + 0.05 * shift, means, yerr=halves, marker="o", markersize=3, label=curve.setting)
        right.plot(epochs, curve.wall_s, marker="o", markersize=3, label=curve.setting)
    for axes, name in ((left, "mean reward, 95 % interval"), (right, "seconds")):
        axes.set_xlabel("epoch")
        axes.set_ylabel(name)
    right.set_ylim(bottom=0)
    right.legend()
    figure.savefig(path)
    plt.close(figure)


def save(curves: Sequence[Curve], folder: Path, tasks: Sequence[str], run: Run) -> None:
    """A page with table and plot, and the numbers."""
    draw(curves, folder / "grpo.svg")
    (folder / "grpo.json").write_text(json.dumps([asdict(curve) for curve in curves], indent=1) + "\n")
    head, rows = table_of(curves)
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head), *("| " + " | ".join(row) + " |" for row in rows)]
    page = (
        "# GRPO on five tasks\n\nWritten by `examples/grpo.py --save`.\n\n"
        f"Tasks {', '.join(tasks)}; {run.seeds} task seeds each; groups of {run.group} by fork; up to {run.steps} "
        f"actions; {run.think_s:g} s of thinking before each. Env seconds are the attempts' added up, {WORKERS} "
        "of which run at a time. All settings draw the same random numbers.\n\n"
        + "\n".join(lines)
        + "\n\n![learning curves](grpo.svg)\n"
    )
    (folder / "grpo.md").write_text(page)


def main(
    epochs: Annotated[int, typer.Option(min=1, help="How many.")] = 5,
    settings: Annotated[list[str] | None, typer.Option("--setting", help="Some of them; all by default.")] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Task seeds of each task.")] = 1,
    think_s: Annotated[float, typer.Option(min=0, help="Pause before each action.")] = 0.5,
    seed: Annotated[int, typer.Option(help="Of the policy and of all draws.")] = 0,
    save_to: Annotated[Path | None, typer.Option("--save", help="A folder for page, plot and numbers.")] = None,
) -> None:
    """Trains in each setting and prints the table."""
    console, run = Console(), Run(seeds=seeds, think_s=think_s, seed=seed)
    curves = []
    for name in settings or list(SETTINGS):
        with console.status(f"training, {name}"):
            curves.append(train(name, TASKS, epochs, run))
        if save_to is not None:
            save(curves, save_to, TASKS, run)
    head, rows = table_of(curves)
    table = Table(*head)
    for row in rows:
        table.add_row(*row)
    console.print(table)


if __name__ == "__main__":
    typer.run(main)
