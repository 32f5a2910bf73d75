# SPDX-License-Identifier: Apache-2.0
"""Scripted, randomised agents for MiniWoB++ tasks: what the benchmarks record and replay.

An agent reads what a model would read, the goal and the accessibility tree, and answers with tool
calls. Attempts at one task differ as a model's do: in the order of steps that have none, in how
text is entered, in idle steps, and now and then by a wrong click.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass

from bunshin_gym.speculate.state import Element, View, view_of
from bunshin_gym.types import ToolCall

__all__ = ["POLICIES", "Page", "attempt_calls", "click", "fill"]


def click(ref: str) -> ToolCall:
    """A left click."""
    return ToolCall(name="click", args={"bid": ref, "button": "left", "modifiers": []})


def fill(ref: str, text: str) -> ToolCall:
    """Replaces an input's text."""
    return ToolCall(name="fill", args={"bid": ref, "value": text, "enable_autocomplete_menu": False})


@dataclass(slots=True)
class Page:
    """What the agent sees now; `attempt_calls` keeps it up to date."""

    view: View
    rng: random.Random

    @property
    def goal(self) -> str:
        """What the task asks for."""
        return self.view.instruction

    def all(self, *roles: str) -> list[Element]:
        """The elements of these roles that can be used, in order."""
        return [e for e in self.view.elements if e.ref and e.role in roles and "hidden" not in e.flags]

    def named(self, name: str, *roles: str) -> Element:
        """The first element of that name; a ValueError if there is none."""
        wanted = name.strip().lower()
        for element in self.view.elements:
            if element.ref and (not roles or element.role in roles) and element.name.strip().lower() == wanted:
                return element
        raise ValueError(f"nothing is called {name!r}")

    def has(self, name: str, *roles: str) -> bool:
        """Whether `named` would find it."""
        try:
            self.named(name, *roles)
        except ValueError:
            return False
        return True

    def texts(self) -> list[str]:
        """All plain text, in order."""
        return [e.name for e in self.view.elements if e.role == "StaticText"]

    def find(self, pattern: str) -> tuple[str, ...]:
        """The groups of a pattern in the goal; a ValueError if it does not fit."""
        match = re.search(pattern, self.goal)
        if match is None:
            raise ValueError(f"{pattern!r} is not in {self.goal!r}")
        return tuple(group.strip() for group in match.groups())


Calls = Generator[ToolCall, None, None]
Policy = Callable[[Page], Calls]


def _enter(page: Page, ref: str, text: str, *, typed: bool) -> Calls:
    if typed:
        yield click(ref)
        yield ToolCall(name="keyboard_type", args={"text": text})
    else:
        yield fill(ref, text)


def _items(text: str) -> list[str]:
    return [item.strip() for item in re.split(r",\s*|\s+and\s+", text) if item.strip() and item.strip() != "nothing"]


def _submit(page: Page, name: str = "Submit") -> Calls:
    yield click(page.named(name, "button").ref)


def _click_first(*roles: str) -> Policy:
    def policy(page: Page) -> Calls:
        yield click(page.all(*roles)[0].ref)

    return policy


def _click_goal(pattern: str, *roles: str) -> Policy:
    def policy(page: Page) -> Calls:
        (name,) = page.find(pattern)
        yield click(page.named(name, *roles).ref)

    return policy


def click_sequence(page: Page) -> Calls:
    yield click(page.named("ONE").ref)
    yield click(page.named("TWO").ref)


def click_dialog_2(page: Page) -> Calls:
    (name,) = page.find(r'labeled "(.+?)"')
    yield click(page.named("Close" if name == "x" else name, "button").ref)


def tick_all(page: Page) -> Calls:
    (names,) = page.find(r"Select (.*) and click")
    items = _items(names)
    if page.rng.random() < 0.25:
        page.rng.shuffle(items)
    for item in items:
        yield click(page.named(item, "checkbox", "radio", "option").ref)
    yield from _submit(page)


def scroll_list(page: Page) -> Calls:
    (names,) = page.find(r"Select (.*) from the scroll")
    box = page.all("listbox")[0]
    yield ToolCall(name="select_option", args={"bid": box.ref, "options": _items(names)})
    yield from _submit(page)


def choose_list(page: Page) -> Calls:
    (name,) = page.find(r"Select (.*) from the list")
    box = page.all("combobox")[0]
    yield ToolCall(name="select_option", args={"bid": box.ref, "options": name})
    yield from _submit(page)


def enter_text(page: Page) -> Calls:
    (text,) = page.find(r'"(.+?)"')
    yield from _enter(page, page.all("textbox")[0].ref, text, typed=page.rng.random() < 0.25)
    yield from _submit(page)


