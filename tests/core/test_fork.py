# SPDX-License-Identifier: Apache-2.0
"""Forks of whole workspaces: what stays the same, what diverges, how deep and how wide, and what outlives what."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import guesthouse
import pytest
from filetree import change_at_random, tree
from support import engines, need
from support.chroot import wait_until

from bunshin_gym.errors import CallTimeout, ClosedError, ResourceError
from bunshin_gym.workspace import Core, Workspace

Start = Callable[..., Workspace]


@pytest.fixture(params=engines())
def engine(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="session", autouse=True)
def _image_trees(rootfs: Path) -> None:
    """Files and directories of the image, there before any workspace stands on it: an image never changes."""
    links, data = rootfs / "links", rootfs / "random"
    (links / "sub").mkdir(parents=True)
    (links / "a").write_text("image\n")
    os.link(links / "a", links / "sub" / "b")
    os.link(links / "a", links / "c")
    (data / "d" / "e").mkdir(parents=True)
    for number in range(6):
        (data / "d" / f"f{number}").write_text(f"image {number}")
        os.link(data / "d" / f"f{number}", data / "d" / "e" / f"g{number}")
    for number in range(40):
        (rootfs / "anew" / f"d{number}").mkdir(parents=True)
        (rootfs / "anew" / f"d{number}" / "file").write_text("image")


def sh(workspace: Workspace, script: str) -> str:
    result = workspace.exec(["sh", "-c", script], timeout_s=60)
    assert result.exit_code == 0, result
    return result.stdout.decode().strip()


# ---- what stays the same ---------------------------------------------------------


def test_inner_view_is_the_same_in_every_branch(start: Start, engine: str) -> None:
    """Process ids, host name, environment and clock are those of the source: nothing inside can tell."""
    source = start(argv=["sh", "-c", "/bin/sleep 1000001 & /bin/sleep 1000002 & wait"], hostname="the-one")
    look = ": look; hostname; ps -o pid,ppid,args | grep -vE 'look|ps|grep|exe'; cat /proc/2/environ | tr '\\0' ' '"
    sh(source, "until [ $(ps -o args | grep -c '^/bin/sleep 100000') = 2 ]; do :; done")
    before = sh(source, look)
    with source.snapshot(engine=engine) as snapshot:
        for branch in snapshot.spawn(4):
            with branch:
                assert sh(branch, look) == before
    assert sh(source, look) == before


def test_files_open_for_writing_are_what_they_were(start: Start, engine: str) -> None:
    """Also in a branch's own layer, where they go before anything is written: times, owners, holes, second names."""
    make = (
        "mkdir -p /data/in && cd /data/in && echo one >plain && echo two >linked && ln linked /data/other"
        " && dd if=/dev/zero of=holes bs=1 count=1 seek=4000000 && chown 7:8 plain holes && chmod 4640 plain"
        " && touch -t 202001020304 plain holes linked . && exec 3>>plain 4>>holes 5>>linked"
        " && while :; do sleep 1000; done"
    )
    source = start(argv=["sh", "-c", make])
    sh(source, "until [ -e /proc/2/fd/5 ]; do :; done")
    look = (
        "cd /data; stat -c '%n %A %u %g %Y' in; stat -c '%n %A %u %g %s %h %Y' in/* other"
        "; cat in/plain in/linked other; test $(du -k in/holes | cut -f1) -lt 64 && echo sparse"
    )
    before = sh(source, look)
    with source.snapshot(engine=engine) as snapshot, snapshot.branch() as branch:
        assert sh(branch, look) == before
        sh(branch, "echo three >>/data/other; echo four >>/data/in/plain")
        assert sh(branch, "cat /data/in/linked /proc/2/fd/5") == "two\nthree\ntwo\nthree"
        assert sh(branch, "cat /proc/2/fd/3") == "one\nfour"
        after = sh(branch, look)
        with branch.snapshot(engine=engine) as second, second.branch() as next_branch:
            assert sh(next_branch, look) == after
        assert sh(source, look) == before


