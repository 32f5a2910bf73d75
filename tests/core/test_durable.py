# SPDX-License-Identifier: Apache-2.0
"""Snapshots on disk: read back by another process whole, or refused by name, whenever the writer was killed."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import guesthouse
import pytest
from support import need

from bunshin_gym import durable
from bunshin_gym.errors import (
    BunshinError,
    ClosedError,
    ImageNotFoundError,
    SnapshotDamaged,
    UnsupportedError,
    UsageError,
)
from bunshin_gym.faults import DURABLE_FAULTS, VARIABLE
from bunshin_gym.images import ImageStore
from bunshin_gym.workspace import Core, Snapshot, Workspace

Start = Callable[..., Workspace]

ENGINES = ("pool", "criu")
KINDS = (
    "heap",
    "private_file",
    "shm_anonymous",
    "shm_named",
    "sysv",
    "deleted",
    "timers",
    "inotify",
    "pkeys",
    "renamed",
)
WRITER = """
import sys
from pathlib import Path
from bunshin_gym.workspace import Workspace, core

home, rootfs, path, engine = sys.argv[1:]
with Workspace.start(rootfs, argv=["sh", "-c", "sleep 1000001 & sleep 1000002"], core=core(home)) as workspace:
    workspace.exec(["sh", "-c", "dd if=/dev/urandom of=/dev/shm/block bs=1M count=16 2>&1; echo kept > /tmp/note"])
    with workspace.snapshot(engine=engine) as snapshot:
        print("taken", flush=True)
        snapshot.persist(path).result()
        print("written", flush=True)
        sys.stdin.read()
"""


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def sh(workspace: Workspace, script: str) -> str:
    result = workspace.exec(["sh", "-c", script], timeout_s=60)
    assert result.exit_code == 0, result
    return result.stdout.decode().strip()


def stay(workspace: Workspace, path: Path, engine: str) -> None:
    """Writes it to path; nothing of it is in memory afterwards."""
    with workspace.snapshot(engine=engine) as snapshot:
        assert snapshot.persist(path).result(timeout=60) == path
    workspace.close()


class Writer:
    """Another process that takes a snapshot and writes it to path."""

    def __init__(self, bunshin: Core, rootfs: Path, path: Path, engine: str = "pool", fault: str = "") -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", WRITER, bunshin.home, rootfs, path, engine],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **({VARIABLE: fault} if fault else {})},
        )

    def expect(self, word: str) -> None:
        assert self.process.stdout is not None
        assert self.process.stdout.readline().strip() == word

    def kill(self) -> None:
        """Also fine when it has been killed already."""
        self.process.kill()
        self.died()

    def died(self) -> None:
        assert self.process.wait(timeout=60) == -signal.SIGKILL
        for stream in (self.process.stdin, self.process.stdout):
            assert stream is not None
            stream.close()


# ---- what comes back ------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_guest_from_disk(kind: str, engine: str, start: Start, bunshin: Core, rootfs: Path, tmp_path: Path) -> None:
    source = start(argv=[guesthouse.build(rootfs, kind)])
    guesthouse.wait_ready(source)
    assert guesthouse.tell(source, "before") == "ok"
    stay(source, tmp_path / "snapshot", engine)
    with Snapshot.load(tmp_path / "snapshot", core=bunshin) as loaded:
        assert loaded.engine == engine
        shutil.rmtree(tmp_path / "snapshot")
        first, second = loaded.spawn(2)
    with first, second:
        assert guesthouse.tell(first, "first") == "ok"
        assert guesthouse.tell(second, "second") == "ok"
        (grandchild,) = first.fork(1, engine=engine)
        with grandchild:
            assert guesthouse.tell(grandchild, "grandchild") == "ok"
            assert guesthouse.tell(first, "once more") == "ok"


@pytest.mark.parametrize(("wrote", "reads"), [("pool", "criu"), ("criu", "pool")])
def test_one_engine_reads_what_the_other_wrote(
    wrote: str, reads: str, start: Start, bunshin: Core, rootfs: Path, tmp_path: Path
) -> None:
    """What the pool wrote is a complete set of images: the engine "criu" runs CRIU's own restore on it."""
    source = start(argv=[guesthouse.build(rootfs, "heap")])
    guesthouse.wait_ready(source)
    sh(source, "echo kept > /dev/shm/note")
    assert guesthouse.tell(source, "before") == "ok"
    stay(source, tmp_path / "snapshot", wrote)
    with Snapshot.load(tmp_path / "snapshot", engine=reads, core=bunshin) as loaded, loaded.branch() as branch:
        assert loaded.engine == reads
        assert guesthouse.tell(branch, "after") == "ok"
        assert sh(branch, "cat /dev/shm/note") == "kept"


