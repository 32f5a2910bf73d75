# SPDX-License-Identifier: Apache-2.0
"""Calls the tool server of a workspace from the host.

The socket is reached through the workspace's root directory, one path component after the other and
never through a symbolic link: what runs inside must not be able to point us at a socket of the host.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final, Self

import msgpack
import numpy as np
import zstandard
from numpy.typing import NDArray
from tenacity import Retrying, retry_if_exception_type, stop_after_delay, wait_fixed

from bunshin_gym.errors import ToolError, ToolTimeoutError, ToolUnavailableError

__all__ = ["TOOL_SOCKET", "ToolClient", "decode_screenshot"]

TOOL_SOCKET: Final = "/run/bunshin/tool.sock"
"""Where the tool server listens inside the workspace, unless its image says otherwise."""

_POLL_S: Final = 0.01
_CONNECT_S: Final = 10.0


class ToolClient:
    """A workspace's tools; any number of threads may call at once.

    Holds no connection between two calls, and can be used on after the workspace was forked.
    """

    def __init__(self, root: str | os.PathLike[str] | int, *, socket: str = TOOL_SOCKET, timeout_s: float = 60.0):
        """Does not connect yet.

        Args:
            root: root directory of the workspace as the host sees it (/proc/PID/root), or a
                descriptor of it, which is duplicated.
            socket: absolute path of the socket inside.
            timeout_s: how long a call may take unless it says otherwise.
        """
        flags = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
        self._root = os.dup(root) if isinstance(root, int) else os.open(root, flags)
        self._path = socket
        self._timeout_s = timeout_s
        self._lock = threading.Lock()
        self._closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if hasattr(self, "_closed"):
            self.close()

    @property
    def socket(self) -> str:
        """Path of the tool server's socket inside the workspace."""
        return self._path

    def close(self) -> None:
        """Lets the workspace's root go; idempotent."""
        with self._lock:
            if not self._closed:
                self._closed = True
                os.close(self._root)

    def wait_ready(self, timeout_s: float = 120.0) -> None:
        """Returns when the server says that all it serves is up.

        Raises:
            ToolUnavailableError: it did not answer in time.
            ToolError: something it serves did not come up; the message says what.
        """
        retrying = Retrying(
            retry=retry_if_exception_type(ToolUnavailableError),
            stop=stop_after_delay(timeout_s),
            wait=wait_fixed(_POLL_S),
            reraise=True,
        )
        deadline = time.monotonic() + timeout_s
        for attempt in retrying:
            with attempt:
                left = max(deadline - time.monotonic(), _POLL_S)
                self.call("ready", timeout_s=left)

    def call(self, name: str, args: Mapping[str, Any] | None = None, *, timeout_s: float | None = None) -> Any:
        """Calls a tool.

        Returns:
            What it returned: None, numbers, text, bytes, lists and dictionaries of these.

        Raises:
            ToolUnavailableError: nothing answers.
            ToolTimeoutError: no answer in time.
            ToolError: the server refused the call, or a function (not an action) failed.
        """
        call = msgpack.packb({"name": name, "args": dict(args or {})})
        return self._exchange(name, call, timeout_s or self._timeout_s)

    def step(self, name: str, args: Mapping[str, Any], **wanted: Any) -> dict[str, Any]:
        """An action, the page's reaction and an observation in one call; see `observe`."""
        return _with_pixels(self.call("step", {"name": name, "args": dict(args), **wanted}))

    def observe(
        self, *, screenshot: bool = True, tree: bool = True, dom: bool = False, **wanted: Any
    ) -> dict[str, Any]:
        """What the agent sees now; in a browser `script` may be wanted too, which is evaluated in the page.

        Returns:
            Keys: screenshot ((height, width, 3) uint8 RGB, or None), axtree_txt, axtree_cut, dom, url, title,
            open_pages_urls, open_pages_titles, active_page_index, focused_element_bid,
            last_action_error, notices, messages, page_error, elapsed_s, timings_ms; answer: what came of the script, a
            dictionary with `value` or `error`, or None.
        """
        return _with_pixels(self.call("observe", {"screenshot": screenshot, "tree": tree, "dom": dom, **wanted}))

    def evaluate(self, js: str, arg: Any = None, *, timeout_s: float | None = None) -> Any:
        """Runs JavaScript in the active page; a function is called with `arg`."""
        return self.call("evaluate", {"js": js, "arg": arg}, timeout_s=timeout_s)

    def shell(self, argv: Sequence[str], *, timeout_s: float = 30.0) -> dict[str, Any]:
        """Runs a command inside: exit_code, stdout, stderr, timed_out."""
        args = {"argv": list(argv), "timeout_s": timeout_s}
        result: dict[str, Any] = self.call("shell", args, timeout_s=timeout_s + self._timeout_s)
        return result

    def read_file(self, path: str) -> bytes:
        """The content of a file inside."""
        return bytes(self.call("read_file", {"path": path}))

    def write_file(self, path: str, data: bytes | str) -> int:
        """Writes a file inside as a whole; returns its length."""
        return int(self.call("write_file", {"path": path, "data": data}))

    def _exchange(self, name: str, call: bytes, timeout_s: float) -> Any:
        descriptor = self._open_socket()
        try:
            with socket.socket(socket.AF_UNIX) as sock:
                sock.settimeout(min(timeout_s, _CONNECT_S))
                try:
                    sock.connect(f"/proc/self/fd/{descriptor}")
                except OSError as error:
                    what = f"{name}: the tool server does not answer at {self._path}: {error}"
                    raise ToolUnavailableError(what) from error
                sock.settimeout(timeout_s)
                answer = _ask(sock, call)
        except TimeoutError as error:
            raise ToolTimeoutError(f"{name}: no answer in {timeout_s:g} s") from error
        except (OSError, ValueError, msgpack.UnpackException) as error:
            raise ToolError(f"{name}: the tool server broke off: {error!r}") from error
        finally:
            os.close(descriptor)
        if not answer["ok"]:
            raise ToolError(answer["error"])
        return answer["value"]

    def _open_socket(self) -> int:
        """A path descriptor of the socket itself."""
        with self._lock:
            if self._closed:
                raise ToolError("this client was closed")
            here = os.dup(self._root)
        flags = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
        for part in self._path.strip("/").split("/"):
            try:
                there = os.open(part, flags, dir_fd=here)
            except OSError as error:
                raise ToolUnavailableError(f"no tool server at {self._path} in the workspace: {error}") from error
            finally:
                os.close(here)
            here = there
        return here


