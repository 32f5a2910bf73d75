# SPDX-License-Identifier: Apache-2.0
"""Live computer workspaces that fork like a process, under the Gymnasium API.

Importing this package is cheap: the names below are loaded when they are first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from bunshin_gym.envs import BunshinEnv
    from bunshin_gym.forkable import ForkableEnv
    from bunshin_gym.images import ImageStore
    from bunshin_gym.registration import register_envs
    from bunshin_gym.snapshot import Snapshot
    from bunshin_gym.types import Forkable, ForkStats, Phase, ToolCall, ToolEffect, ToolResult
    from bunshin_gym.vector import BunshinVectorEnv, make_group
    from bunshin_gym.workspace import Workspace

__all__ = [
    "BunshinEnv",
    "BunshinVectorEnv",
    "ForkStats",
    "Forkable",
    "ForkableEnv",
    "ImageStore",
    "Phase",
    "Snapshot",
    "ToolCall",
    "ToolEffect",
    "ToolResult",
    "Workspace",
    "make_group",
    "register_envs",
]

_HOMES: Final = {
    "BunshinEnv": "bunshin_gym.envs",
    "BunshinVectorEnv": "bunshin_gym.vector",
    "ForkStats": "bunshin_gym.types",
    "Forkable": "bunshin_gym.types",
    "ForkableEnv": "bunshin_gym.forkable",
    "ImageStore": "bunshin_gym.images",
    "Phase": "bunshin_gym.types",
    "Snapshot": "bunshin_gym.snapshot",
    "ToolCall": "bunshin_gym.types",
    "ToolEffect": "bunshin_gym.types",
    "ToolResult": "bunshin_gym.types",
    "Workspace": "bunshin_gym.workspace",
    "make_group": "bunshin_gym.vector",
    "register_envs": "bunshin_gym.registration",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def _register() -> None:
    from bunshin_gym.registration import register_envs

    register_envs()


_register()
