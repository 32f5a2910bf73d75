# SPDX-License-Identifier: Apache-2.0
"""A writer that is killed, at every fault point and at any moment, loses no stored node and tears none."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from cache_fakes import Rig, plain
from hypothesis import given, settings
from hypothesis import strategies as st

from bunshin_gym.cache import CachePolicy
from bunshin_gym.cache.keys import Context
from bunshin_gym.cache.tiers import Budgets
from bunshin_gym.faults import FAULTS, VARIABLE
from bunshin_gym.types import ToolCall

BUDGETS = "Budgets(memory_bytes=13 << 20, disk_bytes=60_000)"

# Says what it has stored as soon as the cache told it so: what is said must be there after any kill.
_WRITER = f"""
import json, sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from cache_fakes import Rig, call
from bunshin_gym.cache import CachePolicy
from bunshin_gym.cache.keys import Context
from bunshin_gym.cache.tiers import Budgets
rig = Rig(Path(sys.argv[1]), policy=CachePolicy(snapshot_share=1.0), budgets={BUDGETS}, disk=True)
number = int(sys.argv[3])
while True:
    number += 1
    context = Context(image="i", task="t", seed=number // 6)  # a new one gets hotter than the last: snapshots move
    calls = [call("wait", ms=30_000), call("write", text=f"{{number % 50}}" * 1500), call("write", text=f"{{number}}")]
    with rig.attempt(context) as attempt:
        attempt.start()
        for i, one in enumerate(calls):
            attempt.step(one)
            print(json.dumps([context.seed, [[c.name, dict(c.args)] for c in calls[: i + 1]]]), flush=True)
    if number % 5 == 0:
        rig.tree.flush()
"""


def _write_until_killed(
    directory: Path, number: int, *, fault: str | None = None, after_s: float | None = None
) -> list[str]:
    """Runs a writer until a fault point or a timer kills it; returns what it said it had stored."""
    environment = dict(os.environ) | ({VARIABLE: fault} if fault is not None else {})
    command = [sys.executable, "-c", _WRITER, str(directory), str(Path(__file__).parent), str(number)]
    writer = subprocess.Popen(command, stdout=subprocess.PIPE, bufsize=0, env=environment)
    assert writer.stdout is not None
    first = writer.stdout.readline() if after_s is not None else b""  # the timer starts when it writes
    try:
        output, _ = writer.communicate(timeout=after_s if after_s is not None else 180)
    except subprocess.TimeoutExpired:
        writer.kill()
        output, _ = writer.communicate()
        assert after_s is not None, f"the writer never came to {fault}"
    said = (first + output).decode()
    assert writer.returncode == -signal.SIGKILL
    lines = said.splitlines()
    return lines if said.endswith("\n") else lines[:-1]


def _check(directory: Path, said: list[str]) -> None:
    rig = Rig(directory, policy=CachePolicy(snapshot_share=1.0), budgets=eval(BUDGETS, {"Budgets": Budgets}), disk=True)
    assert [row[0] for row in rig.tree.database.read("PRAGMA integrity_check")] == ["ok"]
    assert rig.tree.database.read("PRAGMA foreign_key_check") == []
    assert rig.tree.ledger.snapshots("memory") == [], "a dead process's snapshots are on the books"
    for line in set(said):
        seed, named = json.loads(line)
        calls = tuple(ToolCall(name=name, args=args) for name, args in named)
        with rig.attempt(Context(image="i", task="t", seed=seed)) as attempt:
            assert attempt.start().source == "hit"
            steps = [attempt.step(one) for one in calls]
        assert [step.source for step in steps] == ["hit"] * len(calls), "a stored node is gone"
        assert [step.result.observation for step in steps] == [result.observation for result in plain(calls, seed)]
    for row in rig.tree.database.read("SELECT * FROM nodes"):
        node = rig.tree.index.get(row["id"])
        assert rig.tree.result(node).observation is not None
        assert rig.tree.index.path(node)[0].call is None
    for snapshot in rig.tree.ledger.snapshots("disk"):
        with rig.tree.keeper.lease(rig.tree.index.get(snapshot.node)) as handle:
            assert handle is not None, "a snapshot on the books cannot be read"
    rig.tree.gc()
    named = {row.path for row in rig.tree.ledger.snapshots("disk")}
    assert set((directory / "snapshots").iterdir()) == named
    assert not [path for path in (directory / "contents").rglob(".*") if path.is_file()]
    assert rig.walk(ToolCall(name="write", args={"text": "after"}))[1] == "run"
    rig.close()
    assert rig.host.open == 0


@pytest.mark.parametrize("fault", FAULTS)
def test_killed_at_a_fault_point(tmp_path: Path, fault: str) -> None:
    said = _write_until_killed(tmp_path, 0, fault=fault)
    later = _write_until_killed(tmp_path, 6000, fault=f"{fault}:3")
    _check(tmp_path, said + later)


def test_killed_at_any_moment(tmp_path: Path) -> None:
    rng = random.Random(20_26)
    said: list[str] = []
    for i in range(10):
        said += _write_until_killed(tmp_path, 10_000 * i, after_s=rng.uniform(0.0, 0.8))
    assert said
    _check(tmp_path, said)


@settings(max_examples=40)
@given(st.text(min_size=1))
def test_an_unknown_fault_point_is_a_mistake_of_the_program(name: str) -> None:
    from bunshin_gym import faults

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(VARIABLE, "nothing")
        if name not in FAULTS:
            with pytest.raises(AssertionError, match="not listed"):
                faults.point(name)