def enter_password(page: Page) -> Calls:
    (text,) = page.find(r'"(.+?)"')
    boxes = [box.ref for box in page.all("textbox")]
    if page.rng.random() < 0.2:
        boxes.reverse()
    for ref in boxes:
        yield from _enter(page, ref, text, typed=page.rng.random() < 0.1)
    yield from _submit(page)


def login(page: Page) -> Calls:
    user, password = page.find(r'username "(.+?)" and the password "(.+?)"')
    typed = page.rng.random() < 0.2
    pairs = list(zip([box.ref for box in page.all("textbox")], (user, password), strict=False))
    if page.rng.random() < 0.2:
        pairs.reverse()
    for ref, text in pairs:
        yield from _enter(page, ref, text, typed=typed)
    yield click(page.all("button")[-1].ref)


def focus_nth(page: Page) -> Calls:
    match = re.search(r"(\d)\w\w input", page.goal)
    place = int(match[1]) - 1 if match else 0
    yield click(page.all("textbox")[place].ref)


def _open_until(page: Page, closed: Callable[[Page], list[Element]], name: str) -> Calls:
    """Opens one thing after the other until something of that name shows."""
    tried: set[str] = set()
    while not page.has(name):
        left = [e for e in closed(page) if e.ref not in tried]
        if not left:
            return
        choice = left[0] if page.rng.random() < 0.75 else page.rng.choice(left)
        tried.add(choice.ref)
        yield click(choice.ref)
    yield click(page.named(name).ref)


def navigate_tree(page: Page) -> Calls:
    (name,) = page.find(r'named "(.+?)"')
    yield from _open_until(page, lambda p: [e for e in p.all("generic") if e.name], name)


def tabs(page: Page) -> Calls:
    (name,) = page.find(r'link "(.+?)"')
    yield from _open_until(page, lambda p: [e for e in p.all("link") if e.name.startswith("Tab #")], name)


def sections(page: Page) -> Calls:
    (name,) = page.find(r'link "(.+?)"')
    yield from _open_until(page, lambda p: [e for e in p.all("tab") if "expanded=false" in e.flags], name)


def collapsible(page: Page) -> Calls:
    yield click(page.all("tab")[0].ref)
    yield from _submit(page)


