# SPDX-License-Identifier: Apache-2.0
"""Who may make envs, and how many."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from bunshin_gym.errors import ResourceError, UsageError
from bunshin_gym.vector import Admission, BunshinVectorEnv
from bunshin_gym.vector.admission import available_bytes


def wait_for(condition: Callable[[], bool]) -> None:
    """For what announces itself to nobody."""
    end_s = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < end_s, "it did not come about"
        time.sleep(0.001)


def test_there_is_room_for_so_many_only(make_vector: Callable[..., BunshinVectorEnv]) -> None:
    admission = Admission(envs_max=3)
    env = make_vector(2, admission=admission)
    with pytest.raises(ResourceError, match="2 of at most 3"):
        make_vector(2, admission=admission)
    env.close()
    make_vector(3, admission=admission)
    assert admission.admitted == 3


def test_memory_is_counted_before_it_is_taken() -> None:
    free = [1000]
    admission = Admission(env_bytes=100, reserve_bytes=200, available=lambda: free[0])
    one = admission.admit(5)
    with pytest.raises(ResourceError, match="9 to come"):
        admission.admit(4)
    one.settle()
    free[0] = 500
    with admission.admit(3), pytest.raises(ResourceError, match="reserve"):
        admission.admit(1)
    one.close()
    one.close()
    assert admission.admitted == 0


def test_who_waits_comes_in_turn() -> None:
    admission = Admission(envs_max=1, wait_s=None)
    held, order, threads = admission.admit(1), [], []

    def wait_and_go(number: int) -> None:
        with admission.admit(1):
            order.append(number)

    for number in range(3):
        threads.append(threading.Thread(target=wait_and_go, args=(number,)))
        threads[-1].start()
        wait_for(lambda number=number: len(admission._queue) > number)  # type: ignore[misc]
    assert order == []
    held.close()
    for thread in threads:
        thread.join()
    assert order == [0, 1, 2]


def test_waiting_ends() -> None:
    admission = Admission(envs_max=1, wait_s=0.05)
    admission.admit(1)
    with pytest.raises(ResourceError, match="no room"):
        admission.admit(1)
    with pytest.raises(UsageError):
        Admission(makers=0)


def test_what_a_cgroup_leaves_counts(tmp_path: Any) -> None:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/meminfo").write_text("MemTotal: 9 kB\nMemAvailable: 1000 kB\n")
    (tmp_path / "proc/self/cgroup").write_text("4:cpu,memory:/a/b\n1:name=systemd:/\n0::/c\n")
    assert available_bytes(tmp_path) == 1000 * 1024
    for folder, name, most, used in (
        ("sys/fs/cgroup/memory/a", "memory.limit_in_bytes memory.usage_in_bytes", "9000", "2000"),
        ("sys/fs/cgroup/c", "memory.max memory.current", "max", "0"),
        ("sys/fs/cgroup", "memory.max memory.current", "6000", "1000"),
    ):
        (tmp_path / folder).mkdir(parents=True, exist_ok=True)
        limit, usage = name.split()
        (tmp_path / folder / limit).write_text(most)
        (tmp_path / folder / usage).write_text(used)
    assert available_bytes(tmp_path) == 5000
