# SPDX-License-Identifier: Apache-2.0
"""Some programs of CRIU's own test suite as guests of one workspace; `make test-zdtm-guests` runs all."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "zdtm"))

import guests
import programs

KINDS = (
    *("cwd00", "env00", "umask00", "session00", "pstree", "zombie00", "sigpending", "sigaltstack", "rlimits00"),
    *("pipe00", "pipe01", "fifo", "eventfs00", "epoll", "signalfd00", "timerfd", "timers", "posix_timers"),
    *("pthread00", "pthread_timers", "futex", "futex-rl", "busyloop00", "sleeping00", "wait00"),
    *("maps00", "maps02", "maps04", "maps_file_prot", "mprotect00", "grow_map", "grow_map02"),
    *("shm", "shm-mp", "sem", "msgque", "memfd00", "memfd01", "vdso00", "sse00", "fpu00"),
    *("socket-tcpbuf-local", "socket-tcpbuf6-local", "socket-tcp-closing", "socket-tcp-fin-wait1"),
    *("socket-tcp6-close-wait", "socket-tcp6-closing", "socket-tcp-last-ack"),
    *("socket_udp", "socket_listen", "sockets00", "sockets01", "sk-unix01", "sk-unix-listen02", "scm00", "scm04"),
    *("file_shared", "file_append", "file_locks00", "unlink_fstat01", "write_read00", "inotify00", "pty01", "tty00"),
)


@pytest.mark.slow
def test_programs_of_the_suite(capsys: pytest.CaptureFixture[str]) -> None:
    names = [f"static/{name}" for name in KINDS] + ["transition/fork", "transition/pipe_loop00"]
    takers = programs.read_programs(programs.tree(), names)
    verdicts = guests.run(takers, "pool", size=len(names))
    assert guests.surprises(verdicts) == [], capsys.readouterr().out
    assert sum(verdict == guests.PASS for verdict in verdicts.values()) > 45
