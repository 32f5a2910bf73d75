# SPDX-License-Identifier: Apache-2.0
"""OSWorld's task files: read, checked, classified; their cache; the scripts that solve them."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from bunshin_gym.cli.app import app
from bunshin_gym.errors import UsageError
from bunshin_gym.osworld import Collection, find_collection
from bunshin_gym.osworld.definition import load_definition
from bunshin_gym.paths import task_folder
from bunshin_gym.tasks import desktop, load_task, osworld
from bunshin_gym.tasks.base import Message, PreparedTask
from bunshin_gym.tasks.osworld import DesktopTask
from bunshin_gym.tasks.scripted_desktop import ScriptError, elements, perform

MIRROR = Path(os.environ.get("BUNSHIN_OSWORLD_DATA", Path(__file__).parents[3] / "shared" / "data" / "osworld"))
RULE = {"type": "rule", "rules": {"expected": "1"}}


def definition(**changes: Any) -> dict[str, Any]:
    evaluator = {"func": "exact_match", "result": {"type": "vm_command_line", "command": "true"}, "expected": RULE}
    return {"id": "a-task", "instruction": "do it", "config": [], "related_apps": [], "evaluator": evaluator, **changes}


def collection(root: Path, *tasks: dict[str, Any]) -> Collection:
    for task in tasks:
        path = root / "examples" / "os" / f"{task['id']}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(task))
    return Collection(root)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"id": 3}, "id is missing"),
        ({"instruction": None}, "instruction is missing"),
        ({"evaluator": []}, "evaluator is missing"),
        ({"evaluator": {}}, "func is missing"),
        ({"config": [{"type": "fly", "parameters": {}}]}, "type 'fly' is unknown"),
        ({"config": [{"type": "launch"}]}, "step 0 has no parameters"),
        ({"evaluator": {"func": ["a", "b"], "result": [{}]}}, "2 functions, but result is no list of as many"),
    ],
)
def test_what_is_no_task_is_refused_by_name(tmp_path: Path, changes: dict[str, Any], problem: str) -> None:
    path = tmp_path / "task.json"
    path.write_text(json.dumps(definition(**changes)))
    with pytest.raises(UsageError, match=problem) as caught:
        load_definition(path)
    assert str(path) in str(caught.value)


def launch(*command: str) -> dict[str, Any]:
    return {"type": "launch", "parameters": {"command": list(command)}}


@pytest.mark.parametrize(
    ("changes", "kinds"),
    [
        ({}, set()),
        ({"config": [launch("code", "x.py")]}, {"application"}),
        ({"related_apps": ["vs_code"]}, {"application"}),
        ({"config": [{"type": "googledrive", "parameters": {}}]}, {"account"}),
        (
            {"config": [{"type": "chrome_open_tabs", "parameters": {"urls_to_open": ["https://a.example"]}}]},
            {"network"},
        ),
        ({"config": [{"type": "chrome_open_tabs", "parameters": {"urls_to_open": ["file:///tmp/a"]}}]}, set()),
        ({"proxy": True}, {"network"}),
        ({"instruction": "Install the extension Foo."}, {"network"}),
        ({"evaluator": {"func": "check_play_and_exit"}}, {"evaluator"}),
        ({"evaluator": {"func": "infeasible"}, "instruction": "Install the extension Foo."}, set()),
        (
            {"evaluator": {"func": "f", "result": {"type": "googledrive_file"}, "expected": {"type": "pdf_from_url"}}},
            {"account", "network"},
        ),
        (
            {
                "config": [
                    {"type": "download", "parameters": {"files": [{"url": "https://h/a/b%20c.xlsx", "path": "/x"}]}}
                ]
            },
            {"files"},
        ),
    ],
)
def test_what_a_task_needs(tmp_path: Path, changes: dict[str, Any], kinds: set[str]) -> None:
    tasks = collection(tmp_path, definition(**changes))
    assert {need.kind for need in tasks.needs(tasks.get("a-task"))} == kinds


def test_files_come_from_the_cache_or_from_the_mirror(tmp_path: Path) -> None:
    url = "https://hub.example/x/b%20c.xlsx"
    expected = {"type": "cloud_file", "path": "https://hub.example/gold.xlsx", "dest": "gold.xlsx"}
    step = {"type": "download", "parameters": {"files": [{"url": url, "path": "/home/user/sheet.xlsx"}]}}
    evaluator = {
        "func": "compare_table",
        "result": {"type": "vm_file", "path": "/x", "dest": "x"},
        "expected": expected,
    }
    tasks = collection(tmp_path, definition(config=[step], evaluator=evaluator))
    task = tasks.get("a-t")
    sheet, gold = task.downloads()
    assert sheet.cache_name == "1867c5c1-fdcd-5a85-a89c-67195a3e9b16_sheet.xlsx"
    assert (sheet.base_name, gold.cache_name) == ("b c.xlsx", "gold.xlsx")
    assert "2 not in" in str(tasks.needs(task)[0])
    mirror, cache = tmp_path / "files" / task.id, tmp_path / "cache" / task.id
    for path in (mirror / "b c.xlsx", cache / "gold.xlsx", cache / "notes"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(path.name)
    assert tasks.needs(task) == ()
    out = tmp_path / "out"
    out.mkdir()
    tasks.fill_cache(task, out)
    assert (out / sheet.cache_name).read_text() == "b c.xlsx"
    assert sorted(path.name for path in out.iterdir()) == sorted([sheet.cache_name, "gold.xlsx", "notes"])


def test_a_task_is_found_by_the_beginning_of_its_id(tmp_path: Path) -> None:
    tasks = collection(tmp_path, definition(id="abc-1"), definition(id="abd-2"))
    assert tasks.get("abc").id == "abc-1"
    with pytest.raises(UsageError, match="2 tasks begin so"):
        tasks.get("ab")
    with pytest.raises(UsageError, match="there are 2"):
        tasks.get("zz")
    with pytest.raises(UsageError, match="holds no OSWorld tasks"):
        Collection(tmp_path / "cache").names()
    with pytest.raises(UsageError, match="no such folder"):
        find_collection(tmp_path / "nowhere")


def test_tasks_that_cannot_be_run_are_refused_with_the_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    collection(tmp_path, definition(proxy=True))
    monkeypatch.delenv("BUNSHIN_OSWORLD", raising=False)
    assert osworld.env_names() == {}
    with pytest.raises(UsageError, match="do not ship with this package"):
        osworld.make_task("a-task")
    monkeypatch.setenv("BUNSHIN_OSWORLD", str(tmp_path))
    assert osworld.env_names() == {"OSWorld-os-a-task": "a-task"}
    with pytest.raises(UsageError, match="cannot be run here: network: web sites"):
        osworld.make_task("a-task")
    assert osworld.make_task("a-task", allow=["network"]).id == "osworld.a-task"
    path = tmp_path / "examples" / "os" / "a-task.json"
    assert osworld.make_task(str(path), root=str(tmp_path), allow=["network"]).name == "a-task"


def test_every_task_file_there_is_loads_and_is_classified() -> None:
    folder = task_folder("desktop")
    assert folder is not None
    assert len(list(Collection(folder))) >= 30
    assert desktop.problems() == []
    if MIRROR.is_dir():
        tasks = Collection(MIRROR)
        loaded = list(tasks)
        assert len(loaded) == 369
        runnable = [task for task in loaded if not tasks.needs(task)]
        offline = {entry["id"] for entry in json.loads((MIRROR / "offline_tasks.json").read_text())}
        assert 40 <= len(runnable) < 63
        assert len([task for task in runnable if task.id not in offline]) <= 6
        assert {need.kind for task in loaded for need in tasks.needs(task)} == {
            "account",
            "application",
            "evaluator",
            "files",
            "network",
        }


def test_each_desktop_task_is_in_one_split_and_can_be_made_ready() -> None:
    names = set(desktop.env_names().values())
    parts = desktop.splits()
    assert set(parts) == {"train", "test"}
    assert sorted(parts["train"] + parts["test"]) == sorted(names)
    task = DesktopTask(
        family="desktop",
        name="x",
        definition=next(iter(Collection(Path(str(task_folder("desktop")))))),
        tasks=Collection(Path()),
    )
    assert isinstance(task, PreparedTask)
    assert task == DesktopTask(family="desktop", name="x", definition=task.definition, tasks=Collection(Path("/")))
    assert hash(task) == hash(DesktopTask(family="desktop", name="x", definition=task.definition, tasks=task.tasks))


def test_nothing_is_judged_before_the_last_word(tmp_path: Path) -> None:
    tasks = collection(tmp_path, definition())
    task = DesktopTask(family="osworld", name="a-task", definition=tasks.get("a-task"), tasks=tasks)
    page: Any = None
    for messages in ([], [Message(role="assistant", text="hm")]):
        verdict = task.validate(page, {}, messages)
        assert (verdict.reward, verdict.done) == (0.0, False)


def test_the_command_checks_shows_and_lists(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    run = CliRunner()
    shown = run.invoke(app, ["tasks", "show", "desktop.calc-total"])
    assert shown.exit_code == 0
    assert "instruction: In the open table" in shown.stdout
    assert "judged by: compare_table" in shown.stdout
    listed = run.invoke(app, ["tasks", "list", "--family", "desktop", "--split", "test"]).stdout.split()
    assert "bunshin/Desktop-CalcAverage-v0" in listed
    assert len(listed) == len(desktop.splits()["test"])
    assert run.invoke(app, ["tasks", "check", "desktop"]).exit_code == 0
    collection(tmp_path, definition())
    (tmp_path / "examples" / "os" / "broken.json").write_text("{")
    monkeypatch.setenv("BUNSHIN_OSWORLD", str(tmp_path))
    checked = run.invoke(app, ["tasks", "check", "osworld"])
    assert checked.exit_code == 1
    assert "broken.json" in checked.output


TREE = """<desktop-frame xmlns:st="https://accessibility.ubuntu.example.org/ns/state"
 xmlns:cp="https://accessibility.ubuntu.example.org/ns/component"><application name="app">
 <frame name="Editor" st:showing="true" cp:screencoord="(0, 0)" cp:size="(100, 100)">
 <push-button name="OK" st:showing="true" cp:screencoord="(10, 20)" cp:size="(40, 10)"/>
 <push-button name="OK" st:showing="true" cp:screencoord="(10, 60)" cp:size="(40, 10)"/>
 <push-button name="OK" cp:screencoord="(0, 0)" cp:size="(1, 1)"/></frame></application></desktop-frame>"""


class FakeDesktop:
    """Shows the tree after a few looks."""

    def __init__(self, looks: int) -> None:
        self.looks, self.actions = looks, []

    def seen(self) -> dict[str, Any]:
        tree = TREE if self.looks <= 0 else ""
        return {"accessibility_tree": tree, "terminal": "", "last_action_error": ""}

    def step(self, action: Any) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        self.looks -= 1
        self.actions.append(action)
        return self.seen(), float(action == "DONE"), action == "DONE", False, {}


def test_scripts_click_what_they_find_and_wait_until_it_is_there() -> None:
    env = FakeDesktop(3)
    steps = [
        {"click": "OK"},
        {"click": "OK", "index": -1, "times": 2, "dx": 3},
        {"window": "Edit"},
        {"gone": "Save"},
        "DONE",
    ]
    _, reward, ended = perform(env, env.seen(), steps)
    assert (reward, ended) == (1.0, True)
    clicks = [action for action in env.actions if "click" in action]
    assert clicks == [
        "pyautogui.click(30, 25, clicks=1, button='left')",
        "pyautogui.click(33, 65, clicks=2, button='left')",
    ]
    assert len(elements(TREE)) == 3


def test_a_script_that_waits_in_vain_says_for_what() -> None:
    env = FakeDesktop(0)
    with pytest.raises(ScriptError, match="Cancel"):
        perform(env, env.seen(), [{"click": "Cancel"}])


def test_tasks_are_found_by_their_ids() -> None:
    with pytest.raises(UsageError, match="no OSWorld task"):
        load_task("desktop.no-such-task")
