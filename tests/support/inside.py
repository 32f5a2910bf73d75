# SPDX-License-Identifier: Apache-2.0
"""Source for programs that tests run inside workspaces."""

from __future__ import annotations

from typing import Final

__all__ = ["IN_BACKGROUND"]

IN_BACKGROUND: Final = """
import os


def in_background(said=""):
    if os.fork():
        print(said, flush=True)
        os._exit(0)
    os.setsid()
    null = os.open("/dev/null", os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
"""
"""Defines `in_background`: who waits for the program is told something, and the program goes on without it."""
