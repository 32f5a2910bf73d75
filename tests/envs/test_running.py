# SPDX-License-Identifier: Apache-2.0
"""Where an env may be used: in loops, threads, vector envs, daemons; and what is left when it is killed."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import pytest
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv

import bunshin_gym
from bunshin_gym.errors import ClosedError, WorkspaceDied
from bunshin_gym.records import list_snapshots, list_workspaces
from bunshin_gym.tasks.scripted import solve
from bunshin_gym.workspace import core
from bunshin_gym.wrappers.truncate_on_death import TruncateOnDeath

ENV_ID = "bunshin/MiniWoB-ClickTest-v0"


def make_click_test() -> gymnasium.Env[Any, Any]:
    bunshin_gym.register_envs()
    return gymnasium.make(ENV_ID)


def make_mortal() -> gymnasium.Env[Any, Any]:
    return TruncateOnDeath(make_click_test())


def _at(batch: dict[str, Any], index: int) -> dict[str, Any]:
    return {key: values[index] for key, values in batch.items()}


def _records() -> set[str]:
    return {record.id for record in [*list_workspaces(), *list_snapshots()]}


def _runs(pid: int) -> bool:
    """Whether a process is there and no zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat[stat.rindex(")") + 2] not in "ZX"


def test_inside_a_running_loop(make: Callable[..., Any]) -> None:
    async def episode() -> float:
        env = make("ClickTest")
        seen, _ = env.reset(seed=1)
        (branch,) = env.unwrapped.fork(1)
        reward = 0.0
        for action in solve("miniwob.click-test", seen):
            reward = branch.step(action)[1]
        branch.close()
        return float(reward)

    assert asyncio.run(episode()) == 1.0


