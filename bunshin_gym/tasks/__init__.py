# SPDX-License-Identifier: Apache-2.0
"""Task families: each a module with `env_names()` and `make_task(name)`, loaded when it is used."""

from __future__ import annotations

import importlib
from typing import Any, Final

from bunshin_gym.errors import UsageError
from bunshin_gym.tasks.base import AskingTask, Message, Page, PreparedTask, Setup, Task, Verdict

__all__ = ["FAMILIES", "AskingTask", "Message", "Page", "PreparedTask", "Setup", "Task", "Verdict", "load_task"]

FAMILIES: Final = {
    "desktop": "bunshin_gym.tasks.desktop",
    "forum": "bunshin_gym.tasks.forum",
    "miniwob": "bunshin_gym.tasks.miniwob",
    "osworld": "bunshin_gym.tasks.osworld",
    "shop": "bunshin_gym.tasks.shop",
}
"""Every family's name and its module."""


def load_task(task_id: str) -> Task:
    """Returns the task of an id such as `miniwob.click-test`.

    Raises:
        UsageError: there is no such family or no such task.
    """
    family, _, name = task_id.partition(".")
    module = FAMILIES.get(family)
    if module is None:
        raise UsageError(f"no task family {family!r} in {task_id!r}; there are {', '.join(FAMILIES)}")
    factory: Any = importlib.import_module(module).make_task
    task: Task = factory(name)
    return task
