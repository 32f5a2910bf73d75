# SPDX-License-Identifier: Apache-2.0
"""Threads that wait while they are forked, in each of the ways there are: no wait fails, and none ends too soon."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest
from support import engines
from support.chroot import wait_until

from bunshin_gym.workspace import Workspace

HERE = Path(__file__).resolve().parent
Start = Callable[..., Workspace]
WAIT_MS = 5000
THREADS = ("first", "other")
NOTED = {"nanosleep", "nanosleep_in_place", "clock_nanosleep", "poll", "futex"}  # the kernel notes when they end
LEFT = {"ppoll", "select", "pselect"}  # it notes what is left of them: they do not run while the source is frozen
MOMENT = {"until", "futex_until"}
EVENT = {"epoll", "epoll_masked", "read", "semaphore", "signal"}
KINDS = NOTED | LEFT | MOMENT | EVENT
SLEEPERS = 2 * len(KINDS) + 2 + 2  # two are interrupted, and two wait to give a semaphore
EINTR = 4


@pytest.fixture(scope="session")
def waits(rootfs: Path) -> str:
    program = rootfs / "bin" / "waits"
    flags = ["-std=gnu17", "-D_GNU_SOURCE", "-O1", "-Wall", "-Wextra", "-Werror", "-static", "-pthread"]
    subprocess.run(["cc", *flags, "-o", program, HERE / "waits.c"], check=True)
    return "/bin/waits"


def asleep(side: Workspace) -> int:
    """How many threads of the program are blocked in a system call."""
    calls = []
    for task in (side.root / "proc").glob("[0-9]*/task/*"):
        try:
            name, call = (task / "comm").read_text(), (task / "syscall").read_text()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if name == "waits\n" and not call.startswith("running"):
            calls.append(int(call.split()[0]))
    wait4 = 61
    return len(calls) - calls.count(wait4)


def results(side: Workspace) -> dict[str, list[int]]:
    found = {path.name: path for path in (side.root / "waits").iterdir() if path.suffix != ".part"}
    return {name: [int(word) for word in path.read_text().split()] for name, path in found.items()}


def judge(side: Workspace, name: str, *, exact: bool = False, kinds: set[str] = KINDS) -> None:
    """All waits of these kinds ended well and not too soon; exact: not later either than waits until a moment."""
    expected = {f"{kind}-{thread}" for kind in kinds for thread in THREADS}
    for attempt in wait_until(AssertionError, 60):
        with attempt:
            assert set(results(side)) >= expected, name
    ended = {name: line for name, line in results(side).items() if name in expected}
    wrong = {kind: line for kind, line in ended.items() if line[:2] != [0, 0] or line[2] < WAIT_MS}
    assert wrong == {}, name
    if exact:
        on_time = max(ended[f"until-{thread}"][2] for thread in THREADS)
        noted = {f"{kind}-{thread}": ended[f"{kind}-{thread}"] for kind in NOTED | EVENT for thread in THREADS}
        late = {kind: line[2] for kind, line in noted.items() if line[2] > on_time + WAIT_MS // 10}
        assert late == {}, name


def interrupt(side: Workspace) -> None:
    """A signal with a handler still ends a sleep, also when the handler wants calls made again."""
    script = "for p in /proc/[0-9]*; do read name < $p/comm; [ $name = waits ] && kill -USR1 ${p#/proc/}; done; true"
    assert side.exec(["sh", "-c", script]).exit_code == 0
    for attempt in wait_until((AssertionError, KeyError), 20):
        with attempt:
            assert results(side)["interrupted-first"][:2] == [-1, EINTR]


@pytest.mark.parametrize("engine", engines())
def test_waits_go_on_in_source_and_branches(engine: str, start: Start, waits: str) -> None:
    source = start(argv=["sh", "-c", f"mkdir /waits && exec {waits} /waits {WAIT_MS}"])
    for attempt in wait_until(AssertionError, 20):
        with attempt:
            assert asleep(source) == SLEEPERS
    with ExitStack() as stack:
        (first,) = source.fork(1, engine=engine)
        stack.enter_context(first)
        (later,) = source.fork(1, engine=engine)
        stack.enter_context(later)
        assert results(source) == {}, "the waits were over before the fork"
        (deeper,) = first.fork(1, engine=engine)
        stack.enter_context(deeper)
        judge(source, "source", exact=True)
        judge(first, "branch")
        judge(deeper, "branch of a branch")
        # Which call a thread goes on with can be seen only while it runs; stock CRIU comes when it is frozen.
        judge(later, "branch of a source forked before", kinds=KINDS - NOTED if engine == "criu" else KINDS)
        for side in (source, first, deeper):
            interrupt(side)
