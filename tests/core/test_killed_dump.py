# SPDX-License-Identifier: Apache-2.0
"""The process that takes a snapshot is killed meanwhile: the source runs on, and the next snapshot is whole."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import guesthouse
import pytest
from support import engines, need

from bunshin_gym.errors import EngineError
from bunshin_gym.workspace import Core, Snapshot, Workspace

Start = Callable[..., Workspace]
DELAYS_S = [0.0, 0.002, 0.004, 0.008, 0.012, 0.018, 0.026, 0.04, 0.06, 0.1]


@pytest.fixture(params=[name for name in engines() if name != "criu"])
def engine(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def pools() -> set[int]:
    """Processes of CRIU that are this program's children."""
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    found = set()
    for pid in children:
        with suppress(OSError):  # it may have ended
            if os.readlink(f"/proc/{pid}/exe").endswith("criu"):
                found.add(int(pid))
    return found


class Killer(threading.Thread):
    """Kills the pool that appears, some time after it did."""

    def __init__(self, delay_s: float) -> None:
        super().__init__()
        self.ended = threading.Event()
        self._delay_s, self._before = delay_s, pools()

    def run(self) -> None:
        while not self.ended.is_set():
            if new := pools() - self._before:
                self.ended.wait(self._delay_s)
                with suppress(ProcessLookupError):
                    os.kill(new.pop(), signal.SIGKILL)
                return


def killed(source: Workspace, engine: str, delay_s: float) -> Snapshot | EngineError:
    killer = Killer(delay_s)
    killer.start()
    try:
        return source.snapshot(engine=engine)
    except EngineError as error:
        return error
    finally:
        killer.ended.set()
        killer.join()


@pytest.mark.parametrize("parent", [False, True], ids=["whole", "delta"])
def test_a_killed_pool_leaves_the_source_running(start: Start, rootfs: Path, engine: str, parent: bool) -> None:
    source = start(argv=[guesthouse.build(rootfs, "threads")])
    guesthouse.wait_ready(source)
    told = 0
    before = source.snapshot(engine=engine) if parent else None
    for delay_s in DELAYS_S:
        result = killed(source, engine, delay_s)
        if isinstance(result, Snapshot):
            result.close()
        else:
            told += 1
        assert source.exec(["echo", "alive"], timeout_s=30).stdout == b"alive\n"
    assert told > 0, "nothing was killed in time"
    if before is not None:
        before.close()
    with source.snapshot(engine=engine) as snapshot, snapshot.branch() as branch:
        assert guesthouse.tell(branch, "branch") == "ok"
    assert guesthouse.tell(source, "source") == "ok"


# ---- out of memory ----------------------------------------------------------------------

# The workspace has a group of its own; the pool is in its maker's, which has no room for what the pool is to hold.
SHORT = """
import sys
from pathlib import Path
from bunshin_gym.errors import BunshinError
from bunshin_gym.workspace import Workspace, core

home, rootfs, engine, group = sys.argv[1:]
holder = ["/bin/holder", "1", "300", "0", "0"]
with Workspace.start(rootfs, argv=holder, memory_max_bytes=1 << 30, core=core(home)) as source:
    while not (source.root / "tmp" / "held").exists():
        assert source.alive
    Path(group, "cgroup.procs").write_text("0")
    try:
        source.snapshot(engine=engine).close()
        print("there was room")
    except BunshinError as error:
        print("told:", error)
    print(source.exec(["echo", "alive"], timeout_s=60).stdout)
"""


@pytest.fixture
def small_group(bunshin: Core) -> Iterator[Path]:
    """A cgroup whose processes may have 150 MiB together."""
    features = bunshin.features()
    v1 = features.get("cgroup_v1_memory", "none")
    need(v1 != "none" or features.get("cgroup_v2", "none") != "none", "there is no memory controller")
    group = Path(v1 if v1 != "none" else features["cgroup_v2"]) / f"bunshin-test-{os.getpid()}"
    group.mkdir()
    limit = group / ("memory.limit_in_bytes" if v1 != "none" else "memory.max")
    limit.write_text(str(150 << 20))
    yield group
    group.rmdir()


def test_out_of_memory_leaves_the_source_running(bunshin: Core, rootfs: Path, engine: str, small_group: Path) -> None:
    source = Path(__file__).with_name("holder.c")
    subprocess.run(["cc", "-O1", "-static", "-D_GNU_SOURCE", "-o", rootfs / "bin" / "holder", source], check=True)
    done = subprocess.run(
        [sys.executable, "-c", SHORT, str(bunshin.home), str(rootfs), engine, str(small_group)],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    told, alive = done.stdout.splitlines()
    assert told.startswith("told: "), told
    assert alive == r"b'alive\n'"
