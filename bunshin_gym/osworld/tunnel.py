# SPDX-License-Identifier: Apache-2.0
"""Ports of the host's loopback that lead to ports of a workspace's loopback, for as long as they are wanted."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import socket
import threading
from typing import Final

__all__ = ["connect_inside", "forward"]

_NEW_NET: Final = 0x40000000
_CHUNK: Final = 1 << 16
_libc: Final = ctypes.CDLL(None, use_errno=True)


def connect_inside(pid: int, port: int) -> socket.socket:
    """A connection to a port of the loopback in a process's network namespace.

    Raises:
        OSError: nothing listens there.
    """
    result: list[socket.socket | BaseException] = []

    def work() -> None:
        # A thread of its own: it enters the namespace and never comes back.
        try:
            namespace = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
            try:
                if _libc.setns(namespace, _NEW_NET) != 0:
                    raise OSError(ctypes.get_errno(), f"cannot enter the network namespace of process {pid}")
            finally:
                os.close(namespace)
            result.append(socket.create_connection(("127.0.0.1", port), timeout=10))
        except BaseException as error:  # noqa: BLE001 - handed to the caller
            result.append(error)

    thread = threading.Thread(target=work, name="bunshin-tunnel")
    thread.start()
    thread.join()
    made = result[0]
    if isinstance(made, BaseException):
        raise made
    made.setblocking(False)
    return made


async def forward(pid: int, port: int) -> asyncio.Server:
    """Listens on a free port of the host's loopback and passes connections on to `port` inside."""
    tasks: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        task.add_done_callback(tasks.discard)
        with contextlib.closing(writer):
            try:
                inside = await asyncio.to_thread(connect_inside, pid, port)
            except OSError:
                return  # what a closed port looks like: the connection ends
            far_reader, far_writer = await asyncio.open_connection(sock=inside)
            with contextlib.closing(far_writer):
                await asyncio.gather(_pump(reader, far_writer), _pump(far_reader, writer))

    return await asyncio.start_server(serve, "127.0.0.1", 0)


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Copies until the end of one side, and ends the other then."""
    with contextlib.suppress(OSError):
        while data := await reader.read(_CHUNK):
            writer.write(data)
            await writer.drain()
        if writer.can_write_eof():
            writer.write_eof()
