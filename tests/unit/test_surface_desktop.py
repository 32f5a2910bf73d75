# SPDX-License-Identifier: Apache-2.0
"""The desktop surface: actions in all their forms, spaces, and the tree's shape."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from bunshin_gym.surfaces import ActionError, DesktopSurface, Episode, Screen
from bunshin_gym.surfaces.computer_13 import ACTION_TYPES, to_source
from bunshin_gym.toolserver import atspi_model as atspi
from bunshin_gym.toolserver import atspi_xml, quiet
from bunshin_gym.toolserver.atspi_sheet import address

SURFACE = DesktopSurface()
SCREEN = Screen(width=64, height=48)


@pytest.mark.parametrize(
    ("action", "name", "args"),
    [
        ("pyautogui.click(3, 4)", "pyautogui", {"source": "pyautogui.click(3, 4)"}),
        (" WAIT\n", "wait", {"seconds": 2.0}),
        ("FAIL", "report_infeasible", {"reason": ""}),
        ("DONE", "done", {"answer": ""}),
        ({"action_type": "DONE"}, "done", {"answer": ""}),
        ({"action_type": "CLICK", "x": 1, "y": 2}, "pyautogui", {"source": "pyautogui.click(x=1, y=2)"}),
        ({"name": "wait", "args": {"seconds": 0.5}}, "wait", {"seconds": 0.5}),
    ],
)
def test_actions_in_all_their_forms(action: object, name: str, args: dict[str, object]) -> None:
    (call,) = SURFACE.parse(action)
    assert (call.name, dict(call.args)) == (name, args)


@pytest.mark.parametrize(
    ("action", "source"),
    [
        ({"action_type": "MOVE_TO", "parameters": {"x": 5, "y": 6}}, "pyautogui.moveTo(x=5, y=6)"),
        (
            {"action_type": "CLICK", "button": "right", "x": 1, "y": 2, "num_clicks": 2},
            "pyautogui.click(button='right', x=1, y=2, clicks=2)",
        ),
        ({"action_type": "CLICK"}, "pyautogui.click()"),
        ({"action_type": "MOUSE_DOWN", "button": "left"}, "pyautogui.mouseDown(button='left')"),
        ({"action_type": "MOUSE_UP"}, "pyautogui.mouseUp()"),
        ({"action_type": "RIGHT_CLICK", "x": 1, "y": 2}, "pyautogui.rightClick(x=1, y=2)"),
        ({"action_type": "DOUBLE_CLICK", "x": 1, "y": 2}, "pyautogui.doubleClick(x=1, y=2)"),
        ({"action_type": "SCROLL", "dx": 1, "dy": -3}, "pyautogui.hscroll(1)\npyautogui.vscroll(-3)"),
        ({"action_type": "TYPING", "text": "it's"}, 'pyautogui.typewrite("it\'s")'),
        ({"action_type": "PRESS", "key": "ENTER"}, "pyautogui.press('enter')"),
        ({"action_type": "KEY_DOWN", "key": "shift"}, "pyautogui.keyDown('shift')"),
        ({"action_type": "KEY_UP", "key": "shift"}, "pyautogui.keyUp('shift')"),
        ({"action_type": "HOTKEY", "keys": ["ctrl", "s"]}, "pyautogui.hotkey('ctrl', 's')"),
        ({"action_type": "FAIL"}, "FAIL"),
    ],
)
def test_computer_13(action: dict[str, object], source: str) -> None:
    assert to_source(action) == source
    compile(source, "action", "exec")


def test_there_are_thirteen_kinds_and_three_words() -> None:
    assert len(ACTION_TYPES) == 16


@pytest.mark.parametrize(
    ("action", "problem"),
    [
        ("", "empty"),
        ({"action_type": "FLY"}, "is none of"),
        ({"action_type": "MOVE_TO", "x": 1}, "lacks"),
        ({"action_type": "CLICK", "x": 1}, "belong together"),
        ({"action_type": "CLICK", "button": "paw"}, "button"),
        ({"action_type": "CLICK", "z": 1}, "no parameter"),
        ({"action_type": "MOVE_TO", "x": "1", "y": float("nan")}, "number"),
        ({"action_type": "TYPING", "text": 3}, "string"),
        ({"action_type": "SCROLL"}, "dx"),
        ({"action_type": "HOTKEY", "keys": "ctrl"}, "list"),
        ({"action_type": "PRESS", "parameters": 3}, "mapping"),
    ],
)
def test_actions_that_are_none_say_why(action: object, problem: str) -> None:
    with pytest.raises(ActionError, match=problem):
        SURFACE.parse(action)


def test_samples_parse_and_observations_are_of_their_space() -> None:
    space = SURFACE.action_space(SCREEN)
    space.seed(3)
    for _ in range(50):
        assert SURFACE.parse(space.sample())
    seen = {
        "screenshot": np.zeros((48, 64, 3), dtype=np.uint8),
        "accessibility_tree": "<desktop-frame/>",
        "terminal": None,
    }
    observation = SURFACE.observation(seen, Episode(goal="do it", elapsed_ns=5), SCREEN)
    assert SURFACE.observation_space(SCREEN, elapsed_time=True).contains(observation)
    assert (observation["instruction"], observation["terminal"]) == ("do it", "")


def test_the_tree_has_the_shape_that_agents_know() -> None:
    showing = 1 << atspi.STATES.index("showing") | 1 << atspi.STATES.index("read-only")
    button = atspi.Accessible(("a", "/1"), name='say "<&>"', role="push button", states=showing)
    button.extents, button.text, button.value = (1, 2, 3, 4), "t\ufffc\x07", (1.0, 0.0, 9.0, 1.0)
    button.actions, button.attributes = [("press", "does it", "<Alt>x")], {"tool kit": "gtk"}
    app = atspi.Accessible(("a", "/0"), name="app", role="application", children=[button])
    text, cut = atspi_xml.render([app], max_characters=10_000)
    assert not cut
    node = ElementTree.fromstring(text)[0][0]
    base = "https://accessibility.ubuntu.example.org/ns/"
    assert (node.tag, node.get("name"), node.text) == ("push-button", 'say "<&>"', "t")
    assert {key.removeprefix("{" + base): value for key, value in node.attrib.items() if key != "name"} == {
        "state}showing": "true",
        "state}read_only": "true",
        "attributes}tool-kit": "gtk",
        "component}screencoord": "(1, 2)",
        "component}size": "(3, 4)",
        "value}value": "1.0",
        "value}min": "0.0",
        "value}max": "9.0",
        "value}step": "1.0",
        "action}press_desc": "does it",
        "action}press_kb": "<Alt>x",
    }


def test_a_tree_that_is_too_long_is_cut_but_whole() -> None:
    children = [atspi.Accessible(("a", f"/{n}"), name="&" * 100, role="label") for n in range(500)]
    app = atspi.Accessible(("a", "/0"), name="app", role="application", children=children)
    text, cut = atspi_xml.render([app], max_characters=20_000)
    assert cut
    assert len(text) <= 20_000
    assert 10 < len(ElementTree.fromstring(text)[0]) < 500


def test_the_focused_terminal_is_the_one_in_the_active_window() -> None:
    active, focused = (1 << atspi.STATES.index(name) for name in ("active", "focused"))
    terminals = [atspi.Accessible(("a", f"/{n}"), role="terminal", states=focused, text=f"{n}$ \n") for n in range(2)]
    frames = [
        atspi.Accessible(("a", f"/f{n}"), role="frame", states=active * n, children=[terminals[n]]) for n in range(2)
    ]
    app = atspi.Accessible(("a", "/0"), name="terminal", role="application", children=frames)
    assert atspi_xml.focused_terminal([app]) == "1$"
    assert atspi_xml.focused_terminal([]) is None


@pytest.mark.parametrize(("row", "column", "name"), [(0, 0, "A1"), (9, 25, "Z10"), (0, 26, "AA1"), (4, 701, "ZZ5")])
def test_cells_have_the_names_of_spreadsheets(row: int, column: int, name: str) -> None:
    assert address(row, column) == name


def test_rest_is_told_by_what_processes_do(tmp_path: Path) -> None:
    runs, ticks = quiet._read("/proc/self/stat")
    assert runs
    assert ticks >= 0
    odd = tmp_path / "stat"
    odd.write_text("7 (a) R b) S 1 1 1 0 -1 4194560 1 0 0 0 3 4 0 0 20 0 1 0 5 1 1")
    assert quiet._read(str(odd)) == (False, 7)


def test_what_an_office_has_below_its_menu_bar_is_moved_there() -> None:
    def node(role: str, extents: tuple[int, int, int, int], *children: atspi.Accessible) -> atspi.Accessible:
        return atspi.Accessible(("a", role), role=role, extents=extents, children=list(children))

    bar, cell = node("menu bar", (0, 46, 900, 25)), node("table cell", (41, 184, 82, 17))
    pane = node("root pane", (0, 46, 900, 700), cell)
    window = node("frame", (0, 29, 900, 800), node("filler", (0, 46, 900, 725), bar, pane))
    atspi.move_below_menu(window)
    assert [each.extents[1] for each in (bar, pane, cell) if each.extents] == [46, 71, 209]
    atspi.move_below_menu(window)
    assert cell.extents == (41, 209, 82, 17)
    atspi.move_below_menu(node("frame", (0, 0, 1, 1), node("root pane", (0, 0, 1, 1))))


def test_states_have_the_numbers_that_the_bus_gives_them() -> None:
    numbers = {"active": 1, "focused": 12, "showing": 25, "visible": 30, "manages-descendants": 31, "read-only": 43}
    assert {name: atspi.STATES.index(name) for name in numbers} == numbers
