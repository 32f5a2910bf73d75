# SPDX-License-Identifier: Apache-2.0
"""The GRPO example in small: all settings learn the same, and with the cache fewer calls run."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.examples import load_example

pytestmark = pytest.mark.filterwarnings("ignore:::(?!bunshin_gym)")


def test_settings_learn_the_same_from_fewer_calls(tmp_path: Path) -> None:
    example = load_example("grpo", needs=("torch",))
    run = example.Run(group=3, seeds=1, steps=1, think_s=0.05)
    tasks = ("click-test-2",)
    curves = [example.train(name, tasks, 2, run) for name in ("plain", "cache")]
    plain, cache = curves
    assert plain.rewards == cache.rewards
    assert len(plain.rewards) == 2
    assert {reward for epoch in plain.rewards for reward in epoch} <= {-1.0, 0.0, 1.0}
    assert plain.calls_run == [run.group, run.group]
    assert 0 < sum(cache.calls_run) < sum(plain.calls_run), "each call that there is runs once"
    assert plain.peak_bytes > 0
    example.save(curves, tmp_path, tasks, run)
    assert "| cache |" in (tmp_path / "grpo.md").read_text()
    assert (tmp_path / "grpo.svg").stat().st_size > 1000