def test_files_open_for_writing_keep_their_inode_numbers(start: Start) -> None:
    """SQLite writes to no database whose file has another number than when it was opened: it must have been moved."""
    source = start(argv=["sh", "-c", "exec 3>>/tmp/made 4>>/etc/group; while :; do sleep 1000; done"])
    sh(source, "until [ -e /proc/2/fd/4 ]; do :; done")
    look = "stat -c '%n %i %h' /tmp/made /etc/group && stat -L -c '%i %h' /proc/2/fd/3 /proc/2/fd/4"
    before = sh(source, look)
    with source.snapshot(engine="pool") as snapshot:
        with snapshot.branch() as branch:
            assert sh(branch, look) == before
        sh(source, "rm /tmp/made; echo another >/tmp/other")
        source.close()
        with snapshot.branch() as branch, snapshot.branch() as other:
            assert sh(branch, look) == sh(other, look) == before
            sh(branch, "echo more >>/tmp/made")
            with branch.snapshot(engine="pool") as second, second.branch() as next_branch:
                branch.close()
                assert sh(next_branch, look) == before
                assert sh(next_branch, "cat /proc/2/fd/3") == "more"


def uptime_s(workspace: Workspace) -> float:
    return float(sh(workspace, "cut -d' ' -f1 /proc/uptime"))


def test_uptime_and_clocks_go_on(start: Start, engine: str) -> None:
    """From the moment of the snapshot: a branch is behind by the time that it took to make it."""
    source = start()
    before = uptime_s(source)
    (branch,) = source.fork(1, engine=engine)
    with branch:
        there = uptime_s(branch)
        assert before <= there <= uptime_s(source)
        assert there <= uptime_s(branch)


def test_what_a_command_started_in_a_branch_is_forked_too(start: Start, engine: str) -> None:
    """It has the branch's clock, as everything there."""
    (branch,) = start().fork(1, engine=engine)
    with branch:
        sh(branch, "/bin/sleep 1000001 >/dev/null 2>&1 </dev/null &")
        (second,) = branch.fork(1, engine=engine)
        with second:
            assert "sleep 1000001" in sh(second, "ps")


# ---- files ----------------------------------------------------------------------


def test_files_of_every_kind_come_over_exactly(start: Start, engine: str) -> None:
    source = start()
    sh(
        source,
        """
        mkdir -p /data/dir/sub && cd /data
        echo plain > plain; chmod 4755 plain; chown 7:8 plain; touch -d '2001-02-03 04:05:06' plain
        ln plain hard; ln -s plain soft; ln -s /nowhere dangling; mkfifo fifo
        dd if=/dev/zero of=sparse bs=1 count=1 seek=50000000 2>/dev/null; : > empty
        echo x > 'name with
newline'; echo deep > dir/sub/file; chmod 0700 dir; touch -d '2002-02-02' dir/sub dir
        """,
    )
    os.setxattr(source.root / "data" / "plain", "user.note", b"value")
    before = tree(source)
    assert len(before) == 11
    (branch,) = source.fork(1, engine=engine)
    with branch:
        assert tree(branch) == before
        assert os.getxattr(branch.root / "data" / "plain", "user.note") == b"value"
        assert (branch.root / "data" / "sparse").stat().st_blocks < 100
        assert sh(branch, "stat -c %i /data/plain") == sh(branch, "stat -c %i /data/hard")
        sh(branch, "echo more >> /data/hard")
        assert sh(branch, "cat /data/plain") == "plain\nmore"
    assert tree(source) == before


def test_writes_deletes_and_renames_stay_where_they_happen(start: Start, engine: str) -> None:
    source = start()
    sh(source, "mkdir -p /data/d && cd /data && for i in a b c d/e; do echo origin > $i; done")
    first, second = source.fork(2, engine=engine)
    with first, second:
        sh(first, "cd /data && echo first > a && rm b && mv c moved && rm -r d && mkdir d && echo new > d/f")
        sh(second, "cd /data && rm -r d && echo second > a && echo second > only-second && mv /etc/passwd /etc/other")
        sh(source, "cd /data && echo source > a && mv b c")
        assert sh(first, "cd /data && cat a && find . | sort") == "first\n.\n./a\n./d\n./d/f\n./moved"
        assert sh(second, "cd /data && cat a && find . | sort") == "second\n.\n./a\n./b\n./c\n./only-second"
        assert sh(source, "cd /data && cat a c && find . | sort") == "source\norigin\n.\n./a\n./c\n./d\n./d/e"
        assert sh(first, "cat /etc/passwd") == sh(source, "cat /etc/passwd")


