# SPDX-License-Identifier: Apache-2.0
"""Makes every task known to Gymnasium, by name only: no task and no image is loaded."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

import gymnasium
from gymnasium.envs.registration import registry

from bunshin_gym.tasks import FAMILIES, load_task

__all__ = ["osworld_env", "register_envs"]

_OSWORLD = "bunshin/OSWorld-v0"


def osworld_env(task: str, *, root: str | None = None, allow: Sequence[str] = (), **options: Any) -> Any:
    """An env of any OSWorld task; what `bunshin/OSWorld-v0` makes.

    Args:
        task: its id, the beginning of it, or the path of its file.
        root: the folder of tasks; None is $BUNSHIN_OSWORLD, or what is around the file.
        allow: kinds of needs for which the task is not to be refused.
        options: of `BunshinEnv`.
    """
    from bunshin_gym.envs import BunshinEnv
    from bunshin_gym.tasks.osworld import make_task

    return BunshinEnv(make_task(task, root=root, allow=allow), **options)


def register_envs() -> None:
    """Registers `bunshin/FAMILY-TASK-v0` for every task of every family; idempotent."""
    if _OSWORLD not in registry:
        gymnasium.register(id=_OSWORLD, entry_point="bunshin_gym.registration:osworld_env", nondeterministic=True)
    for family, path in FAMILIES.items():
        module = importlib.import_module(path)
        # A family whose tasks all go on by the clock says so at once: none of them has to be read.
        timed: bool | None = getattr(module, "ALL_TIMED", None)
        for env_name, name in module.env_names().items():
            env_id, task_id = f"bunshin/{env_name}-v0", f"{family}.{name}"
            if env_id in registry:
                continue
            gymnasium.register(
                id=env_id,
                entry_point="bunshin_gym.envs:BunshinEnv",
                vector_entry_point="bunshin_gym.vector:BunshinVectorEnv",
                kwargs={"task": task_id},
                nondeterministic=load_task(task_id).timed if timed is None else timed,
            )
