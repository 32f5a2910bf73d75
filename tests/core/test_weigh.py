# SPDX-License-Identifier: Apache-2.0
"""Workspaces that run beside more important ones: weights, sudden ends, attempts to get out."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
from support.cgroups import controls

from bunshin_gym.errors import UsageError, WorkspaceDied
from bunshin_gym.workspace import Workspace

Start = Callable[..., Workspace]
CPU = ("cpu.weight", "cpu.shares", "cpu.idle")
IO = ("io.bfq.weight", "blkio.bfq.weight")


@pytest.mark.parametrize("own", [None, 300])
def test_weights_are_set_and_given_back(start: Start, own: int | None) -> None:
    workspace = start(cpu_weight=own)
    before = controls(workspace, *CPU), controls(workspace, *IO)
    assert before[0], "no hierarchy of this machine weighs the CPU"
    workspace.weigh(cpu=1, io=1)
    low = controls(workspace, *CPU), controls(workspace, *IO)
    assert low[0].get("cpu.idle", "1") == "1"
    assert int(low[0].get("cpu.shares", "2")) < 100
    assert all(int(low[1][name]) < int(weight) for name, weight in before[1].items())
    workspace.weigh(cpu=50)
    assert controls(workspace, *CPU).get("cpu.shares", "512") == "512"
    assert controls(workspace, *CPU).get("cpu.idle", "0") == "0"
    workspace.weigh()
    assert (controls(workspace, *CPU), controls(workspace, *IO)) == before


@pytest.mark.parametrize("weights", [{"cpu": 10_001}, {"io": 20_000}, {"cpu": -1}])
def test_wrong_weights_are_refused(start: Start, weights: dict[str, int]) -> None:
    with pytest.raises(UsageError, match="weights are from 1 to 10000"):
        start().weigh(**weights)


def test_a_branch_is_weighed_from_its_making_on_and_its_own_branches_are_not(start: Start) -> None:
    source = start()
    with source.snapshot() as snapshot:
        branch = snapshot.branch(cpu_weight=1, io_weight=1)
        try:
            low, normal = controls(branch, *CPU), controls(source, *CPU)
            assert low != normal
            with branch.snapshot() as second:
                grandchild = second.branch()
                assert controls(grandchild, *CPU) == normal
                grandchild.close()
            branch.weigh()
            assert controls(branch, *CPU) == normal
        finally:
            branch.close()


def test_branches_in_the_making_are_hurried(start: Start) -> None:
    source = start()
    with source.snapshot() as snapshot:
        snapshot.hurry()  # nobody is being made: nothing happens
        made: list[Workspace] = []
        maker = threading.Thread(target=lambda: made.append(snapshot.branch(cpu_weight=1)))
        maker.start()
        while not made and maker.is_alive():
            snapshot.hurry()
        maker.join()
        assert made[0].exec(["true"]).exit_code == 0
        made[0].close()


def test_a_kill_ends_a_call_in_another_thread(start: Start) -> None:
    workspace = start()
    begun, failures = threading.Event(), []

    def call() -> None:
        begun.set()
        try:
            failures.append(workspace.exec(["sleep", "1000"]).exit_code)
        except WorkspaceDied as error:
            failures.append(error)

    caller = threading.Thread(target=call)
    caller.start()
    begun.wait()
    workspace.kill()
    caller.join(timeout=30)
    assert not caller.is_alive()
    assert not workspace.alive
    assert failures != [0]
    workspace.kill()
    workspace.close()
    workspace.kill()
    with pytest.raises(WorkspaceDied):
        start_and_weigh_dead(start)


def start_and_weigh_dead(start: Start) -> None:
    dead = start()
    dead.kill()
    dead.weigh(cpu=1)


def test_attempts_to_get_out_are_counted(start: Start) -> None:
    workspace = start()
    assert workspace.escapes() == 0
    workspace.exec(["ping", "-c", "1", "-W", "1", "127.0.0.1"], timeout_s=30)
    workspace.exec(["nc", "-w", "1", "127.0.0.1", "9"], timeout_s=30)
    assert workspace.escapes() == 0
    assert workspace.exec(["nc", "-w", "1", "192.0.2.1", "80"], timeout_s=30).exit_code != 0
    assert workspace.escapes() > 0