def test_branches_in_threads_do_not_see_each_other(make: Callable[..., Any]) -> None:
    env = make("EnterText")
    seen, _ = env.reset(seed=4)
    fill, submit = solve("miniwob.enter-text", seen)
    box = fill.split("'")[1]
    rewards: dict[int, float] = {}

    def run(index: int, branch: Any) -> None:
        branch.step(fill if index % 2 else f"fill({box!r}, 'wrong {index}')")
        rewards[index] = branch.step(submit)[1]
        branch.close()

    threads = [threading.Thread(target=run, args=item) for item in enumerate(env.unwrapped.fork(4))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert rewards == {0: -1.0, 1: 1.0, 2: -1.0, 3: 1.0}


def test_a_group_of_eight_on_the_first_try(make: Callable[..., Any]) -> None:
    env = make("ClickTest")
    seen, _ = env.reset(seed=1)
    group = env.unwrapped.fork(8)
    (action,) = solve("miniwob.click-test", seen)
    assert [branch.step(action)[1] for branch in group] == [1.0] * 8
    for branch in group:
        branch.close()


def _check_vector(batch: Any) -> None:
    seen, _ = batch.reset(seed=[1, 2])
    actions = [solve("miniwob.click-test", _at(seen, index))[0] for index in range(2)]
    _, rewards, terminated, truncated, _ = batch.step([actions[0], "noop(0)"])
    assert rewards.tolist() == [1.0, 0.0]
    assert terminated.tolist() == [True, False]
    assert truncated.tolist() == [False, False]


def test_under_a_sync_vector_env() -> None:
    batch = SyncVectorEnv([make_click_test] * 2)
    _check_vector(batch)
    batch.close()


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_under_an_async_vector_env(method: str) -> None:
    """Its workers are daemons, which may have no children of Python's making."""
    batch = AsyncVectorEnv([make_click_test] * 2, context=method)
    workers = {child.pid for child in multiprocessing.active_children()}
    assert len(workers) == 2
    _check_vector(batch)
    batch.close()
    left = [record.id for record in [*list_workspaces(), *list_snapshots()] if record.owner_pid in workers]
    assert left == [], "the workers left something"


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_one_dead_workspace_of_a_batch_is_replaced() -> None:
    batch = AsyncVectorEnv([make_mortal] * 2, context="spawn")
    batch.reset(seed=[1, 2])
    mine = {child.pid for child in multiprocessing.active_children()}
    victim = next(record for record in list_workspaces() if record.owner_pid in mine and record.alive)
    os.kill(victim.pid, signal.SIGKILL)
    _, _, _, truncated, _ = batch.step(["noop(0)", "noop(0)"])
    assert sorted(truncated.tolist()) == [False, True]
    batch.step(["noop(0)", "noop(0)"])
    _, _, _, truncated, _ = batch.step(["noop(0)", "noop(0)"])
    assert truncated.tolist() == [False, False]
    batch.close()


def test_a_killed_workspace_is_named_and_replaced(make: Callable[..., Any]) -> None:
    env = make("ClickTest")
    env.reset(seed=1)
    workspace = env.unwrapped._guest.workspace
    os.kill(workspace.pid, signal.SIGKILL)
    with pytest.raises(WorkspaceDied, match=workspace.id):
        env.step("noop(0)")
    env.reset(seed=1)
    assert env.step("noop(0)")[0]["last_action_error"] == ""


_DATABASE = """
import os, sqlite3
database = sqlite3.connect("/tmp/kept.db", isolation_level=None)
database.execute("create table notes(text)")
os.mkfifo("/tmp/in")
os.mkfifo("/tmp/out")
while True:
    with open("/tmp/in") as told:
        text = told.read().strip()
    try:
        database.execute("insert into notes values (?)", (text,))
        answer = " ".join(row[0] for row in database.execute("select text from notes"))
    except sqlite3.Error as error:
        answer = repr(error)
    with open("/tmp/out", "w") as out:
        out.write(answer)
"""


def test_a_database_that_is_open_is_written_on_in_a_branch(make: Callable[..., Any]) -> None:
    """SQLite takes its file for another one, and writes no more, when the file's number has changed."""
    env = make("ClickTest")
    env.reset(seed=1)
    workspace = env.unwrapped._guest.workspace
    script = f"python3 -c '{_DATABASE}' >/dev/null 2>&1 </dev/null & until [ -p /tmp/out ]; do sleep 0.01; done"
    assert workspace.exec(["sh", "-c", script], timeout_s=60).exit_code == 0

    def note(one: Any, text: str) -> str:
        command = ["sh", "-c", f"echo {text} >/tmp/in; cat /tmp/out"]
        return str(one.unwrapped._guest.workspace.exec(command, timeout_s=60).stdout.decode())

    assert note(env, "before") == "before"
    (branch,) = env.unwrapped.fork(1)
    assert note(env, "source") == "before source"
    assert note(branch, "branch") == "before branch"
    (grandchild,) = branch.fork(1)
    branch.close()
    assert note(grandchild, "grandchild") == "before branch grandchild"
    grandchild.close()


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_an_env_used_in_a_forked_child_says_whose_it_is(make: Callable[..., Any]) -> None:
    env = make("ClickTest")
    env.reset(seed=1)
    pid = os.fork()
    if pid == 0:
        try:
            env.unwrapped.fork(1)
        except ClosedError:
            os._exit(0)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert env.step("noop(0)")[0]["last_action_error"] == "", "the child's end must not touch its parent's env"


def test_nothing_is_left_of_a_killed_process() -> None:
    script = (
        "import gymnasium, bunshin_gym\n"
        f"env = gymnasium.make('{ENV_ID}')\n"
        "env.reset(seed=1)\n"
        "branches = env.unwrapped.fork(2)\n"
        "print('ready', flush=True)\n"
        "input()\n"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"ready\n"
        its = [record for record in [*list_workspaces(), *list_snapshots()] if record.owner_pid == child.pid]
        assert len(its) >= 4
        child.kill()
        child.wait()
    core().gc()
    assert not {record.id for record in its} & _records()
    assert [record.pid for record in its if record.pid and _runs(record.pid)] == []
