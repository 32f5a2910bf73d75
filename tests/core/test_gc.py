# SPDX-License-Identifier: Apache-2.0
"""What a killed process leaves is found and reaped; what living ones have is not touched."""

from __future__ import annotations

import os
import select
import shutil
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest
from support import engines
from support.leaks import leftovers

from bunshin_gym.errors import EngineError, WorkspaceDied
from bunshin_gym.runtime import runtime_layer
from bunshin_gym.workspace import Core, Workspace, core, list_workspaces

Start = Callable[..., Workspace]

OWNER = """
import os, sys, time
from bunshin_gym.workspace import Workspace, core

opened = core(sys.argv[1])
kept = []
for _ in range(int(sys.argv[3])):
    workspace = Workspace.start(sys.argv[2], argv=["sleep", "1000000"], core=opened)
    workspace.exec(["sh", "-c", "setsid sleep 1000001 > /dev/null 2>&1 < /dev/null &"])
    kept.append(workspace)
if sys.argv[4] == "frozen":
    for workspace in kept:
        workspace.freeze()
print(*(workspace.pid for workspace in kept), flush=True)
sys.stdin.read()
"""


@contextmanager
def owner(
    home: Path, rootfs: Path, *, count: int = 2, state: str = "running"
) -> Iterator[tuple[subprocess.Popen, list[int]]]:
    """Another process with workspaces of its own; yields it and their init's pids."""
    arguments = [sys.executable, "-c", OWNER, str(home), str(rootfs), str(count), state]
    with subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield process, [int(pid) for pid in process.stdout.readline().split()]
        process.kill()


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def inner_pids(pid: int) -> list[int]:
    """All processes of a workspace, by its pid namespace."""
    namespace = os.readlink(f"/proc/{pid}/ns/pid")
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if os.readlink(process / "ns" / "pid") == namespace:
                found.append(int(process.name))
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue
    return found


@pytest.mark.parametrize("state", ["running", "frozen"])
def test_killed_owner_leaves_nothing_after_gc(bunshin: Core, rootfs: Path, state: str) -> None:
    with owner(bunshin.home, rootfs, state=state) as (process, inits):
        inside = [pid for init in inits for pid in inner_pids(init)]
        assert len(inside) == 6  # init, main command and the command's remains, twice
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        assert all(map(is_running, inside))
        assert len(list_workspaces(bunshin.home)) == 2
        report = bunshin.gc()
        assert (report.workspaces, report.snapshots, report.cgroups) == (2, 0, 2)
        assert not any(map(is_running, inside))
        assert leftovers(bunshin) == []
    again = bunshin.gc()
    assert (again.workspaces, again.processes, again.cgroups) == (0, 0, 0)


# Traces what it is told to and never asks how it is, as a dump whose source was killed.
CARRIER = """
import ctypes, signal, sys
libc = ctypes.CDLL(None, use_errno=True)
PTRACE_SEIZE, PR_SET_NAME = 0x4206, 15
assert libc.prctl(PR_SET_NAME, sys.argv[1].encode(), 0, 0, 0) == 0
for pid in sys.argv[2:]:
    assert libc.ptrace(PTRACE_SEIZE, int(pid), 0, 0) == 0, ctypes.get_errno()
print("ready", flush=True)
signal.pause()
"""


@contextmanager
def carrier(init: int) -> Iterator[subprocess.Popen]:
    """Holds all of a workspace's processes."""
    arguments = [sys.executable, "-c", CARRIER, "criu", *map(str, inner_pids(init))]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process
        process.kill()


def test_dump_under_way_does_not_hold_up_gc(bunshin: Core, rootfs: Path) -> None:
    with owner(bunshin.home, rootfs, count=1) as (process, inits), carrier(inits[0]) as dump:
        process.kill()
        process.wait()
        assert bunshin.gc().workspaces == 1
        assert dump.wait() == -signal.SIGKILL
        assert leftovers(bunshin) == []


def test_dump_under_way_does_not_hold_up_close(start: Start) -> None:
    workspace = start()
    with carrier(workspace.pid) as dump:
        workspace.close()
        assert dump.wait() == -signal.SIGKILL


