# SPDX-License-Identifier: Apache-2.0
"""Of several that want the same at once, threads or processes, one runs it."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from cache_fakes import MakeRig, Rig, World, call

from bunshin_gym.cache.sequence import CachePolicy
from bunshin_gym.errors import WorkspaceDied


class Slow(World):
    """A world whose `open` waits until the test lets it go on."""

    gate = threading.Event()
    begun = threading.Semaphore(0)

    def _tool_open(self) -> tuple[int, str, str]:
        Slow.begun.release()
        assert Slow.gate.wait(60)
        return super()._tool_open()

    def _tool_roll(self, sides: int = 6) -> tuple[int, str, str]:
        Slow.begun.release()
        assert Slow.gate.wait(60)
        return super()._tool_roll(sides)


@pytest.fixture
def slow(make_rig: MakeRig):
    Slow.gate, Slow.begun = threading.Event(), threading.Semaphore(0)
    yield lambda **policy: make_rig(kind=Slow, policy=CachePolicy(**policy))
    Slow.gate.set()


@pytest.mark.parametrize(("tool", "policy"), [("open", {}), ("roll", {"reuse_stochastic": 1.0, "snapshot_share": 1.0})])
def test_a_call_that_several_want_at_once_runs_once(slow, tool: str, policy: dict[str, float]) -> None:
    rig = slow(**policy)
    rig.walk()
    with ThreadPoolExecutor(6) as pool:
        walks = [pool.submit(rig.walk, call(tool)) for _ in range(6)]
        assert Slow.begun.acquire(timeout=60)
        assert not Slow.begun.acquire(timeout=0.2), "a second one runs the call too"
        Slow.gate.set()
        sources = Counter(walk.result(60)[1] for walk in walks)
    assert sources["run"] == 1
    assert sources["waited"] + sources["hit"] == 5
    assert rig.host.runs == {tool: 1}


def test_a_boot_that_several_want_at_once_happens_once(rig: Rig) -> None:
    barrier = threading.Barrier(6)

    def walk() -> str:
        barrier.wait()
        return rig.walk()[0]

    with ThreadPoolExecutor(6) as pool:
        sources = Counter(one.result(60) for one in [pool.submit(walk) for _ in range(6)])
    assert sources["boot"] == 1
    assert rig.host.boots == 1


def test_by_policy_the_second_goes_on_and_does_not_wait(slow) -> None:
    rig = slow(single_flight="go_on")
    rig.walk()
    with ThreadPoolExecutor(2) as pool:
        walks = [pool.submit(rig.walk, call("open")) for _ in range(2)]
        assert Slow.begun.acquire(timeout=60)
        assert Slow.begun.acquire(timeout=60), "the second one waits"
        Slow.gate.set()
        assert [walk.result(60)[1] for walk in walks] == ["run", "run"]
    assert rig.walk(call("open")) == ["hit", "hit"]
    assert all(row.disagreements == 0 for row in rig.tree.ledger.tools())


def test_a_leader_that_fails_leaves_the_call_to_the_next(make_rig: MakeRig) -> None:
    rig = make_rig()
    rig.walk()
    died = 0
    with ThreadPoolExecutor(3) as pool:
        for walk in [pool.submit(rig.walk, call("die")) for _ in range(3)]:
            with pytest.raises(WorkspaceDied):
                walk.result(60)
            died += 1
    assert died == 3


_LEADER = """
import sys, threading
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from cache_fakes import Rig, World, call
class Stuck(World):
    def _tool_open(self):
        print("running", flush=True)
        threading.Event().wait()
rig = Rig(Path(sys.argv[1]), kind=Stuck)
rig.walk(call("open"))
"""


def test_a_killed_leaders_claim_ends_with_it_and_not_by_time(make_rig: MakeRig, tmp_path: Path) -> None:
    command = [sys.executable, "-c", _LEADER, str(tmp_path), str(Path(__file__).parent)]
    leader = subprocess.Popen(command, stdout=subprocess.PIPE)
    assert leader.stdout is not None
    assert leader.stdout.readline() == b"running\n"
    rig = make_rig()
    with ThreadPoolExecutor(1) as pool:
        walk = pool.submit(rig.walk, call("open"))
        time.sleep(0.3)  # long enough for a follower that does not wait to be seen
        assert not walk.done(), "the follower did not wait for a leader that lives"
        leader.kill()
        leader.communicate()
        assert walk.result(60) == ["hit", "run"]


_WALKER = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from cache_fakes import Rig, solution
from bunshin_gym.testing import FakeHost
rig = Rig(Path(sys.argv[1]), host=FakeHost(real_time=True, boot_ns=50_000_000, fork_ns=1_000_000))
sources = rig.walk(*solution())
print(sum(source in ("boot", "run") for source in sources), len(sources))
rig.close()
assert rig.host.open == 0
"""


def test_processes_share_a_tree_and_run_each_call_once(tmp_path: Path) -> None:
    command = [sys.executable, "-c", _WALKER, str(tmp_path), str(Path(__file__).parent)]
    walkers = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    counts = [[int(n) for n in walker.communicate(timeout=120)[0].split()] for walker in walkers]
    assert all(walker.returncode == 0 for walker in walkers)
    assert sum(ran for ran, _ in counts) == counts[0][1], "a call was run twice, or never"
