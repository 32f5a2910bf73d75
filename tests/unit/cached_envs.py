# SPDX-License-Identifier: Apache-2.0
"""Envs over fake workspaces, bare and with a cache, and what their episodes show."""

from __future__ import annotations

from typing import Any

import numpy as np
from fake_guest import FakeTask

from bunshin_gym.cache import CachePolicy
from bunshin_gym.envs import BunshinEnv
from bunshin_gym.wrappers.tool_sequence_cache import ToolSequenceCache

__all__ = ["DONE", "A", "B", "cached", "plain", "same", "walk"]

A, B, DONE = "keyboard_type('a')", "keyboard_type('b')", "keyboard_type('done')"


def plain(pool: Any, **arguments: Any) -> BunshinEnv:
    return BunshinEnv(FakeTask(), bases=pool, **arguments)


def cached(pool: Any, tree: Any, *, policy: CachePolicy | None = None, **arguments: Any) -> ToolSequenceCache:
    return ToolSequenceCache(plain(pool, **arguments), tree, policy=policy)


def walk(env: Any, *actions: Any, seed: int | None = 5) -> tuple[list[Any], list[str]]:
    """What an episode shows, and where it came from."""
    observation, info = env.reset(seed=seed)
    shown, sources = [observation], [info["cache"].source if "cache" in info else ""]
    for action in actions:
        observation, reward, terminated, truncated, info = env.step(action)
        shown.append((observation, reward, terminated, truncated, info["message"], info.get("text")))
        sources.append(info["cache"].source if "cache" in info else "")
    return shown, sources


def same(one: Any, other: Any) -> None:
    np.testing.assert_equal(one, other)
