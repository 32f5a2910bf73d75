# SPDX-License-Identifier: Apache-2.0
"""What cannot be carried is refused while the source runs, by name; a fork that fails leaves nothing behind."""

from __future__ import annotations

import ctypes
import mmap
import os
import re
import select
import signal
import socket
import struct
import subprocess
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import guesthouse
import pytest
from support import engines

from bunshin_gym.errors import BunshinError, EngineError, ResourceError, UnsupportedError, UsageError, WorkspaceDied
from bunshin_gym.native import arm_fault, fault_points
from bunshin_gym.paths import criu_path
from bunshin_gym.workspace import Core, Workspace, core, list_snapshots, list_workspaces

Start = Callable[..., Workspace]
WALL = 0x40000000
MAP_HUGETLB = 0x40000
PTRACE_SEIZE, PTRACE_DETACH, PTRACE_INTERRUPT = 0x4206, 17, 0x4207
HERE = Path(__file__).resolve().parent


@pytest.fixture
def guest(start: Start, rootfs: Path) -> Workspace:
    """A workspace with a guest that tells whether it still works."""
    workspace = start(argv=[guesthouse.build(rootfs, "threads")])
    guesthouse.wait_ready(workspace)
    return workspace


def main_pid(workspace: Workspace) -> int:
    children = Path(f"/proc/{workspace.pid}/task/{workspace.pid}/children").read_text().split()
    return int(children[0])


def refused(workspace: Workspace, kind: type[BunshinError], *patterns: str) -> None:
    """The fork is refused for this reason, and the source has not even stood still."""
    with pytest.raises(kind) as caught:
        workspace.fork(1)
    for pattern in patterns:
        assert re.search(pattern, str(caught.value)), str(caught.value)
    assert guesthouse.tell(workspace, "lives on") == "ok"


def forks(workspace: Workspace) -> None:
    (branch,) = workspace.fork(1)
    with branch:
        assert guesthouse.tell(branch, "branch") == "ok"
    assert guesthouse.tell(workspace, "source") == "ok"


# ---- refusals ------------------------------------------------------------------


@contextmanager
def helper(guest: Workspace, rootfs: Path, what: str) -> Iterator[int]:
    """Runs tests/core/oddity.c in the workspace, as a child of its own init: holds one thing that cannot be carried."""
    program = rootfs / "guest" / "oddity"
    if not program.exists():
        subprocess.run(
            ["cc", "-D_GNU_SOURCE", "-O1", "-static", "-Wall", "-Werror", "-o", program, HERE / "oddity.c"], check=True
        )
    done = guest.exec(["/guest/oddity", what], timeout_s=30)
    assert done.exit_code == 0, done
    inner = int(done.stdout)
    yield inner
    guest.exec(["kill", "-9", str(inner)])
    guest.exec(["sh", "-c", "rm -f /dev/mqueue/*"])


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("packet-pipe", "packet mode"),
        ("semaphore-eventfd", "semaphore mode"),
        ("mqueue", "message queues"),
        ("dev-tty", "/dev/tty"),
    ],
)
def test_descriptor_is_refused_by_name(what: str, message: str, guest: Workspace, rootfs: Path) -> None:
    with helper(guest, rootfs, what) as inner:
        refused(
            guest,
            UnsupportedError,
            message,
            r"process oddity, pid \d+ ",
            rf"\({inner} inside\) fd \d+",
            "close it|use |open the",
        )
    forks(guest)


@contextmanager
def no_huge_page_free() -> Iterator[None]:
    """This process holds all that the machine has free, which may be none."""
    held = []
    with suppress(OSError):
        while True:
            held.append(mmap.mmap(-1, 2 << 20, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_HUGETLB))
    yield
    for page in held:
        page.close()


@pytest.mark.parametrize("what", ["huge-private", "huge-shared", "huge-memfd"])
def test_huge_pages_are_refused_while_none_is_free(what: str, guest: Workspace, rootfs: Path) -> None:
    with helper(guest, rootfs, what) as inner, no_huge_page_free():
        refused(
            guest,
            ResourceError,
            r"its mapping [0-9a-f]+-[0-9a-f]+ is of huge pages of 2048 kB, of which none is free",
            rf"process oddity, pid \d+ \({inner} inside\)",
            "vm.nr_hugepages",
        )
    forks(guest)


