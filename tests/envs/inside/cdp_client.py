# SPDX-License-Identifier: Apache-2.0
"""Runs inside a workspace: keeps one DevTools WebSocket open and lets others send through it.

cdp_client.py serve PROFILE    connects to the Chromium of that profile; serves until killed
cdp_client.py ask METHOD JSON  sends one command through the server's connection, prints its result
cdp_client.py events           prints how many events the connection has brought, and the last one's text
"""

from __future__ import annotations

import asyncio
import itertools
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import aiohttp

ASK = "/run/cdp-client.sock"
READY = "/run/cdp-client.ready"


class Connection:
    """Answers are matched with commands by their numbers, which go on after a fork."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self.session = ""
        self.events: list[str] = []

    async def send(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        self._waiting[number] = asyncio.get_running_loop().create_future()
        await self._socket.send_json(message)
        answer = await self._waiting[number]
        return {"number": number, **answer}

    async def listen(self) -> None:
        async for message in self._socket:
            said = json.loads(message.data)
            if "id" in said:
                self._waiting.pop(said["id"]).set_result(said.get("result", said))
            elif said["method"] == "Runtime.consoleAPICalled":
                self.events.append(" ".join(str(argument["value"]) for argument in said["params"]["args"]))
        raise ConnectionError("the browser closed the connection")


async def serve(profile: str) -> None:
    import aiohttp  # here alone: those who ask are quicker without it

    port, path = Path(profile, "DevToolsActivePort").read_text().split()
    async with (
        aiohttp.ClientSession() as http,
        http.ws_connect(f"ws://127.0.0.1:{port}{path}") as socket,
        asyncio.TaskGroup() as group,
    ):
        connection = Connection(socket)
        group.create_task(connection.listen())
        targets = (await connection.send("Target.getTargets", {}))["targetInfos"]
        page = next(target["targetId"] for target in targets if target["type"] == "page")
        attached = await connection.send("Target.attachToTarget", {"targetId": page, "flatten": True})
        connection.session = attached["sessionId"]
        await connection.send("Runtime.enable", {})

        async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            asked = json.loads(await reader.readline())
            if asked is None:
                answer: Any = {"count": len(connection.events), "last": (connection.events or [""])[-1]}
            else:
                answer = await connection.send(*asked)
            writer.write(json.dumps(answer).encode())
            await writer.drain()
            writer.close()

        await asyncio.start_unix_server(handle, ASK)
        Path(READY).touch()


async def ask(question: Any) -> str:
    reader, writer = await asyncio.open_unix_connection(ASK)
    writer.write(json.dumps(question).encode() + b"\n")
    answer = (await reader.read()).decode()
    writer.close()
    return answer


def main() -> None:
    match sys.argv[1:]:
        case ["serve", profile]:
            asyncio.run(serve(profile))
        case ["ask", method, params]:
            print(asyncio.run(ask([method, json.loads(params)])))
        case ["events"]:
            print(asyncio.run(ask(None)))
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    main()
