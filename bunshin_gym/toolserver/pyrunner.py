# SPDX-License-Identifier: Apache-2.0
"""Runs an agent's Python source as the desktop's user, at once: by a fork of a process that has pyautogui loaded.

Started with a Unix stream socket as its standard input: a JSON line {source, timeout_s} asks, a JSON line
{exit_code, output, error} answers. Between two requests it sleeps in read(), so it can be forked with the workspace.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from types import ModuleType
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bunshin_gym.toolserver import quiet
else:
    import quiet  # beside this file, which runs by itself

__all__ = ["serve"]

_OUTPUT_BYTES = 1 << 20
_PATIENCE_CPU_S = 1.0
_PATIENT_FROM_S = 0.2


def _load() -> tuple[ModuleType, ModuleType]:
    import pyautogui
    from pyautogui import _pyautogui_x11

    pyautogui.FAILSAFE = False
    mapping = _pyautogui_x11.keyboardMapping
    # The first key with a `<` is the one of international keyboards, on which shift gives `>`.
    mapping["<"] = mapping[","]
    return pyautogui, _pyautogui_x11


def _child(source: str, backend: ModuleType, out: IO[bytes], err: IO[bytes]) -> int:
    """Runs the source with its own connection to the X server; that of the parent must stay untouched."""
    os.setsid()
    null = os.open(os.devnull, os.O_RDONLY)
    for descriptor, number in ((null, 0), (out.fileno(), 1), (err.fileno(), 2)):
        os.dup2(descriptor, number)
    sys.stdin, sys.stdout, sys.stderr = (os.fdopen(number, mode) for number, mode in ((0, "r"), (1, "w"), (2, "w")))
    from Xlib.display import Display

    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
        # It says on standard output that there is no authority file; that is not what the source says.
        vars(backend)["_display"] = Display(os.environ["DISPLAY"])
    vars(time)["sleep"] = _patient_sleep
    try:
        code = compile(source, "<action>", "exec")
        exec(code, {"__name__": "__main__"})
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except BaseException:  # noqa: BLE001 - whatever it raises is the agent's to see
        traceback.print_exc()
        return 1
    return 0


def _patient_sleep(seconds: float, _sleep: Callable[[float], None] = time.sleep) -> None:
    """Sleeps, and then until the desktop has come to rest: who sleeps in a script waits for what he set off.

    The short pause that pyautogui itself makes after each of its calls stays what it is.
    """
    _sleep(seconds)
    if seconds < _PATIENT_FROM_S:
        return
    watch = quiet.Watch(_PATIENCE_CPU_S)
    while not watch.over():
        _sleep(watch.pause_s)


def _run(request: dict[str, Any], backend: ModuleType) -> dict[str, Any]:
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        pid = os.fork()
        if pid == 0:
            status = 1
            with contextlib.suppress(BaseException):
                status = _child(request["source"], backend, out, err)
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(status & 0xFF)
        status, timed_out = _wait(pid, request["timeout_s"])
        answers = []
        for file in (out, err):
            file.seek(0)
            answers.append(file.read(_OUTPUT_BYTES).decode(errors="replace"))
    return {"exit_code": status, "output": answers[0], "error": answers[1], "timed_out": timed_out}


def _wait(pid: int, timeout_s: float) -> tuple[int, bool]:
    handle = os.pidfd_open(pid)
    try:
        poll = select.poll()
        poll.register(handle, select.POLLIN)
        timed_out = not poll.poll(timeout_s * 1000)
        if timed_out:
            os.killpg(pid, signal.SIGKILL)
    finally:
        os.close(handle)
    _, status = os.waitpid(pid, 0)
    code = os.waitstatus_to_exitcode(status)
    return (code if code >= 0 else 128 - code), timed_out


def serve(read: Callable[[], bytes], write: Callable[[bytes], object]) -> None:
    """Answers requests until the other side closes."""
    _, backend = _load()
    write(b"{}\n")
    while line := read():
        write(json.dumps(_run(json.loads(line), backend)).encode() + b"\n")


if __name__ == "__main__":
    channel = socket.socket(fileno=0)
    with channel.makefile("rb") as lines:
        serve(lines.readline, channel.sendall)
