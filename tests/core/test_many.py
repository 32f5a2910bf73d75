# SPDX-License-Identifier: Apache-2.0
"""Many workspaces and many cycles: nothing grows, nothing is forgotten, and what runs out is named."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import guesthouse
import pytest
from support.chroot import wait_until
from support.leaks import leftovers

from bunshin_gym.workspace import Core, Workspace, list_snapshots, list_workspaces

Start = Callable[..., Workspace]
CYCLES = int(os.environ.get("BUNSHIN_CYCLES", "20"))


# ---- the registry and what there really is -----------------------------------------


def cgroups(opened: Core) -> dict[str, list[int]]:
    """Ids of the workspaces that have a cgroup, with the processes in it and below."""
    info = opened.home.stat()
    found: dict[str, list[int]] = {}
    for mount in Path("/sys/fs/cgroup"), *Path("/sys/fs/cgroup").glob("*"):
        for folder in (mount / "bunshin" / f"{info.st_dev:x}-{info.st_ino:x}").glob("*/"):
            pids = found.setdefault(folder.name, [])
            for procs in folder.rglob("cgroup.procs"):
                pids += [int(pid) for pid in procs.read_text().split()]
    return found


def listens(pid: int) -> bool:
    """Whether something listens on port 8080 of the process's network namespace."""
    lines = (
        Path(f"/proc/{pid}/net/tcp6").read_text().splitlines() + Path(f"/proc/{pid}/net/tcp").read_text().splitlines()
    )
    return any(line.split()[1].endswith(":1F90") and line.split()[3] == "0A" for line in lines[1:])


def check_agreement(opened: Core, running: dict[Workspace, bool]) -> None:
    """running: the workspaces that ought to be there; True for those whose server lives."""
    records = {record.id: record for record in list_workspaces(opened.home)}
    assert set(records) == {workspace.id for workspace in running} == set(cgroups(opened))
    for workspace, serves in running.items():
        record = records[workspace.id]
        assert (record.pid, record.alive, record.owned) == (workspace.pid, True, True)
        assert workspace.alive
        assert record.pid in cgroups(opened)[workspace.id]
        assert listens(record.pid) == serves
        answer = workspace.exec(["wget", "-qO-", "http://127.0.0.1:8080/who"], timeout_s=30)
        assert (answer.exit_code == 0) == serves, answer


def test_registry_processes_and_ports_agree_at_every_step(start: Start, bunshin: Core) -> None:
    source = start(argv=["sh", "-c", "mkdir /www; echo me > /www/who; exec httpd -f -p 8080 -h /www"])
    for attempt in wait_until(AssertionError, 20):
        with attempt:
            assert listens(source.pid)
    check_agreement(bunshin, {source: True})
    with ExitStack() as stack:
        snapshot = stack.enter_context(source.snapshot())
        assert [record.id for record in list_snapshots(bunshin.home)] == [snapshot.id]
        one, two, three = [stack.enter_context(branch) for branch in snapshot.spawn(3)]
        check_agreement(bunshin, dict.fromkeys((source, one, two, three), True))
        two.freeze()
        two.thaw()
        assert three.exec(["killall", "-9", "httpd"]).exit_code == 0
        check_agreement(bunshin, {source: True, one: True, two: True, three: False})
        two.close()
        check_agreement(bunshin, {source: True, one: True, three: False})
        os.kill(one.pid, signal.SIGKILL)
        for attempt in wait_until(AssertionError, 20):
            with attempt:
                assert not one.alive
        (dead,) = [record for record in list_workspaces(bunshin.home) if record.id == one.id]
        assert not dead.alive
        one.close()
        source.close()
        check_agreement(bunshin, {three: False})
        (again,) = snapshot.spawn(1)
        with again:
            check_agreement(bunshin, {three: False, again: True})
    assert list_snapshots(bunshin.home) == []
    assert cgroups(bunshin) == {}


# ---- what must not grow ---------------------------------------------------------------


def holdings(opened: Core) -> dict[str, int]:
    """What this process and its state directory have now."""
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    children = [path.read_text().split() for path in Path("/proc/self/task").glob("*/children")]
    return {
        "descriptors": len(os.listdir("/proc/self/fd")),
        "threads": int(status["Threads"]),
        "children": sum(map(len, children)),
        "mounts": len(Path("/proc/self/mountinfo").read_text().splitlines()),
        "cgroups": len(cgroups(opened)),
        "files": sum(len(files) + len(folders) for _, folders, files in os.walk(opened.home)),
        "memory_kib": int(status["RssAnon"].split()[0]),
    }