def _ask(sock: socket.socket, call: bytes) -> dict[str, Any]:
    """The answer, once the server has closed its side: a fork right after must not meet our connection."""
    sock.sendall(call)
    sock.shutdown(socket.SHUT_WR)
    with sock.makefile("rb") as stream:
        answer: dict[str, Any] = msgpack.unpackb(stream.read())
    if not isinstance(answer, dict) or "ok" not in answer:
        raise ValueError(f"{answer!r:.80} is no answer")
    return answer


def decode_screenshot(shot: Mapping[str, Any]) -> NDArray[np.uint8]:
    """Pixels of a screenshot as (height, width, 3) uint8, red first; a fresh array.

    Raises:
        ToolError: there are more or fewer bytes than width and height say.
    """
    width, height = shot["width"], shot["height"]
    try:
        data = zstandard.ZstdDecompressor().decompress(shot["bgrx_zstd"], max_output_size=width * height * 4)
    except zstandard.ZstdError as error:
        raise ToolError(f"the screenshot cannot be read: {error}") from error
    if len(data) != width * height * 4:
        raise ToolError(f"screenshot of {width}x{height} has {len(data)} bytes")
    pixels = np.frombuffer(data, dtype=np.uint8).reshape(height, width, 4)
    # Plane by plane: four times as fast as one reversed slice.
    result = np.empty((height, width, 3), dtype=np.uint8)
    for red_first, blue_first in enumerate((2, 1, 0)):
        result[..., red_first] = pixels[..., blue_first]
    return result


def _with_pixels(seen: dict[str, Any]) -> dict[str, Any]:
    if seen["screenshot"] is not None:
        seen["screenshot"] = decode_screenshot(seen["screenshot"])
    return seen
