# SPDX-License-Identifier: Apache-2.0
"""Marks the tests that need root, by their folder."""

from __future__ import annotations

from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
PRIVILEGED = ("core", "envs", "examples", "images")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.relative_to(HERE).parts[0] in PRIVILEGED:
            item.add_marker(pytest.mark.root)