def check_flat(opened: Core, cycle: Callable[[], None], count: int) -> None:
    for _ in range(10):
        cycle()
    before = holdings(opened)
    for _ in range(count):
        cycle()
    after = holdings(opened)
    grown_kib = after.pop("memory_kib") - before.pop("memory_kib")
    # Layers come until they are merged: at most forty, of a few entries each.
    assert max(before.pop("files"), after.pop("files")) < 500
    assert after == before
    # Less than a page for each cycle, and half a MiB of the allocator's moods.
    assert grown_kib < 512 + 2 * count, f"{grown_kib} KiB more after {count} cycles"


def test_fork_and_close_do_not_grow(start: Start, bunshin: Core) -> None:
    source = start()

    def cycle() -> None:
        with source.snapshot() as snapshot:
            for branch in snapshot.spawn(2):
                with branch:
                    assert branch.exec(["true"]).exit_code == 0

    check_flat(bunshin, cycle, CYCLES)


def test_a_line_of_branches_does_not_grow(start: Start, bunshin: Core) -> None:
    """Each is forked from the last, which is then closed: as an episode that is snapshotted at each step."""
    line = [start()]

    def cycle() -> None:
        line.extend(line[-1].fork(1))
        line.pop(0).close()

    check_flat(bunshin, cycle, CYCLES)
    line[0].close()


def test_pauses_do_not_grow(start: Start, bunshin: Core) -> None:
    source = start()

    def cycle() -> None:
        source.freeze()
        source.thaw()

    check_flat(bunshin, cycle, CYCLES * 10)


# ---- what runs out --------------------------------------------------------------------

GREEDY = """
import resource, sys
from bunshin_gym.errors import ResourceError
from bunshin_gym.workspace import Workspace, core

opened = core(sys.argv[1])
source = Workspace.start(sys.argv[2], argv=["sleep", "1000000"], core=opened)
resource.setrlimit(resource.RLIMIT_NOFILE, (90, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
made = []
try:
    while len(made) < 200:
        made += source.fork(1)
except ResourceError as error:
    print("refused:", error, flush=True)
for workspace in made[:2]:
    workspace.close()
for workspace in made[2:]:
    assert workspace.exec(["echo", "alive"]).stdout == b"alive\\n"
    workspace.close()
(branch,) = source.fork(1)
assert branch.exec(["echo", "again"]).stdout == b"again\\n"
print(len(made) > 3, "again", flush=True)
"""


def test_out_of_descriptors_is_refused_and_what_there_is_lives_on(bunshin: Core, rootfs: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", GREEDY, str(bunshin.home), str(rootfs)], capture_output=True, text=True, timeout=300
    )
    refused, rest = done.stdout.splitlines()
    assert "Too many open files" in refused
    assert rest == "True again", done.stderr
    assert leftovers(bunshin) == []


def test_more_branches_at_once_than_processors_wait_their_turn(start: Start) -> None:
    source = start()
    branches = source.fork(24)
    with ExitStack() as stack:
        for branch in branches:
            stack.enter_context(branch)
        assert len({branch.id for branch in branches}) == 24
        assert all(branch.exec(["true"]).exit_code == 0 for branch in branches)


@pytest.mark.parametrize("limit", ["process", "memory"])
def test_a_branch_that_hits_its_own_limit_disturbs_no_other(start: Start, limit: str) -> None:
    options = {"process": {"pids_max": 12}, "memory": {"memory_max_bytes": 64 << 20}}[limit]
    greedy = {
        "process": "for i in $(seq 40); do sleep 1000001 & done",
        "memory": "head -c 200000000 /dev/zero | tail -c 200000000 > /dev/null",
    }[limit]
    source = start(**options)
    first, second = source.fork(2)
    with first, second:
        assert first.exec(["sh", "-c", greedy], timeout_s=60).exit_code != 0
        for other in (source, second):
            assert other.exec(["sh", "-c", "echo alive; true | true"], timeout_s=30).stdout == b"alive\n"


def test_a_long_chain_needs_no_more_room_than_its_last_link(start: Start, rootfs: Path) -> None:
    """Each maps eight terabytes and lets go of its parent's: of a process's 128 there are enough for few at a time."""
    link = start(argv=[guesthouse.build(rootfs, "churn")])
    guesthouse.wait_ready(link)
    for number in range(12):
        with link.snapshot() as snapshot:
            branch = snapshot.branch()
        link.close()
        link = branch
        assert guesthouse.tell(link, f"link {number}") == "ok"
    link.close()
