# SPDX-License-Identifier: Apache-2.0
"""Pictures of a tree, and the command that makes them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from cache_fakes import CONTEXT, Rig, call
from fake_guest import FakeMachine, FakeTask
from rich.console import Console
from typer.testing import CliRunner

from bunshin_gym.cache import CachePolicy
from bunshin_gym.cache.tree import SnapshotTree
from bunshin_gym.cache.tree_view import branches, rate_plot, to_html, to_svg, to_text
from bunshin_gym.cli.app import app
from bunshin_gym.envs import BunshinEnv
from bunshin_gym.errors import UsageError
from bunshin_gym.trajectory import read_trajectories, replay
from bunshin_gym.wrappers.tool_sequence_cache import ToolSequenceCache

A, B = "keyboard_type('a')", "keyboard_type('<b>&')"


@pytest.fixture
def walked(tmp_path: Path):
    """A directory with a tree of two ways, met several times."""
    machine = FakeMachine()
    pool = machine.pool()
    directory = tmp_path / "tree"
    with SnapshotTree(directory) as tree:
        for actions in ([A, A], [A, B], [A, B], ["keyboard_type('done')"]):
            env = ToolSequenceCache(BunshinEnv(FakeTask(), bases=pool), tree)
            env.reset(options={"task_seed": 7})
            for action in actions:
                env.step(action)
            env.close()
    yield directory, pool
    pool.close()
    assert machine.guests == 0


def run(*args: object) -> Any:
    result = CliRunner().invoke(app, ["cache", *map(str, args)], catch_exceptions=False)
    assert result.exit_code == 0
    return result.stdout


def test_text_has_every_call_with_its_hits(walked) -> None:
    with SnapshotTree(walked[0]) as tree:
        found = branches(tree)
        console = Console(width=200, record=True, file=open("/dev/null", "w"))  # noqa: SIM115 - rich wants one
        console.print(to_text(found))
        console.file.close()
    text = console.export_text()
    assert "fake.typing, seed 7" in text
    assert "keyboard_type(text='a') 2 hits of 3" in text
    assert "keyboard_type(text='<b>&') 1 hits of 2" in text
    assert "reward 1, end" in text


def test_snapshots_are_marked_by_tier(tmp_path: Path) -> None:
    rig = Rig(tmp_path, policy=CachePolicy(snapshot_share=1.0))
    rig.walk(call("wait", ms=5000), call("write", text="a"))
    rig.walk(call("wait", ms=5000), call("write", text="b"))
    ((body, root),) = branches(rig.tree, CONTEXT.task)
    assert body["seed"] == CONTEXT.seed
    assert any("memory" in branch.tiers for branch in root.walk())
    assert branches(rig.tree, "another") == []
    rig.close()


def test_html_is_one_well_formed_page_with_thumbnails(walked, tmp_path: Path) -> None:
    with SnapshotTree(walked[0]) as tree:
        to_html(branches(tree), tree, tmp_path / "tree.html")
    page = (tmp_path / "tree.html").read_text()
    assert page.count("<details") == 5
    assert page.count("data:image/png;base64,") == 5
    assert "&lt;b&gt;&amp;" in page
    assert "<b>" not in page


def test_svg_has_a_picture_a_node(walked, tmp_path: Path) -> None:
    with SnapshotTree(walked[0]) as tree:
        ((body, root),) = branches(tree)
        to_svg(body, root, tree, tmp_path / "tree.svg")
        to_svg(body, root, tree, tmp_path / "bare.svg", thumbnails=False)
    drawn = ElementTree.parse(tmp_path / "tree.svg").getroot()
    assert len(drawn.findall(".//{http://www.w3.org/2000/svg}image")) == 5
    assert not ElementTree.parse(tmp_path / "bare.svg").getroot().findall(".//{http://www.w3.org/2000/svg}image")


def test_rates_are_plotted(walked, tmp_path: Path) -> None:
    with SnapshotTree(walked[0]) as tree:
        rate_plot(tree.ledger.rates(), tmp_path / "rates.png")
    assert (tmp_path / "rates.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(UsageError, match="no steps"):
        rate_plot([], tmp_path / "none.png")


def test_the_command_tells_what_is_stored(walked, tmp_path: Path) -> None:
    directory, _ = walked
    stats = json.loads(run("stats", directory, "--json", "--plot", tmp_path / "rates.svg"))
    assert (stats["nodes"], stats["contexts"], stats["attempts"]) == (5, 1, 4)
    assert (stats["hits"], stats["misses"]) == (6, 5)
    assert {row["name"] for row in stats["tools"]} == {"(reset)", "keyboard_type"}
    assert (tmp_path / "rates.svg").exists()
    assert "keyboard_type" in run("stats", directory)
    assert "keyboard_type" in run("tree", directory)
    run("tree", directory, "--form", "html", "--output", tmp_path / "t.html")
    run("tree", directory, "--form", "svg", "--output", tmp_path / "svg", "--task", "fake.typing")
    assert (tmp_path / "t.html").exists()
    assert len(list((tmp_path / "svg").iterdir())) == 1
    assert "nodes" in run("gc", directory, "--contents-mib", "0")
    assert json.loads(run("stats", directory, "--json"))["nodes"] == 0


def test_quarantine_by_command(walked) -> None:
    directory, _ = walked
    run("quarantine", directory, "fake.typing", "keyboard_type")
    with SnapshotTree(directory) as tree:
        row = tree.ledger.tool("fake.typing", "keyboard_type")
        assert row is not None
        assert row.quarantined == "by command"
    run("quarantine", directory, "fake.typing", "keyboard_type", "--lift")
    with SnapshotTree(directory) as tree:
        row = tree.ledger.tool("fake.typing", "keyboard_type")
        assert row is not None
        assert row.quarantined is None


def test_exported_ways_replay(walked, tmp_path: Path) -> None:
    directory, pool = walked
    assert "3 trajectories" in run("export", directory, tmp_path / "out")
    ways = list(read_trajectories(tmp_path / "out"))
    assert sorted(len(way.steps) for way in ways) == [1, 2, 2]
    for way in ways:
        with BunshinEnv(FakeTask(), bases=pool) as env:
            assert replay(way, env) == []


def test_a_folder_without_a_tree_is_an_error(tmp_path: Path) -> None:
    for command in ("stats", "tree", "gc"):
        with pytest.raises(UsageError, match="no snapshot tree"):
            CliRunner().invoke(app, ["cache", command, str(tmp_path)], catch_exceptions=False)
    assert list(tmp_path.iterdir()) == []
