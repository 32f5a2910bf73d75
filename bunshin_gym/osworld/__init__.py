# SPDX-License-Identifier: Apache-2.0
"""OSWorld: its task files, an endpoint its controllers can talk to, and its own evaluation in an environment apart."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

from bunshin_gym.osworld.collection import Collection, find_collection
from bunshin_gym.osworld.definition import Definition, Need

if TYPE_CHECKING:
    from bunshin_gym.osworld.endpoint import Endpoint
    from bunshin_gym.osworld.evaluator import Evaluator, OSWorldError, shared_evaluator

__all__ = [
    "Collection",
    "Definition",
    "Endpoint",
    "Evaluator",
    "Need",
    "OSWorldError",
    "find_collection",
    "shared_evaluator",
]

# What needs web servers and pictures is loaded when it is used: env ids are registered without it.
_LATE: Final = {
    "Endpoint": "endpoint",
    "Evaluator": "evaluator",
    "OSWorldError": "evaluator",
    "shared_evaluator": "evaluator",
}


def __getattr__(name: str) -> Any:
    if name not in _LATE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_LATE[name]}"), name)