def test_each_snapshot_of_one_workspace_has_its_own_moment(start: Start, engine: str) -> None:
    """Layers are deltas on one another: changes, deletions, replacements by another type, and nothing at all."""
    source = start()
    steps = [
        "mkdir -p /data/keep /data/dir/sub; cd /data; echo 1 > a; echo 1 > keep/x; echo 1 > dir/sub/y; ln a b",
        "cd /data; echo 2 >> a; echo 2 > new",
        "true",
        "cd /data; rm new; rm -r dir; echo file > dir; rm b",
        "cd /data; rm dir; mkdir -p dir/sub; echo again > dir/sub/z; rm -r keep",
        "cd /data; mkdir keep; ln a c; chmod 600 a; rm -r dir; ln -s keep dir",
        "cd /data; mv a keep/a; touch -d 2003-03-03 keep; rm c; mkfifo c",
    ]
    taken = []
    for step in steps * 3:
        sh(source, step if step == steps[0] else f"{step} 2>/dev/null; true")
        taken.append((tree(source), source.snapshot(engine=engine)))
    for number, (expected, snapshot) in enumerate(taken):
        with snapshot, snapshot.branch() as branch:
            assert tree(branch) == expected, f"snapshot {number}"


def test_a_directory_made_anew_is_not_the_one_of_before(bunshin: Core, start: Start, engine: str) -> None:
    """Although it has its inode number, as ext4 gives it again: nothing of the image is to be seen in it."""
    source = start()
    upper = Path(bunshin.home) / "workspaces" / source.id / "upper" / "anew"
    directories = sorted((source.root / "anew").iterdir())
    for path in directories:
        path.chmod(0o700)
    numbers = {path.name: (upper / path.name).stat().st_ino for path in directories}
    with source.snapshot(engine=engine):
        for path in directories:
            for _ in range(20):
                shutil.rmtree(path)
                path.mkdir(mode=0o700)
                if (upper / path.name).stat().st_ino == numbers[path.name]:
                    break
        with source.snapshot(engine=engine) as snapshot, snapshot.branch() as branch:
            assert tree(branch, "/anew") == tree(source, "/anew")


# Changes a file's mode again and again, and stops as soon as it was stopped itself.
RESTLESS = """
#include <fcntl.h>
#include <sys/stat.h>
#include <time.h>
int main(int argc, char **argv)
{
	struct timespec now, last;
	clock_gettime(CLOCK_MONOTONIC, &last);
	for (int n = 0;; n++) {
		clock_gettime(CLOCK_MONOTONIC, &now);
		if ((now.tv_sec - last.tv_sec) * 1000000000L + now.tv_nsec - last.tv_nsec > 10000000)
			return 0;
		last = now;
		if (argc < 2 || chmod(argv[1], n & 1 ? 0600 : 0644))
			return 1;
		if (n == 0)
			open("/tmp/restless", O_CREAT | O_WRONLY, 0600);
	}
}
"""


def test_names_of_a_file_changed_at_the_last_moment_stay_together(start: Start, rootfs: Path) -> None:
    """The first of its names is looked at some milliseconds after the change, the last when that is long ago."""
    program = rootfs / "bin" / "restless"
    subprocess.run(["cc", "-O1", "-static", "-x", "c", "-o", program, "-"], input=RESTLESS, text=True, check=True)
    source = start(argv=["sh", "-c", "until [ -e /go ]; do usleep 1000; done; restless /many/a/f; sleep 1000000"])
    sh(source, "cd /; mkdir -p many/a many/m many/z; cd many; for i in $(seq 4000); do echo > m/$i; done")
    sh(source, "cd /many; echo > a/f; ln a/f z/f; touch /go")
    sh(source, "until [ -e /tmp/restless ]; do usleep 1000; done")
    with source.snapshot(), source.snapshot() as later, later.branch() as branch:
        assert (branch.root / "many/a/f").stat().st_ino == (branch.root / "many/z/f").stat().st_ino