def search_engine(page: Page) -> Calls:
    text, place = page.find(r'enter "(.+?)" and press "Search", then find and click the (\d+)')
    yield from _enter(page, page.all("textbox")[0].ref, text, typed=page.rng.random() < 0.2)
    yield from _submit(page, "Search")
    number = int(place) - 1
    for _ in range(number // 3):
        yield click(page.named(">").ref)
    links = [e for e in page.all("generic", "link") if e.name and not re.fullmatch(r"[<>\d]+", e.name)]
    yield click(links[number % 3].ref)


def form_sequence(page: Page) -> Calls:
    which, number, box = page.find(r'the (\d)\w\w radio button and enter the number "(.+?)" into the (\d)')
    steps = [
        [click(page.all("radio")[int(which) - 1].ref)],
        [fill(page.all("textbox")[int(box) - 1].ref, number)],
    ]
    if page.rng.random() < 0.2:
        steps.reverse()
    for step in steps:
        yield from step
    yield from _submit(page)


def arithmetic(page: Page) -> Calls:
    left, sign, right = next(m.groups() for t in page.texts() if (m := re.search(r"(\d+) ([x+-]) (\d+)", t)))
    a, b = int(left), int(right)
    answer = {"x": a * b, "+": a + b, "-": a - b}[sign]
    yield from _enter(page, page.all("textbox")[0].ref, str(answer), typed=page.rng.random() < 0.2)
    yield from _submit(page)


def read_table(page: Page) -> Calls:
    (key,) = page.find(r"value of (.+?) into")
    cells = [e.name for e in page.all("cell")]
    yield from _enter(page, page.all("textbox")[0].ref, cells[cells.index(key) + 1], typed=page.rng.random() < 0.2)
    yield from _submit(page)


def movies(page: Page) -> Calls:
    genre, director, year = page.find(r"Search for (.+?) movies directed by (.+?) from year (\d+)")
    values = {"genre": genre, "year": year, "director": director}
    label = ""
    for element in list(page.view.elements):
        if element.role in ("StaticText", "rowheader", "LabelText") and element.name:
            label = element.name.lower()
        if element.role == "textbox" and element.ref:
            key = next((key for key in values if key in label), None)
            if key is not None:
                yield from _enter(page, element.ref, values[key], typed=page.rng.random() < 0.1)
    yield click((page.named("Search") if page.has("Search") else page.all("button")[-1]).ref)


def find_word(page: Page) -> Calls:
    (place,) = page.find(r"the (\d+)\w\w word")
    text = max(page.texts(), key=len) if len(page.texts()) < 5 else page.texts()[3]
    words = re.findall(r"[\w'-]+", text)
    yield from _enter(page, page.all("textbox")[0].ref, words[int(place) - 1], typed=page.rng.random() < 0.2)
    yield from _submit(page)


def spinner(page: Page) -> Calls:
    (number,) = page.find(r"Select (-?\d+) with")
    yield from _enter(page, page.all("spinbutton")[0].ref, number, typed=False)
    yield from _submit(page)


def transform(page: Page) -> Calls:
    text = "".join(page.texts()[1:])
    yield from _enter(page, page.all("textbox")[0].ref, text, typed=page.rng.random() < 0.3)
    yield from _submit(page)


def autocomplete(page: Page) -> Calls:
    (start,) = page.find(r'starts with "(.+?)"')
    box = page.all("textbox")[0].ref
    yield click(box)
    yield ToolCall(name="keyboard_type", args={"text": start})
    end = re.search(r'ends with "(.+?)"', page.goal)
    options = [e for e in page.view.elements if e.ref and e.name.startswith(start)]
    fits = [e for e in options if end is None or e.name.endswith(end[1])]
    if fits:
        yield click(fits[-1].ref)
    yield from _submit(page)


def widget(page: Page) -> Calls:
    (kind,) = page.find(r'"(.+?)" widget')
    role = {"text": "textbox", "textarea": "textbox"}.get(kind, kind)
    boxes = page.all(role)
    yield click((boxes[0] if kind != "textarea" else boxes[-1]).ref)


def inbox(page: Page) -> Calls:
    (name,) = page.find(r"by (\w+) and")
    elements = list(page.view.elements)
    start = next(n for n, e in enumerate(elements) if e.name == name and e.role != "StaticText")
    images = [e for e in elements[start:] if e.role == "image" and e.ref]
    if "delete" in page.goal and page.rng.random() < 0.8:
        yield click(images[0].ref)
    elif "star" in page.goal and page.rng.random() < 0.8:
        yield click(images[1].ref)
    else:
        yield click(elements[start].ref)


POLICIES: dict[str, Policy] = {
    "click-test": _click_first("button"),
    "click-test-2": _click_goal(r"button (\w+)\.", "button"),
    "click-button": _click_goal(r'"(.+?)" button', "button"),
    "click-link": _click_goal(r'link "(.+?)"'),
    "click-dialog": _click_first("button"),
    "click-dialog-2": click_dialog_2,
    "click-tab": _click_goal(r"on (Tab #\d)", "link"),
    "click-tab-2-easy": tabs,
    "click-tab-2": tabs,
    "click-option": tick_all,
    "click-checkboxes": tick_all,
    "click-checkboxes-large": tick_all,
    "click-checkboxes-transfer": tick_all,
    "click-button-sequence": click_sequence,
    "click-collapsible": collapsible,
    "click-collapsible-2": sections,
    "click-scroll-list": scroll_list,
    "click-widget": widget,
    "choose-list": choose_list,
    "enter-text": enter_text,
    "enter-text-dynamic": enter_text,
    "enter-password": enter_password,
    "login-user": login,
    "login-user-popup": login,
    "focus-text": focus_nth,
    "focus-text-2": focus_nth,
    "navigate-tree": navigate_tree,
    "search-engine": search_engine,
    "form-sequence-2": form_sequence,
    "simple-arithmetic": arithmetic,
    "read-table": read_table,
    "multi-layouts": movies,
    "multi-orderings": movies,
    "find-word": find_word,
    "use-spinner": spinner,
    "text-transform": transform,
    "use-autocomplete": autocomplete,
    "email-inbox": inbox,
}
"""By a MiniWoB++ page's name."""


def _idle(page: Page) -> ToolCall:
    elements = page.all("button", "textbox", "generic", "link", "checkbox", "tab")
    if elements and page.rng.random() < 0.5:
        return ToolCall(name="hover", args={"bid": page.rng.choice(elements).ref})
    return ToolCall(name="scroll", args={"delta_x": 0.0, "delta_y": 100.0})


def attempt_calls(
    task: str, observation: object, rng: random.Random, *, idle: float = 0.08, wrong: float = 0.03, calls_max: int = 24
) -> Generator[ToolCall, object, None]:
    """An agent for the task: yields calls, and is sent the observation after each.

    Args:
        task: a MiniWoB++ page's name.
        observation: the first one.
        rng: what makes this attempt its own.
        idle: chance of a call that does nothing before each that does.
        wrong: chance of a click on something else.
        calls_max: when it gives up.
    """
    page = Page(view_of(observation), rng)
    steps: Iterator[ToolCall] = POLICIES[task](page)
    for _ in range(calls_max):
        roll = rng.random()
        others = page.all("button", "link", "checkbox", "generic")
        try:
            call = _idle(page) if roll < idle else next(steps)
        except (StopIteration, ValueError, IndexError):
            return  # done, or it does not understand what it sees
        if idle <= roll < idle + wrong and others:
            call = click(rng.choice(others).ref)
        seen = yield call
        page.view = view_of(seen)
