# SPDX-License-Identifier: Apache-2.0
"""What a workspace's processes cannot see or do."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from bunshin_gym.workspace import Workspace

Start = Callable[..., Workspace]
CAPS = 0x405FB  # chown dac_override fowner fsetid kill setgid setuid setpcap net_bind_service sys_chroot

IO_URING_SETUP, CLONE, CLONE3, UNSHARE, SETNS, SOCKET, MOUNT = 425, 56, 435, 272, 308, 41, 165
NEWNS, NEWUSER, NEWPID, NEWNET = 0x20000, 0x10000000, 0x20000000, 0x40000000


def text(workspace: Workspace, *argv: str) -> str:
    result = workspace.exec(argv, timeout_s=30)
    assert result.exit_code == 0, result
    return result.stdout.decode().strip()


def field(status: str, name: str) -> str:
    return next(line.split(":", 1)[1].strip() for line in status.splitlines() if line.startswith(name + ":"))


def test_no_mount_of_the_host_is_visible(workspace: Workspace, tmp_path: Path) -> None:
    kinds = [line.split(" - ")[1].split()[0] for line in text(workspace, "cat", "/proc/self/mountinfo").splitlines()]
    assert set(kinds) <= {"overlay", "proc", "sysfs", "devpts", "tmpfs", "mqueue"}
    assert kinds.count("tmpfs") == 1


def test_no_descriptor_of_the_host_gets_in(start: Start) -> None:
    read_end, write_end = os.pipe()
    os.set_inheritable(write_end, True)
    try:
        workspace = start()
        for pid in (1, 2):
            links = [os.readlink(path) for path in (workspace.root / f"proc/{pid}/fd").iterdir()]
            assert sorted(links) == ["/dev/null", "/run/bunshin/main.log", "/run/bunshin/main.log"]
        listed = text(workspace, "sh", "-c", "ls /proc/self/fd").split()
        assert set(listed) <= {"0", "1", "2", "3"}  # 3 is the listing's own
    finally:
        os.close(read_end)
        os.close(write_end)


@pytest.mark.parametrize("who", ["/proc/1/status", "/proc/2/status", "/proc/self/status"])
def test_capabilities_and_filter(workspace: Workspace, who: str) -> None:
    status = text(workspace, "cat", who)
    for name in ("CapPrm", "CapEff", "CapBnd"):
        assert int(field(status, name), 16) == CAPS, name
    assert int(field(status, "CapInh"), 16) == int(field(status, "CapAmb"), 16) == 0
    assert field(status, "NoNewPrivs") == "1"
    assert field(status, "Seccomp") == "2"


def test_another_user_has_no_capability(workspace: Workspace) -> None:
    result = workspace.exec(["cat", "/proc/self/status"], uid=1000, gid=1000)
    assert int(field(result.stdout.decode(), "CapEff"), 16) == 0
    assert workspace.exec(["cat", "/proc/kpagecount"], uid=1000, gid=1000).stdout == b""


@pytest.mark.parametrize(
    ("call", "answer"),
    [
        ((IO_URING_SETUP, 8, 0), "ENOSYS"),
        ((CLONE3, 0, 0), "ENOSYS"),
        ((CLONE, NEWUSER | 17), "EPERM"),
        ((CLONE, NEWPID | 17), "EPERM"),
        ((UNSHARE, NEWNS), "EPERM"),
        ((UNSHARE, NEWUSER), "EPERM"),
        ((UNSHARE, NEWNET), "EPERM"),
        ((UNSHARE, 0x400), "ok"),  # CLONE_FILES: of no namespace
        ((SETNS, 0, 0), "EPERM"),
        ((MOUNT, 0, 0, 0, 0, 0), "EPERM"),
        ((SOCKET, 40, 1, 0), "EAFNOSUPPORT"),  # vsock leads out of the virtual machine
        ((SOCKET, 38, 5, 0), "EAFNOSUPPORT"),
        ((SOCKET, 1, 1, 0), "ok"),
        ((SOCKET, 2, 1, 0), "ok"),
        ((SOCKET, 10, 1, 0), "ok"),
        ((SOCKET, 16, 3, 0), "ok"),
        ((SOCKET, 2, 3, 1), "EPERM"),  # raw
        ((0x40000000 | 39,), "ENOSYS"),  # the x32 numbers
        ((250, 0), "EPERM"),  # keyctl
        ((321, 0, 0, 0), "EPERM"),  # bpf
        ((298, 0, 0, 0, 0, 0), "EPERM"),  # perf_event_open
        ((323, 0), "EPERM"),  # userfaultfd
        ((175, 0, 0, 0), "EPERM"),  # init_module
        ((169, 0, 0, 0, 0), "EPERM"),  # reboot
        ((444, 0, 0, 0), "ENOSYS"),  # landlock
        ((447, 0), "ENOSYS"),  # memfd_secret
        ((311, 1, 0, 0, 0, 0, 0), "ENOSYS"),  # process_vm_writev
        ((310, 1, 0, 0, 0, 0, 0), "ok"),  # process_vm_readv
        ((319, 0, 0), "EFAULT"),  # memfd_create gets through to the kernel
    ],
)
def test_system_calls(probe: str, start: Start, call: tuple[int, ...], answer: str) -> None:
    assert text(start(), probe, *map(str, call)) == answer


def test_masked_and_read_only_paths(workspace: Workspace) -> None:
    for path in ("/proc/kcore", "/proc/keys", "/proc/timer_list", "/proc/kpagecount"):
        assert workspace.exec(["cat", path]).stdout == b""
    for path in ("/sys/firmware", "/proc/acpi", "/proc/scsi"):
        assert workspace.exec(["ls", "-A", path]).stdout == b""
    for path in ("/proc/sys/kernel/hostname", "/sys/kernel/mm/transparent_hugepage/enabled"):
        result = workspace.exec(["sh", "-c", f"echo x > {path}"])
        assert result.exit_code != 0
    assert workspace.exec(["sh", "-c", "echo 1 > /proc/sysrq-trigger"]).exit_code != 0


def test_devices_are_the_harmless_ones(workspace: Workspace) -> None:
    listed = text(
        workspace, "sh", "-c", "cd /dev; for f in *; do [ -c $f ] && echo $f; [ -b $f ] && echo $f; done; true"
    )
    assert sorted(set(listed.split())) == ["full", "null", "ptmx", "random", "tty", "urandom", "zero"]
    assert workspace.exec(["mknod", "/tmp/disk", "b", "254", "0"]).exit_code != 0
    assert text(workspace, "sh", "-c", "head -c 3 /dev/zero | wc -c; echo x > /dev/null") == "3"


def test_device_nodes_of_the_image_are_gone(rootfs: Path, start: Start) -> None:
    (rootfs / "dev").mkdir(exist_ok=True)
    node = rootfs / "dev" / "disk-of-the-host"
    os.mknod(node, 0o660 | 0o060000, os.makedev(254, 0))
    try:
        assert start().exec(["test", "-e", "/dev/disk-of-the-host"]).exit_code == 1
    finally:
        node.unlink()


def test_symbolic_links_of_the_image_do_not_lead_out(rootfs: Path, start: Start, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.mkdir()
    link = rootfs / "run"
    link.rmdir()
    link.symlink_to(victim)
    try:
        workspace = start()
        assert text(workspace, "cat", "/run/bunshin/main.log") == ""
        assert list(victim.iterdir()) == []
    finally:
        link.unlink()
        link.mkdir()


def test_only_loopback_and_it_works(workspace: Workspace) -> None:
    links = [line.split(":")[0].strip() for line in text(workspace, "cat", "/proc/net/dev").splitlines()[2:]]
    assert links == ["lo"]
    assert workspace.exec(["ping", "-c", "1", "-W", "1", "192.0.2.1"]).exit_code != 0
    server = "nc -l -p 4000 -e echo heard & sleep 0.2; nc 127.0.0.1 4000"
    assert "heard" in text(workspace, "sh", "-c", server)


def test_processes_of_the_host_are_out_of_sight(workspace: Workspace) -> None:
    pids = [name for name in text(workspace, "ls", "/proc").split() if name.isdigit()]
    assert len(pids) <= 3
    assert workspace.exec(["kill", "-0", str(os.getpid())]).exit_code != 0 or os.getpid() < 10


def test_hostname_and_cgroup_look_the_same_everywhere(start: Start) -> None:
    workspace = start(hostname="desk")
    assert text(workspace, "hostname") == "desk"
    for line in text(workspace, "cat", "/proc/1/cgroup").splitlines():
        path = line.split(":")[2]
        assert "bunshin" not in path, line


def test_the_host_reaches_sockets_through_its_root(workspace: Workspace) -> None:
    workspace.exec(["sh", "-c", "nc -lU /run/bunshin/s > /tmp/heard 2>/dev/null < /dev/null &"])
    socket = workspace.root / "run" / "bunshin"
    assert socket.is_dir()
    assert os.stat(socket).st_dev != os.stat("/run").st_dev
    assert errno.EPERM == 1
