# SPDX-License-Identifier: Apache-2.0
"""What `sudo` talks to: programs of a workspace cannot gain privileges by themselves, so root is asked to run them.

The client (/usr/local/bin/sudo in the image) sends one message on a Unix socket: the command, the password, and its
three standard descriptors. The kernel says who it is. The answer is the exit code.
"""

from __future__ import annotations

import asyncio
import crypt
import hmac
import json
import os
import pwd
import socket
import struct
import warnings
from pathlib import Path
from typing import Any

__all__ = ["SudoBroker"]

_SOCKET = "/run/bunshin/sudo.sock"
_LARGEST_BYTES = 1 << 20
_CREDENTIALS = struct.Struct("3i")


class SudoBroker:
    """Listens for as long as the server lives."""

    def __init__(self, user: str) -> None:
        self._account = pwd.getpwnam(user)
        self._tasks: set[asyncio.Task[None]] = set()
        self._socket: socket.socket | None = None

    async def start(self) -> None:
        """Listens."""
        path = Path(_SOCKET)
        path.unlink(missing_ok=True)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.bind(_SOCKET)
        os.chmod(_SOCKET, 0o666)
        self._socket.listen(16)
        self._socket.setblocking(False)
        asyncio.get_running_loop().add_reader(self._socket, self._accept)

    def _accept(self) -> None:
        assert self._socket is not None
        try:
            client, _ = self._socket.accept()
        except BlockingIOError:
            return
        task = asyncio.create_task(self._serve(client))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, client: socket.socket) -> None:
        with client:
            client.setblocking(False)
            loop = asyncio.get_running_loop()
            readable = asyncio.Event()
            loop.add_reader(client, readable.set)
            await readable.wait()
            loop.remove_reader(client)
            data, descriptors, _, _ = socket.recv_fds(client, _LARGEST_BYTES, 3)
            try:
                answer = await self._run(client, data, descriptors)
            finally:
                for descriptor in descriptors:
                    os.close(descriptor)
            client.send(json.dumps(answer).encode())

    async def _run(self, client: socket.socket, data: bytes, descriptors: list[int]) -> dict[str, Any]:
        credentials = client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        _, uid, _ = _CREDENTIALS.unpack(credentials)
        if uid not in (0, self._account.pw_uid):
            return {"error": f"uid {uid} may not use sudo"}
        request = json.loads(data)
        if uid != 0 and not _password_fits(self._account.pw_name, request["password"]):
            return {"error": "Sorry, try again.", "again": True}
        try:
            target = pwd.getpwnam(request["user"])
        except KeyError:
            return {"error": f"unknown user {request['user']}", "exit_code": 1}
        try:
            process = await asyncio.create_subprocess_exec(
                *request["argv"],
                stdin=descriptors[0],
                stdout=descriptors[1],
                stderr=descriptors[2],
                cwd=request["cwd"],
                env={**request["env"], "HOME": target.pw_dir, "USER": target.pw_name, "LOGNAME": target.pw_name},
                user=target.pw_uid,
                group=target.pw_gid,
                extra_groups=[],
                start_new_session=True,
            )
        except OSError as error:
            return {"error": f"{request['argv'][0]}: {error.strerror}", "exit_code": 1}
        code = await process.wait()
        return {"exit_code": code if code >= 0 else 128 - code}


def _password_fits(name: str, password: str) -> bool:
    with open("/etc/shadow") as file:
        hashes = {line.split(":")[0]: line.split(":")[1] for line in file}
    stored = hashes.get(name, "")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return bool(stored) and hmac.compare_digest(crypt.crypt(password, stored) or "", stored)