def test_connection_waiting_to_be_accepted_is_refused_for_now(guest: Workspace, rootfs: Path) -> None:
    with helper(guest, rootfs, "backlog") as inner:
        refused(
            guest,
            UsageError,
            "waits to be accepted",
            rf"process oddity, pid \d+ \({inner} inside\) fd \d+",
            "try again",
        )
    forks(guest)


def test_traced_process_is_refused(guest: Workspace) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    pid = main_pid(guest)

    def trace() -> None:
        assert libc.ptrace(PTRACE_SEIZE, pid, 0, 0) == 0
        try:
            refused(guest, UnsupportedError, r"traced by pid \d+", rf"pid {pid} \(2 inside\)", "debugger")
        finally:
            libc.ptrace(PTRACE_INTERRUPT, pid, 0, 0)
            os.waitpid(pid, WALL)
            libc.ptrace(PTRACE_DETACH, pid, 0, 0)

    # One thread must do it all: the kernel takes requests from the tracing thread only.
    with ThreadPoolExecutor(1) as pool:
        pool.submit(trace).result()
    forks(guest)


@pytest.mark.parametrize("kind", ["pid", "user", "net"])
def test_nested_namespace_is_refused(kind: str, guest: Workspace) -> None:
    """As a browser's sandbox makes them; here from outside, since the workspace's own filter forbids it."""
    enter = ["nsenter", "-t", str(guest.pid), "--mount", "--pid"]
    make = ["/bin/busybox", "unshare", *{"pid": ["-p", "-f"], "user": ["-U"], "net": ["-n"]}[kind]]
    nested = subprocess.Popen([*enter, *make, "/bin/sh", "-c", "echo; exec sleep 1000001"], stdout=subprocess.PIPE)
    assert nested.stdout is not None
    nested.stdout.readline()
    try:
        inner = descendants(nested.pid)[-1]
        for line in Path(f"/proc/{guest.pid}/cgroup").read_text().splitlines():
            if line.startswith("0::"):
                tracker = next(
                    p for p in ("/sys/fs/cgroup/unified", "/sys/fs/cgroup") if Path(p, "cgroup.procs").exists()
                )
                Path(tracker + line[3:], "cgroup.procs").write_text(str(inner))
        refused(
            guest,
            UnsupportedError,
            f"in a {kind} namespace of its own",
            rf"process (sh|sleep), pid {inner} ",
            "--no-sandbox",
        )
    finally:
        for pid in reversed(descendants(nested.pid)):
            kill_and_wait(pid)
        nested.kill()
        nested.wait()
        nested.stdout.close()
    forks(guest)


def kill_and_wait(pid: int) -> None:
    """It may have ended with its parent."""
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    with suppress(ProcessLookupError):
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
    select.select([pidfd], [], [], 30)
    os.close(pidfd)


def descendants(pid: int) -> list[int]:
    found = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in task.read_text().split():
            found += [int(child), *descendants(int(child))]
    return found


def test_running_command_is_refused(guest: Workspace) -> None:
    thread = threading.Thread(target=lambda: guest.exec(["sh", "-c", "echo x > /tmp/runs; read line < /tmp/hold"]))
    guest.exec(["mkfifo", "/tmp/hold", "/tmp/runs"])
    thread.start()
    with open(guest.root / "tmp" / "runs") as runs:
        assert runs.read() == "x\n"
    refused(guest, UsageError, "started from outside still run", "wait until")
    with open(guest.root / "tmp" / "hold", "w") as hold:
        hold.write("end\n")
    thread.join()
    forks(guest)


def test_unix_connection_from_outside_is_refused(guest: Workspace, rootfs: Path) -> None:
    with helper(guest, rootfs, "listen"), socket.socket(socket.AF_UNIX) as client:
        directory = os.open(guest.root / "tmp", os.O_PATH)
        client.connect(f"/proc/self/fd/{directory}/listen")
        os.close(directory)
        assert client.recv(1) == b"x"
        refused(guest, UnsupportedError, "connection from outside", r"process oddity, pid \d+ .* fd \d+", "close it")
    forks(guest)