@pytest.mark.parametrize("seed", range(3))
def test_random_changes_over_many_snapshots(seed: int, start: Start) -> None:
    """Whatever happens in between, each snapshot's branch has the very tree of its moment; so have branches of it."""
    rng = random.Random(seed)
    source = start()
    with ExitStack() as stack:
        for generation in range(3):
            taken = []
            for _ in range(5):
                for _ in range(12):
                    change_at_random(source.root / "random", rng)
                snapshot = stack.enter_context(source.snapshot(engine="criu"))
                taken.append((tree(source, "/random"), snapshot))
            for number, (expected, snapshot) in enumerate(taken):
                branch = stack.enter_context(snapshot.branch())
                assert tree(branch, "/random") == expected, f"seed {seed}, generation {generation}, snapshot {number}"
            source = branch


def test_later_snapshot_copies_only_what_changed(start: Start, engine: str) -> None:
    source = start()
    sh(source, "mkdir /data && dd if=/dev/urandom of=/data/large bs=1M count=64 2>/dev/null && sleep 0.1")
    with source.snapshot(engine=engine) as first:
        assert first.stats.layer_bytes >= 64 << 20
        sh(source, "echo small > /data/small")
        with source.snapshot(engine=engine) as second:
            assert second.stats.layer_bytes < 1 << 20
            with second.branch() as branch:
                assert sh(branch, "sha256sum < /data/large; cat /data/small") == sh(
                    source, "sha256sum < /data/large; cat /data/small"
                )


def test_file_changed_only_through_a_shared_mapping_is_copied_again(start: Start, rootfs: Path, engine: str) -> None:
    """Such writes leave file times as they are."""
    source = start(argv=[guesthouse.build(rootfs, "shm_named")])
    guesthouse.wait_ready(source)
    for number in range(3):
        assert guesthouse.tell(source, f"tag-{number}") == "ok"
        with source.snapshot(engine=engine) as snapshot, snapshot.branch() as branch:
            content = (branch.root / "guest-mapped").read_bytes()
            assert content[5000:].startswith(f"tag-{number}".encode())


def test_all_names_of_a_changed_lower_file_follow(start: Start, engine: str) -> None:
    """A file with several names in the image, changed through one of them, deleted by another."""
    source = start()
    sh(source, "echo changed > /links/a; rm /links/c")
    look = "cd /links; cat a sub/b; stat -c %h a; [ a -ef sub/b ] && echo same; ls"
    before = sh(source, look)
    (branch,) = source.fork(1, engine=engine)
    with branch:
        assert sh(branch, look) == before
        sh(branch, "echo more >> /links/sub/b")
        (grandchild,) = branch.fork(1, engine=engine)
        with grandchild:
            assert sh(grandchild, look) == sh(branch, look)


# ---- depth and width --------------------------------------------------------------


def chain(source: Workspace, depth: int, engine: str) -> None:
    """Each level is snapshotted and forked again; the one above is closed: only the last one's own state counts."""
    current = source
    for level in range(1, depth + 1):
        assert guesthouse.tell(current, f"level-{level}") == "ok", level
        sh(
            current,
            f"echo {level} >> /tmp/levels; mv /tmp/at-{level - 1} /tmp/at-{level} 2>/dev/null || : > /tmp/at-{level}",
        )
        (child,) = current.fork(1, engine=engine)
        if current is not source:
            current.close()
        current = child
    with current:
        assert guesthouse.tell(current, "end") == "ok"
        assert sh(current, "cat /tmp/levels").split() == [str(level) for level in range(1, depth + 1)]
        assert sh(current, "ls /tmp/at-*") == f"/tmp/at-{depth}"


