# SPDX-License-Identifier: Apache-2.0
"""Workspaces in Ray actors: each actor is a process with its own booted workspace, and forks of it.

    .venv/bin/python examples/ray_actors.py --actors 2 --episodes 3

A workspace cannot travel between processes, so an actor keeps its env and sends observations. Needs the extra
`ray` (`make frameworks`), and root.
"""

from __future__ import annotations

from typing import Annotated, Any

import ray
import typer

from bunshin_gym.envs import BunshinEnv
from bunshin_gym.tasks.scripted import solve


@ray.remote(num_cpus=1, max_restarts=1)
class Worker:
    """One env; runs episodes, and whole groups of branches."""

    def __init__(self, task: str) -> None:
        self.env = BunshinEnv(task)

    def episode(self, seed: int) -> float:
        """One scripted episode: its reward."""
        observation, _ = self.env.reset(seed=seed)
        reward = 0.0
        for action in solve(self.env.task.id, observation):
            reward = self.env.step(action)[1]
        return reward

    def group(self, seed: int, size: int) -> list[float]:
        """Branches of one beginning: the first half does it right, the rest nothing. Their rewards."""
        observation, _ = self.env.reset(seed=seed)
        branches: list[Any] = self.env.fork(size)
        rewards = []
        for number, branch in enumerate(branches):
            reward = 0.0
            for action in solve(self.env.task.id, observation) if number < size // 2 else ["noop(0)"]:
                reward = branch.step(action)[1]
            rewards.append(reward)
            branch.close()
        return rewards

    def close(self) -> None:
        """Ends the workspaces of this process."""
        from bunshin_gym.bases import shared_bases

        self.env.close()
        shared_bases().close()


def run(task: str, actors: int, episodes: int) -> tuple[list[float], list[float]]:
    """Rewards of episodes, and of one group of four in the first actor."""
    workers = [Worker.remote(task) for _ in range(actors)]
    futures = [workers[number % actors].episode.remote(number) for number in range(episodes)]
    rewards = ray.get([*futures, workers[0].group.remote(99, 4)])
    ray.get([worker.close.remote() for worker in workers])
    for worker in workers:
        ray.kill(worker)
    return rewards[:-1], rewards[-1]


def main(
    task: Annotated[str, typer.Argument(help="One with a scripted policy.")] = "miniwob.click-test",
    actors: Annotated[int, typer.Option(min=1, help="How many processes.")] = 2,
    episodes: Annotated[int, typer.Option(min=1, help="How many in all.")] = 4,
) -> None:
    """Runs them and prints the rewards."""
    ray.init(num_cpus=actors, include_dashboard=False)
    try:
        rewards, group = run(task, actors, episodes)
    finally:
        ray.shutdown()
    typer.echo(f"episodes {rewards}, group {group}")


if __name__ == "__main__":
    typer.run(main)
