# SPDX-License-Identifier: Apache-2.0
"""Runs inside a workspace: a new client of X display 0 that speaks the protocol itself, to choose the socket.

x_client.py path|abstract NAME [VALUE]    sets a property of the root window if told to, and prints it
"""

from __future__ import annotations

import socket
import struct
import sys

ADDRESSES = {"path": "/tmp/.X11-unix/X0", "abstract": "\0/tmp/.X11-unix/X0"}
INTERN_ATOM, CHANGE_PROPERTY, GET_PROPERTY = 16, 18, 20
STRING = 31


class Client:
    def __init__(self, address: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(address)
        self._socket.sendall(struct.pack("<BxHHHHxx", ord("l"), 11, 0, 0, 0))
        accepted, _, _, units = struct.unpack("<BxHHH", self._read(8))
        setup = self._read(units * 4)
        if accepted != 1:
            raise ConnectionError(f"the X server refuses: {setup!r}")
        vendor_bytes, formats = struct.unpack_from("<H2xxB", setup, 16)[0], setup[21]
        (self.root,) = struct.unpack_from("<I", setup, 32 + (vendor_bytes + 3) // 4 * 4 + formats * 8)

    def _read(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            part = self._socket.recv(count - len(data))
            if not part:
                raise ConnectionError("the X server hung up")
            data += part
        return data

    def _request(self, opcode: int, detail: int, body: bytes) -> None:
        body += bytes(-len(body) % 4)
        self._socket.sendall(struct.pack("<BBH", opcode, detail, len(body) // 4 + 1) + body)

    def _reply(self) -> tuple[bytes, bytes]:
        head = self._read(32)
        if head[0] != 1:
            raise ConnectionError(f"the X server says error {head[1]}")
        return head, self._read(struct.unpack_from("<I", head, 4)[0] * 4)

    def atom(self, name: str) -> int:
        self._request(INTERN_ATOM, 0, struct.pack("<Hxx", len(name)) + name.encode())
        return int(struct.unpack_from("<I", self._reply()[0], 8)[0])

    def set(self, atom: int, value: str) -> None:
        data = value.encode()
        self._request(CHANGE_PROPERTY, 0, struct.pack("<IIIBxxxI", self.root, atom, STRING, 8, len(data)) + data)

    def get(self, atom: int) -> str:
        self._request(GET_PROPERTY, 0, struct.pack("<IIIII", self.root, atom, STRING, 0, 1024))
        head, data = self._reply()
        return data[: struct.unpack_from("<I", head, 16)[0]].decode()


def main() -> None:
    kind, name, *value = sys.argv[1:]
    client = Client(ADDRESSES[kind])
    atom = client.atom(name)
    if value:
        client.set(atom, value[0])
    print(client.get(atom))


if __name__ == "__main__":
    main()
