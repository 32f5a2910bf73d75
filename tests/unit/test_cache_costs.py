# SPDX-License-Identifier: Apache-2.0
"""What the cache itself costs: hits, and snapshots beside the time of the calls."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from cache_fakes import CONTEXT, MakeRig, World, call, solution

from bunshin_gym.cache.sequence import CachePolicy
from bunshin_gym.testing import FakeHost


def test_a_hit_takes_less_than_two_milliseconds(make_rig: MakeRig) -> None:
    rig = make_rig()
    rig.walk(*solution())
    walls = []
    for _ in range(40):
        with rig.attempt() as attempt:
            attempt.start()
            walls += [attempt.step(one).wall_ns for one in solution()]
    walls.sort()
    assert walls[len(walls) // 2] < 2_000_000, f"median {walls[len(walls) // 2] / 1e6} ms"


def test_snapshots_stay_within_their_share_of_the_time(make_rig: MakeRig) -> None:
    host = FakeHost(fork_ns=100_000_000)
    rig = make_rig(host=host, policy=CachePolicy(snapshot_share=0.05, snapshots="at_once"))
    for i in range(60):
        rig.walk(call("write", text=f"{i % 7}"), call("wait", ms=300 + i), call("move", step=1))
    executed = sum(row.run_ns for row in rig.tree.ledger.tools())
    snapshots = rig.tree.credit.spent_ns
    assert 0 < snapshots <= 0.05 * executed + 200_000_000


class Gated(World):
    """A world whose snapshots wait until the test lets them go on."""

    gate = threading.Event()
    begun = threading.Event()

    def snapshot(self) -> Any:
        Gated.begun.set()
        assert Gated.gate.wait(60)
        return super().snapshot()


def test_a_snapshot_is_taken_while_the_agent_thinks_and_the_next_step_waits_for_it(make_rig: MakeRig) -> None:
    Gated.gate, Gated.begun = threading.Event(), threading.Event()
    rig = make_rig(kind=Gated)
    with rig.attempt() as attempt:
        assert attempt.start().source == "boot", "the boot waits for its snapshot"
        assert Gated.begun.wait(60)
        with ThreadPoolExecutor(1) as pool:
            step = pool.submit(attempt.step, call("write", text="a"))
            time.sleep(0.2)  # long enough for a step that does not wait to be seen
            assert not step.done(), "the call ran while the snapshot was being taken"
            Gated.gate.set()
            done = step.result(60)
        assert done.spent.kept_ns >= 100_000_000
        (row,) = rig.tree.ledger.snapshots("memory")
        assert rig.tree.index.get(row.node).digest == CONTEXT.digest()
