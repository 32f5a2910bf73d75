# SPDX-License-Identifier: Apache-2.0
"""Loads what is under examples/."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

from support import need

__all__ = ["EXAMPLES", "load_example"]

EXAMPLES = Path(__file__).parents[2] / "examples"


def load_example(name: str, *, needs: tuple[str, ...] = ()) -> ModuleType:
    """An example as a module, if what it needs is installed."""
    for package in needs:
        need(importlib.util.find_spec(package) is not None, f"{package} is not installed: make frameworks")
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module
