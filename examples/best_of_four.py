# SPDX-License-Identifier: Apache-2.0
"""Tries four continuations of one half-done episode, and keeps the best.

Run as root, after `make setup`:  .venv/bin/python examples/best_of_four.py
"""

import gymnasium as gym

import bunshin_gym  # noqa: F401  # registers the environments

env = gym.make("bunshin/MiniWoB-ClickTest2-v0")
obs, info = env.reset(seed=3)
print(obs["goal"], obs["axtree_txt"], sep="\n")

candidates = ["click('14')", "click('15')", "mouse_click(5, 5)", "noop(0)"]
rewards = []
for branch, action in zip(env.unwrapped.fork(len(candidates)), candidates, strict=True):
    rewards.append(branch.step(action)[1])
    branch.close()
best = candidates[rewards.index(max(rewards))]
print(dict(zip(candidates, rewards, strict=True)))

obs, reward, terminated, truncated, info = env.step(best)
print(f"{best}: reward {reward}")
env.close()
