# SPDX-License-Identifier: Apache-2.0
"""The `bunshin` command."""

from bunshin_gym.cli.app import app, main

__all__ = ["app", "main"]
