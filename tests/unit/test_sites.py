# SPDX-License-Identifier: Apache-2.0
"""Our sites' task files: complete, made by their generator, and refused when they are wrong."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from bunshin_gym.errors import UsageError
from bunshin_gym.paths import package_path
from bunshin_gym.tasks import load_task, sites
from bunshin_gym.tasks.script import action_of, check_steps, play

ENVS = package_path().parent / "envs"
SEEN = {
    "url": "http://shop.test/",
    "last_action_error": "",
    "axtree_txt": "RootWebArea 'Shop'\n\t[1] link 'Red  kettle'\n\t[2] link 'Red'\n\t[3] textbox 'Search'\n"
    "\t[4] button 'Buy'\n\t[5] button 'Buy'\n\t[6] combobox 'Sort by', value='x'",
}


@pytest.mark.parametrize(("site", "tasks", "kinds"), [("shop", 60, 20), ("forum", 15, 5)])
def test_there_are_tasks_enough(site: str, tasks: int, kinds: int) -> None:
    definitions = sites.definitions(site)
    templates = Counter(definition.template for definition in definitions.values())
    assert len(definitions) >= tasks
    assert len(templates) >= kinds
    assert min(templates.values()) >= 3
    assert {definition.split for definition in definitions.values()} == {"train", "test"}
    ids = [definition.verified["task_id"] for definition in definitions.values()]
    assert len(set(ids)) == len(ids)


@pytest.mark.parametrize("task_id", [f"{site}.{name}" for site in sites.SITES for name in sites.definitions(site)])
def test_a_task_is_whole(task_id: str) -> None:
    task = load_task(task_id)
    definition = task.definition
    assert "{{" not in json.dumps([definition.verified["intent"], definition.verified["eval"], definition.solution])
    assert "{{" not in json.dumps(list(definition.database))
    assert definition.solution[-1][0] == "answer"
    assert not any("__" in step[1] for step in task.solution() if step[0] == "goto")
    # What must have changed is asked of the database; what must be known is in the answer.
    kinds = [part["expected"]["task_type"] for part in definition.verified["eval"] if "task_type" in part["expected"]]
    assert len(kinds) == 1
    assert bool(definition.database) == (kinds[0] == "mutate")


@pytest.mark.parametrize("site", list(sites.SITES))
def test_the_files_are_what_their_generator_makes(tmp_path: Path, site: str) -> None:
    shutil.copytree(ENVS / "images" / site / "site", tmp_path / "images" / site / "site")
    # All of the generators, and none of what they make.
    shutil.copytree(ENVS / "tasks", tmp_path / "tasks", ignore=shutil.ignore_patterns("*.json", "__pycache__"))
    subprocess.run([sys.executable, "-B", str(tmp_path / "tasks" / f"make_{site}.py")], check=True)
    made = {path.name: path.read_text() for path in (tmp_path / "tasks" / site).glob("*.json")}
    assert made == {path.name: path.read_text() for path in (ENVS / "tasks" / site).glob("*.json")}


@pytest.mark.parametrize("site", list(sites.SITES))
def test_a_site_tells_of_its_tasks(site: str) -> None:
    splits = sites.splits_of(site)
    assert sorted(splits["train"] + splits["test"]) == sorted(sites.definitions(site))
    name = splits["test"][0]
    lines = sites.describe_task(site, name)
    assert f"id: {site}.{name}" in lines
    assert "split: test" in lines


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"solution": [["jump", "high"]]}, "is no step"),
        ({"solution": [["fill", "textbox", "Search"]]}, "fill takes 3 to 4 arguments"),
        ({"account": "nobody@shop.test"}, "there is no account"),
        ({"extra": 1}, "its keys are"),
        ({"intent_template": "Buy the {{thing}}."}, "thing"),
        ({"instances": [{"split": "dev", "values": {"product": "x", "id": 1}}]}, "neither train nor test"),
    ],
)
def test_a_wrong_file_is_named(tmp_path: Path, change: dict[str, object], complaint: str) -> None:
    template = json.loads((ENVS / "tasks" / "shop" / "hide-product.json").read_text())
    path = tmp_path / "hide-product.json"
    path.write_text(json.dumps({**template, **change}))
    with pytest.raises(UsageError, match=re.escape(str(path))) as caught:
        sites._expand(path, "shop")
    assert complaint in str(caught.value)


@pytest.mark.parametrize(
    ("step", "action"),
    [
        (["click", "link", "Red kettle"], "click('1')"),
        (["click", "link", "Red"], "click('2')"),
        (["click", "button", "Buy", 1], "click('5')"),
        (["fill", "textbox", "Search", "it's"], "fill('3', \"it's\")"),
        (["select", "combobox", "Sort", "Newest"], "select_option('6', 'Newest')"),
        (["goto", "http://shop.test/"], "goto('http://shop.test/')"),
        (["press", "Enter"], "keyboard_press('Enter')"),
        (["see", "Red kettle"], ""),
        (["answer", {"a": None}], "send_msg_to_user('{\"a\": null}')"),
        (["infeasible", "no"], "report_infeasible('no')"),
    ],
)
def test_a_step_becomes_an_action(step: list[object], action: str) -> None:
    check_steps([step])
    assert action_of(step, SEEN) == action


@pytest.mark.parametrize(
    "step", [["click", "link", "Blue"], ["click", "link", ""], ["click", "button", "Buy", 2], ["see", "Blue"]]
)
def test_what_the_page_does_not_show_is_said(step: list[object]) -> None:
    with pytest.raises(UsageError, match=r"http://shop\.test/"):
        action_of(step, SEEN)


def test_a_slow_page_is_waited_for() -> None:
    late = {**SEEN, "axtree_txt": "RootWebArea 'Blue'\n\t[9] link 'Blue'"}
    shown = iter([SEEN, SEEN, late, late])

    def step(action: str) -> tuple[dict[str, str], float, bool, bool, dict[str, str]]:
        return next(shown), 0.0, False, False, {}

    assert [action for action, _ in play(step, SEEN, [["click", "link", "Blue"]])] == ["noop(250)"] * 3 + ["click('9')"]


def test_what_could_not_be_acted_on_in_time_is_tried_again() -> None:
    late = {**SEEN, "last_action_error": "click: Timeout 2000ms exceeded"}
    other = {**SEEN, "last_action_error": "click: no such element"}
    shown = iter([late, late, SEEN, other])

    def step(action: str) -> tuple[dict[str, str], float, bool, bool, dict[str, str]]:
        return next(shown), 0.0, False, False, {}

    steps = [["click", "link", "Red"], ["see", "Red"], ["click", "button", "Buy"]]
    assert [action for action, _ in play(step, SEEN, steps)] == ["click('2')"] * 3 + ["click('4')"]
