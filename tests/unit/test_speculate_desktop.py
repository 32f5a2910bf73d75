# SPDX-License-Identifier: Apache-2.0
"""Prediction on desktops: the screen is OSWorld's XML, and a call is a piece of source code."""

from __future__ import annotations

from xml.sax.saxutils import escape

import pytest

from bunshin_gym.speculate.predictor import RankingPredictor
from bunshin_gym.speculate.state import Attempt, State, Step, View, view_of
from bunshin_gym.types import ToolCall

NAMESPACES = " ".join(
    f'xmlns:{short}="https://accessibility.ubuntu.example.org/ns/{name}"'
    for short, name in (("st", "state"), ("cp", "component"), ("val", "value"))
)


def quoted(text: str) -> str:
    """As ElementTree writes an attribute."""
    return f'"{escape(text, {chr(34): "&quot;"})}"'


def node(role: str, name: str, x: int, y: int, *states: str, text: str = "") -> str:
    said = "".join(f' st:{state}="true"' for state in ("enabled", "showing", "visible", *states))
    return f'<{role} name={quoted(name)}{said} cp:screencoord="({x}, {y})" cp:size="(20, 10)">{text}</{role}>'


def screen(*nodes: str, instruction: str = "", window: str = "Letter") -> dict[str, str]:
    frame = f'<frame name={quoted(window)} st:active="true" st:showing="true" cp:screencoord="(0, 0)" cp:size="(9, 9)">'
    application = f'<application name="office">{frame}{"".join(nodes)}</frame></application>'
    tree = f"<desktop-frame {NAMESPACES}>{application}</desktop-frame>"
    return {"accessibility_tree": tree, "instruction": instruction, "last_action_error": "", "terminal": ""}


def test_a_desktop_is_read() -> None:
    seen = screen(
        node("push-button", 'Save "as" & close', 100, 50),
        node("table-cell", "A1", 0, 100, text="12 &lt; 13"),
        node("table-cell", "B1", 20, 100),
        node("table-cell", "C1", 40, 100, "focused"),
        node("label", "", 0, 200),
        '<push-button name="Hidden" st:enabled="true" cp:screencoord="(0, 0)" cp:size="(1, 1)" />',
        instruction="Do it",
    )
    view = view_of(seen)
    assert (view.page, view.instruction, view.focus) == ("Letter", "Do it", "50, 105")
    found = {element.name: element for element in view.elements}
    assert set(found) == {"Letter", 'Save "as" & close', "A1", "C1"}
    assert found['Save "as" & close'].ref == "110, 55"
    assert found["A1"].value == "12 < 13"
    assert "focused" in found["C1"].flags


@pytest.mark.parametrize("tree", ["<", "<a", '<push-button name="x" st:showing="true">', "<" * 1000])
def test_what_is_no_tree_shows_nothing(tree: str) -> None:
    assert view_of({"accessibility_tree": tree, "instruction": "x"}).elements == ()


def attempt(word: str, x: int, y: int, task: str) -> Attempt:
    """Opens a field that is elsewhere in each attempt, and writes what the instruction quotes."""
    seen = screen(
        node("push-button", "Cancel", 300, 300),
        node("push-button", "Title", x, y),
        instruction=f'Set the title to "{word}"',
    )
    view = view_of(seen)
    click = ToolCall(name="pyautogui", args={"source": f"pyautogui.click({x + 10}, {y + 5}, clicks=2)"})
    write = ToolCall(name="pyautogui", args={"source": f"pyautogui.write('{word}\\n')"})
    return Attempt(task=task, steps=(Step(view=view, call=click), Step(view=view, call=write)), reward=1.0)


def test_places_and_texts_in_source_are_foretold_on_screens_never_seen() -> None:
    words = ["Plans", "Notes", "Budget", "Guests", "Menu", "Travel", "Garden", "Diary"]
    predictor = RankingPredictor()
    predictor.fit([attempt(word, 40 * n, 30 * n, f"title-{n % 4}") for n, word in enumerate(words * 4)])
    new = attempt("Fjord", 777, 333, "title-new")
    first, second = new.steps
    begin = State(task=new.task, view=first.view)
    assert predictor.predict(begin)[0].call == first.call
    assert predictor.predict(State(task=new.task, view=second.view, steps=(first,)))[0].call == second.call
    again = RankingPredictor.from_bytes(predictor.to_bytes())
    assert again.predict(begin) == predictor.predict(begin)


def test_source_that_nothing_explains_is_foretold_as_it_was() -> None:
    save = ToolCall(name="pyautogui", args={"source": "pyautogui.hotkey('ctrl', 's')"})
    step = Step(view=View(page="Letter"), call=save)
    predictor = RankingPredictor()
    for _ in range(3):
        predictor.learn(Attempt(task="save", steps=(step,)))
    assert predictor.slots.candidates(State(task="save", view=View(page="Letter")))[0].call == save
