# SPDX-License-Identifier: Apache-2.0
"""The agent loop against a local endpoint that answers by script: over HTTP, through the real client."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from aiohttp import web
from openai import OpenAI
from support.examples import load_example

from bunshin_gym.envs import BunshinEnv
from bunshin_gym.surfaces.actions import parse_actions
from bunshin_gym.surfaces.browser import BROWSER_TOOLS
from bunshin_gym.tasks.scripted import solve

agent = load_example("llm_agent", needs=("openai",))


class Endpoint:
    """Chat completions from a script: it reads the page out of the conversation, as a model would."""

    def __init__(self, task: str) -> None:
        self.task = task
        self.requests: list[dict[str, Any]] = []
        self.plan: list[str] = []
        self.spoil = False
        self._loop = asyncio.new_event_loop()
        started: threading.Event = threading.Event()
        self._thread = threading.Thread(target=self._serve, args=(started,))
        self._thread.start()
        assert started.wait(20)

    def _serve(self, started: threading.Event) -> None:
        async def begin() -> None:
            app = web.Application()
            app.router.add_post("/v1/chat/completions", self.answer)
            self._runner = web.AppRunner(app)
            await self._runner.setup()
            site = web.TCPSite(self._runner, "127.0.0.1", 0)
            await site.start()
            self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}/v1"
            started.set()

        self._loop.run_until_complete(begin())
        self._loop.run_forever()
        self._loop.run_until_complete(self._runner.cleanup())
        self._loop.close()

    async def answer(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.requests.append(body)
        if len(body["messages"]) == 2:
            goal, _, page = body["messages"][1]["content"].removeprefix("Task: ").partition("\nAddress: ")
            self.plan = solve(self.task, {"goal": goal, "axtree_txt": page})
        if self.spoil:
            self.spoil = False
            return self._reply(len(body["messages"]), "click", '{"bid": ')
        if not self.plan:
            return self._reply(0, "", "")
        (call,) = parse_actions(self.plan.pop(0), BROWSER_TOOLS)
        return self._reply(len(body["messages"]), call.name, json.dumps(dict(call.args)))

    def _reply(self, number: int, name: str, arguments: str) -> web.Response:
        message: dict[str, Any] = {"role": "assistant", "content": None if name else "I am done."}
        if name:
            function = {"name": name, "arguments": arguments}
            message["tool_calls"] = [{"id": f"call_{number}", "type": "function", "function": function}]
        choice = {"index": 0, "message": message, "finish_reason": "tool_calls" if name else "stop"}
        return web.json_response(
            {"id": "c", "object": "chat.completion", "created": 0, "model": "script", "choices": [choice]}
        )

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    endpoint = Endpoint("miniwob.login-user")
    yield endpoint
    endpoint.close()


def test_it_solves_a_task_by_tool_calls(endpoint: Endpoint) -> None:
    endpoint.spoil = True
    env = BunshinEnv(endpoint.task)
    with OpenAI(base_url=endpoint.url, api_key="none") as client:
        reward, messages = agent.run_episode(client, "script", env, seed=3, steps=10)
        assert reward == 1.0
        tools = {tool["function"]["name"] for tool in endpoint.requests[0]["tools"]}
        assert tools == set(BROWSER_TOOLS)
        told = [message["content"] for message in messages if message["role"] == "tool"]
        assert "no JSON" in told[0], "a broken call is told to the model, and the episode goes on"
        assert "value=" in told[1], "what was typed is in the page that the model sees next"
    env.close()
