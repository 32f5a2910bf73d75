# SPDX-License-Identifier: Apache-2.0
"""The tree: what is stored is found again, snapshots stay within their budgets, any node can be rebuilt."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from cache_fakes import CONTEXT, Rig, World, call, solution

from bunshin_gym.cache import CachePolicy
from bunshin_gym.cache.keys import Context
from bunshin_gym.cache.tiers import Budgets
from bunshin_gym.errors import ClosedError, WorkspaceDied
from bunshin_gym.testing import FakeHost, FakeWorkspace

MB = 1 << 20
EAGER = CachePolicy(snapshot_share=1.0, snapshots="at_once")
NEVER = Budgets(memory_bytes=0)


def writes(*texts: str) -> tuple:
    return tuple(call("write", text=text) for text in texts)


def state(attempt) -> str:
    return attempt.live()._world.text()


def test_a_later_run_finds_the_tree(tmp_path: Path) -> None:
    first = Rig(tmp_path)
    assert first.walk(*solution()) == ["boot", *["run"] * len(solution())]
    first.close()
    second = Rig(tmp_path)
    assert second.walk(*solution()) == ["hit"] * (1 + len(solution()))
    assert second.host.boots == 0
    second.close()


def test_paths_counts_and_children(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    rig.walk(*writes("a", "b"))
    rig.walk(*writes("a", "c"))
    root = rig.tree.find(CONTEXT.digest())
    assert root is not None
    (a,) = rig.tree.index.children(root.id)
    b, c = rig.tree.index.children(a.id)
    assert [node.depth for node in rig.tree.index.path(c)] == [0, 1, 2]
    assert [dict(node.call.args) for node in (a, b, c)] == [{"text": "a"}, {"text": "b"}, {"text": "c"}]
    assert b.wall_ns >= 10_000_000, "the fake's virtual cost of write"
    assert b.result_bytes > 0
    counts = rig.tree.index.counts(a.id)
    assert (counts.visits, counts.hits, counts.misses) == (2, 1, 1)
    assert rig.tree.index.counts(b.id).visits == 1
    assert rig.tree.index.clock() == 2
    rig.close()


def test_a_node_is_rebuilt_from_the_nearest_snapshot(tmp_path: Path) -> None:
    rig = Rig(tmp_path, budgets=NEVER)
    rig.walk(call("wait", ms=5000), *writes("a", "b"))
    rig.tree.keeper.budgets = Budgets()  # room from here on
    with rig.attempt() as attempt:
        attempt.start()
        attempt.step(call("wait", ms=5000))
        rig.tree.keep(attempt.cursor, attempt.live())
    before = dict(rig.host.runs)
    boots = rig.host.boots
    with rig.attempt() as attempt:
        attempt.start()
        for one in (call("wait", ms=5000), *writes("a")):
            attempt.step(one)
        assert state(attempt).endswith("notes ['a']; waited 5000 ms")
    assert rig.host.boots == boots
    assert rig.host.runs["wait"] == before["wait"], "the long call was run again"
    assert rig.host.runs["write"] == before["write"] + 1
    rig.close()
    assert rig.host.open == 0


def test_every_node_is_rebuilt_in_its_state_whatever_snapshots_there_are(tmp_path: Path) -> None:
    for memory_bytes in (0, 12 * MB, 1 << 30):
        rig = Rig(tmp_path / str(memory_bytes), budgets=Budgets(memory_bytes=memory_bytes), policy=EAGER)
        sequences = [writes("a", "b"), (*writes("a"), call("move", step=1), *writes("c")), solution()]
        expected = {}
        for sequence in sequences:
            with World(seed=3) as world:
                for i in range(len(sequence)):
                    world.run(sequence[i])
                    expected[tuple(map(repr, sequence[: i + 1]))] = (sequence[: i + 1], world._world.text())
            rig.walk(*sequence)
        for calls, text in expected.values():
            with rig.attempt() as attempt:
                attempt.start()
                for one in calls:
                    attempt.step(one)
                assert state(attempt) == text
        rig.close()
        assert rig.host.open == 0


class _Watch:
    """Notes the most that the books ever showed."""

    def __init__(self, rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
        self.most_bytes = 0
        add = rig.tree.ledger.add_snapshot

        def watched(*args, **named):
            row = add(*args, **named)
            self.most_bytes = max(self.most_bytes, rig.tree.ledger.tier_bytes("memory"))
            return row

        monkeypatch.setattr(rig.tree.ledger, "add_snapshot", watched)


def test_the_memory_budget_is_exceeded_by_one_snapshot_at_most(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    size, budget = 12 * MB, 40 * MB
    rig = Rig(tmp_path, budgets=Budgets(memory_bytes=budget), policy=EAGER)
    watch = _Watch(rig, monkeypatch)

    def attempts(worker: int) -> None:
        for i in range(8):
            rig.walk(call("wait", ms=4000 + worker), *writes(f"{i}"), call("wait", ms=9000), *writes("x"))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(attempts, range(4)))
    assert watch.most_bytes > size, "no snapshots at all were taken"
    assert watch.most_bytes <= budget + size
    assert rig.tree.ledger.tier_bytes("memory") <= budget
    assert rig.host.open * size == rig.tree.ledger.tier_bytes("memory"), "the books differ from what is open"
    rig.close()
    assert rig.host.open == 0


def test_what_saves_more_for_its_bytes_stays(tmp_path: Path) -> None:
    rig = Rig(tmp_path, budgets=Budgets(memory_bytes=12 * MB), policy=EAGER)
    cheap, dear = Context(image="i", task="cheap", seed=3), Context(image="i", task="dear", seed=3)
    for _ in range(2):
        rig.walk(call("wait", ms=1), context=cheap)
    (row,) = rig.tree.ledger.snapshots("memory")
    assert rig.tree.index.get(row.node).digest == cheap.digest()
    for text in "abcdef":
        rig.walk(call("wait", ms=60_000), *writes(text), context=dear)
    (row,) = rig.tree.ledger.snapshots("memory")
    assert rig.tree.index.get(row.node).context == rig.tree.index.context(dear)
    rig.close()


def test_a_pinned_snapshot_stays(tmp_path: Path) -> None:
    rig = Rig(tmp_path, budgets=Budgets(memory_bytes=12 * MB), policy=EAGER)
    rig.walk(*writes("a"))
    (row,) = rig.tree.ledger.snapshots("memory")
    with rig.tree.pinned(rig.tree.index.get(row.node)):
        for seed in range(10, 14):
            for text in "ab":
                context = Context(image="i", task="other", seed=seed)
                rig.walk(call("wait", ms=60_000), *writes(text), context=context)
        assert [one.id for one in rig.tree.ledger.snapshots("memory")] == [row.id]
    rig.close()


class _Sharing(World):
    """A snapshot whose size grows when another one is gone, as pages that two pools share do."""

    others: list = []  # noqa: RUF012 - shared by all on purpose

    @property
    def unique_bytes(self) -> int:
        return 0 if self.closed else 24 * MB // max(1, sum(not one.closed for one in self.others))


def test_sizes_are_measured_again_when_a_snapshot_goes(tmp_path: Path) -> None:
    _Sharing.others = []
    rig = Rig(tmp_path, budgets=Budgets(memory_bytes=60 * MB), policy=EAGER, kind=_Sharing)
    with rig.attempt() as attempt:
        attempt.start()
        nodes = [attempt.cursor]
        for text in "ab":
            attempt.step(call("write", text=text))
            nodes.append(attempt.cursor)
            rig.tree.keep(attempt.cursor, attempt.live())
        _Sharing.others = [held.handle.held for held in rig.tree.keeper._mine().values()]
        with rig.tree.keeper._locks.held(b"admit"):
            rig.tree.keeper._evict(rig.tree.keeper._mine()[nodes[1].id])
        left = [one for one in _Sharing.others if not one.closed]
        assert rig.tree.ledger.tier_bytes("memory") == sum(one.unique_bytes for one in left) > 0
    rig.close()


def test_a_broken_snapshot_is_dropped_and_the_next_way_is_taken(tmp_path: Path) -> None:
    rig = Rig(tmp_path, policy=EAGER)
    rig.walk(*writes("a"))
    assert rig.tree.ledger.snapshots("memory")
    rig.host.fail_forks = 1
    with rig.attempt() as attempt:
        attempt.start()
        attempt.step(call("write", text="a"))
        assert state(attempt).endswith("notes ['a']; waited 0 ms")
    rig.close()
    assert rig.host.open == 0


# -- disk


def test_what_memory_has_no_room_for_goes_to_disk_and_comes_back(tmp_path: Path) -> None:
    budgets = Budgets(memory_bytes=12 * MB, disk_bytes=100 * MB)
    rig = Rig(tmp_path, budgets=budgets, policy=EAGER, disk=True)
    contexts = [Context(image="i", task="t", seed=seed) for seed in range(4)]
    for context in contexts:
        for text in "ab":
            rig.walk(call("wait", ms=60_000), *writes(text), context=context)
    on_disk = rig.tree.ledger.snapshots("disk")
    assert on_disk, "nothing was demoted"
    for row in on_disk:
        assert row.path is not None
        assert (row.path / "world.json").exists()
    node = rig.tree.index.get(on_disk[0].node)
    context = next(one for one in contexts if rig.tree.index.context(one) == node.context)
    boots, waits = rig.host.boots, rig.host.runs["wait"]
    with rig.attempt(context) as attempt:
        attempt.start()
        attempt.step(call("wait", ms=60_000))
        assert state(attempt).endswith("notes []; waited 60000 ms")
    assert rig.host.runs["wait"] == waits
    assert rig.host.boots <= boots + 1, "the loader makes one fake, a boot would make another"
    rig.close()
    assert rig.host.open == 0


def test_what_many_read_from_disk_at_once_stays_within_the_budget(tmp_path: Path) -> None:
    size = 12 * MB
    first = Rig(tmp_path, budgets=Budgets(disk_bytes=100 * MB), policy=EAGER, disk=True)
    contexts = [Context(image="i", task="t", seed=seed) for seed in range(6)]
    for context in contexts:
        first.walk(call("wait", ms=60_000), *writes("a"), context=context)
    first.tree.close()
    rig = Rig(tmp_path, budgets=Budgets(memory_bytes=size, disk_bytes=100 * MB), disk=True)
    handles, lock, most = set(), threading.Lock(), [0]
    load = rig.tree.keeper.disk._load
    assert load is not None

    def watched(path: Path):
        handle = load(path)
        with lock:
            handles.add(handle)
            most[0] = max(most[0], sum(not one.held.closed for one in handles))
        return handle

    rig.tree.keeper.disk._load = watched
    with ThreadPoolExecutor(6) as pool:
        walks = [pool.submit(rig.walk, call("wait", ms=60_000), *writes("b"), context=context) for context in contexts]
        assert [walk.result(60)[-1] for walk in walks] == ["run"] * 6
    assert len(handles) >= 2
    assert most[0] <= 2, "more than one snapshot beyond the budget"
    rig.close()
    assert rig.host.open == 0


def test_close_writes_what_is_worth_it_and_the_next_run_uses_it(tmp_path: Path) -> None:
    budgets = Budgets(disk_bytes=100 * MB)
    first = Rig(tmp_path, budgets=budgets, policy=EAGER, disk=True)
    for text in "abc":
        first.walk(call("wait", ms=60_000), *writes(text))
    first.tree.close()
    assert first.host.open == 0
    second = Rig(tmp_path, budgets=budgets, policy=EAGER, disk=True)
    assert second.walk(call("wait", ms=60_000), *writes("new")) == ["hit", "hit", "run"]
    assert second.host.runs == {"write": 1}
    second.close()
    assert second.host.open == 0


def test_the_disk_budget_holds(tmp_path: Path) -> None:
    rig = Rig(tmp_path, budgets=Budgets(memory_bytes=12 * MB, disk_bytes=25_000), policy=EAGER, disk=True)
    for seed in range(6):
        for text in "ab":
            rig.walk(call("wait", ms=60_000), *writes(text), context=Context(image="i", task="t", seed=seed))
    assert 0 < rig.tree.ledger.tier_bytes("disk") <= 25_000
    files = sum(path.stat().st_size for path in (tmp_path / "snapshots").rglob("*") if path.is_file())
    assert files == rig.tree.ledger.tier_bytes("disk")
    rig.close()


def test_a_damaged_file_is_removed_and_the_next_way_is_taken(tmp_path: Path) -> None:
    budgets = Budgets(disk_bytes=100 * MB)
    first = Rig(tmp_path, budgets=budgets, policy=EAGER, disk=True)
    first.walk(call("wait", ms=60_000), *writes("a"))
    first.tree.close()
    second = Rig(tmp_path, budgets=budgets, policy=EAGER, disk=True)
    rows = second.tree.ledger.snapshots("disk")
    for row in rows:
        assert row.path is not None
        (row.path / "world.json").write_text("{")
    assert second.walk(call("wait", ms=60_000), *writes("b")) == ["hit", "hit", "run"]
    assert not {row.id for row in rows} & {row.id for row in second.tree.ledger.snapshots("disk")}
    second.close()
    assert second.host.open == 0


def test_a_persist_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig(tmp_path, budgets=Budgets(disk_bytes=100 * MB), policy=EAGER, disk=True)
    rig.walk(*writes("a"))
    write = Path.write_bytes

    def full(path: Path, data: bytes) -> int:
        if path.name == "pages":
            raise OSError(28, "No space left on device")
        return write(path, data)

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(OSError, match="No space left"):
        rig.tree.close()
    assert list((tmp_path / "snapshots").iterdir()) == []


# -- processes


def test_a_forked_child_leaves_its_parents_snapshots_alone(tmp_path: Path) -> None:
    rig = Rig(tmp_path, policy=EAGER)
    rig.walk(*writes("a"))
    held = rig.tree.ledger.snapshots("memory")
    assert held
    child = os.fork()
    if child == 0:
        status = 1
        try:
            assert rig.tree.keeper.tiers([rig.tree.index.get(held[0].node)]) == {}
            assert rig.walk(*writes("a", "b")) == ["hit", "hit", "run"]
            rig.tree.close()
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    assert {row.id for row in held} <= {row.id for row in rig.tree.ledger.snapshots("memory")}
    assert rig.walk(*writes("a", "b")) == ["hit"] * 3, "what the child ran is there for its parent"
    rig.close()
    assert rig.host.open == 0


def test_the_books_forget_dead_processes(tmp_path: Path) -> None:
    Rig(tmp_path).close()
    child = os.fork()
    if child == 0:
        try:
            dying = Rig(tmp_path, policy=EAGER)
            dying.walk(*writes("a"))
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    rig = Rig(tmp_path, budgets=Budgets(memory_bytes=13 * MB), policy=EAGER)
    assert rig.tree.ledger.snapshots("memory") == []
    assert rig.walk(*writes("a")) == ["hit", "hit"]
    rig.close()


def test_another_process_may_ask_for_room(tmp_path: Path) -> None:
    one = Rig(tmp_path, budgets=Budgets(memory_bytes=12 * MB), policy=EAGER)
    one.walk(call("wait", ms=1))
    (row,) = one.tree.ledger.snapshots("memory")
    one.tree.ledger.unwant(row.id)
    one.tree.keeper.tidy()
    assert one.tree.ledger.snapshots("memory") == []
    assert one.host.open == 0
    one.close()


def test_those_who_share_a_directory_keep_to_one_budget(tmp_path: Path) -> None:
    budgets = Budgets(memory_bytes=12 * MB)
    cheap, dear = Context(image="i", task="cheap", seed=3), Context(image="i", task="dear", seed=3)
    one, other = (Rig(tmp_path, budgets=budgets, policy=EAGER) for _ in range(2))
    one.walk(call("wait", ms=1), context=cheap)
    (held,) = one.tree.ledger.snapshots("memory")
    for text in "abcd":
        other.walk(call("wait", ms=60_000), *writes(text), context=dear)
        assert other.tree.ledger.tier_bytes("memory") <= 12 * MB
    (asked,) = other.tree.ledger.snapshots("memory")
    assert asked.id == held.id
    assert not asked.wanted, "the other did not ask for room"
    one.walk(call("wait", ms=2), context=Context(image="i", task="cheap", seed=4))  # its owner looks
    assert held.id not in {row.id for row in one.tree.ledger.snapshots("memory")}
    one.close()
    for text in "ef":
        other.walk(call("wait", ms=60_000), *writes(text), context=dear)
    (row,) = other.tree.ledger.snapshots("memory")
    assert other.tree.index.get(row.node).context == other.tree.index.context(dear)
    other.close()
    assert one.host.open == other.host.open == 0


# -- care


def test_gc_keeps_what_is_met_and_removes_the_rest(tmp_path: Path) -> None:
    rig = Rig(tmp_path, budgets=NEVER)
    big = "x" * 20_000
    for i in range(20):
        rig.walk(call("write", text=f"{i} {big}"))
    for _ in range(5):
        rig.walk(call("write", text=f"7 {big}"))
    before = rig.tree.contents.stored_bytes()
    report = rig.tree.gc(contents_max_bytes=before // 2)
    assert report["nodes"] > 0
    assert rig.tree.contents.stored_bytes() <= before // 2
    assert rig.walk(call("write", text=f"7 {big}")) == ["hit", "hit"]
    assert rig.tree.gc() == {"nodes": 0, "contents_bytes": 0, "snapshots_bytes": 0, "dead_snapshots": 0}
    rig.close()


def test_an_attempt_whose_node_is_removed_runs_on(tmp_path: Path) -> None:
    rig = Rig(tmp_path, budgets=NEVER)
    with rig.attempt() as attempt:
        attempt.start()
        attempt.step(call("write", text="a"))
        rig.tree.index.remove([attempt.cursor.id])
        step = attempt.step(call("write", text="b"))
        assert step.source == "off_tree"
        assert "['a', 'b']" in step.result.observation["text"]
        assert attempt.step(call("look")).source == "off_tree"
    rig.close()
    assert rig.host.open == 0


def test_a_node_with_damaged_contents_is_mended(tmp_path: Path) -> None:
    big = call("write", text="x" * 5000)
    first = Rig(tmp_path, budgets=NEVER)
    first.walk(big)
    first.close()
    for path in (tmp_path / "contents").rglob("*"):
        if path.is_file():
            path.write_bytes(b"rotten")
    rig = Rig(tmp_path, budgets=NEVER)
    assert rig.walk(big) == ["hit", "run"]
    assert rig.walk(big) == ["hit", "hit"]
    rig.close()


def test_a_closed_tree_says_so(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    rig.close()
    rig.close()
    with pytest.raises(ClosedError), rig.attempt() as attempt:
        attempt.start()


def test_many_threads_on_one_tree_agree_with_plain_runs(tmp_path: Path) -> None:
    host = FakeHost()
    rig = Rig(tmp_path, host=host, policy=EAGER, budgets=Budgets(memory_bytes=36 * MB))
    choices = [call("write", text="a"), call("move", step=1), call("look"), call("wait", ms=100), call("move", step=-1)]
    wrong: list[str] = []

    def attempts(worker: int) -> None:
        for i in range(12):
            sequence = [choices[(worker * 7 + i * step + step // 2) % len(choices)] for step in range(1, 6)]
            with rig.attempt() as attempt, FakeWorkspace(seed=3) as world:
                attempt.start()
                for one in sequence:
                    got, want = attempt.step(one).result, world.run(one)
                    if (got.observation, got.reward) != (want.observation, want.reward):
                        wrong.append(f"{got} instead of {want}")

    threads = [threading.Thread(target=attempts, args=(n,)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    rig.close()
    assert host.open == 0


def test_a_boot_that_fails_leaves_nothing(tmp_path: Path) -> None:
    rig = Rig(tmp_path)

    def boot():
        raise WorkspaceDied("died at birth")

    attempt = rig.attempt(boot=boot)
    with pytest.raises(WorkspaceDied):
        attempt.start()
    attempt.close()
    assert rig.walk() == ["boot"]
    rig.close()
    assert rig.host.open == 0