BPF_MAP = struct.pack("IIIII", 2, 4, 4, 1, 0)  # an array of one number
PERF_CLOCK = struct.pack("IIQ", 1, 112, 0)  # the kernel's own clock, counted in software
KERNEL_OBJECTS = {
    "userfaultfd": (323, 0),
    "bpf": (321, 0, ctypes.create_string_buffer(BPF_MAP, 120), 120),
    "perf": (298, ctypes.create_string_buffer(PERF_CLOCK, 112), 0, -1, -1, 0),
}
"""System calls that make what a workspace's filter forbids it to make: number and arguments."""


def kernel_object(*call: Any) -> int:
    fd = ctypes.CDLL(None, use_errno=True).syscall(*call)
    assert fd >= 0, os.strerror(ctypes.get_errno())
    return int(fd)


@contextmanager
def outside_descriptor(what: str) -> Iterator[int]:
    """Something of the host, open here, that a workspace could be handed."""
    with ExitStack() as stack:
        if what == "file":
            yield stack.enter_context(open("/etc/hostname")).fileno()
        elif what in KERNEL_OBJECTS:
            fd = kernel_object(*KERNEL_OBJECTS[what])
            stack.callback(os.close, fd)
            yield fd
        elif what == "device":
            fd = os.open("/dev/kmsg", os.O_RDONLY)
            stack.callback(os.close, fd)
            yield fd
        elif what == "pipe":
            reader, writer = os.pipe()
            stack.callback(os.close, reader)
            stack.callback(os.close, writer)
            yield writer
        else:
            listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
            yield stack.enter_context(socket.create_connection(listener.getsockname())).fileno()


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("file", "/etc/hostname is on a mount outside of the workspace"),
        ("pipe", r"other end is outside of the workspace, in process .*, pid \d+ fd \d+"),
        ("tcp", "connection from outside of the workspace, or of another network"),
        ("userfaultfd", r"\[userfaultfd\] cannot be carried"),
        ("bpf", "bpf-map cannot be carried"),
        ("perf", r"\[perf_event\] cannot be carried"),
        ("device", "/dev/kmsg is on a mount outside of the workspace"),
    ],
)
def test_descriptor_from_outside_is_refused(what: str, message: str, guest: Workspace, rootfs: Path) -> None:
    with outside_descriptor(what) as fd:
        with helper(guest, rootfs, "receive") as inner:
            hand_over(guest, fd)
            refused(guest, UnsupportedError, message, rf"process oddity, pid \d+ \({inner} inside\) fd \d+", "close it")
        forks(guest)


@contextmanager
def deep_file(top: Path) -> Iterator[None]:
    """This process has a file open whose path the kernel cannot spell."""
    directory = os.open(top, os.O_PATH)
    for _ in range(25):
        os.mkdir("d" * 200, dir_fd=directory)
        deeper = os.open("d" * 200, os.O_PATH, dir_fd=directory)
        os.close(directory)
        directory = deeper
    file = os.open("file", os.O_CREAT | os.O_WRONLY, dir_fd=directory)
    os.close(directory)
    try:
        with pytest.raises(OSError, match="File name too long"):
            os.readlink(f"/proc/self/fd/{file}")
        yield
    finally:
        os.close(file)


def test_deep_path_elsewhere_on_the_machine_hinders_no_one(guest: Workspace, rootfs: Path, tmp_path: Path) -> None:
    with deep_file(tmp_path), outside_descriptor("pipe") as fd:
        with helper(guest, rootfs, "receive"):
            hand_over(guest, fd)
            refused(guest, UnsupportedError, r"other end is outside of the workspace, in process")
        forks(guest)


def hand_over(guest: Workspace, fd: int) -> None:
    with socket.socket(socket.AF_UNIX) as client:
        directory = os.open(guest.root / "tmp", os.O_PATH)
        client.connect(f"/proc/self/fd/{directory}/listen")
        os.close(directory)
        socket.send_fds(client, [b"x"], [fd])
        assert client.recv(1) == b""


def test_io_uring_is_absent_from_the_start(start: Start, rootfs: Path) -> None:
    workspace = start()
    guesthouse.furnish(rootfs)
    with helper(workspace, rootfs, "io_uring"):
        pass


# ---- failures ----------------------------------------------------------------------


def nothing_but(core: Core, *workspaces: Workspace) -> None:
    """Registry, directories, cgroups and processes hold these workspaces and nothing else."""
    assert {info.id for info in list_workspaces(core.home)} == {workspace.id for workspace in workspaces}
    assert list_snapshots(core.home) == []
    layers = [path.name for path in (core.home / "layers").iterdir() if not path.name.startswith("runtime-")]
    assert layers == []


