# SPDX-License-Identifier: Apache-2.0
"""An agent on any endpoint that speaks OpenAI's chat completions with tool calls.

    export OPENAI_API_KEY=... OPENAI_BASE_URL=http://localhost:8000/v1
    .venv/bin/python examples/llm_agent.py miniwob.login-user --model NAME --seed 3

Needs the extra `agent`, and root for the workspace.
"""

from __future__ import annotations

from typing import Annotated, Any

import typer
from openai import OpenAI

from bunshin_gym.envs import BunshinEnv
from bunshin_gym.surfaces import ActionError
from bunshin_gym.surfaces.schema import read_tool_call, tool_definitions

SYSTEM = (
    "You use a web page through tools. Elements are named by the ids in brackets of the page's tree. "
    "Call one tool at a time and look at what came of it."
)


def shown(observation: dict[str, Any]) -> str:
    """What the model is shown of an observation."""
    error = observation["last_action_error"]
    failed = f"The last action failed: {error}\n" if error else ""
    return f"{failed}Address: {observation['url']}\nPage:\n{observation['axtree_txt']}"


def act(env: BunshinEnv, call: Any) -> tuple[str, float, bool]:
    """Runs one of the model's calls: what to tell it, the reward, and whether the episode is over."""
    try:
        action = read_tool_call(call.function.name, call.function.arguments)
    except ActionError as error:
        return str(error), 0.0, False
    observation, reward, terminated, truncated, _ = env.step(action)
    return shown(observation), reward, terminated or truncated


def run_episode(client: OpenAI, model: str, env: BunshinEnv, *, seed: int, steps: int) -> tuple[float, list[Any]]:
    """One episode: its reward, and the conversation."""
    observation, _ = env.reset(seed=seed)
    messages: list[Any] = [
        {"role": "system", "content": SYSTEM},
        {"role": "user", "content": f"Task: {observation['goal']}\n{shown(observation)}"},
    ]
    tools: Any = tool_definitions(env.surface.tools.values())
    for _ in range(steps):
        message = client.chat.completions.create(model=model, messages=messages, tools=tools).choices[0].message
        messages.append(message.model_dump(exclude_none=True))
        if not message.tool_calls:
            break
        for call in message.tool_calls:
            answer, reward, over = act(env, call)
            messages.append({"role": "tool", "tool_call_id": call.id, "content": answer})
            if over:
                return reward, messages
    return 0.0, messages


def main(
    task: Annotated[str, typer.Argument(help="Such as miniwob.login-user.")] = "miniwob.click-test",
    model: Annotated[str, typer.Option(help="As the endpoint names it.")] = "gpt-4o-mini",
    seed: Annotated[int, typer.Option(help="Of the task.")] = 0,
    steps: Annotated[int, typer.Option(min=1, help="The most answers to ask for.")] = 20,
) -> None:
    """Runs one episode and prints the conversation."""
    env = BunshinEnv(task)
    try:
        reward, messages = run_episode(OpenAI(), model, env, seed=seed, steps=steps)
    finally:
        env.close()
    for message in messages:
        typer.echo(f"{message['role']}: {message.get('content') or message.get('tool_calls')}")
    typer.echo(f"reward {reward}")


if __name__ == "__main__":
    typer.run(main)