@pytest.mark.parametrize("engine", engines())
def test_workspace_killed_at_any_moment_of_a_snapshot_holds_up_nothing(start: Start, engine: str) -> None:
    for delay_ms in range(0, 160, 8):
        workspace = start(argv=["sh", "-c", "sleep 1000001 & sleep 1000001 & wait"])
        killer = threading.Timer(delay_ms / 1000, os.kill, (workspace.pid, signal.SIGKILL))
        killer.start()
        with suppress(WorkspaceDied, EngineError):  # and not CallTimeout
            workspace.snapshot(engine=engine).close()
        killer.join()
        workspace.close()


def test_what_has_a_living_owner_stays(bunshin: Core, rootfs: Path, start: Start) -> None:
    ours = start()
    with owner(bunshin.home, rootfs, count=1) as (process, inits):
        report = bunshin.gc()
        assert (report.workspaces, report.processes, report.cgroups, report.layers) == (0, 0, 0, 0)
        assert is_running(inits[0])
        process.kill()
        process.wait()
        assert bunshin.gc().workspaces == 1
    assert ours.exec(["echo", "alive"]).stdout == b"alive\n"


def test_first_start_of_the_next_process_collects(bunshin: Core, rootfs: Path) -> None:
    with owner(bunshin.home, rootfs, count=1) as (process, inits):
        process.kill()
        process.wait()
        assert is_running(inits[0])
        with owner(bunshin.home, rootfs, count=1) as (other, _):
            assert not is_running(inits[0])
            assert other.stdin is not None
            other.stdin.close()
            other.wait(30)


def test_owner_killed_at_any_moment_of_a_start(bunshin: Core, rootfs: Path) -> None:
    """Kills come at moments spread over starts and stops; whatever there is then must be found."""
    loop = OWNER.replace(
        "sys.stdin.read()",
        "print('go', flush=True)\nwhile True:\n    Workspace.start(sys.argv[2], argv=['true'], core=opened).close()",
    )
    for round_number in range(8):
        arguments = [sys.executable, "-c", loop, str(bunshin.home), str(rootfs), "0", "running"]
        with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            while process.stdout.readline() != "go\n":
                pass
            # Nothing arrives: select is the clock here.
            select.select([process.stdout], [], [], 0.02 + 0.017 * round_number)
            process.kill()
            process.wait()
        bunshin.gc()
        assert leftovers(bunshin) == []


def test_collections_beside_starts(bunshin: Core, start: Start) -> None:
    failures: list[BaseException] = []
    done = threading.Event()

    def collect() -> None:
        try:
            while not done.is_set():
                report = bunshin.gc()
                assert (report.workspaces, report.processes, report.cgroups) == (0, 0, 0)
        except BaseException as error:  # noqa: BLE001 - told in the main thread
            failures.append(error)

    threads = [threading.Thread(target=collect) for _ in range(2)]
    for thread in threads:
        thread.start()
    for _ in range(5):
        with start() as workspace:
            assert workspace.exec(["true"]).exit_code == 0
    done.set()
    for thread in threads:
        thread.join()
    assert failures == []


def test_two_collections_at_once_share_the_work(bunshin: Core, rootfs: Path) -> None:
    with owner(bunshin.home, rootfs, count=3) as (process, _):
        process.kill()
        process.wait()
        with ThreadPoolExecutor(3) as pool:
            for collection in [pool.submit(bunshin.gc) for _ in range(3)]:
                collection.result()
        assert leftovers(bunshin) == []


def test_cgroups_whose_state_is_gone_are_reaped(bunshin: Core, rootfs: Path) -> None:
    with owner(bunshin.home, rootfs, count=1) as (process, inits):
        process.kill()
        process.wait()
        for record in list_workspaces(bunshin.home):
            shutil.rmtree(record.dir)
        report = bunshin.gc()
        assert (report.workspaces, report.cgroups) == (0, 1)
        assert not is_running(inits[0])


