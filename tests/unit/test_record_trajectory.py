# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
from pathlib import Path
from typing import Any, ClassVar

import gymnasium
import numpy as np
import pytest
from fake_guest import FakeTask

from bunshin_gym.envs import BunshinEnv
from bunshin_gym.errors import UsageError
from bunshin_gym.trajectory import read_trajectories, read_trajectory, replay
from bunshin_gym.types import ToolCall
from bunshin_gym.wrappers.record_trajectory import RecordTrajectory
from bunshin_gym.wrappers.tool_sequence_cache import ToolSequenceCache

ACTIONS = ["keyboard_type('a')", ToolCall(name="keyboard_type", args={"text": "b"}), "keyboard_type('done')"]


def record(pool: Any, directory: Path, *actions: Any, **named: Any) -> list[Any]:
    with RecordTrajectory(BunshinEnv(FakeTask(), bases=pool), directory, **named) as env:
        shown = [env.reset(seed=3)[0]]
        shown += [env.step(action)[0] for action in actions]
    return shown


def test_an_episode_is_read_as_it_was(pool, tmp_path: Path) -> None:
    shown = record(pool, tmp_path, *ACTIONS, notes={"group": 4})
    (one,) = read_trajectories(tmp_path)
    assert one.ended
    assert one.notes == {"group": 4}
    assert [step.action for step in one.steps] == ACTIONS
    assert one.total_reward == 1.0
    assert one.steps[-1].terminated
    assert all(step.wall_ns > 0 and step.think_ns >= 0 for step in one.steps)
    for recorded, seen in zip((one.observation, *(step.observation for step in one.steps)), shown, strict=True):
        np.testing.assert_equal(recorded, seen)
        assert recorded["active_page_index"].dtype == seen["active_page_index"].dtype


def test_a_replay_agrees_and_a_changed_record_does_not(pool, tmp_path: Path) -> None:
    record(pool, tmp_path, *ACTIONS, name=lambda: "one")
    with BunshinEnv(FakeTask(), bases=pool) as env:
        assert replay(read_trajectory(tmp_path / "one.jsonl"), env) == []
    lines = [json.loads(line) for line in (tmp_path / "one.jsonl").read_text().splitlines()]
    lines[2]["observation"]["axtree_txt"] = "something else"
    lines[3]["reward"] = 0.5
    (tmp_path / "two.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    with BunshinEnv(FakeTask(), bases=pool) as env:
        found = replay(read_trajectory(tmp_path / "two.jsonl"), env)
    assert [(one.step, one.what) for one in found] == [(2, "observation.axtree_txt"), (3, "reward")]
    with BunshinEnv(FakeTask(), bases=pool) as env:
        assert len(replay(read_trajectory(tmp_path / "two.jsonl"), env, ignore=["axtree_txt"])) == 1


def test_a_record_replays_through_the_cache(pool, tmp_path: Path) -> None:
    record(pool, tmp_path / "records", *ACTIONS)
    (one,) = read_trajectories(tmp_path / "records")
    with ToolSequenceCache(BunshinEnv(FakeTask(), bases=pool), tmp_path / "tree") as env:
        assert replay(one, env) == []
        assert replay(one, env) == []
        assert env.last is not None
        assert env.last.source == "hit"


def test_screens_are_stored_once(pool, tmp_path: Path) -> None:
    for _ in range(3):
        record(pool, tmp_path, "noop(0)", "noop(0)")
    assert len(list((tmp_path / "images").iterdir())) == 1
    assert len(list(read_trajectories(tmp_path))) == 3


def test_what_a_crash_tears_is_left_out(pool, tmp_path: Path) -> None:
    record(pool, tmp_path, *ACTIONS, name=lambda: "one")
    text = (tmp_path / "one.jsonl").read_text()
    (tmp_path / "one.jsonl").write_text(text[: text.rindex('{"kind":"step"') + 100])
    one = read_trajectory(tmp_path / "one.jsonl")
    assert len(one.steps) == 2
    assert not one.ended


def test_names_that_are_taken_and_files_that_are_no_trajectory(pool, tmp_path: Path) -> None:
    record(pool, tmp_path, name=lambda: "one")
    with pytest.raises(UsageError, match=r"one\.jsonl"):
        record(pool, tmp_path, name=lambda: "one")
    (tmp_path / "two.jsonl").write_text('{"kind": "end"}\n')
    with pytest.raises(UsageError, match="no trajectory"):
        read_trajectory(tmp_path / "two.jsonl")
    with BunshinEnv(FakeTask(), bases=pool) as env, pytest.raises(gymnasium.error.ResetNeeded):
        RecordTrajectory(env, tmp_path).step("noop(0)")


class Odd(gymnasium.Env[Any, Any]):
    """Shows everything that a record has to keep."""

    observation_space = gymnasium.spaces.Dict({})
    shown: ClassVar[Any] = {
        "float": np.arange(6, dtype=np.float32).reshape(2, 3),
        "scalar": np.int16(4),
        "none": None,
        "bytes": b"\x00\xff",
        "nested": [{"a": (1, 2.5, True)}],
        "empty": np.zeros((0, 4, 3), np.uint8),
    }

    def reset(self, **_: Any) -> tuple[Any, dict[str, Any]]:
        return self.shown, {"handle": object()}


def test_other_values_are_kept_too(tmp_path: Path) -> None:
    with RecordTrajectory(Odd(), tmp_path) as env:
        env.reset()
    (one,) = read_trajectories(tmp_path)
    np.testing.assert_array_equal(one.observation["float"], Odd.shown["float"])
    assert one.observation["float"].dtype == np.float32
    assert one.observation["empty"].shape == (0, 4, 3)
    assert (one.observation["scalar"], one.observation["none"], one.observation["bytes"]) == (4, None, b"\x00\xff")
    assert one.observation["nested"] == [{"a": [1, 2.5, True]}]
    assert set(one.info["handle"]) == {"$repr"}
    assert replay(one, Odd()) == []