def test_files_of_all_layers(engine: str, start: Start, bunshin: Core, tmp_path: Path) -> None:
    """Layers of three generations become one: what is deleted in one of them stays so, names stay together."""
    newest = start()
    for depth in range(3):
        sh(newest, f"mkdir -p /data/{depth} /old; rm -rf /old; mkdir /old; echo {depth} > /data/{depth}/a")
        sh(newest, f"cd /data/{depth}; ln a b; ln -s a c; mkfifo d; echo {depth} > /old/{depth}; rm -f /data/0/a")
        sh(newest, f"cd /data/0; rm -rf of-{depth - 1}; echo > of-{depth}")
        (newest,) = newest.fork(1, engine=engine)
        start(argv=["true"]).close()
    look = "cd /; find data old > /dev/null || exit; find data old | sort"
    look += "; stat -c '%h %A %u %n' data/*/b; cat data/*/b; readlink data/1/c"
    seen = sh(newest, look)
    stay(newest, tmp_path / "snapshot", engine)
    with Snapshot.load(tmp_path / "snapshot", core=bunshin) as loaded:
        first = loaded.branch()
    with first, first.snapshot(engine=engine) as again:
        assert sh(first, look) == seen
        again.persist(tmp_path / "again").result(timeout=60)
    with Snapshot.load(tmp_path / "again", core=bunshin) as loaded, loaded.branch() as second:
        assert sh(second, look) == seen


def test_after_its_writer_died(engine: str, bunshin: Core, rootfs: Path, tmp_path: Path) -> None:
    """Clocks that count from the boot go on where they were: however long it lay, no timer is late."""
    path = tmp_path / "snapshot"
    writer = Writer(bunshin, rootfs, path, engine)
    writer.expect("taken")
    taken_s = time.monotonic()
    writer.expect("written")
    writer.kill()
    bunshin.gc()
    with Snapshot.load(path, core=bunshin) as loaded:
        begun_s = time.monotonic()
        with loaded.branch() as branch:
            up_s = float(sh(branch, "cut -d' ' -f1 /proc/uptime"))
            ended_s = time.monotonic()
            assert sh(branch, "cat /tmp/note; ps | grep -c '[s]leep 100000'") == "kept\n3"
            assert sh(branch, "wc -c < /dev/shm/block") == str(16 << 20)
    up_now_s = float(Path("/proc/uptime").read_text().split()[0])
    behind_s = up_now_s - (time.monotonic() - ended_s) - up_s
    assert behind_s >= begun_s - taken_s - 0.05, "the time on the disk counts"


def test_image_by_its_digest(bunshin: Core, tmp_path: Path) -> None:
    images = {image.name: image for image in ImageStore().list()}
    need("minimal" in images, "the image minimal is not built")
    path = tmp_path / "snapshot"
    with Workspace.start(images["minimal"], core=bunshin) as source:
        sh(source, "echo kept > /root/note")
        stay(source, path, "pool")
    assert durable.read_manifest(path).base[1]["digest"] == images["minimal"].digest
    assert not (path / "layer" / "bin").exists(), "the image is not copied"
    with Snapshot.load(path, core=bunshin) as loaded, loaded.branch() as branch:
        assert sh(branch, "cat /root/note") == "kept"
    other = {"kind": "image", "name": "minimal", "digest": "0" * 64}
    with edited(path, 1, other), pytest.raises(ImageNotFoundError, match=r"stands on the image 'minimal'"):
        Snapshot.load(path, core=bunshin)


# ---- beside others ----------------------------------------------------------------------


