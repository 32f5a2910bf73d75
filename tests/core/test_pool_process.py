# SPDX-License-Identifier: Apache-2.0
"""The process that holds a snapshot's memory: killed at the worst moments, and what it leaves to be reaped."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import guesthouse
import pytest
from support import engines

from bunshin_gym.errors import BunshinError, EngineError, SnapshotLost
from bunshin_gym.workspace import Core, Snapshot, Workspace

Start = Callable[..., Workspace]


@pytest.fixture(params=[name for name in engines() if name != "criu"])
def engine(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def pool_pid(snapshot: Snapshot) -> int:
    record = (snapshot.core.home / "snapshots" / snapshot.id / "record").read_text()
    found = re.search(r"^pool=(\d+) ", record, re.MULTILINE)
    assert found is not None, record
    return int(found[1])


def test_killed_pool_is_told_and_its_branches_live_and_fork_on(start: Start, rootfs: Path, engine: str) -> None:
    source = start(argv=[guesthouse.build(rootfs, "threads")])
    guesthouse.wait_ready(source)
    with source.snapshot(engine=engine) as snapshot, snapshot.branch() as branch:
        os.kill(pool_pid(snapshot), signal.SIGKILL)
        with pytest.raises(SnapshotLost, match=f"branch of snapshot {snapshot.id}: .*process has ended") as caught:
            snapshot.branch()
        assert isinstance(caught.value, EngineError)
        assert guesthouse.tell(branch, "branch") == "ok"
        with branch.snapshot(engine=engine) as deeper:
            assert deeper.stats.shared_bytes == 0  # there is nothing left to share with
            with deeper.branch() as grandchild:
                assert guesthouse.tell(grandchild, "grandchild") == "ok"
    assert guesthouse.tell(source, "source") == "ok"


# A container's process 1 often reaps nothing; one that adopts orphans stands for it.
ADOPTER = """
import ctypes, os, sys
from pathlib import Path
from bunshin_gym.workspace import Workspace, core

PR_SET_CHILD_SUBREAPER = 36
assert ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0
home, rootfs, engine = sys.argv[1:]


def work():
    with Workspace.start(rootfs, argv=["sleep", "1000000"], core=core(home)) as source:
        for _ in range(3):
            with source.fork(1, engine=engine)[0] as branch, branch.fork(1, engine=engine)[0] as deeper:
                deeper.exec(["true"])
        link = source.fork(1, engine=engine)[0]
        for _ in range(3):
            following = link.fork(1, engine=engine)[0]
            link.close()  # the first of a chain goes first
            link = following
        link.close()


if (worker := os.fork()) == 0:
    work()
    sys.exit()
assert os.waitpid(worker, 0)[1] == 0
children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
print(*(Path(f"/proc/{pid}/stat").read_text() for pid in children), end="")
"""


def test_no_zombie_is_left_to_whoever_adopts_orphans(bunshin: Core, rootfs: Path, engine: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", ADOPTER, str(bunshin.home), str(rootfs), engine],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, ""), done.stderr


class Killer(threading.Thread):
    """Kills the first process of a branch in the making, some time after it appears as the pool's child."""

    def __init__(self, pool: int, delay_s: float) -> None:
        super().__init__()
        self.ended = threading.Event()
        self._children = Path(f"/proc/{pool}/task/{pool}/children")
        self._delay_s = delay_s
        self._others = set(self._children.read_text().split())

    def run(self) -> None:
        while not self.ended.is_set():
            for pid in set(self._children.read_text().split()) - self._others:
                with suppress(OSError):  # it may have ended
                    status = Path(f"/proc/{pid}/status").read_text()
                    if re.search(r"^NSpid:.*\s1$", status, re.MULTILINE):
                        self.ended.wait(self._delay_s)
                        os.kill(int(pid), signal.SIGKILL)
                        return


def try_branch(snapshot: Snapshot) -> BunshinError | None:
    try:
        snapshot.branch().close()
    except BunshinError as error:
        return error
    return None


def test_branch_killed_while_it_is_made_is_told_at_once(start: Start, engine: str) -> None:
    source = start(argv=["sh", "-c", "for i in 1 2 3 4 5 6; do sleep 1000000 & done; wait"])
    with source.snapshot(engine=engine) as snapshot:
        told = 0
        for attempt in range(24):
            killer = Killer(pool_pid(snapshot), attempt * 0.006)
            killer.start()
            begun = time.monotonic()
            error = try_branch(snapshot)
            killer.ended.set()
            killer.join()
            assert not isinstance(error, SnapshotLost), error
            told += error is not None
            assert time.monotonic() - begun < 60
        assert told > 0
        with snapshot.branch() as branch:
            assert branch.exec(["echo", "alive"]).stdout == b"alive\n"


# ---- pages that move --------------------------------------------------------------------

MOVER = """
import ctypes, errno, mmap
madvise = ctypes.CDLL(None, use_errno=True).madvise
print("moving", flush=True)
while True:
    with mmap.mmap(-1, 8 << 20, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as block:
        first = ctypes.c_char.from_buffer(block)
        aligned = -(-ctypes.addressof(first) >> 21) << 21
        ctypes.c_char.from_address(aligned).value = b"x"
        for _ in range(1000):
            if madvise(ctypes.c_void_p(aligned), ctypes.c_size_t(2 << 20), 25):  # COLLAPSE
                assert ctypes.get_errno() in (errno.EAGAIN, errno.EBUSY, errno.ENOMEM), ctypes.get_errno()
            assert madvise(ctypes.c_void_p(aligned + 4096), ctypes.c_size_t(4096), 4) == 0  # DONTNEED: small ones again
        del first
"""


def moved_pages() -> int:
    lines = dict(line.split() for line in Path("/proc/vmstat").read_text().splitlines())
    return int(lines["thp_collapse_alloc"]) + int(lines["pgmigrate_success"])


def test_pages_that_move_all_the_time_hinder_no_snapshot(start: Start, rootfs: Path) -> None:
    """Neighbours' pages do on a busy host: it cannot be told from the kernel's counters whose they were."""
    link = start(argv=[guesthouse.build(rootfs, "heap")])
    guesthouse.wait_ready(link)
    ballast = "x=$(head -c 256000000 /dev/zero | tr '\\0' x); echo > /full; read y < /never"
    link.exec(["sh", "-c", f"mkfifo /full /never; sh -c {shlex.quote(ballast)} > /dev/null & read z < /full"])
    with subprocess.Popen([sys.executable, "-c", MOVER], stdout=subprocess.PIPE, text=True) as mover:
        try:
            assert mover.stdout is not None
            assert mover.stdout.readline() == "moving\n"
            for number in range(8):
                before = moved_pages()
                with link.snapshot(engine="pool") as snapshot:
                    assert moved_pages() > before
                    branch = snapshot.branch()
                assert guesthouse.tell(link, "source") == "ok"
                link.close()
                link = branch
                assert guesthouse.tell(link, f"link {number}") == "ok"
        finally:
            mover.kill()
    link.close()
