# SPDX-License-Identifier: Apache-2.0
"""Marks the tests that need root, and those that need what takes long to get, by where they are; logging as it was."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from bunshin_gym.events import LOGGER

HERE = Path(__file__).resolve().parent
PRIVILEGED = ("core", "desktop", "envs", "examples", "images")
LARGE = (
    "desktop/",
    "envs/test_parity.py",
    "envs/test_sites_real.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        path = item.path.relative_to(HERE)
        if path.parts[0] in PRIVILEGED:
            item.add_marker(pytest.mark.root)
        if path.as_posix().startswith(LARGE):
            item.add_marker(pytest.mark.large)


@pytest.fixture
def logging_as_it_was() -> Iterator[None]:
    loggers = [logging.getLogger("bunshin_gym"), LOGGER]
    before = [(logger.level, list(logger.handlers)) for logger in loggers]
    yield
    for logger, (level, handlers) in zip(loggers, before, strict=True):
        logger.setLevel(level)
        logger.handlers = handlers
