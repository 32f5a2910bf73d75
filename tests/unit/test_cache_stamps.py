# SPDX-License-Identifier: Apache-2.0
"""Places in results that belong to the run, and are no part of what makes two of them equal."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from cache_fakes import MakeRig, World, call

from bunshin_gym.cache.sequence import CachePolicy
from bunshin_gym.cache.stamps import Stamps
from bunshin_gym.cache.tiers import Budgets
from bunshin_gym.errors import ReplayDiverged, UsageError
from bunshin_gym.types import ToolCall, ToolResult

NEVER = Budgets(memory_bytes=0)


class Stamped(World):
    """Results that carry an id, times, and a measurement."""

    def run(self, call: ToolCall) -> ToolResult:
        result = super().run(call)
        observation = {**result.observation, "clock": time.time_ns(), "ids": [{"id": time.time_ns()}]}
        return ToolResult(
            observation={**observation, "said": "first words"},
            reward=result.reward,
            terminated=result.terminated,
            info={"at": time.time(), "rss_bytes": time.time_ns(), "handle": object()},
        )


def test_times_ids_and_words_are_the_callers(make_rig: MakeRig) -> None:
    stamps = Stamps(
        {
            "observation.clock": "unix_ns",
            "observation.ids.*.id": "call_id",
            "observation.said": "action",
            "info.at": "unix_s",
            "info.rss_bytes": "keep",
            "info.handle": "drop",
        }
    )
    rig = make_rig(kind=Stamped, stamps=stamps, policy=CachePolicy(audit=0.0))
    with rig.attempt() as attempt:
        attempt.start()
        first = attempt.step(call("look")).result
    before_ns = time.time_ns()
    with rig.attempt() as attempt:
        attempt.start()
        step = attempt.step(call("look"), call_id="call-7", action="my words")
    assert step.source == "hit"
    got = step.result
    assert got.observation["clock"] >= before_ns
    assert got.observation["ids"] == [{"id": "call-7"}]
    assert got.observation["said"] == "my words"
    assert got.info["at"] >= before_ns / 1e9 - 0.001
    assert got.info["rss_bytes"] == first.info["rss_bytes"]
    assert "handle" not in got.info
    # And since none of it is compared, a replay agrees.
    with rig.attempt() as attempt:
        attempt.start()
        attempt.step(call("look"))
        assert attempt.step(call("move", step=1)).source == "run"


@pytest.mark.parametrize("paths", [{"reward.x": "drop"}, {"info": "drop"}, {"info.": "drop"}, {"info.a": "sometimes"}])
def test_wrong_stamps_are_refused(paths: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        Stamps(paths)


class Drawn(World):
    """A world whose screens differ a little each time they are drawn, or a lot."""

    level = 0

    def run(self, call: ToolCall) -> ToolResult:
        result = super().run(call)
        screen = np.full((8, 8, 3), 100, np.uint8)
        screen[0, 0] += Drawn.level
        return replace(result, observation={**result.observation, "screen": screen})


@pytest.mark.parametrize(("level", "source"), [(0, "run"), (3, "run"), (90, None)])
def test_screens_that_look_the_same_are_equal_in_a_replay(make_rig: MakeRig, level: int, source: str | None) -> None:
    stamps = Stamps({"observation.screen": "pixels"})
    rig = make_rig(kind=Drawn, stamps=stamps, budgets=NEVER)
    Drawn.level = 0
    rig.walk(call("look"))
    Drawn.level = level
    with rig.attempt() as attempt:
        attempt.start()
        attempt.step(call("look"))
        if source is None:
            with pytest.raises(ReplayDiverged):
                attempt.step(call("move", step=1))
        else:
            assert attempt.step(call("move", step=1)).source == source