def test_writing_hinders_no_one(engine: str, start: Start, bunshin: Core, tmp_path: Path) -> None:
    """Several are written at once, while the source goes on and branches are made; closing waits."""
    source = start()
    sh(source, "dd if=/dev/urandom of=/dev/shm/block bs=1M count=8 2>&1")
    snapshot = source.snapshot(engine=engine)
    futures = [snapshot.persist(tmp_path / f"copy-{number}") for number in range(3)]
    with snapshot.branch() as branch:
        assert sh(branch, "echo there") == "there"
    assert sh(source, "echo here") == "here"
    snapshot.close()
    assert all(future.done() for future in futures)
    assert [future.result() for future in futures] == [tmp_path / f"copy-{number}" for number in range(3)]
    with Snapshot.load(tmp_path / "copy-2", core=bunshin) as loaded, loaded.branch() as branch:
        assert sh(branch, "md5sum < /dev/shm/block") == sh(source, "md5sum < /dev/shm/block")
    with pytest.raises(ClosedError):
        snapshot.persist(tmp_path / "late")


def test_bad_targets(workspace: Workspace, tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    with workspace.snapshot(engine="pool") as snapshot:
        with pytest.raises(UsageError, match="is there already"):
            snapshot.persist(tmp_path / "there")
        with pytest.raises(UsageError, match="is no directory"):
            snapshot.persist(tmp_path / "absent" / "snapshot")
    with pytest.raises(UsageError, match="no snapshot at"):
        Snapshot.load(tmp_path / "absent")


# ---- damage -------------------------------------------------------------------------------


@contextmanager
def edited(path: Path, index: int, layer: dict[str, str]) -> Iterator[None]:
    """A layer of the base is another one in the manifest."""
    file = path / "manifest.json"
    before = file.read_text()
    body: dict[str, Any] = json.loads(before)
    body.pop("sha256")
    body["base"][index] = layer
    file.write_text(json.dumps({**body, "sha256": durable._seal(body)}))
    yield
    file.write_text(before)


@pytest.fixture
def written(start: Start, tmp_path: Path, engine: str) -> Path:
    source = start()
    sh(source, "echo content > /tmp/note; ln -s note /tmp/link")
    stay(source, tmp_path / "snapshot", engine)
    return tmp_path / "snapshot"


def test_a_flipped_bit_is_refused_by_name(written: Path, bunshin: Core) -> None:
    files = sorted(path for path in written.rglob("*") if path.is_file() and not path.is_symlink())
    rng = random.Random(7)
    assert {"manifest.json", "record", "pages-1.img", "core-1.img", "note"} <= {path.name for path in files}
    for path in files:
        content = path.read_bytes()
        if not content:
            continue
        at = rng.randrange(len(content))
        with path.open("r+b") as file:
            file.seek(at)
            file.write(bytes([content[at] ^ 1 << rng.randrange(8)]))
        with pytest.raises(SnapshotDamaged, match=path.name):
            Snapshot.load(written, core=bunshin)
        path.write_bytes(content)
    with Snapshot.load(written, core=bunshin) as loaded, loaded.branch() as branch:
        assert sh(branch, "cat /tmp/link") == "content"


def test_missing_surplus_and_changed_entries(written: Path, bunshin: Core) -> None:
    def refused(name: str) -> None:
        with pytest.raises(SnapshotDamaged, match=name):
            Snapshot.load(written, core=bunshin)

    note = written / "layer" / "tmp" / "note"
    note.chmod(0o600)
    refused("layer/tmp/note is damaged")
    note.unlink()
    refused("layer/tmp/note is missing")
    note.write_text("content\n")
    (written / "layer" / "tmp" / "more").write_text("")
    refused("layer/tmp/more is no part")
    (written / "manifest.json").unlink()
    refused("no manifest.json")


def test_a_base_that_is_not_here(written: Path, bunshin: Core, rootfs: Path) -> None:
    runtime = {"kind": "runtime", "name": "runtime-0123456789abcdef", "digest": "0123456789abcdef"}
    with edited(written, 0, runtime), pytest.raises(UnsupportedError, match="another version of bunshin_gym"):
        Snapshot.load(written, core=bunshin)
    (rootfs / "etc" / "new").write_text("")
    try:
        with pytest.raises(UnsupportedError, match="has been changed since"):
            Snapshot.load(written, core=bunshin)
    finally:
        (rootfs / "etc" / "new").unlink()
    Snapshot.load(written, core=bunshin).close()


def test_damage_that_only_the_engine_sees(written: Path, bunshin: Core, engine: str) -> None:
    """A manifest made over damaged images: the load or the branch fails, and nothing is left."""
    if engine == "pool":
        os.truncate(written / "images" / "pages-1.img", 4096)
    else:
        (written / "images" / "core-1.img").unlink()
    body = json.loads((written / "manifest.json").read_text())
    body.pop("sha256")
    body["entries"] = durable._entries(written)
    (written / "manifest.json").write_text(json.dumps({**body, "sha256": durable._seal(body)}))
    with pytest.raises(BunshinError), Snapshot.load(written, core=bunshin) as loaded:
        loaded.branch()


# ---- killed writers ---------------------------------------------------------------------------


def _check(path: Path, bunshin: Core) -> bool:
    """Whether there is a snapshot at path, which then is whole."""
    bunshin.gc()
    if not path.exists():
        return False
    with Snapshot.load(path, core=bunshin) as loaded, loaded.branch() as branch:
        assert sh(branch, "cat /tmp/note") == "kept"
    return True


def test_killed_at_a_fault_point(bunshin: Core, rootfs: Path, tmp_path: Path) -> None:
    """At each of them the old state is there, which is nothing, or the new one. The next writer clears up."""
    folder = tmp_path / "snapshots"
    folder.mkdir()

    def run(fault: str) -> None:
        writer = Writer(bunshin, rootfs, folder / fault, fault=fault)
        writer.expect("taken")
        writer.died()

    with ThreadPoolExecutor(max_workers=2) as pool:
        list(pool.map(run, DURABLE_FAULTS))
    there = {fault for fault in DURABLE_FAULTS if _check(folder / fault, bunshin)}
    assert there == {"durable.renamed"}
    final = Writer(bunshin, rootfs, folder / "final")
    final.expect("taken")
    final.expect("written")
    assert {path.name for path in folder.iterdir()} == {"durable.renamed", "final"}
    final.kill()
    assert _check(folder / "final", bunshin)


def test_killed_at_any_moment(bunshin: Core, rootfs: Path, tmp_path: Path, engine: str) -> None:
    rng = random.Random(20_26)
    folder = tmp_path / "snapshots"
    folder.mkdir()
    for number in range(4):
        writer = Writer(bunshin, rootfs, folder / str(number), engine)
        writer.expect("taken")
        with pytest.raises(subprocess.TimeoutExpired):
            writer.process.wait(timeout=rng.uniform(0.0, 0.25))
        writer.kill()
        _check(folder / str(number), bunshin)


@pytest.fixture
def pool_writers() -> Iterator[Callable[[Snapshot], int]]:
    """Finds the process that writes a snapshot of the engine "pool"."""

    def find(snapshot: Snapshot) -> int:
        record = (snapshot._native.dir / "record").read_text()
        pool = next(line for line in record.splitlines() if line.startswith("pool=")).removeprefix("pool=").split()[0]
        while True:
            children = Path(f"/proc/{pool}/task/{pool}/children").read_text().split()
            if children:
                return int(children[0])

    return find


def test_only_the_pools_writer_is_killed(start: Start, tmp_path: Path, pool_writers: Callable[[Snapshot], int]) -> None:
    """The snapshot is as good as before."""
    source = start()
    sh(source, "dd if=/dev/urandom of=/dev/shm/block bs=1M count=64 2>&1")
    with source.snapshot(engine="pool") as snapshot:
        killer = threading.Thread(target=lambda: os.kill(pool_writers(snapshot), signal.SIGKILL))
        killer.start()
        future = snapshot.persist(tmp_path / "snapshot")
        killer.join()
        with pytest.raises(BunshinError, match="write the images"):
            future.result(timeout=60)
        assert not list(tmp_path.glob("*snapshot*"))
        snapshot.persist(tmp_path / "snapshot").result(timeout=60)
        with snapshot.branch() as branch:
            assert sh(branch, "echo fine") == "fine"
