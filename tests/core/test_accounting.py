# SPDX-License-Identifier: Apache-2.0
"""Accounts of memory: each page once, told apart by kind, and in sum what the machine lost."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from bunshin_gym.accounting import account, account_ids
from bunshin_gym.errors import ClosedError, UsageError
from bunshin_gym.records import list_snapshots, list_workspaces
from bunshin_gym.workspace import Core, Snapshot, Workspace

Start = Callable[..., Workspace]
MIB = 1 << 20
HELD_MIB, SHARED_MIB, UNMAPPED_MIB = 200, 8, 6
BRANCHES = 4

# Pages of the machine that come and go with what else runs there: the smaller of the two groups here is 250 MiB, the
# greater 900.
MACHINE_TOLERANCE_MIB = 96
ROUNDS = 6


@pytest.fixture(scope="module")
def holder(rootfs: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Path, inside the root file system, of tests/core/holder.c."""
    built = tmp_path_factory.mktemp("holder") / "holder"
    flags = ["-O1", "-static", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror"]
    subprocess.run(["cc", *flags, "-o", built, Path(__file__).with_name("holder.c")], check=True)
    shutil.copy(built, rootfs / "bin" / "holder")
    return "/bin/holder"


def holding(start: Start, holder: str, *sizes_mib: int, processes: int = 1) -> Workspace:
    """A workspace that holds memory, ready."""
    workspace = start(argv=[holder, *map(str, (processes, *sizes_mib))])
    workspace.exec(["sh", "-c", "until [ -e /tmp/held ]; do usleep 1000; done"], timeout_s=60)
    return workspace


@contextmanager
def branched(source: Workspace, engine: str, n: int) -> Iterator[tuple[Snapshot, list[Workspace]]]:
    """A snapshot and branches of it, closed at the end."""
    with ExitStack() as stack:
        snapshot = stack.enter_context(source.snapshot(engine=engine))
        branches = [stack.enter_context(branch) for branch in snapshot.spawn(n)]
        yield snapshot, branches


def available_bytes() -> int:
    """What the kernel says could be given out, and the free pages that processors keep at hand: it leaves those out."""
    fields = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    at_hand = re.findall(r"^ +count: +(\d+)$", Path("/proc/zoneinfo").read_text(), re.MULTILINE)
    return int(fields["MemAvailable"].split()[0]) * 1024 + sum(map(int, at_hand)) * 4096


def test_a_workspace_alone(start: Start, holder: str) -> None:
    """Private, shared, and shared memory that nobody maps; a page of two processes once."""
    workspace = holding(start, holder, 40, SHARED_MIB, UNMAPPED_MIB, processes=2)
    group = account([workspace])
    one = group.members[workspace.id]
    assert group.total == one
    assert one.private_unique_bytes / MIB == pytest.approx(40, abs=2)
    assert one.private_shared_bytes < MIB
    assert one.shm_unique_bytes / MIB == pytest.approx(SHARED_MIB + UNMAPPED_MIB, abs=0.5)
    assert one.shm_shared_bytes == 0
    assert one.processes == 3
    assert one.page_table_bytes > 2 * 40 * MIB // 512  # two processes, 8 bytes a page
    assert one.machine_bytes >= one.private_unique_bytes + one.shm_unique_bytes + one.page_table_bytes


def test_dev_shm_counts_without_a_mapping(start: Start) -> None:
    workspace = start()
    before = account([workspace]).total
    workspace.exec(["dd", "if=/dev/zero", "of=/dev/shm/block", "bs=1M", "count=7"])
    after = account([workspace]).total
    assert (after.shm_unique_bytes - before.shm_unique_bytes) / MIB == pytest.approx(7, abs=0.1)
    assert after.disk_bytes == before.disk_bytes
    workspace.exec(["dd", "if=/dev/zero", "of=/tmp/block", "bs=1M", "count=5"])
    assert (account([workspace]).total.disk_bytes - before.disk_bytes) / MIB == pytest.approx(5, abs=0.2)


def test_branches_of_a_page_pool_have_nothing_of_their_own(start: Start, holder: str) -> None:
    source = holding(start, holder, HELD_MIB)
    with branched(source, "pool", BRANCHES) as (snapshot, branches):
        group = account([source, *branches], [snapshot])
        for branch in branches:
            one = group.members[branch.id]
            assert one.private_unique_bytes < 1 * MIB, one
            assert one.private_shared_bytes / MIB == pytest.approx(HELD_MIB, abs=2)
        pool = group.members[snapshot.id]
        assert pool.processes == 1
        assert pool.private_unique_bytes / MIB < 8
        # Source and pool have it once each, the branches with the pool.
        assert group.total.private_unique_bytes / MIB == pytest.approx(2 * HELD_MIB, abs=8)
        # Without the pool in the question its pages are counted all the same: the branches stand on it.
        again = account([source, *branches])
        assert again.total.private_unique_bytes == pytest.approx(group.total.private_unique_bytes, abs=MIB)
        # A branch alone, with its pool: all of it is unique to the two.
        assert account([branches[0]]).total.private_shared_bytes / MIB == pytest.approx(HELD_MIB, abs=2)


def test_branches_of_stock_criu_have_everything_of_their_own(start: Start, holder: str) -> None:
    source = holding(start, holder, HELD_MIB)
    with branched(source, "criu", BRANCHES) as (snapshot, branches):
        group = account([source, *branches], [snapshot])
        for branch in branches:
            assert group.members[branch.id].private_unique_bytes / MIB == pytest.approx(HELD_MIB, abs=4)
        stored = group.members[snapshot.id]
        assert stored.processes == 0
        assert stored.disk_bytes / MIB == pytest.approx(HELD_MIB, abs=4)
        total = group.total.private_unique_bytes / MIB
        assert total == pytest.approx((1 + BRANCHES) * HELD_MIB, abs=8)


def test_a_snapshot_of_a_branch_shares_with_the_pool_it_came_from(start: Start, holder: str) -> None:
    source = holding(start, holder, 40)
    with branched(source, "pool", 1) as (first, (branch,)), branch.snapshot(engine="pool") as second:
        group = account([source, branch], [first, second])
        assert group.members[second.id].private_unique_bytes / MIB < 4
        assert group.total.private_unique_bytes / MIB == pytest.approx(80, abs=8)


@pytest.mark.parametrize("engine", ["pool", "criu"])
def test_a_snapshot_leaves_its_source_as_large_as_it_was(start: Start, holder: str, engine: str) -> None:
    """Pages that processes of the source share since their fork stay shared: reading them must not part them."""
    source = holding(start, holder, 40, processes=3)
    assert account([source]).total.private_unique_bytes / MIB == pytest.approx(40, abs=2)
    with source.snapshot(engine=engine):
        assert account([source]).total.private_unique_bytes / MIB == pytest.approx(40, abs=2)


@pytest.mark.parametrize("engine", ["pool", "criu"])
def test_the_sum_is_what_the_machine_lost(start: Start, holder: str, engine: str) -> None:
    """MemAvailable around a group of branches. What else runs disturbs a round; a wrong sum would disturb all."""
    source = holding(start, holder, HELD_MIB, SHARED_MIB, UNMAPPED_MIB)
    differences: list[float] = []
    while len(differences) < ROUNDS and not any(abs(one) < MACHINE_TOLERANCE_MIB for one in differences):
        before = account([source]).total.machine_bytes
        available = available_bytes()
        with branched(source, engine, BRANCHES) as (snapshot, branches):
            lost = available - available_bytes()
            accounted = account([source, *branches], [snapshot]).total.machine_bytes - before
        differences.append((lost - accounted) / MIB)
    assert min(map(abs, differences)) < MACHINE_TOLERANCE_MIB, differences


def test_another_process_sees_the_same(start: Start, holder: str, bunshin: Core) -> None:
    """By ids from the registry, also the page pool's memory."""
    source = holding(start, holder, 40)
    with branched(source, "pool", 2) as (snapshot, branches):
        ids = [source.id, snapshot.id, *(branch.id for branch in branches)]
        script = (
            "import sys, json, dataclasses; from bunshin_gym.accounting import account_ids; "
            "from bunshin_gym.workspace import core; group = account_ids(sys.argv[2:], core=core(sys.argv[1])); "
            "print(json.dumps({name: one.private_shared_bytes for name, one in group.members.items()}))"
        )
        done = subprocess.run([sys.executable, "-c", script, str(bunshin.home), *ids], capture_output=True, check=True)
        ours = account([source, *branches], [snapshot])
        for name, theirs in json.loads(done.stdout).items():
            assert theirs == pytest.approx(ours.members[name].private_shared_bytes, abs=MIB)
        (record,) = list_snapshots(bunshin.home)
        assert record.pool_pid > 0
        pools = {record.id: record.pool_pid for record in list_workspaces(bunshin.home)}
        assert pools == {source.id: 0, **{branch.id: record.pool_pid for branch in branches}}


def test_a_page_pool_outlives_its_snapshot_in_the_account(start: Start, holder: str) -> None:
    source = holding(start, holder, 40)
    (branch,) = source.fork(1, engine="pool")
    with branch:
        group = account([branch])
        assert group.total.processes == group.members[branch.id].processes + 1
        assert group.total.private_unique_bytes / MIB == pytest.approx(40, abs=8)
        assert group.members[branch.id].private_unique_bytes < MIB


def test_who_is_gone_takes_nothing(bunshin: Core, start: Start) -> None:
    workspace = start()
    gone = account_ids(["0123456789ab", workspace.id], core=bunshin)
    assert gone.members["0123456789ab"].processes == 0
    assert gone.members["0123456789ab"].machine_bytes == 0
    assert gone.total == gone.members[workspace.id]
    workspace.close()
    with pytest.raises(ClosedError):
        account([workspace])


def test_bad_questions_are_refused(bunshin: Core) -> None:
    with pytest.raises(UsageError, match="0 state directories"):
        account()
    with pytest.raises(UsageError, match="is no id"):
        account_ids(["../elsewhere"], core=bunshin)
