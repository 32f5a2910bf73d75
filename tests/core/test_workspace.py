# SPDX-License-Identifier: Apache-2.0
"""Life of a workspace: start, commands, freezing, statistics, limits, end."""

from __future__ import annotations

import copy
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from bunshin_gym.errors import BunshinError, CallTimeout, ClosedError, UsageError, WorkspaceDied
from bunshin_gym.workspace import Core, Workspace, list_workspaces

Start = Callable[..., Workspace]


def text(workspace: Workspace, *argv: str) -> str:
    result = workspace.exec(argv, timeout_s=30)
    assert result.exit_code == 0, result
    return result.stdout.decode().strip()


def wait_until(condition: Callable[[], bool], timeout_s: float = 20) -> None:
    """For what the kernel or another process tells no event of."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it did not come true"
        time.sleep(0.005)


# ---- start and end ----------------------------------------------------------


def test_main_command_runs_with_its_environment_and_directory(start: Start) -> None:
    workspace = start(
        argv=["sh", "-c", "echo $COLOUR $$ > /tmp/said; pwd >> /tmp/said; sleep 1000000"], env={"COLOUR": "red"}
    )
    wait_until(lambda: text(workspace, "sh", "-c", "wc -l < /tmp/said || true") == "2")
    assert text(workspace, "cat", "/tmp/said").split() == ["red", "2", "/"]


def test_screen_goes_into_the_environment(start: Start) -> None:
    workspace = start(screen=(800, 600))
    assert text(workspace, "sh", "-c", "echo $BUNSHIN_SCREEN") == "800x600"


def test_main_command_output_and_exit_are_kept_and_the_workspace_lives_on(start: Start) -> None:
    workspace = start(argv=["sh", "-c", "echo out; echo err >&2; exit 7"])
    wait_until(lambda: workspace.exec(["test", "-e", "/run/bunshin/main.exit"]).exit_code == 0)
    assert text(workspace, "cat", "/run/bunshin/main.exit") == "7"
    assert text(workspace, "cat", "/run/bunshin/main.log").split() == ["out", "err"]
    assert workspace.alive


def test_init_reaps_orphans(start: Start) -> None:
    workspace = start()
    text(workspace, "sh", "-c", "(sh -c 'sleep 0.01 &') ; true")
    wait_until(lambda: " Z " not in text(workspace, "sh", "-c", "cat /proc/[0-9]*/stat"))


def test_init_forwards_signals_to_the_main_command(start: Start) -> None:
    workspace = start(
        argv=["sh", "-c", "trap 'echo got > /tmp/got; exit 3' TERM; echo > /tmp/ready; while :; do sleep 0.01; done"]
    )
    wait_until(lambda: workspace.exec(["test", "-e", "/tmp/ready"]).exit_code == 0)
    os.kill(workspace.pid, signal.SIGTERM)
    wait_until(lambda: workspace.exec(["test", "-e", "/run/bunshin/main.exit"]).exit_code == 0)
    assert text(workspace, "cat", "/tmp/got", "/run/bunshin/main.exit").split() == ["got", "3"]


def test_registry_lists_it_with_its_label(start: Start, bunshin: Core) -> None:
    workspace = start(label="a note")
    (record,) = list_workspaces(bunshin.home)
    assert (record.id, record.pid, record.owner_pid) == (workspace.id, workspace.pid, os.getpid())
    assert record.alive
    assert record.owned
    assert record.label["note"] == "a note"
    workspace.close()
    assert list_workspaces(bunshin.home) == []


def test_close_is_idempotent_and_ends_everything(start: Start) -> None:
    workspace = start()
    pid = workspace.pid
    workspace.exec(["sh", "-c", "setsid sleep 1000000 > /dev/null 2>&1 < /dev/null &"])
    workspace.close()
    workspace.close()
    assert not Path(f"/proc/{pid}").exists()
    assert not workspace.alive
    with pytest.raises(ClosedError, match=workspace.id):
        workspace.exec(["true"])


def test_one_that_died_says_so_and_can_be_closed(start: Start) -> None:
    workspace = start()
    os.kill(workspace.pid, signal.SIGKILL)
    wait_until(lambda: not workspace.alive)
    for call in (lambda: workspace.exec(["true"]), workspace.freeze, workspace.stats, workspace.snapshot):
        with pytest.raises(WorkspaceDied, match=workspace.id):
            call()
    workspace.close()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"argv": ["/no/such/program"]}, "/no/such/program"),
        ({"argv": []}, "no start command"),
        ({"argv": ["sleep", "1"], "env": {"A=B": "1"}}, "A=B"),
        ({"argv": ["sleep", "a\0b"]}, "NUL"),
        ({"argv": ["sleep", "1"], "hostname": "x" * 65}, "host name"),
    ],
)
def test_failed_start_names_the_cause_and_leaves_nothing(start: Start, options: dict, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        start(**options)  # the bunshin fixture looks for remains


def test_start_from_a_missing_folder(bunshin: Core, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="nowhere"):
        Workspace.start(tmp_path / "nowhere", argv=["true"], core=bunshin)


def test_start_from_a_folder_without_programs(bunshin: Core, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match="sleep"):
        Workspace.start(tmp_path / "empty", argv=["sleep"], core=bunshin)


def test_image_tree_stays_as_it_was(start: Start, rootfs: Path) -> None:
    before = sorted(str(path) for path in rootfs.rglob("*"))
    workspace = start()
    text(workspace, "sh", "-c", "echo x > /etc/new; rm -r /root; echo y >> /etc/passwd")
    workspace.close()
    assert sorted(str(path) for path in rootfs.rglob("*")) == before
    assert "y" not in (rootfs / "etc" / "passwd").read_text().splitlines()


def test_two_workspaces_share_nothing(start: Start) -> None:
    one, two = start(), start()
    text(one, "sh", "-c", "echo 1 > /tmp/mine")
    assert two.exec(["test", "-e", "/tmp/mine"]).exit_code == 1
    for name in ("pid", "mnt", "net", "ipc", "uts", "cgroup"):
        links = {os.readlink(f"/proc/{pid}/ns/{name}") for pid in (os.getpid(), one.pid, two.pid)}
        assert len(links) == 3, name


# ---- commands ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("script", "code"), [("exit 0", 0), ("exit 42", 42), ("exit 255", 255), ("kill -9 $$", 137), ("kill -15 $$", 143)]
)
def test_exit_codes(workspace: Workspace, script: str, code: int) -> None:
    assert workspace.exec(["sh", "-c", script]).exit_code == code


def test_streams_are_separate(workspace: Workspace) -> None:
    result = workspace.exec(["sh", "-c", "echo out; echo err >&2"])
    assert (result.stdout, result.stderr, result.truncated) == (b"out\n", b"err\n", False)


def test_input_larger_than_a_pipe_comes_back_whole(workspace: Workspace) -> None:
    payload = os.urandom(5_000_000)
    result = workspace.exec(["cat"], input=payload, timeout_s=60)
    assert result.stdout == payload


def test_input_that_nobody_reads_is_no_error(workspace: Workspace) -> None:
    assert workspace.exec(["true"], input=b"x" * 5_000_000).exit_code == 0


def test_output_beyond_the_limit_is_cut_and_flagged(workspace: Workspace) -> None:
    result = workspace.exec(["head", "-c", "3000000", "/dev/zero"], output_max_bytes=1000)
    assert (len(result.stdout), result.truncated, result.exit_code) == (1000, True, 0)


def test_environment_and_directory(workspace: Workspace) -> None:
    result = workspace.exec(
        ["sh", "-c", "echo $A; pwd; id -u; id -g"], env={"A": "b c"}, cwd="/tmp", uid=1000, gid=1000
    )
    assert result.stdout.decode().split("\n") == ["b c", "/tmp", "1000", "1000", ""]


def test_missing_program_and_directory_are_named(workspace: Workspace) -> None:
    with pytest.raises(UsageError, match="no-such-program"):
        workspace.exec(["no-such-program"])
    with pytest.raises(UsageError, match="directory"):
        workspace.exec(["true"], cwd="/no/such/directory")
    with pytest.raises(UsageError, match="not the string"):
        workspace.exec("true")


def test_timeout_kills_the_command_and_its_descendants(workspace: Workspace) -> None:
    script = "setsid sleep 1000001 & sleep 1000002 & (setsid sh -c 'sleep 1000003 & wait') & echo on; wait"
    begin = time.monotonic()
    with pytest.raises(CallTimeout, match=workspace.id):
        workspace.exec(["sh", "-c", script], timeout_s=0.5)
    assert time.monotonic() - begin < 10
    assert "100000" not in text(workspace, "ps").replace("1000000", "")
    assert workspace.alive


def test_background_processes_outlive_their_command(workspace: Workspace) -> None:
    result = workspace.exec(["sh", "-c", "sleep 1000001 & echo started"], timeout_s=10)
    assert result.stdout == b"started\n"
    assert "1000001" in text(workspace, "ps")


def test_commands_run_beside_each_other_and_beside_other_calls(workspace: Workspace) -> None:
    results: list[str] = []
    release = "while [ ! -e /tmp/go ]; do sleep 0.05; done; echo done"
    threads = [threading.Thread(target=lambda: results.append(text(workspace, "sh", "-c", release))) for _ in range(4)]
    for thread in threads:
        thread.start()
    wait_until(lambda: text(workspace, "sh", "-c", "ps | grep -c '/tmp/g[o]'") == "4")
    workspace.freeze()
    workspace.thaw()
    assert workspace.stats().processes >= 2
    text(workspace, "touch", "/tmp/go")
    for thread in threads:
        thread.join(30)
    assert results == ["done"] * 4


def test_close_ends_a_command_that_runs_in_another_thread(start: Start) -> None:
    workspace = start()
    outcome: list[object] = []
    begun = threading.Event()

    def run() -> None:
        begun.set()
        try:
            outcome.append(workspace.exec(["sleep", "1000000"]).exit_code)
        except BunshinError as error:
            outcome.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    begun.wait()
    wait_until(lambda: "1000000" in text(workspace, "sh", "-c", "ps | grep -c 'sleep 1000000' >/dev/null; ps"))
    workspace.close()
    thread.join(30)
    assert not thread.is_alive()
    assert outcome == [137] or isinstance(outcome[0], BunshinError)


def test_many_threads_start_and_close_at_once(start: Start) -> None:
    def live() -> None:
        for _ in range(3):
            with start() as one:
                assert text(one, "echo", "hi") == "hi"

    with ThreadPoolExecutor(4) as pool:
        for life in [pool.submit(live) for _ in range(4)]:
            life.result(120)


# ---- freezing ---------------------------------------------------------------


def test_freeze_stops_and_thaw_resumes(workspace: Workspace) -> None:
    workspace.exec(["sh", "-c", "(while :; do echo >> /tmp/ticks; done) > /dev/null 2>&1 < /dev/null &"])
    ticks = workspace.root / "tmp" / "ticks"
    wait_until(lambda: ticks.exists() and ticks.stat().st_size > 100)
    workspace.freeze()
    workspace.freeze()
    size = ticks.stat().st_size
    time.sleep(0.1)  # that nothing happens can only be seen by waiting
    assert ticks.stat().st_size == size
    with pytest.raises(UsageError, match="frozen"):
        workspace.exec(["true"])
    workspace.thaw()
    workspace.thaw()
    wait_until(lambda: ticks.stat().st_size > size)


def test_a_frozen_one_can_be_closed(start: Start) -> None:
    workspace = start()
    workspace.freeze()
    workspace.close()


# ---- statistics and limits --------------------------------------------------


def test_stats_count_memory_and_files(workspace: Workspace) -> None:
    before = workspace.stats()
    fill = "head -c 40000000 /dev/zero | tr '\\0' 'x' > /dev/shm/x; head -c 9000000 /dev/urandom > /tmp/file; sync"
    text(workspace, "sh", "-c", fill)
    script = "v=$(head -c 20000000 /dev/zero | tr '\\0' 'y'); echo > /tmp/ready; sleep 1000000; echo $v"
    workspace.exec(["sh", "-c", f"({script}) > /dev/null 2>&1 < /dev/null &"])
    wait_until(lambda: workspace.exec(["test", "-e", "/tmp/ready"]).exit_code == 0)
    after = workspace.stats()
    assert after.processes == before.processes + 2
    assert after.unique_bytes - before.unique_bytes >= 19_000_000
    assert after.pss_bytes - before.pss_bytes >= 20_000_000
    assert after.layer_bytes - before.layer_bytes >= 9_000_000
    assert after.page_table_bytes > before.page_table_bytes


def test_pages_shared_within_count_as_its_own(start: Start, rootfs: Path) -> None:
    """A page that only processes of one workspace map is that workspace's, however often it is mapped."""
    keep = "(sleep 1000000; echo $v) &"
    script = f"v=$(head -c 30000000 /dev/zero | tr '\\0' 'y'); {keep} {keep} echo > /tmp/ready; wait"
    workspace = start(argv=["sh", "-c", script])
    wait_until(lambda: workspace.exec(["test", "-e", "/tmp/ready"]).exit_code == 0)
    stats = workspace.stats()
    assert 30_000_000 <= stats.unique_bytes < 80_000_000


