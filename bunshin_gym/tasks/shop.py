# SPDX-License-Identifier: Apache-2.0
"""The shop's tasks; see `sites`."""

from __future__ import annotations

from bunshin_gym.tasks.sites import SiteTask, describe_task, env_names_of, make_site_task, problems_of, splits_of

__all__ = ["describe", "env_names", "make_task", "problems", "splits"]


def env_names() -> dict[str, str]:
    """Every task's name in environment ids, and its own."""
    return env_names_of("shop")


def make_task(name: str) -> SiteTask:
    """Returns the task of that name; raises UsageError if there is none."""
    return make_site_task("shop", name)


def splits() -> dict[str, list[str]]:
    """Names by split: `train` and `test`."""
    return splits_of("shop")


def describe(name: str) -> list[str]:
    """What a task is, in lines for a person."""
    return describe_task("shop", name)


def problems() -> list[str]:
    """What is wrong with the files, a line each."""
    return problems_of("shop")
