# SPDX-License-Identifier: Apache-2.0
"""PPO of stable-baselines3 learns which button to click.

    .venv/bin/python examples/sb3_ppo.py --timesteps 1024

Episodes are one click long and come from eight task seeds, and the tool-sequence cache keeps what came of each click:
so only the first time that something is tried does a workspace run.

Needs the extra `sb3` (`make frameworks`), and root.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Annotated, Any

import gymnasium
import numpy as np
import typer
from stable_baselines3 import PPO
from stable_baselines3.common.env_checker import check_env
from stable_baselines3.common.monitor import Monitor

from bunshin_gym.envs import BunshinEnv
from bunshin_gym.wrappers.click_elements import ClickElements
from bunshin_gym.wrappers.task_seeds import TaskSeeds
from bunshin_gym.wrappers.tool_sequence_cache import ToolSequenceCache


def make_env(task: str, directory: Path, seeds: int = 8) -> gymnasium.Env[Any, Any]:
    """A task as numbers: element features in, the element to click out."""
    cached = ToolSequenceCache(BunshinEnv(task), directory)
    limited = gymnasium.wrappers.TimeLimit(TaskSeeds(cached, range(seeds)), 1)
    return ClickElements(limited, most=8)


def learn(env: gymnasium.Env[Any, Any], timesteps: int, seed: int = 0) -> list[float]:
    """Trains; returns each episode's reward, in order."""
    check_env(env)
    monitored = Monitor(env)
    model = PPO("MlpPolicy", monitored, n_steps=64, batch_size=64, learning_rate=3e-3, seed=seed, device="cpu")
    model.learn(timesteps)
    return monitored.get_episode_rewards()


def main(
    task: Annotated[str, typer.Argument(help="A task that clicks solve.")] = "miniwob.click-test-2",
    timesteps: Annotated[int, typer.Option(min=64, help="Steps to train for.")] = 1024,
) -> None:
    """Trains and prints how the reward went up."""
    with tempfile.TemporaryDirectory() as scratch:
        env = make_env(task, Path(scratch))
        rewards = learn(env, timesteps)
        env.close()
    for part in np.array_split(np.array(rewards), 8):
        typer.echo(f"{len(part)} episodes: mean reward {part.mean():+.2f}")


if __name__ == "__main__":
    typer.run(main)
