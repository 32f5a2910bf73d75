# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import copy
import multiprocessing
import pickle
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector.utils import create_shared_memory, read_from_shared_memory, write_to_shared_memory
from hypothesis import given
from hypothesis import strategies as st

from bunshin_gym.errors import ToolError, UsageError
from bunshin_gym.surfaces import ActionError, BrowserSurface, Episode, Screen
from bunshin_gym.surfaces.actions import parse_actions, render_call
from bunshin_gym.surfaces.browser import BROWSER_TOOLS, TEXT_LENGTHS
from bunshin_gym.surfaces.spaces import Unicode, clip_text
from bunshin_gym.types import ToolCall

SURFACE = BrowserSurface()
SCREEN = Screen(width=40, height=30)


def test_text_action_has_canonical_arguments() -> None:
    (call,) = SURFACE.parse('click("12")')
    assert call == ToolCall(name="click", args={"bid": "12", "button": "left", "modifiers": []})
    assert SURFACE.parse("click(bid='12', button=\"left\")") == (call,)
    assert SURFACE.parse(call) == (call,)
    assert SURFACE.parse({"name": "click", "args": {"bid": "12"}}) == (call,)
    assert SURFACE.parse([{"name": "click", "args": {"bid": "12"}}]) == (call,)


def test_several_calls_in_order_with_comments_and_blank_lines() -> None:
    text = """
        fill("a3", "line one\\nline two")   # into the box

    """
    calls = SURFACE.parse(text.strip() + "\nkeyboard_press('Enter'); noop(-0.0)")
    assert [call.name for call in calls] == ["fill", "keyboard_press", "noop"]
    assert calls[0].args["value"] == "line one\nline two"


def test_numbers_are_of_one_kind() -> None:
    assert SURFACE.parse("mouse_click(1, 2)") == SURFACE.parse("mouse_click(1.0, 2.0)")
    assert SURFACE.parse("scroll_at(1, 2, 3.0, -4)")[0].args == {"x": 1, "y": 2, "dx": 3, "dy": -4}


@pytest.mark.parametrize(
    ("action", "says"),
    [
        ("", "empty"),
        ("   \n# nothing", "empty"),
        ("jump('12')", "unknown action 'jump'"),
        ("click()", "'bid' is missing"),
        ("click(12)", "'bid' must be a string, not 12"),
        ("click('1', 'left', [], 4)", "takes 3 arguments, not 4"),
        ("click('1', color='red')", "no argument 'color'"),
        ("click('1', bid='2')", "given twice"),
        ("click('1', button='sidewise')", "'left', 'middle' or 'right'"),
        ("click('1', modifiers=['Hyper'])", "a list of Alt"),
        ("click(**{'bid': '1'})", "** is not allowed"),
        ("click('1' + '2')", "plain values"),
        ("click(__import__('os').getcwd())", "plain values"),
        ("click(f'{1}')", "plain values"),
        ("(lambda: click('1'))()", "no call such as"),
        ("import os", "no call such as"),
        ("os.system('true')", "no call such as"),
        ("click('1'", "cannot read the action"),
        ("click('1')\x00", "cannot read the action"),
        ("noop(True)", "must be a number"),
        ("noop(1e999)", "must be a number"),
        ("noop(1j)", "must be a number"),
        ("tab_focus(1.5)", "must be an integer"),
        ("tab_focus(4294967296)", "must be an integer"),
        ("fill('1', 'x', 1)", "must be True or False"),
        ("fill('1', '\\ud800')", "without lone surrogates"),
        ("upload_file('1', ['a', 2])", "must be a string"),
        ("noop(0)\n" * 65, "64 is the most"),
        ("(" * 5000, "cannot read the action"),
        ("noop(" + "-" * 5000 + "1)", "noop"),
        ("a" * (1 << 21), "is the most"),
        (12, "not int"),
        (None, "not NoneType"),
        ({"name": "click", "arg": {}}, "not dict"),
        ({"name": "click", "args": ["1"]}, "args must be a mapping"),
        ({"name": ["click"], "args": {}}, "unknown action"),
        ([["click"]], "not list"),
        ([], "empty"),
    ],
)
def test_wrong_actions_are_named(action: object, says: str) -> None:
    with pytest.raises(ActionError) as caught:
        SURFACE.parse(action)
    assert says in str(caught.value) or "cannot read the action" in str(caught.value)


@given(st.text(max_size=200))
def test_any_text_parses_or_says_why(text: str) -> None:
    try:
        calls = SURFACE.parse(text)
    except ActionError as error:
        calls, reason = (), str(error)
    else:
        reason = ""
    assert bool(calls) != bool(reason)


_VALUES: dict[str, st.SearchStrategy[Any]] = {
    "str": st.text(st.characters(exclude_categories=["Cs"])),
    "float": st.floats(allow_nan=False, allow_infinity=False),
    "int": st.integers(-(1 << 31) + 1, (1 << 31) - 1),
    "bool": st.booleans(),
    "str | list[str]": st.lists(st.text(st.characters(exclude_categories=["Cs"]))),
    "button": st.sampled_from(["left", "middle", "right"]),
    "modifiers": st.lists(st.sampled_from(["Alt", "Shift"])),
}