@pytest.mark.parametrize("engine", engines())
@pytest.mark.parametrize("point", fault_points())
def test_fault_point(point: str, engine: str, guest: Workspace, bunshin: Core) -> None:
    descriptors = len(os.listdir("/proc/self/fd"))
    children = children_of_ours()
    arm_fault(point)
    with pytest.raises(EngineError, match=f"fault point {point}"):
        guest.fork(1, engine=engine)
    assert guesthouse.tell(guest, "after the fault") == "ok"
    assert len(os.listdir("/proc/self/fd")) == descriptors
    assert children_of_ours() == children
    if not point.startswith("branch-"):
        nothing_but(bunshin, guest)
    (branch,) = guest.fork(1, engine=engine)
    with branch:
        assert guesthouse.tell(branch, "branch") == "ok"


def children_of_ours() -> set[str]:
    tasks = Path("/proc/self/task").glob("*/children")
    return {pid for task in tasks for pid in task.read_text().split()}


@pytest.mark.parametrize(
    ("engine", "said"), [("criu", "criu dump: no reason in its log"), ("pool", "the page pool's process has ended")]
)
def test_failing_criu_leaves_the_source_unharmed(rootfs: Path, tmp_path: Path, engine: str, said: str) -> None:
    broken = tmp_path / "criu"
    broken.write_text("#!/bin/sh\nexit 1\n")
    broken.chmod(0o755)
    other = core(tmp_path / "other-home", broken)
    with Workspace.start(rootfs, argv=["sleep", "1000000"], core=other) as workspace:
        with pytest.raises(EngineError, match=said):
            workspace.fork(1, engine=engine)
        assert workspace.exec(["echo", "on"]).stdout == b"on\n"
        nothing_but(other, workspace)


# Runs CRIU, but for restores: those meet a machine whose limit has been reached.
AT_THE_LIMIT = """#!/bin/sh
for word; do
	case $word in
	restore) restoring=1 ;;
	--images-dir=*) dir=${{word#*=}} ;;
	--work-dir=*) dir=${{word#*=}} ;;
	--log-file=*) log=${{word#*=}} ;;
	esac
done
[ "$restoring" ] || exec {criu} "$@"
echo "(00.1) Error (criu/fsnotify.c:664): fsnotify: Can't create inotify for 0x000007: Too many open files" > $dir/$log
exit 1
"""


def test_a_limit_of_the_machine_is_named_with_its_value_and_what_to_do(rootfs: Path, tmp_path: Path) -> None:
    wrapper = tmp_path / "criu"
    wrapper.write_text(AT_THE_LIMIT.format(criu=criu_path()))
    wrapper.chmod(0o755)
    other = core(tmp_path / "other-home", wrapper)
    with Workspace.start(rootfs, argv=["sleep", "1000000"], core=other) as workspace:
        now = Path("/proc/sys/fs/inotify/max_user_instances").read_text().strip()
        with pytest.raises(ResourceError) as caught:
            workspace.fork(1, engine="criu")
        assert f"fs.inotify.max_user_instances is {now}, too few" in str(caught.value)
        assert "sysctl -w fs.inotify.max_user_instances=1024" in str(caught.value)
        assert workspace.exec(["echo", "on"]).stdout == b"on\n"
        assert [record.id for record in list_workspaces(other.home)] == [workspace.id]
        assert list_snapshots(other.home) == []


def test_unknown_engine_is_refused(guest: Workspace) -> None:
    with pytest.raises(UsageError, match='no engine "warp"'):
        guest.fork(1, engine="warp")


def test_dead_source_is_refused(guest: Workspace) -> None:
    os.kill(guest.pid, signal.SIGKILL)
    with pytest.raises(WorkspaceDied, match="ended"):
        guest.fork(1)


def test_message_queue_that_nobody_has_open_is_refused(guest: Workspace, rootfs: Path) -> None:
    with helper(guest, rootfs, "mqueue") as inner:
        guest.exec(["sh", "-c", f"kill -9 {inner}; while kill -0 {inner} 2> /dev/null; do :; done"])
        refused(guest, UnsupportedError, "message queue /oddity cannot be carried", "rm /dev/mqueue/oddity")
    forks(guest)