def test_process_limit(start: Start) -> None:
    workspace = start(pids_max=12)
    result = workspace.exec(["sh", "-c", "for i in $(seq 40); do sleep 1000001 & done; echo all"], timeout_s=20)
    assert b"fork" in result.stderr
    assert workspace.stats().processes <= 12


def test_memory_limit_kills_inside_and_only_there(start: Start) -> None:
    workspace = start(memory_max_bytes=64 << 20)
    result = workspace.exec(["sh", "-c", "v=$(head -c 300000000 /dev/zero | tr '\\0' 'y'); echo ${#v}"], timeout_s=60)
    assert result.stdout != b"300000000\n"
    assert workspace.alive
    assert text(workspace, "echo", "fine") == "fine"


# ---- ownership --------------------------------------------------------------

CHILD = """
import os, sys
from bunshin_gym.errors import ClosedError
from bunshin_gym.workspace import Workspace, core

workspace = Workspace.start(sys.argv[2], argv=["sleep", "1000000"], core=core(sys.argv[1]))
pid = os.fork()
if pid == 0:
    try:
        workspace.exec(["true"])
    except ClosedError as error:
        print("refused" if str(os.getpid()) in str(error) else error, flush=True)
    workspace.close()
    sys.exit(0)
os.waitpid(pid, 0)
print(workspace.exec(["echo", "alive"]).stdout.decode().strip(), flush=True)
"""