def test_workspaces_of_a_deleted_state_directory_are_reaped_from_any_other(
    bunshin: Core, rootfs: Path, tmp_path: Path
) -> None:
    """Only those whose owner is dead; nothing that has a state directory, whoever its owner is."""
    homes = [tmp_path / name for name in ("deleted", "deleted-frozen", "deleted-but-owned", "there")]
    for home in homes:
        core(home)
    with ExitStack() as stack:
        owners = [
            stack.enter_context(owner(home, rootfs, count=2, state="frozen" if "frozen" in home.name else "running"))
            for home in homes
        ]
        keys = [f"{home.stat().st_dev:x}-{home.stat().st_ino:x}" for home in homes]
        for home, (process, _) in zip(homes, owners, strict=True):
            if home.name != "deleted-but-owned":
                process.kill()
                process.wait()
            if home.name != "there":
                shutil.rmtree(home)
        bunshin.gc()
        running = [[is_running(pid) for pid in inits] for _, inits in owners]
        assert running == [[False] * 2, [False] * 2, [True] * 2, [True] * 2]
        assert [bool(cgroups_of(key)) for key in keys] == [False, False, True, True]
        owners[2][0].kill()
        owners[2][0].wait()
        bunshin.gc()
        assert cgroups_of(keys[2]) == []
        assert not any(map(is_running, owners[2][1]))
        assert all(map(is_running, owners[3][1]))
        assert core(homes[3]).gc().workspaces == 2
        assert cgroups_of(keys[3]) == []


def cgroups_of(key: str) -> list[str]:
    """Directories that belong to a state directory, in all hierarchies."""
    return [root for root, _, _ in os.walk("/sys/fs/cgroup") if f"/{key}" in root]


def test_half_made_state_layers_and_trash_are_swept(bunshin: Core, start: Start) -> None:
    workspace = start()
    (bunshin.home / "workspaces" / "00000000dead" / "upper").mkdir(parents=True)
    (bunshin.home / "layers" / "unused" / "deep").mkdir(parents=True)
    (bunshin.home / "trash" / "old" / "deep").mkdir(parents=True)
    report = bunshin.gc()
    assert (report.workspaces, report.layers) == (1, 1)
    assert workspace.alive
    assert [path.name for path in (bunshin.home / "workspaces").iterdir()] == [workspace.id]
    assert list((bunshin.home / "trash").iterdir()) == []


def test_a_record_of_another_boot_is_dead(bunshin: Core, rootfs: Path) -> None:
    folder = bunshin.home / "workspaces" / "0123456789ab"
    folder.mkdir()
    start_time = Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19]
    (folder / "record").write_text(f"id=0123456789ab\nowner={os.getpid()} {start_time} another-boot\n")
    assert bunshin.gc().workspaces == 1


def test_state_never_follows_links_out(bunshin: Core, tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "file").write_text("keep")
    folder = bunshin.home / "workspaces" / "00000000dead"
    folder.mkdir()
    (folder / "upper").symlink_to(precious)
    (bunshin.home / "layers" / "link").symlink_to(precious)
    bunshin.gc()
    assert (precious / "file").read_text() == "keep"


def test_runtime_layer_is_made_whole_beside_collections(bunshin: Core) -> None:
    done = threading.Event()

    def collect() -> None:
        while not done.is_set():
            bunshin.gc()

    thread = threading.Thread(target=collect)
    thread.start()
    try:
        for _ in range(20):
            layer = runtime_layer(bunshin.home)
            assert (layer / ".bunshin" / "init").exists()
            assert (layer / ".bunshin" / "toolserver" / "app.py").exists()
            shutil.rmtree(layer)
            (bunshin.home / "layers" / "runtime-killed.new").mkdir()  # a maker was killed here
    finally:
        done.set()
        thread.join()
    runtime_layer(bunshin.home)
    assert len(list((bunshin.home / "layers").iterdir())) == 1


def test_what_a_killed_start_left_behind_is_used_by_the_next(start: Start, bunshin: Core) -> None:
    home = Path(bunshin.home)
    places = sorted((home / "places").iterdir())
    for place in places:
        (place / "next").mkdir(exist_ok=True)
    workspace = start()
    assert len([place for place in places if (place / "next").exists()]) == len(places) - 1
    assert stat.S_IMODE((home / "workspaces" / workspace.id).stat().st_mode) == 0o700
