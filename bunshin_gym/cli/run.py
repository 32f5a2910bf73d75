# SPDX-License-Identifier: Apache-2.0
"""bunshin run: one episode, by a person, a script or at random; shown or recorded."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import gymnasium
import numpy as np
from numpy.typing import NDArray
from PIL import Image

import bunshin_gym
from bunshin_gym.cli.output import console, ms
from bunshin_gym.envs import BunshinEnv
from bunshin_gym.errors import UsageError
from bunshin_gym.tasks.scripted import solve

__all__ = ["make_env", "run_episode", "save_frames"]

_FRAME_MS: Final = 700
_RECORDINGS: Final = (".gif", ".png")


def make_env(task: str, *, render_mode: str | None, engine: str | None = None) -> BunshinEnv:
    """An env by the id of a task or of an environment.

    Raises:
        UsageError: there is none.
    """
    if "/" not in task:
        return BunshinEnv(task, render_mode=render_mode, engine=engine)
    bunshin_gym.register_envs()
    try:
        made = gymnasium.make(task, render_mode=render_mode, engine=engine).unwrapped
    except gymnasium.error.UnregisteredEnv as error:
        raise UsageError(f"{error}; `bunshin tasks` lists them") from error
    if not isinstance(made, BunshinEnv):
        raise UsageError(f"{task} is no environment of ours")
    return made


def run_episode(task: str, *, seed: int, policy: str, steps: int, record: Path | None, human: bool) -> None:
    """Runs it and prints each step."""
    policies: dict[str, Callable[[BunshinEnv, dict[str, Any]], Iterator[str]]] = {
        "scripted": _scripted,
        "random": _random,
        "stdin": _from_stdin,
    }
    if policy not in policies:
        raise UsageError(f"policy {policy!r} is none of {', '.join(policies)}")
    if record is not None and record.suffix not in _RECORDINGS:
        raise UsageError(f"{record}: a recording ends in {' or '.join(_RECORDINGS)}")
    env = make_env(task, render_mode="human" if human else "rgb_array")
    frames = []
    try:
        with console.status("starting"):
            seen, info = env.reset(seed=seed)
        env.action_space.seed(seed)
        frames.append(seen["screenshot"])
        console.print(f"goal: {seen['goal']}  (started in {ms(info['measured'].total_ns)})", highlight=False)
        for number, action in enumerate(policies[policy](env, seen), start=1):
            seen, reward, terminated, truncated, info = env.step(action)
            frames.append(seen["screenshot"])
            error = f"  error: {seen['last_action_error']}" if seen["last_action_error"] else ""
            took = ms(info["measured"].total_ns)
            console.print(f"{number}: {action}  reward {reward:g}  {took}{error}", markup=False, highlight=False)
            if terminated or truncated or number >= steps:
                console.print("over" if terminated else "stopped", info["message"], highlight=False)
                break
    finally:
        env.close()
    if record is not None:
        save_frames(frames, record)
        console.print(f"{len(frames)} screens in {record}", highlight=False)


def save_frames(frames: list[NDArray[np.uint8]], path: Path) -> None:
    """Writes screens as an animation (.gif) or side by side (.png)."""
    pictures = [Image.fromarray(frame) for frame in frames]
    if path.suffix == ".gif":
        pictures[0].save(path, save_all=True, append_images=pictures[1:], duration=_FRAME_MS, loop=0)
        return
    width, height = sum(p.width for p in pictures), max(p.height for p in pictures)
    sheet = Image.new("RGB", (width, height))
    at = 0
    for picture in pictures:
        sheet.paste(picture, (at, 0))
        at += picture.width
    sheet.save(path)


def _scripted(env: BunshinEnv, seen: dict[str, Any]) -> Iterator[str]:
    yield from solve(env.task.id, seen)


def _random(env: BunshinEnv, seen: dict[str, Any]) -> Iterator[str]:
    while True:
        yield env.action_space.sample()


def _from_stdin(env: BunshinEnv, seen: dict[str, Any]) -> Iterator[str]:
    interactive = sys.stdin.isatty()
    if interactive:
        console.print(env.surface.describe(), markup=False, highlight=False)
    while True:
        if interactive:
            console.print(env.observe()["axtree_txt"], markup=False, highlight=False)
            console.print("> ", end="")
        line = sys.stdin.readline()
        if not line:
            return
        if line.strip():
            yield line.strip()
