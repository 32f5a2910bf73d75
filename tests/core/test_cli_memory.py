# SPDX-License-Identifier: Apache-2.0
"""bunshin ps, plot and trace over real workspaces."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import pytest
from PIL import Image
from typer.testing import CliRunner

from bunshin_gym.cli import app
from bunshin_gym.errors import UsageError
from bunshin_gym.workspace import Core, Workspace

Start = Callable[..., Workspace]


def bunshin_command(home: Path, *args: str) -> str:
    """What it prints."""
    done = CliRunner().invoke(app, ["--home", str(home), *args], env={"COLUMNS": "200"}, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


@pytest.fixture(autouse=True)
def _home(monkeypatch: pytest.MonkeyPatch, bunshin: Core) -> None:
    """--home sets the variable; what it was comes back."""
    monkeypatch.setenv("BUNSHIN_HOME", str(bunshin.home))


def test_ps_shows_who_came_from_whom(start: Start, bunshin: Core) -> None:
    source = start()
    with source.snapshot(engine="pool") as snapshot, snapshot.branch() as branch, branch.snapshot() as second:
        lines = bunshin_command(bunshin.home, "ps").splitlines()
        depth = {
            match[0]: line.index(match[0]) for line in lines if (match := re.search(r"\b[0-9a-f]{12}\b(?= )", line))
        }
        assert list(depth) == [source.id, snapshot.id, branch.id, second.id]
        assert sorted(depth.values()) == list(depth.values())
        assert len(set(depth.values())) == 4
        assert any("all together" in line for line in lines)
    source.close()
    assert "nothing runs" in bunshin_command(bunshin.home, "ps").replace("\n", " ")


def test_plot_draws_what_ran(start: Start, bunshin: Core, tmp_path: Path) -> None:
    source = start()
    with source.snapshot(engine="pool") as snapshot, snapshot.branch():
        said = bunshin_command(bunshin.home, "plot", str(tmp_path / "memory.png"), "-s", "0.4", "-i", "0.1")
    assert "5 samples" in said
    with Image.open(tmp_path / "memory.png") as picture:
        assert len(picture.convert("RGB").getcolors(1 << 24) or []) > 8
    with pytest.raises(UsageError, match="a picture ends in"):
        bunshin_command(bunshin.home, "plot", "memory.txt")


def test_a_saved_trace_is_shown_again(start: Start, bunshin: Core, tmp_path: Path) -> None:
    source = start()
    with source.snapshot(engine="pool") as snapshot, snapshot.branch() as branch:
        assert branch.branch_stats is not None
        rows = [asdict(snapshot.stats), asdict(branch.branch_stats)]
    saved = tmp_path / "trace.json"
    saved.write_text(json.dumps(rows))
    shown = bunshin_command(bunshin.home, "trace", "--from", str(saved))
    assert all(phase["name"] in shown for row in rows for phase in row["phases"])
    saved.write_text('[{"total_ns": 1}]')
    with pytest.raises(UsageError, match="is no saved trace"):
        bunshin_command(bunshin.home, "trace", "--from", str(saved))
