# SPDX-License-Identifier: Apache-2.0
"""The RL frameworks over real workspaces: each example does what it says."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from support.examples import EXAMPLES, load_example

pytestmark = pytest.mark.filterwarnings("ignore:::(?!bunshin_gym)")


def test_ppo_learns_a_click_task(tmp_path: Path) -> None:
    example = load_example("sb3_ppo", needs=("stable_baselines3",))
    env = example.make_env("miniwob.click-test-2", tmp_path / "tree", seeds=2)
    rewards = np.array(example.learn(env, 640))
    env.close()
    assert rewards[:40].mean() < 0.8, "it knew the task before it learned it"
    assert rewards[-40:].mean() > 0.95


def test_torchrl_accepts_it_and_rolls_out() -> None:
    example = load_example("torchrl_rollout", needs=("torchrl",))
    from torchrl.envs import check_env_specs

    env = example.make_env("miniwob.click-test-2")
    check_env_specs(env)
    rollout = env.rollout(4, example.make_policy(env))
    env.close()
    assert rollout["observation"].shape[1:] == (8, len(example.FEATURES))
    assert set(rollout["next", "reward"].flatten().tolist()) <= {-1.0, 0.0, 1.0}


def test_ray_actors_run_episodes_and_groups() -> None:
    load_example("ray_actors", needs=("ray",))
    done = subprocess.run(
        [sys.executable, EXAMPLES / "ray_actors.py", "--actors", "2", "--episodes", "2"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "episodes [1.0, 1.0], group [1.0, 1.0, 0.0, 0.0]" in done.stdout
