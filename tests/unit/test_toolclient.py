# SPDX-License-Identifier: Apache-2.0
"""The client of a tool server, over real sockets: what it says when the server fails, and that it leaves nothing."""

from __future__ import annotations

import gc
import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import msgpack
import pytest

from bunshin_gym.errors import ToolError, ToolTimeoutError, ToolUnavailableError
from bunshin_gym.toolclient import ToolClient


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Iterator[None]:
    """Descriptors are counted; a socket left to the garbage collector is an error of its own."""
    before = len(os.listdir("/proc/self/fd"))
    yield
    assert len(os.listdir("/proc/self/fd")) == before
    gc.collect()


@pytest.fixture
def listener(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(tmp_path / "tool.sock"))
        sock.listen()
        yield sock


@pytest.fixture
def client(tmp_path: Path) -> Iterator[ToolClient]:
    with ToolClient(tmp_path, socket="/tool.sock", timeout_s=20.0) as one:
        yield one


def answer_once(listener: socket.socket, answer: bytes) -> threading.Thread:
    """Reads one call and gives that answer, then closes the connection."""

    def serve() -> None:
        with listener.accept()[0] as connection, connection.makefile("rb") as stream:
            stream.read()
            connection.sendall(answer)

    thread = threading.Thread(target=serve)
    thread.start()
    return thread


def test_an_answer_is_read_to_the_end(listener: socket.socket, client: ToolClient) -> None:
    serving = answer_once(listener, msgpack.packb({"ok": True, "value": [1, b"x" * 300_000]}))
    assert client.call("get", {"a": 1}) == [1, b"x" * 300_000]
    serving.join()


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (msgpack.packb({"ok": False, "error": "no such page"}), "no such page"),
        (b"", "broke off.*incomplete"),
        (msgpack.packb({"ok": True, "value": b"x" * 400})[:-1], "broke off.*incomplete"),
        (msgpack.packb(["ok"]), "broke off.*is no answer"),
        (b"SSH-2.0-OpenSSH\r\n", "broke off.*ExtraData"),
    ],
    ids=["refusal", "hang-up", "half", "list", "other"],
)
def test_a_wrong_answer_is_told(listener: socket.socket, client: ToolClient, answer: bytes, told: str) -> None:
    serving = answer_once(listener, answer)
    with pytest.raises(ToolError, match=told):
        client.call("get")
    serving.join()


def test_no_answer_in_time(listener: socket.socket, client: ToolClient) -> None:
    with pytest.raises(ToolTimeoutError, match=r"get: no answer in 0\.1 s"):
        client.call("get", timeout_s=0.1)


def test_nobody_listens(tmp_path: Path, client: ToolClient) -> None:
    with pytest.raises(ToolUnavailableError, match=r"no tool server at /tool\.sock"):
        client.call("get")
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(tmp_path / "tool.sock"))
    with pytest.raises(ToolUnavailableError, match="refused"):
        client.call("get")
    with pytest.raises(ToolUnavailableError):
        client.wait_ready(timeout_s=0.1)


def test_it_waits_until_the_server_listens(tmp_path: Path, client: ToolClient) -> None:
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(tmp_path / "tool.sock"))
        refused = threading.Event()

        def listen_once_refused() -> None:
            refused.wait()
            sock.listen()
            answer_once(sock, msgpack.packb({"ok": True, "value": None})).join()

        serving = threading.Thread(target=listen_once_refused)
        serving.start()
        with pytest.raises(ToolUnavailableError):
            client.call("get")
        refused.set()
        client.wait_ready(timeout_s=20.0)
        serving.join()


def test_a_link_to_a_socket_of_the_host_is_not_followed(tmp_path: Path, listener: socket.socket) -> None:
    inside = tmp_path / "root"
    inside.mkdir()
    (inside / "tool.sock").symlink_to(tmp_path / "tool.sock")
    with ToolClient(inside, socket="/tool.sock") as client, pytest.raises(ToolUnavailableError):
        client.call("get")


def test_a_closed_client_says_so(client: ToolClient) -> None:
    client.close()
    with pytest.raises(ToolError, match="closed"):
        client.call("get")
