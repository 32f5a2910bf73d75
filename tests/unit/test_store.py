# SPDX-License-Identifier: Apache-2.0
"""The store: contents by hash, observations without pickle, locks that die with their holder."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from bunshin_gym.cache.store import codec
from bunshin_gym.cache.store.blobs import BlobMissingError, BlobStore, digest_of
from bunshin_gym.cache.store.database import Database
from bunshin_gym.cache.store.locks import NamedLocks, Owner
from bunshin_gym.errors import ClosedError, UsageError

_DTYPES = st.one_of(hnp.integer_dtypes(), hnp.unsigned_integer_dtypes(), hnp.floating_dtypes(), hnp.boolean_dtypes())
_LEAVES = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | st.text(min_size=2048, max_size=2060)
    | st.binary()
    | hnp.arrays(_DTYPES, hnp.array_shapes(min_dims=0, min_side=0, max_side=4))
)
_OBSERVATIONS = st.recursive(
    _LEAVES,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text() | st.integers(0, 9), inner, max_size=3)
    ),
    max_leaves=8,
)


def _alike(one: Any, other: Any) -> bool:
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_alike(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return type(one) is type(other) and len(one) == len(other) and all(map(_alike, one, other))
    return type(one) is type(other) and (one == other or (one != one and other != other))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=150)
@given(_OBSERVATIONS)
def test_observations_come_back_as_they_were(tmp_path: Path, value: Any) -> None:
    store = BlobStore(tmp_path)
    skeleton = codec.encode(value, store.put)
    assert _alike(codec.decode(skeleton, BlobStore(tmp_path).get), value)
    assert codec.fingerprint(codec.decode(skeleton, store.get)) == codec.fingerprint(value)


def test_arrays_come_back_fresh_and_writable(tmp_path: Path) -> None:
    store = BlobStore(tmp_path)
    skeleton = codec.encode({"screen": np.zeros((4, 4, 3), np.uint8)}, store.put)
    first = codec.decode(skeleton, store.get)["screen"]
    first += 1
    assert not codec.decode(skeleton, store.get)["screen"].any()


@pytest.mark.parametrize(
    ("value", "where"),
    [
        ({"a": [object()]}, r"value\.a\[0\]: object"),
        ({"a": np.array([object()])}, r"value\.a: an array of Python objects"),
        ({"a": {(1, 2): 3}}, r"value\.a: the key \(1, 2\)"),
        ({"a": {1, 2}}, r"value\.a: set"),
    ],
)
def test_what_cannot_be_stored_is_named_by_its_place(tmp_path: Path, value: Any, where: str) -> None:
    with pytest.raises(UsageError, match=where):
        codec.encode(value, BlobStore(tmp_path).put)


def test_records_and_numpy_scalars(tmp_path: Path) -> None:
    store = BlobStore(tmp_path)
    records = np.zeros(3, dtype=[("id", "<i4"), ("place", "<f8", (2,))])
    value = {"records": records, "one": np.float32(1.5), "flag": np.bool_(True)}
    back = codec.decode(codec.encode(value, store.put), store.get)
    assert back["records"].dtype == records.dtype
    assert isinstance(back["one"], np.float32)
    assert isinstance(back["flag"], np.bool_)


def test_fingerprint_ignores_the_order_of_keys_and_nothing_else() -> None:
    array = np.arange(6, dtype=np.int32)
    assert codec.fingerprint({"a": 1, "b": array}) == codec.fingerprint({"b": array.copy(), "a": 1})
    assert codec.fingerprint(array) != codec.fingerprint(array.reshape(2, 3))
    assert codec.fingerprint(array) != codec.fingerprint(array.astype(np.int64))
    assert codec.fingerprint([1, 2]) != codec.fingerprint([2, 1])


def test_equal_contents_are_stored_once(tmp_path: Path) -> None:
    store = BlobStore(tmp_path)
    screen = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    one = codec.encode({"screen": screen, "text": "a"}, store.put)
    other = codec.encode({"screen": screen.copy(), "text": "b"}, store.put)
    assert one != other
    assert store.count() == 1


def test_contents_are_compressed(tmp_path: Path) -> None:
    store = BlobStore(tmp_path)
    store.put(bytes(1_000_000))
    assert store.stored_bytes() < 10_000


@pytest.mark.parametrize("damage", ["cut", "flip", "empty", "gone"])
def test_damaged_contents_are_noticed_and_can_be_stored_again(tmp_path: Path, damage: str) -> None:
    content = np.random.default_rng(1).bytes(50_000)
    digest = BlobStore(tmp_path).put(content)
    path = BlobStore(tmp_path).path(digest)
    raw = bytearray(path.read_bytes())
    if damage == "cut":
        path.write_bytes(raw[: len(raw) // 2])
    elif damage == "flip":
        raw[len(raw) // 2] ^= 1
        path.write_bytes(raw)
    elif damage == "empty":
        path.write_bytes(b"")
    else:
        path.unlink()
    store = BlobStore(tmp_path)
    with pytest.raises(BlobMissingError, match=digest.hex()):
        store.get(digest)
    assert store.put(content) == digest
    assert BlobStore(tmp_path).get(digest) == content


def test_sweep_removes_what_nobody_names(tmp_path: Path) -> None:
    store = BlobStore(tmp_path)
    kept, lost = store.put(b"kept" * 1000), store.put(b"lost" * 1000)
    half = store.path(kept).with_name(".half-written")
    half.write_bytes(b"x")
    assert store.sweep({kept}) > 0
    assert store.get(kept) == b"kept" * 1000
    assert not half.exists()
    with pytest.raises(BlobMissingError):
        store.get(lost)


def test_references_are_all_contents_that_are_needed(tmp_path: Path) -> None:
    store = BlobStore(tmp_path)
    value = {"a": (np.arange(5), [b"b" * 4000, {"deep": ("t" * 4000,)}])}
    skeleton = codec.encode(value, store.put)
    assert len(codec.references(skeleton)) == 3 == store.count()
    assert codec.references(skeleton) >= {digest_of(b"b" * 4000), digest_of(b"t" * 4000)}


# -- locks


def _holder(path: Path, name: str) -> subprocess.Popen[bytes]:
    """A process that holds a lock until it is killed; returns once it holds it."""
    code = (
        "import sys; from pathlib import Path; from bunshin_gym.cache.store.locks import NamedLocks\n"
        "lock = NamedLocks(Path(sys.argv[1])).acquire(sys.argv[2].encode())\n"
        "print('held', flush=True); sys.stdin.read()\n"
    )
    command = [sys.executable, "-c", code, str(path), name]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"held\n"
    return process


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.communicate()


def test_a_lock_excludes_threads_and_names_are_apart(tmp_path: Path) -> None:
    locks = NamedLocks(tmp_path / "locks")
    with locks.acquire(b"a"):
        assert locks.try_acquire(b"a") is None
        other = locks.try_acquire(b"b")
        assert other is not None
        other.release()
        other.release()
    with locks.acquire(b"a", shared=True), locks.acquire(b"a", shared=True):
        assert locks.try_acquire(b"a") is None


def test_a_killed_process_holds_nothing(tmp_path: Path) -> None:
    locks = NamedLocks(tmp_path / "locks")
    process = _holder(tmp_path / "locks", "a")
    assert locks.try_acquire(b"a") is None
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(locks.acquire, b"a")
        process.send_signal(signal.SIGKILL)
        waiting.result(timeout=60).release()
    _end(process)


def test_a_forked_child_does_not_keep_its_parents_lock(tmp_path: Path) -> None:
    locks = NamedLocks(tmp_path / "locks")
    lock = locks.acquire(b"a")
    ready, go_on = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        try:
            lock.release()
            os.write(ready[1], b"x")
            os.read(go_on[0], 1)
        finally:
            os._exit(0)
    os.read(ready[0], 1)
    assert locks.try_acquire(b"a") is None, "the child let go of its parent's lock"
    lock.release()
    again = locks.try_acquire(b"a")
    assert again is not None, "the child keeps its parent's lock"
    again.release()
    os.write(go_on[1], b"x")
    os.waitpid(child, 0)
    for fd in (*ready, *go_on):
        os.close(fd)


def test_an_owner_is_a_process_and_not_a_pid() -> None:
    me = Owner.current()
    assert me.alive()
    assert Owner.parse(str(me)) == me
    assert not Owner(me.pid, me.start_ticks + 1, me.boot_id).alive()
    assert not Owner(me.pid, me.start_ticks, "another boot").alive()
    process = subprocess.Popen(["sleep", "60"])
    other = Owner(process.pid, _ticks(process.pid), me.boot_id)
    assert other.alive()
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert not other.alive(), "a zombie counts as alive"
    process.wait()
    assert not other.alive()


def _ticks(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])


# -- database


def test_a_transaction_is_undone_when_its_block_raises(tmp_path: Path) -> None:
    database = Database(tmp_path / "db")

    def fail() -> None:
        with database.write() as db:
            db.execute("INSERT INTO counters VALUES ('a', 1)")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert database.read("SELECT * FROM counters") == []
    database.close()
    database.close()
    with pytest.raises(ClosedError):
        database.read("SELECT 1")


def test_another_version_is_refused(tmp_path: Path) -> None:
    connection = sqlite3.connect(tmp_path / "db")
    connection.execute("PRAGMA user_version = 999")
    connection.commit()
    connection.close()
    with pytest.raises(UsageError, match="version 999"):
        Database(tmp_path / "db")


def test_threads_and_a_forked_child_write_at_once(tmp_path: Path) -> None:
    database = Database(tmp_path / "db")
    with database.write() as db:
        db.execute("INSERT INTO counters VALUES ('n', 0)")

    def add(times: int) -> None:
        for _ in range(times):
            with database.write() as db:
                db.execute("UPDATE counters SET value = value + 1 WHERE name = 'n'")

    child = os.fork()
    if child == 0:
        status = 1
        try:
            add(50)
            status = 0
        finally:
            os._exit(status)
    threads = [threading.Thread(target=add, args=(25,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert os.waitpid(child, 0)[1] == 0
    row = database.read_one("SELECT value FROM counters WHERE name = 'n'")
    assert row is not None
    assert row["value"] == 150
    database.close()