def test_a_forked_child_neither_uses_nor_ends_it(bunshin: Core, rootfs: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", CHILD, bunshin.home, rootfs], capture_output=True, text=True, timeout=60
    )
    assert done.stderr == ""
    assert done.stdout.split() == ["refused", "alive"]
    # Its maker's ordinary end has closed it: the fixture finds nothing.


def test_copies_and_pickles_are_refused(workspace: Workspace) -> None:
    for attempt in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(UsageError, match="fork"):
            attempt(workspace)


@pytest.mark.parametrize("signals", ["ignored", "reaped by another"])
def test_exit_codes_whatever_the_program_does_about_its_children(bunshin: Core, rootfs: Path, signals: str) -> None:
    setup = {
        "ignored": "signal.signal(signal.SIGCHLD, signal.SIG_IGN)",
        "reaped by another": "signal.signal(signal.SIGCHLD, lambda *_: os.waitpid(-1, os.WNOHANG))",
    }[signals]
    script = f"""
import os, signal, sys
from bunshin_gym.workspace import Workspace, core
{setup}
workspace = Workspace.start(sys.argv[2], argv=["sleep", "1000000"], core=core(sys.argv[1]))
print([workspace.exec(["sh", "-c", "exit 5"]).exit_code for _ in range(5)])
"""
    done = subprocess.run(
        [sys.executable, "-c", script, bunshin.home, rootfs], capture_output=True, text=True, timeout=60
    )
    if bunshin.features()["pidfd_info"] == "yes":
        assert done.stdout.strip() == "[5, 5, 5, 5, 5]", done.stderr
    else:  # before Linux 6.15 a status that another has taken is lost: told, not guessed
        assert "does this program reap children that are not its own?" in done.stderr