@given(st.data())
def test_rendered_calls_parse_to_themselves(data: st.DataObject) -> None:
    tool = data.draw(st.sampled_from(list(BROWSER_TOOLS.values())))
    args = tool.bind((), {param.name: data.draw(_VALUES[param.kind]) for param in tool.params})
    call = ToolCall(name=tool.name, args=args)
    assert parse_actions(render_call(call), BROWSER_TOOLS) == (call,)


def test_every_tool_declares_its_effect_and_is_described() -> None:
    assert set(SURFACE.effects) == set(BROWSER_TOOLS)
    assert set(SURFACE.effects.values()) <= {"deterministic", "stochastic", "external"}
    assert len(SURFACE.describe().splitlines()) == len(BROWSER_TOOLS)


def test_sampled_actions_parse() -> None:
    space = SURFACE.action_space(SCREEN)
    space.seed(0)
    samples = [space.sample() for _ in range(300)]
    assert len(set(samples)) > 100
    for sample in samples:
        assert sample in space
        assert SURFACE.parse(sample)
    space.seed(0)
    assert [space.sample() for _ in range(300)] == samples


def _seen(**changes: Any) -> dict[str, Any]:
    return {
        "screenshot": np.zeros((30, 40, 3), dtype=np.uint8),
        "axtree_txt": "Wurzel — 根 😀",
        "url": "https://example.test/ü",
        "open_pages_urls": ["https://example.test/ü", "about:blank"],
        "active_page_index": 0,
        "focused_element_bid": "",
        **changes,
    }


@pytest.mark.parametrize("elapsed_ns", [None, 2_500_000_000])
def test_observations_are_in_their_space(elapsed_ns: int | None) -> None:
    space = SURFACE.observation_space(SCREEN, elapsed_time=elapsed_ns is not None)
    episode = Episode(goal="Ziel", last_action="noop()", last_action_error="", elapsed_ns=elapsed_ns)
    observation = SURFACE.observation(_seen(), episode, SCREEN)
    assert observation in space
    assert list(observation) == list(space.spaces)
    assert observation["open_pages_urls"].splitlines() == ["https://example.test/ü", "about:blank"]
    assert ("elapsed_time" in observation) == (elapsed_ns is not None)


def test_observations_own_their_arrays() -> None:
    seen = _seen()
    observation = SURFACE.observation(seen, Episode(goal=""), SCREEN)
    observation["screenshot"][:] = 7
    assert not seen["screenshot"].any()


def test_long_texts_are_cut_and_say_so() -> None:
    seen = _seen(axtree_txt="x" * 100_000)
    text = SURFACE.observation(seen, Episode(goal=""), SCREEN)["axtree_txt"]
    assert len(text) == TEXT_LENGTHS["axtree_txt"]
    assert text.endswith("more characters)")
    assert clip_text("abc", 3) == "abc"
    assert len(clip_text("abcd", 3)) == 3


def test_a_screenshot_of_another_size_is_an_error() -> None:
    with pytest.raises(ToolError, match="not of 40x30"):
        SURFACE.observation(_seen(screenshot=np.zeros((30, 41, 3), dtype=np.uint8)), Episode(goal=""), SCREEN)


@given(st.text(max_size=40))
def test_unicode_flattens_and_returns(text: str) -> None:
    space = Unicode(40)
    assert text in space
    assert spaces.utils.unflatten(space, spaces.utils.flatten(space, text)) == text


def test_unicode_crosses_shared_memory() -> None:
    space = spaces.Dict({"a": Unicode(16), "b": Unicode(8, min_length=1)})
    memory = create_shared_memory(space, n=2, ctx=multiprocessing.get_context("fork"))
    read_early = read_from_shared_memory(space, memory, n=2)
    for index, values in enumerate(({"a": "é😀", "b": "x"}, {"a": "", "b": "日本"})):
        write_to_shared_memory(space, index, values, memory)
    wanted = {"a": ("é😀", ""), "b": ("x", "日本")}
    assert copy.deepcopy(read_early) == wanted, "what was read before the writes must follow them"
    assert read_early == wanted
    assert read_early["a"][1:] == ("",)
    copied = copy.deepcopy(read_early)
    write_to_shared_memory(space, 0, {"a": "later", "b": "y"}, memory)
    assert copied == wanted, "a copy must not follow"


def test_unicode_as_a_space() -> None:
    space = Unicode(5, min_length=2, seed=1)
    assert all(space.sample() in space for _ in range(50))
    assert "a" not in space
    assert "abcdef" not in space
    assert 5 not in space
    assert space == Unicode(5, min_length=2)
    assert space != Unicode(6, min_length=2)
    assert pickle.loads(pickle.dumps(space)) == space
    with pytest.raises(UsageError, match="no masks"):
        space.sample(mask=(None, None))
