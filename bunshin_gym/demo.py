# SPDX-License-Identifier: Apache-2.0
"""The demo: a login form, half filled in, forked into four branches that go four ways."""

from __future__ import annotations

import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import gymnasium
import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

import bunshin_gym
from bunshin_gym.cli.output import console, mib, ms, table
from bunshin_gym.envs import BunshinEnv
from bunshin_gym.episode import Measured
from bunshin_gym.errors import BunshinError
from bunshin_gym.tasks.scripted import parse_tree, solve

__all__ = ["Outcome", "run_demo"]

_ENV_ID: Final = "bunshin/MiniWoB-LoginUser-v0"
_MARGIN, _CAPTION = 8, 40


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a branch ended.

    Attributes:
        name: what it set out to do.
        actions: what it did.
        reward: the sum of its rewards.
        ended: whether the task ended it.
        fields: what is in the form's text boxes.
        screen: its last screenshot.
        cost: of making it, and its memory.
    """

    name: str
    actions: tuple[str, ...]
    reward: float
    ended: bool
    fields: tuple[str, ...]
    screen: NDArray[np.uint8]
    cost: Measured


def run_demo(output: Path, *, seed: int, engine: str | None) -> list[Outcome]:
    """Runs the demo, prints what it cost and saves the four screens side by side.

    Raises:
        BunshinError: something cannot be made, or the branches did not keep apart.
    """
    bunshin_gym.register_envs()
    with ExitStack() as stack:
        env: Any = gymnasium.make(_ENV_ID, engine=engine)
        stack.callback(env.close)
        with console.status("booting Chromium in a workspace"):
            seen, info = env.reset(seed=seed)
        console.print(f"[bold]{_ENV_ID}[/]: {seen['goal']}", highlight=False)
        first, *rest = solve(env.unwrapped.task.id, seen)
        seen, *_ = env.step(first)
        console.print(f"the source does   {first}", highlight=False)
        with console.status("forking into four branches"):
            branches = env.unwrapped.fork(4)
        for branch in branches:
            stack.callback(branch.close)
        outcomes = _go_four_ways(branches, seen, rest)
        _check_apart(env, outcomes)
        _report(info["measured"], outcomes)
        reward = _finish(env, rest)
        console.print(f"the source, after its branches: reward {reward:+g}", highlight=False)
    _save_sheet(outcomes, output)
    console.print(f"the four screens: {output}", highlight=False)
    return outcomes


def _go_four_ways(branches: Sequence[BunshinEnv], seen: dict[str, Any], rest: Sequence[str]) -> list[Outcome]:
    """All four at the same time, each in a thread."""
    boxes = [node for node in parse_tree(seen["axtree_txt"]) if node.role == "textbox"]
    user, password = boxes[0].bid, boxes[1].bid
    plans = (
        ("log in", tuple(rest)),
        ("log in with a wrong password", (f"fill({password!r}, 'guess')", rest[-1])),
        ("be somebody else", (f"fill({user!r}, 'mallory')", f"fill({password!r}, 'sesame')")),
        ("wander off", (f"click({user!r})", "keyboard_press('End')", "keyboard_type(' and friends')")),
    )
    with ThreadPoolExecutor(max_workers=len(branches)) as pool:
        return list(pool.map(lambda pair: _follow(pair[0], *pair[1]), zip(branches, plans, strict=True)))


def _follow(branch: BunshinEnv, name: str, actions: tuple[str, ...]) -> Outcome:
    total, ended, seen = 0.0, False, branch.observe()
    for action in actions:
        seen, reward, ended, _, _ = branch.step(action)
        total += reward
        if seen["last_action_error"]:
            raise BunshinError(f"branch {name!r}: {action}: {seen['last_action_error']}")
    return Outcome(
        name=name,
        actions=actions,
        reward=total,
        ended=ended,
        fields=_fields(seen),
        screen=seen["screenshot"],
        cost=branch.fork_costs(),
    )


def _fields(seen: dict[str, Any]) -> tuple[str, ...]:
    values = []
    for node in parse_tree(seen["axtree_txt"]):
        if node.role == "textbox":
            found = re.search(r"value='([^']*)'", node.rest)
            values.append(found[1] if found else "")
    return tuple(values)


def _check_apart(env: Any, outcomes: Sequence[Outcome]) -> None:
    results = {(outcome.reward, outcome.ended, outcome.fields) for outcome in outcomes}
    if len(results) != len(outcomes):
        raise BunshinError(f"the branches did not keep apart: {results}")
    seen = env.unwrapped.observe()
    if len(_fields(seen)) < 2 or _fields(seen)[1] != "":
        raise BunshinError(f"a branch's work shows in its source: {_fields(seen)}")


def _finish(env: Any, rest: Sequence[str]) -> float:
    return sum(float(env.step(action)[1]) for action in rest)


def _report(reset: Measured, outcomes: Sequence[Outcome]) -> None:
    cost = outcomes[0].cost
    snapshot = cost.snapshot
    rows = [
        (
            outcome.name,
            ms(outcome.cost.branch.total_ns if outcome.cost.branch else None),
            mib(outcome.cost.unique_bytes),
            mib(outcome.cost.shared_bytes),
            " / ".join(outcome.fields) or "-",
            f"{outcome.reward:+g}" if outcome.ended else "goes on",
        )
        for outcome in outcomes
    ]
    console.print(table("four branches", ("what it does", "made in", "unique", "shared", "form", "reward"), rows))
    console.print(
        f"boot and first reset {ms(reset.total_ns)}; snapshot {ms(snapshot.total_ns if snapshot else None)}, "
        f"source frozen {ms(cost.frozen_ns)}",
        highlight=False,
    )


def _save_sheet(outcomes: Sequence[Outcome], path: Path) -> None:
    """The screens in a row, each under what its branch did and got."""
    font = ImageFont.load_default()
    height, width = outcomes[0].screen.shape[:2]
    sheet = Image.new(
        "RGB", (len(outcomes) * (width + _MARGIN) + _MARGIN, height + _CAPTION + _MARGIN), (240, 240, 240)
    )
    draw = ImageDraw.Draw(sheet)
    for number, outcome in enumerate(outcomes):
        at = _MARGIN + number * (width + _MARGIN)
        result = f"reward {outcome.reward:+g}" if outcome.ended else "goes on"
        draw.text((at, _MARGIN), f"{number + 1}. {outcome.name}\n{result}", fill=(0, 0, 0), font=font)
        sheet.paste(Image.fromarray(outcome.screen), (at, _CAPTION))
    sheet.save(path)
