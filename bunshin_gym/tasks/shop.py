# SPDX-License-Identifier: Apache-2.0
"""The shop's tasks; see `sites`."""

from __future__ import annotations

from bunshin_gym.tasks.sites import SiteTask, env_names_of, make_site_task

__all__ = ["env_names", "make_task"]


def env_names() -> dict[str, str]:
    """Every task's name in environment ids, and its own."""
    return env_names_of("shop")


def make_task(name: str) -> SiteTask:
    """Returns the task of that name; raises UsageError if there is none."""
    return make_site_task("shop", name)