def test_fork_of_fork_to_depth_10(start: Start, rootfs: Path, engine: str) -> None:
    source = start(argv=[guesthouse.build(rootfs, "deleted")])
    guesthouse.wait_ready(source)
    chain(source, 10, engine)


@pytest.mark.slow
def test_fork_of_fork_to_depth_50(start: Start, rootfs: Path, engine: str) -> None:
    source = start(argv=[guesthouse.build(rootfs, "deleted")])
    guesthouse.wait_ready(source)
    chain(source, 50, engine)


def test_four_workspaces_fork_at_once(start: Start, rootfs: Path, engine: str) -> None:
    program = guesthouse.build(rootfs, "threads")
    sources = [start(argv=[program]) for _ in range(4)]
    for source in sources:
        guesthouse.wait_ready(source)
    with ThreadPoolExecutor(4) as pool:
        for source, branches in zip(sources, pool.map(lambda s: s.fork(2, engine=engine), sources), strict=True):
            for number, branch in enumerate(branches):
                with branch:
                    assert guesthouse.tell(branch, f"branch-{number}") == "ok"
            assert guesthouse.tell(source, "source") == "ok"


def test_eight_branches_on_the_first_try(start: Start, rootfs: Path, engine: str) -> None:
    source = start(argv=[guesthouse.build(rootfs, "tcp")])
    guesthouse.wait_ready(source)
    branches = source.fork(8, engine=engine)
    for number, branch in enumerate(branches):
        assert guesthouse.tell(branch, f"branch-{number}") == "ok"
    for branch in branches:
        branch.close()


# ---- what outlives what ---------------------------------------------------------------


def test_branches_outlive_source_and_snapshot(start: Start, rootfs: Path, engine: str) -> None:
    source = start(argv=[guesthouse.build(rootfs, "shm_named")])
    guesthouse.wait_ready(source)
    snapshot = source.snapshot(engine=engine)
    first, second = snapshot.spawn(2)
    os.kill(source.pid, signal.SIGKILL)
    source.close()
    snapshot.close()
    with second:
        with first:
            assert guesthouse.tell(first, "first") == "ok"
            os.kill(first.pid, signal.SIGKILL)
        assert guesthouse.tell(second, "second") == "ok"
        (grandchild,) = second.fork(1, engine=engine)
        with grandchild:
            assert guesthouse.tell(grandchild, "grandchild") == "ok"


def test_dropped_snapshot_makes_no_branches(start: Start, engine: str) -> None:
    snapshot = start().snapshot(engine=engine)
    snapshot.close()
    with pytest.raises(ClosedError):
        snapshot.branch()


def test_snapshot_dropped_while_branches_are_made(start: Start, engine: str) -> None:
    """Each branch either comes to life or says that the snapshot is gone."""
    snapshot = start().snapshot(engine=engine)
    results: list[Workspace | ClosedError] = []

    def make() -> None:
        try:
            results.append(snapshot.branch())
        except ClosedError as error:
            results.append(error)

    threads = [threading.Thread(target=make) for _ in range(3)]
    for thread in threads:
        thread.start()
    snapshot.close()
    for thread in threads:
        thread.join()
    assert len(results) == 3
    for result in results:
        if isinstance(result, Workspace):
            assert sh(result, "echo alive") == "alive"
            result.close()


def test_branch_has_exec_statistics_and_freezing_like_any_workspace(start: Start, engine: str) -> None:
    (branch,) = start().fork(1, engine=engine)
    with branch:
        assert branch.alive
        assert branch.stats().processes == 2
        branch.freeze()
        branch.thaw()
        assert sh(branch, "echo $$ > /tmp/x; cat /tmp/x").isdigit()
        with pytest.raises(CallTimeout):
            branch.exec(["sleep", "1000"], timeout_s=0.2)


