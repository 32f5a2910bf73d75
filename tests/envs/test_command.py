# SPDX-License-Identifier: Apache-2.0
"""The command, as a user types it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from PIL import Image


def _bunshin(*args: str, text: str = "") -> subprocess.CompletedProcess[str]:
    script = "import sys; from bunshin_gym.cli import main; sys.argv[0] = 'bunshin'; main()"
    return subprocess.run(
        [sys.executable, "-c", script, *args], input=text, capture_output=True, text=True, check=False
    )


def test_the_demo_solves_forks_and_saves(tmp_path: Path) -> None:
    done = _bunshin("demo", "--output", str(tmp_path / "demo.png"))
    assert done.returncode == 0, done.stderr
    assert "four branches" in done.stdout
    assert "reward +1" in done.stdout
    with Image.open(tmp_path / "demo.png") as sheet:
        assert sheet.width > 4 * 320


def test_a_scripted_run_is_recorded(tmp_path: Path) -> None:
    film = tmp_path / "film.gif"
    done = _bunshin("run", "miniwob.enter-text", "--policy", "scripted", "--record", str(film))
    assert done.returncode == 0, done.stderr
    assert "reward 1" in done.stdout
    with Image.open(film) as frames:
        assert frames.n_frames >= 2  # type: ignore[attr-defined]


def test_actions_from_standard_input() -> None:
    done = _bunshin("run", "bunshin/MiniWoB-ClickTest-v0", text="noop(0)\njump()\n")
    assert done.returncode == 0, done.stderr
    assert "1: noop(0)" in done.stdout
    assert "unknown action 'jump'" in done.stdout.replace("\n", " ")


def test_wrong_names_are_one_line() -> None:
    for args in (["run", "miniwob.nothing"], ["run", "bunshin/Nothing-v0"], ["image", "rm", "nothing"]):
        done = _bunshin(*args)
        assert done.returncode == 1
        assert done.stderr.startswith("bunshin: ")
        assert "Traceback" not in done.stderr


def test_fork_and_trace_show_their_tables() -> None:
    done = _bunshin("fork", "minimal", "-n", "2")
    assert done.returncode == 0, done.stderr
    assert "branch 2" in done.stdout
    done = _bunshin("trace", "minimal")
    assert done.returncode == 0, done.stderr
    assert "restore" in done.stdout


def test_doctor_finds_this_machine_ready() -> None:
    done = _bunshin("doctor")
    assert done.returncode == 0, done.stdout
    assert "Ready." in done.stdout
