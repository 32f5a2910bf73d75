# SPDX-License-Identifier: Apache-2.0
"""How Gymnasium comes to know our envs, each way in an interpreter of its own."""

from __future__ import annotations

import subprocess
import sys

import pytest

ENV_ID = "bunshin/MiniWoB-ClickTest-v0"


def run(script: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-W", "error", "-c", f"import gymnasium\n{script}"]
    return subprocess.run(argv, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    "script",
    [
        f"made = gymnasium.make('bunshin_gym:{ENV_ID}')",
        f"import bunshin_gym\nmade = gymnasium.make('{ENV_ID}')",
    ],
    ids=["by the module's name", "by importing it"],
)
def test_it_is_made(script: str) -> None:
    done = run(script + "\nprint(type(made.unwrapped).__name__, made.unwrapped.task.id, made.spec.id)")
    assert done.stderr == ""
    assert done.stdout.split() == ["BunshinEnv", "miniwob.click-test", ENV_ID]


def test_without_either_gymnasium_does_not_know_it() -> None:
    """Once it looks for installed packages again, docs/envs.md can promise more."""
    assert "NamespaceNotFound" in run(f"gymnasium.make('{ENV_ID}')").stderr