def test_workspace_at_its_process_limit_forks_and_the_branch_has_the_limit(start: Start, engine: str) -> None:
    source = start(argv=["sh", "-c", "/bin/sleep 1000001 & /bin/sleep 1000001 & wait"], pids_max=4)
    for attempt in wait_until(AssertionError, 20):
        with attempt:
            assert source.stats().processes == 4
    for branch in source.fork(2, engine=engine):
        with branch, pytest.raises(ResourceError, match="fork in the workspace"):
            branch.exec(["true"])


FREEZER_V1 = """
import sys
from bunshin_gym.workspace import Workspace, core
home, rootfs, engine = sys.argv[1:]
with Workspace.start(rootfs, argv=["sleep", "1000000"], core=core(home)) as source:
    source.exec(["sh", "-c", "echo origin > /tmp/x"])
    with source.fork(1, engine=engine)[0] as branch, branch.fork(1, engine=engine)[0] as deeper:
        for side in (source, branch, deeper):
            sys.stdout.write(side.exec(["cat", "/tmp/x"]).stdout.decode())
"""


def test_freezer_of_cgroup_v1(bunshin: Core, rootfs: Path, engine: str) -> None:
    need(bunshin.features().get("cgroup_v1_freezer", "none") not in ("", "none"), "no freezer of cgroup v1 here")
    done = subprocess.run(
        [sys.executable, "-c", FREEZER_V1, str(bunshin.home), str(rootfs), engine],
        env={**os.environ, "BUNSHIN_FREEZER": "v1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "origin\n" * 3), done.stderr


KILLED = """
import os, sys
from bunshin_gym.workspace import Workspace, core
home, rootfs, engine = sys.argv[1:]
source = Workspace.start(rootfs, argv=["sleep", "1000000"], core=core(home))
snapshot = source.snapshot(engine=engine)
branches = snapshot.spawn(2)
deeper = branches[0].fork(1, engine=engine)
print("ready", flush=True)
sys.stdin.read()
"""


def test_killed_program_leaves_nothing_after_gc(bunshin: Core, rootfs: Path, engine: str) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(bunshin.home), str(rootfs), engine],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdin is not None
    assert process.stdout.readline() == "ready\n"
    process.kill()
    process.wait()
    process.stdin.close()
    process.stdout.close()
    report = bunshin.gc()
    assert (report.workspaces, report.snapshots) == (4, 1)


def test_random_numbers_of_the_kernel_differ_and_those_of_programs_do_not(
    start: Start, rootfs: Path, engine: str
) -> None:
    """Whatever a program draws from its own state is the same everywhere, for replay; keys come from the kernel."""
    source = start(argv=[guesthouse.build(rootfs, "random")])
    guesthouse.wait_ready(source)
    assert guesthouse.tell(source, "before") == "ok"
    first, second = source.fork(2, engine=engine)
    with first, second:
        assert guesthouse.tell(first, "first") == "ok"
        third, fourth = first.fork(2, engine=engine)
        with third, fourth:
            rows = []
            for side in (source, first, second, third, fourth):
                assert guesthouse.tell(side, "after") == "ok"
                rows.append([line.split() for line in sh(side, "tail -n 2 /guest-drawn").splitlines()])
    drawn = [[line[way] for side in rows for line in side] for way in range(4)]
    for way, name in enumerate(("getrandom()", "/dev/urandom", "the vDSO")):
        assert len(set(drawn[way])) == 10, f"{name}: {drawn[way]}"
    one, deeper = drawn[3][:2], drawn[3][2:4]
    assert drawn[3] == [*one, *deeper, *one, *deeper, *deeper]


def test_a_reservation_of_a_terabyte_costs_nothing(start: Start, rootfs: Path, engine: str) -> None:
    """What is copied follows the pages that are there, never the size of mappings."""
    source = start(argv=[guesthouse.build(rootfs, "reserve")])
    guesthouse.wait_ready(source)
    with source.snapshot(engine=engine) as snapshot:
        assert snapshot.stats.copied_bytes < 16 << 20
        with snapshot.branch() as branch:
            assert branch.stats().unique_bytes < 16 << 20
            assert guesthouse.tell(branch, "branch") == "ok"
