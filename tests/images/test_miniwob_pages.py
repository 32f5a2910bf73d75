# SPDX-License-Identifier: Apache-2.0
"""Each MiniWoB++ page in the image loads, can be read, and gives the same state for the same seed."""

from __future__ import annotations

import re
from typing import Any

import pytest

from bunshin_gym.toolclient import ToolClient

FOLDER = "/opt/bunshin/miniwob/miniwob"
START = """(seed) => {
  core.EPISODE_MAX_TIME = 1e9;
  Math.seedrandom(seed);
  core.startEpisodeReal();
  core.clearTimer();
  return core.getUtterance();
}"""


def start(tools: ToolClient, name: str, seed: str) -> dict[str, Any]:
    seen = tools.step("goto", {"url": f"file://{FOLDER}/{name}.html"}, screenshot=False, tree=False)
    assert seen["last_action_error"] == ""
    assert tools.evaluate(START, seed)
    return tools.observe()


def element(seen: dict[str, Any], what: str) -> str:
    found = re.search(rf"\[(\w+)\] {what}", seen["axtree_txt"])
    assert found is not None, f"{what} in\n{seen['axtree_txt']}"
    return found[1]


def reward(tools: ToolClient) -> float:
    return float(tools.evaluate("() => WOB_DONE_GLOBAL ? WOB_RAW_REWARD_GLOBAL : NaN"))


def test_a_button_is_clicked_for_a_reward(tools: ToolClient) -> None:
    seen = start(tools, "click-test", "1")
    tools.step("click", {"bid": element(seen, "button 'Click Me!'")})
    assert reward(tools) == 1


def test_a_text_is_entered_for_a_reward(tools: ToolClient) -> None:
    seen = start(tools, "enter-text", "1")
    wanted = re.search(r'Enter "(\w+)"', str(tools.evaluate("() => core.getUtterance()")))
    assert wanted is not None
    tools.step("fill", {"bid": element(seen, "textbox"), "value": wanted[1]})
    tools.step("click", {"bid": element(seen, "button 'Submit'")})
    assert reward(tools) == 1
    start(tools, "enter-text", "1")
    tools.step("fill", {"bid": element(tools.observe(), "textbox"), "value": "wrong"})
    tools.step("click", {"bid": element(tools.observe(), "button 'Submit'")})
    assert reward(tools) < 0


def test_a_seed_says_what_the_task_is(tools: ToolClient) -> None:
    one, other, again = (start(tools, "enter-text", seed)["axtree_txt"] for seed in ("1", "2", "1"))
    assert one == again != other


@pytest.mark.slow
def test_every_page_loads_and_can_be_read(tools: ToolClient) -> None:
    listing = tools.shell(["/bin/ls", FOLDER])["stdout"].decode().split()
    names = [name.removesuffix(".html") for name in listing if name.endswith(".html")]
    assert len(names) >= 125
    silent = []
    for name in names:
        seen = tools.step("goto", {"url": f"file://{FOLDER}/{name}.html"})
        problems = seen["last_action_error"] or seen["page_error"]
        if problems or seen["axtree_cut"] or not re.search(r"\[\d+\] ", seen["axtree_txt"]):
            silent.append((name, problems))
    assert silent == []
