# SPDX-License-Identifier: Apache-2.0
"""Makes every task known to Gymnasium, by name only: no task and no image is loaded."""

from __future__ import annotations

import importlib

import gymnasium
from gymnasium.envs.registration import registry

from bunshin_gym.tasks import FAMILIES, load_task

__all__ = ["register_envs"]


def register_envs() -> None:
    """Registers `bunshin/FAMILY-TASK-v0` for every task of every family; idempotent."""
    for family, module in FAMILIES.items():
        for env_name, name in importlib.import_module(module).env_names().items():
            env_id, task_id = f"bunshin/{env_name}-v0", f"{family}.{name}"
            if env_id in registry:
                continue
            gymnasium.register(
                id=env_id,
                entry_point="bunshin_gym.envs:BunshinEnv",
                vector_entry_point="bunshin_gym.vector:BunshinVectorEnv",
                kwargs={"task": task_id},
                nondeterministic=load_task(task_id).timed,
            )
