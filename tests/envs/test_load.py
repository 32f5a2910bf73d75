# SPDX-License-Identifier: Apache-2.0
"""Browsers forked in the midst of their work: calls in flight, page loads, timers; and sixteen branches at once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

from bunshin_gym.errors import UnsupportedError, UsageError
from bunshin_gym.workspace_guest import WorkspaceGuest, boot_workspace

# Timers, and a layout that changes.
BUSY_PAGE = (
    "data:text/html,<p>moving</p><script>window.n=0;setInterval(()=>{window.n++;"
    "document.querySelector('p').textContent=window.n},20)</script>"
)


@pytest.fixture
def guest(make: Callable[..., Any]) -> Iterator[WorkspaceGuest]:
    booted, _ = boot_workspace(make("ClickTest").unwrapped._base_key)
    yield booted
    booted.close()


@contextmanager
def in_threads(*loops: Callable[[], object]) -> Iterator[None]:
    """Repeats each until the block ends; what one raises is raised then."""
    over, failed = threading.Event(), list[Exception]()

    def repeat(loop: Callable[[], object]) -> None:
        try:
            while not over.is_set():
                loop()
        except Exception as error:  # noqa: BLE001  # whatever it is: it is raised below
            failed.append(error)

    threads = [threading.Thread(target=repeat, args=(loop,)) for loop in loops]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join()
    assert failed == []


def check(branch: WorkspaceGuest) -> None:
    """Its page runs on, its own; its tools load pages."""
    before = branch.evaluate("() => window.n || 0")
    ticks = "b => new Promise(done => { const t = setInterval(() => { if (window.n > b) done(true) }, 5) })"
    assert branch.evaluate(ticks, before) is True
    branch.open("data:text/html,<script>window.mine='yes'</script>")
    assert branch.evaluate("() => window.mine") == "yes"


def test_forks_while_tools_are_called_and_pages_load(guest: WorkspaceGuest) -> None:
    guest.open(BUSY_PAGE)
    load, look = (lambda: guest.open(BUSY_PAGE)), (lambda: guest.evaluate("() => window.n"))
    with in_threads(load, look, look):
        for _ in range(3):
            (branch,) = guest.fork(1)
            try:
                check(branch)
            finally:
                branch.close()
    check(guest)


def test_sixteen_branches_at_once(guest: WorkspaceGuest) -> None:
    guest.open(BUSY_PAGE)
    with ExitStack() as stack:
        branches = guest.fork(16)
        for branch in branches:
            stack.callback(branch.close)
        assert all(branch.evaluate("() => window.n > 0") for branch in branches)
        check(branches[-1])


def test_a_call_that_the_snapshot_meets_is_named(guest: WorkspaceGuest) -> None:
    """Whoever goes around the guest's own turns is told what to do, and may try again."""
    guest.open(BUSY_PAGE)
    with in_threads(lambda: guest.client.evaluate("() => 1")):
        for _ in range(6):
            try:
                guest.workspace.snapshot().close()
            except (UsageError, UnsupportedError) as error:
                assert "outside" in str(error) or "accepted" in str(error), error  # noqa: PT017
    guest.workspace.snapshot().close()
