# SPDX-License-Identifier: Apache-2.0
"""Runs an image's start command in a root of its own, by nothing but mount, chroot and exec.

    unshare --mount --pid --net --ipc --uts --fork python launcher.py SCRATCH ROOTFS RUNTIME < start.json

start.json holds argv, env and workdir. It is not a workspace, only enough of one to try an image with.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import socket
import struct
import subprocess
import sys

PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 38, 22, 2
SIOCGIFFLAGS, SIOCSIFFLAGS, IFF_UP = 0x8913, 0x8914, 1


def mount(*arguments: str) -> None:
    subprocess.run(["mount", *arguments], check=True)


def loopback_up() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        request = struct.pack("16sH14x", b"lo", 0)
        (flags,) = struct.unpack_from("H", fcntl.ioctl(control, SIOCGIFFLAGS, request), 16)
        fcntl.ioctl(control, SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", flags | IFF_UP))


def refuse_io_uring() -> None:
    """Answers ENOSYS to io_uring_setup and its two siblings, as a workspace does."""
    load_number, at_least, at_most, enosys, allow = 0x20, 0x35, 0x25, 0x00050000 | 38, 0x7FFF0000
    program = [
        (load_number, 0, 0, 0),
        (at_least, 0, 2, 425),
        (at_most, 1, 0, 427),
        (0x06, 0, 0, enosys),
        (0x06, 0, 0, allow),
    ]
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in program))
    header = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(program), ctypes.addressof(code)))
    libc = ctypes.CDLL(None, use_errno=True)
    for arguments in ((PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), (PR_SET_SECCOMP, SECCOMP_MODE_FILTER, header, 0, 0)):
        if libc.prctl(*arguments) != 0:
            raise OSError(ctypes.get_errno(), "prctl")


def main() -> None:
    scratch, rootfs, runtime = sys.argv[1:]
    start = json.load(sys.stdin)
    mount("--make-rprivate", "/")
    merged = f"{scratch}/merged"
    for name in ("upper", "work", "merged"):
        os.mkdir(f"{scratch}/{name}")
    lower = f"lowerdir={runtime}:{rootfs},upperdir={scratch}/upper,workdir={scratch}/work"
    mount("-t", "overlay", "-o", lower, "overlay", merged)
    mount("-t", "proc", "proc", f"{merged}/proc")
    mount("-t", "tmpfs", "tmpfs", f"{merged}/dev")
    for name, minor in (("null", 3), ("zero", 5), ("full", 7), ("random", 8), ("urandom", 9)):
        os.mknod(f"{merged}/dev/{name}", 0o20666, os.makedev(1, minor))
        os.chmod(f"{merged}/dev/{name}", 0o666)
    os.symlink("/proc/self/fd", f"{merged}/dev/fd")
    os.mkdir(f"{merged}/dev/shm")
    mount("-t", "tmpfs", "-o", "mode=1777", "tmpfs", f"{merged}/dev/shm")
    loopback_up()
    refuse_io_uring()
    os.chroot(merged)
    os.chdir(start["workdir"])
    os.execve(start["argv"][0], start["argv"], start["env"])


if __name__ == "__main__":
    main()
