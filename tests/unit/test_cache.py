# SPDX-License-Identifier: Apache-2.0
"""The tool-sequence cache: what is reused, what is run, who runs it, and that nobody can tell the difference."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cache_fakes import CONTEXT, Rig, World, call, plain, solution
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bunshin_gym.cache.keys import Context
from bunshin_gym.cache.sequence import RESET, CachePolicy
from bunshin_gym.cache.stamps import Stamps
from bunshin_gym.cache.tiers import Budgets
from bunshin_gym.errors import ClosedError, ReplayDiverged, ResourceError, UsageError, WorkspaceDied
from bunshin_gym.testing import FakeHost
from bunshin_gym.types import ToolCall, ToolResult

NEVER = Budgets(memory_bytes=0)
EAGER = CachePolicy(snapshot_share=1.0)


@pytest.fixture
def rig(tmp_path: Path):
    rig = Rig(tmp_path)
    yield rig
    rig.close()
    assert rig.host.open == 0, "workspaces were left open"


def test_a_known_sequence_runs_nothing_and_brings_the_same(rig: Rig) -> None:
    rig.walk(*solution())
    runs, boots = rig.host.total_runs, rig.host.boots
    with rig.attempt() as attempt:
        assert attempt.start().source == "hit"
        results = [attempt.step(one).result for one in solution()]
        assert not attempt.has_live
    assert (rig.host.total_runs, rig.host.boots) == (runs, boots)
    wanted = plain(solution())
    assert [r.observation for r in results] == [r.observation for r in wanted]
    assert [(r.reward, r.terminated, r.truncated) for r in results] == [
        (r.reward, r.terminated, r.truncated) for r in wanted
    ]


def test_a_single_matching_command_is_no_hit(rig: Rig) -> None:
    rig.walk(call("write", text="a"), call("look"))
    assert rig.walk(call("look")) == ["hit", "run"]
    assert rig.walk(call("write", text="b"), call("look")) == ["hit", "run", "run"]
    assert rig.walk(call("look"), call("write", text="a")) == ["hit", "hit", "run"]


def test_contexts_do_not_mix(rig: Rig) -> None:
    rig.walk(call("look"))
    other = Context(image=CONTEXT.image, task=CONTEXT.task, seed=4)
    assert rig.walk(call("look"), context=other) == ["boot", "run"]


def test_without_a_seed_nothing_is_shared(rig: Rig) -> None:
    unseeded = Context(image="i", task="t")
    assert rig.walk(call("look"), context=unseeded) == ["off_tree"] * 2
    assert rig.walk(call("look"), context=unseeded) == ["off_tree"] * 2


def test_leaving_the_known_path_goes_on_in_the_right_state(rig: Rig) -> None:
    rig.walk(call("write", text="a"), call("write", text="b"))
    with rig.attempt() as attempt:
        attempt.start()
        attempt.step(call("write", text="a"))
        assert not attempt.has_live
        step = attempt.step(call("write", text="c"))
        assert step.source == "run"
        assert "notes ['a', 'c']" in step.result.observation["text"]
        assert attempt.step(call("look")).source == "run"


def test_results_are_fresh_objects(rig: Rig) -> None:
    rig.walk(call("look"))
    for _ in range(2):
        with rig.attempt() as attempt:
            attempt.start()
            observation = attempt.step(call("look")).result.observation
            assert "spoilt" not in observation
            observation["spoilt"] = True


_CALLS = st.sampled_from(
    [
        call("look"),
        call("move", step=1),
        call("move", step=-1),
        call("take", thing="key"),
        call("take", thing="red stone"),
        call("write", text="x"),
        call("open"),
        call("wait", ms=2500),
        call("roll", sides=6),
        call("pay", amount=1),
        call("nonsense", a=1),
        call("move", step=5),
    ]
)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    sequences=st.lists(st.lists(_CALLS, min_size=1, max_size=8), min_size=1, max_size=6),
    memory_mb=st.sampled_from([0, 12, 30, 1000]),
    share=st.sampled_from([0.0, 0.04, 1.0]),
)
def test_no_attempt_can_tell_that_there_is_a_cache(
    tmp_path_factory: pytest.TempPathFactory, sequences: list[list[ToolCall]], memory_mb: int, share: float
) -> None:
    budgets = Budgets(memory_bytes=memory_mb << 20)
    rig = Rig(tmp_path_factory.mktemp("tree"), budgets=budgets, policy=CachePolicy(snapshot_share=share))
    for sequence in sequences:
        with rig.attempt() as attempt, World(seed=3) as world:
            attempt.start()
            for one in sequence:
                got, want = attempt.step(one).result, world.run(one)
                if one.name == "roll":  # the dice are not seeded: compare what does not depend on them
                    assert got.observation["text"].partition(";")[2] == want.observation["text"].partition(";")[2]
                else:
                    assert got.observation == want.observation
                assert (got.reward, got.terminated, got.truncated) == (want.reward, want.terminated, want.truncated)
                if got.terminated:
                    break
            if not want.terminated:
                assert attempt.live()._world.text() == world._world.text()
    payments = sum(one.name == "pay" for s in sequences for one in _until_over(s))
    assert len(rig.host.paid) == payments, "an outside effect was repeated or lost"
    rig.close()
    assert rig.host.open == 0


def _until_over(sequence: list[ToolCall]) -> list[ToolCall]:
    with World(seed=3) as world:
        for i, one in enumerate(sequence):
            if world.run(one).terminated:
                return sequence[: i + 1]
    return sequence


# -- what a tool means


def test_stochastic_and_external_calls_are_not_reused_and_lead_off_the_tree(rig: Rig) -> None:
    for name, args in (("roll", {}), ("pay", {"amount": 5})):
        for _ in range(2):
            assert rig.walk(call("look"), call(name, **args), call("look"))[2:] == ["off_tree", "off_tree"]
    assert rig.host.paid == [5, 5]


def test_an_undeclared_tool_is_external_unless_the_policy_says_otherwise(tmp_path: Path) -> None:
    careful = Rig(tmp_path / "a")
    assert careful.walk(call("strange")) == ["boot", "off_tree"]
    careful.close()
    bold = Rig(tmp_path / "b", policy=CachePolicy(unknown="deterministic"))
    assert bold.walk(call("strange")) == ["boot", "run"]
    assert bold.walk(call("strange")) == ["hit", "hit"]
    bold.close()


def test_arguments_without_a_key_are_the_tools_to_refuse(rig: Rig) -> None:
    with rig.attempt() as attempt:
        attempt.start()
        step = attempt.step(call("move", step=float("nan")))
        assert step.source == "off_tree"
        assert step.result.observation["last_action_error"]


def test_stochastic_outcomes_are_reused_when_wanted_and_each_keeps_its_own_future(tmp_path: Path) -> None:
    policy = CachePolicy(reuse_stochastic=1.0, samples_max=3, snapshot_share=1.0)
    rig = Rig(tmp_path, policy=policy)
    roll = call("roll", sides=1_000_000)
    with rig.attempt() as attempt:
        attempt.start()
        first = attempt.step(roll)
        assert first.source == "run"
        attempt.step(call("write", text="after"))
    with rig.attempt() as attempt:
        attempt.start()
        again = attempt.step(roll)
        assert again.source == "hit"
        assert again.result.observation == first.result.observation
        assert attempt.step(call("write", text="after")).source == "hit"
        # The dice of the snapshot are those of the run that was stored.
        assert "notes ['after', 'new']" in attempt.step(call("write", text="new")).result.observation["text"]
    assert rig.host.runs["roll"] == 1
    rig.close()
    assert rig.host.open == 0


def test_stochastic_outcomes_are_sampled_up_to_a_number(tmp_path: Path) -> None:
    policy = CachePolicy(reuse_stochastic=0.5, samples_max=3, snapshot_share=1.0)
    rig = Rig(tmp_path, policy=policy, seed=7)
    roll = call("roll", sides=1_000_000)
    sources: Counter[str] = Counter(rig.walk(roll)[1] for _ in range(60))
    assert sources["run"] == 3
    assert 15 < sources["hit"] < 45
    assert sources["off_tree"] == 60 - 3 - sources["hit"]
    rig.close()


def test_a_stochastic_outcome_without_a_snapshot_is_not_reused(tmp_path: Path) -> None:
    rig = Rig(tmp_path, policy=CachePolicy(reuse_stochastic=1.0), budgets=NEVER)
    assert rig.walk(call("roll")) == ["boot", "run"]
    assert rig.walk(call("roll"), call("look")) == ["hit", "run", "run"]
    rig.close()


def test_fresh_every_so_many_hits(tmp_path: Path) -> None:
    rig = Rig(tmp_path, policy=CachePolicy(fresh_every=4))
    sources = [rig.walk(call("look"))[1] for _ in range(13)]
    assert sources == ["run", *["hit", "hit", "hit", "audit"] * 3]
    rig.close()


# -- audit


class Fickle(World):
    """A world whose `look` says it is deterministic, and is not."""

    looks = 0

    def _tool_look(self) -> tuple[int, str, str]:
        Fickle.looks += 1
        return 1, "", f"look {Fickle.looks}; "


class Drifting(World):
    """A world where `wait` shows the same and leaves another state behind."""

    drift = 0

    def state_digest(self) -> bytes:
        return super().state_digest() + bytes([Drifting.drift % 256])

    def _tool_wait(self, *, ms: int) -> tuple[int, str, str]:
        Drifting.drift += 1
        return super()._tool_wait(ms=ms)


def test_audit_agrees_where_tools_are_deterministic(tmp_path: Path) -> None:
    rig = Rig(tmp_path, policy=CachePolicy(audit=1.0))
    rig.walk(*solution())
    assert rig.walk(*solution()) == ["hit", *["audit"] * len(solution())]
    assert rig.walk(*solution()) == ["hit", *["audit"] * len(solution())]
    rows = {row.name: row for row in rig.tree.ledger.tools()}
    assert sum(row.audits for row in rows.values()) == 2 * len(solution())
    assert sum(row.disagreements for row in rows.values()) == 0
    rig.close()


def test_audit_reports_results_that_differ_by_tool(tmp_path: Path) -> None:
    rig = Rig(tmp_path, policy=CachePolicy(audit=1.0), kind=Fickle)
    rig.walk(call("move", step=1), call("look"))
    with rig.attempt() as attempt:
        attempt.start()
        assert attempt.step(call("move", step=1)).source == "audit"
        step = attempt.step(call("look"))
        assert step.source == "audit"
        assert step.key is None, "an attempt that saw something else must not stay on the tree"
        assert attempt.step(call("move", step=1)).source == "off_tree"
    rows = {row.name: row for row in rig.tree.ledger.tools()}
    assert rows["look"].disagreements == 1
    assert rows["move"].disagreements == 0
    rig.close()


def test_audit_reports_states_that_differ_behind_equal_observations(tmp_path: Path) -> None:
    rig = Rig(tmp_path, policy=CachePolicy(audit=1.0), kind=Drifting)
    for _ in range(3):
        rig.walk(call("wait", ms=1))
    rows = {row.name: row for row in rig.tree.ledger.tools()}
    assert (rows["wait"].audits, rows["wait"].disagreements) == (2, 2), "the run notes the state"
    rig.close()


def test_a_tool_that_disagrees_goes_into_quarantine_and_comes_back_by_command(tmp_path: Path) -> None:
    rig = Rig(tmp_path, policy=CachePolicy(audit=1.0, quarantine_after=2), kind=Fickle)
    for _ in range(3):
        rig.walk(call("look"))
    row = rig.tree.ledger.tool(CONTEXT.task, "look")
    assert row is not None
    assert row.quarantined is not None
    assert "2 disagreements" in row.quarantined
    assert rig.walk(call("look"), call("move", step=1)) == ["hit", "off_tree", "off_tree"]
    rig.tree.ledger.quarantine(CONTEXT.task, "look", None)
    assert rig.walk(call("look"))[1] == "audit"
    rig.close()


def test_a_replay_that_differs_is_an_error_and_never_a_wrong_state(tmp_path: Path) -> None:
    rig = Rig(tmp_path, budgets=NEVER, kind=Fickle, policy=CachePolicy(quarantine_after=1))
    rig.walk(call("look"), call("move", step=1))
    with rig.attempt() as attempt:
        attempt.start()
        attempt.step(call("look"))
        with pytest.raises(ReplayDiverged, match="look"):
            attempt.step(call("move", step=-1))
        assert not attempt.has_live
    row = rig.tree.ledger.tool(CONTEXT.task, "look")
    assert row is not None
    assert row.quarantined is not None
    rig.close()
    assert rig.host.open == 0


# -- single flight


class Slow(World):
    """A world whose `open` waits until the test lets it go on."""

    gate = threading.Event()
    begun = threading.Semaphore(0)

    def _tool_open(self) -> tuple[int, str, str]:
        Slow.begun.release()
        assert Slow.gate.wait(60)
        return super()._tool_open()


@pytest.fixture
def slow(tmp_path: Path):
    Slow.gate, Slow.begun = threading.Event(), threading.Semaphore(0)
    rigs: list[Rig] = []

    def make(**policy: Any) -> Rig:
        rigs.append(Rig(tmp_path, kind=Slow, policy=CachePolicy(**policy)))
        return rigs[-1]

    yield make
    Slow.gate.set()
    for rig in rigs:
        rig.close()
        assert rig.host.open == 0


def test_a_call_that_several_want_at_once_runs_once(slow) -> None:
    rig = slow()
    rig.walk()
    with ThreadPoolExecutor(6) as pool:
        walks = [pool.submit(rig.walk, call("open")) for _ in range(6)]
        assert Slow.begun.acquire(timeout=60)
        assert not Slow.begun.acquire(timeout=0.2), "a second one runs the call too"
        Slow.gate.set()
        sources = Counter(walk.result(60)[1] for walk in walks)
    assert sources["run"] == 1
    assert sources["waited"] + sources["hit"] == 5
    assert rig.host.runs == {"open": 1}


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


def test_a_leader_that_fails_leaves_the_call_to_the_next(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    rig.walk()
    died = 0
    with ThreadPoolExecutor(3) as pool:
        for walk in [pool.submit(rig.walk, call("die")) for _ in range(3)]:
            with pytest.raises(WorkspaceDied):
                walk.result(60)
            died += 1
    assert died == 3
    rig.close()
    assert rig.host.open == 0


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


def test_a_killed_leaders_claim_ends_with_it_and_not_by_time(tmp_path: Path) -> None:
    command = [sys.executable, "-c", _LEADER, str(tmp_path), str(Path(__file__).parent)]
    leader = subprocess.Popen(command, stdout=subprocess.PIPE)
    assert leader.stdout is not None
    assert leader.stdout.readline() == b"running\n"
    rig = Rig(tmp_path)
    with ThreadPoolExecutor(1) as pool:
        walk = pool.submit(rig.walk, call("open"))
        time.sleep(0.3)  # long enough for a follower that does not wait to be seen
        assert not walk.done(), "the follower did not wait for a leader that lives"
        leader.kill()
        leader.communicate()
        assert walk.result(60) == ["hit", "run"]
    rig.close()
    assert rig.host.open == 0


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


# -- when things go wrong


def test_a_call_that_dies_leaves_the_attempt_where_it_was(rig: Rig) -> None:
    with rig.attempt() as attempt:
        attempt.start()
        attempt.step(call("write", text="a"))
        with pytest.raises(WorkspaceDied):
            attempt.step(call("die"))
        assert not attempt.has_live
        step = attempt.step(call("write", text="b"))
        assert "notes ['a', 'b']" in step.result.observation["text"]


def test_off_the_tree_a_dead_workspace_is_the_end(rig: Rig) -> None:
    with rig.attempt() as attempt:
        attempt.start()
        attempt.step(call("roll"))
        with pytest.raises(WorkspaceDied):
            attempt.step(call("die"))
        with pytest.raises(ClosedError, match="reset"):
            attempt.step(call("look"))


def test_a_boot_that_fails_while_materialising_can_be_tried_again(tmp_path: Path) -> None:
    rig = Rig(tmp_path, budgets=NEVER)
    rig.walk(call("write", text="a"))
    with rig.attempt() as attempt:
        attempt.start()
        attempt.step(call("write", text="a"))
        rig.fail_boots = 1
        with pytest.raises(ResourceError):
            attempt.step(call("look"))
        assert attempt.step(call("look")).source == "run"
    rig.close()
    assert rig.host.open == 0


def test_a_result_that_cannot_be_stored_says_so_and_leaves_nothing(tmp_path: Path) -> None:
    class Odd(World):
        def run(self, call: ToolCall) -> ToolResult:
            result = super().run(call)
            return ToolResult(observation=result.observation, info={"handle": object()})

    rig = Rig(tmp_path, kind=Odd)
    with rig.attempt() as attempt:
        attempt.start()
        with pytest.raises(UsageError, match=r"value\[1\]\.handle: object cannot be stored"):
            attempt.step(call("look"))
    rig.close()
    assert rig.host.open == 0


def test_a_snapshot_that_fails_does_not_disturb_the_attempt(tmp_path: Path) -> None:
    rig = Rig(tmp_path, policy=EAGER)
    rig.host.fail_forks = 1
    assert rig.walk(call("write", text="a")) == ["boot", "run"]
    rig.close()
    assert rig.host.open == 0


def test_an_attempt_that_is_over_or_closed_says_so(rig: Rig) -> None:
    attempt = rig.attempt()
    with pytest.raises(ClosedError):
        attempt.step(call("look"))
    attempt.start()
    with pytest.raises(ClosedError):
        attempt.start()
    for one in solution():
        attempt.step(one)
    with pytest.raises(UsageError, match="over"):
        attempt.step(call("look"))
    attempt.close()
    attempt.close()
    with pytest.raises(ClosedError):
        attempt.step(call("look"))


@pytest.mark.parametrize("policy", [{"audit": 1.5}, {"reuse_stochastic": -0.1}, {"fresh_every": -1}])
def test_policies_are_checked(policy: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=next(iter(policy))):
        CachePolicy(**policy)


# -- forks of attempts


def test_a_fork_of_an_attempt_stands_where_it_stands(rig: Rig) -> None:
    with rig.attempt() as attempt:
        attempt.start()
        attempt.step(call("write", text="a"))
        with attempt.fork() as twin:
            assert not twin.has_live
            assert "['a', 'twin']" in twin.step(call("write", text="twin")).result.observation["text"]
        assert "['a', 'first']" in attempt.step(call("write", text="first")).result.observation["text"]
        attempt.step(call("roll"))
        with attempt.fork() as twin:
            assert twin.has_live, "off the tree only a real fork has the state"
            assert twin.step(call("look")).source == "off_tree"


# -- stamps


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


def test_times_ids_and_words_are_the_callers(tmp_path: Path) -> None:
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
    rig = Rig(tmp_path, kind=Stamped, stamps=stamps, policy=CachePolicy(audit=0.0))
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
    rig.close()


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
def test_screens_that_look_the_same_are_equal_in_a_replay(tmp_path: Path, level: int, source: str | None) -> None:
    stamps = Stamps({"observation.screen": "pixels"})
    rig = Rig(tmp_path, kind=Drawn, stamps=stamps, budgets=NEVER)
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
    rig.close()
    assert rig.host.open == 0


# -- what it costs


def test_a_hit_takes_less_than_two_milliseconds(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    rig.walk(*solution())
    walls = []
    for _ in range(40):
        with rig.attempt() as attempt:
            attempt.start()
            walls += [attempt.step(one).wall_ns for one in solution()]
    walls.sort()
    assert walls[len(walls) // 2] < 2_000_000, f"median {walls[len(walls) // 2] / 1e6} ms"
    rig.close()


def test_snapshots_stay_within_their_share_of_the_time(tmp_path: Path) -> None:
    host = FakeHost(fork_ns=100_000_000)
    rig = Rig(tmp_path, host=host, policy=CachePolicy(snapshot_share=0.05, snapshots="at_once"))
    for i in range(60):
        rig.walk(call("write", text=f"{i % 7}"), call("wait", ms=300 + i), call("move", step=1))
    executed = sum(row.run_ns for row in rig.tree.ledger.tools())
    snapshots = rig.tree.credit.spent_ns
    assert 0 < snapshots <= 0.05 * executed + 200_000_000
    rig.close()


class Gated(World):
    """A world whose snapshots wait until the test lets them go on."""

    gate = threading.Event()
    begun = threading.Event()

    def snapshot(self) -> Any:
        Gated.begun.set()
        assert Gated.gate.wait(60)
        return super().snapshot()


def test_a_snapshot_is_taken_while_the_agent_thinks_and_the_next_step_waits_for_it(tmp_path: Path) -> None:
    Gated.gate, Gated.begun = threading.Event(), threading.Event()
    rig = Rig(tmp_path, kind=Gated)
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
    rig.close()
    assert rig.host.open == 0


def test_a_snapshot_that_fails_in_an_unknown_way_is_not_swallowed(tmp_path: Path) -> None:
    class Broken(World):
        def snapshot(self) -> Any:
            raise ZeroDivisionError("a mistake in the engine")

    rig = Rig(tmp_path, kind=Broken)
    attempt = rig.attempt()
    attempt.start()
    with pytest.raises(ZeroDivisionError):
        attempt.step(call("look"))
    attempt.close()
    rig.tree.credit.earn(1e12)
    another = rig.attempt(Context(image="i", task="t", seed=9))
    another.start()
    with pytest.raises(ZeroDivisionError):
        another.close()
    rig.close()
    assert rig.host.open == 0


def test_tools_are_counted(rig: Rig) -> None:
    rig.walk(call("move", step=1))
    rig.walk(call("move", step=1))
    rows = {row.name: row for row in rig.tree.ledger.tools()}
    assert (rows["move"].runs, rows["move"].hits) == (1, 1)
    assert (rows[RESET].runs, rows[RESET].hits) == (1, 1)
    assert rows["move"].run_ns >= 20_000_000
    rates = rig.tree.ledger.rates()
    assert sum(rate.hits for rate in rates) == 2
    assert sum(rate.misses for rate in rates) == 2
    assert sum(rate.saved_ns for rate in rates) >= 20_000_000
