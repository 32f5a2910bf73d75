# SPDX-License-Identifier: Apache-2.0
"""Recorded attempts at MiniWoB++ tasks, and at our own desktop and site tasks, as compressed JSON Lines.

    {"task", "seed", "attempt", "steps": [{"observation", "call": {"name", "args"}, "reward", "terminated", "run_ns"}]}

Recording anew, in real workspaces (needs root and the images):

    python bench/recordings.py attempts.jsonl.zst                     all MiniWoB++ tasks that there are scripts for
    python bench/recordings.py groups.jsonl.zst --seeds 1 --attempts 8 --task shop.buy-1 --task desktop.calc-total
"""

from __future__ import annotations

import io
import json
import random
import time
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Final

import typer
import zstandard
from scripted import POLICIES, attempt_calls
from scripted_desktops import desktop_calls
from scripted_sites import site_calls

from bunshin_gym.errors import UsageError
from bunshin_gym.speculate.state import Attempt, Step, view_of
from bunshin_gym.tasks import desktop
from bunshin_gym.tasks.scripted_desktop import ScriptError
from bunshin_gym.tasks.sites import SiteTask
from bunshin_gym.types import ToolCall

__all__ = ["DATA", "attempt_of", "call_of", "load"]

DATA: Final = Path(__file__).resolve().parent / "data"
_KEPT: Final = (
    *("axtree_txt", "goal", "url", "focused_element_bid", "last_action_error"),
    *("accessibility_tree", "instruction", "terminal"),
)
_WINDOW_LOG: Final = 27  # texts that repeat are far apart: a tree of a desktop has some 100 KiB

Record = dict[str, Any]


def load(path: Path) -> list[Record]:
    """Every attempt that made a call."""
    with (
        path.open("rb") as file,
        zstandard.ZstdDecompressor(max_window_size=1 << _WINDOW_LOG).stream_reader(file) as stream,
    ):
        lines = io.TextIOWrapper(stream, encoding="utf-8")
        records = [json.loads(line) for line in lines]
    return [record for record in records if record["steps"]]


def call_of(step: Record) -> ToolCall:
    """A recorded step's call."""
    return ToolCall(name=step["call"]["name"], args=step["call"]["args"])


def attempt_of(record: Record) -> Attempt:
    """A recorded attempt as predictors learn from it."""
    steps = tuple(
        Step(view=view_of(step["observation"]), call=call_of(step), run_ns=step["run_ns"]) for step in record["steps"]
    )
    return Attempt(task=record["task"], steps=steps, reward=sum(step["reward"] for step in record["steps"]))


def _agent(env: Any, observation: Any, seed: int, number: int) -> Generator[ToolCall, Any, None]:
    """Who makes the calls."""
    family, _, name = env.task.id.partition(".")
    rng = random.Random(f"{name if family == 'miniwob' else env.task.id} {seed} {number}")
    if family == "desktop":
        return desktop_calls(desktop.solution(name), observation, rng)
    if isinstance(env.task, SiteTask):
        return site_calls(env.task.solution(), observation, rng)
    return attempt_calls(name, observation, rng)


def _play(env: Any, seed: int, number: int) -> list[Record]:
    """One attempt in a real workspace."""
    observation, _ = env.reset(options={"task_seed": seed})
    agent = _agent(env, observation, seed, number)
    steps: list[Record] = []
    try:
        call = next(agent)
        while True:
            start_ns = time.monotonic_ns()
            after, reward, terminated, truncated, _ = env.step(call)
            steps.append(
                {
                    "observation": {key: observation[key] for key in _KEPT if key in observation},
                    "call": {"name": call.name, "args": dict(call.args)},
                    "reward": reward,
                    "terminated": terminated,
                    "run_ns": time.monotonic_ns() - start_ns,
                }
            )
            observation = after
            if terminated or truncated:
                break
            call = agent.send(observation)
    except (StopIteration, UsageError, ScriptError):
        pass  # the agent gave up
    return steps


def record(tasks: Sequence[str], seeds: Sequence[int], attempts: int) -> Iterator[Record]:
    """Plays scripted attempts."""
    from bunshin_gym.envs import BunshinEnv

    for seed in seeds:
        for task in tasks:
            env = BunshinEnv(task)
            try:
                for number in range(attempts):
                    yield {"task": task, "seed": seed, "attempt": number, "steps": _play(env, seed, number)}
            finally:
                env.close()


def main(
    out: Path,
    seeds: Annotated[int, typer.Option(help="Seeds of each task, from --first.")] = 8,
    first: Annotated[int, typer.Option(help="The first seed.")] = 0,
    attempts: Annotated[int, typer.Option(help="Attempts at each seed.")] = 4,
    task: Annotated[
        list[str] | None, typer.Option(help="Ids; all of MiniWoB++ that there are scripts for if none.")
    ] = None,
) -> None:
    """Records attempts by scripted agents."""
    tasks = task or [f"miniwob.{name}" for name in POLICIES]
    parameters = zstandard.ZstdCompressionParameters.from_level(12, window_log=_WINDOW_LOG, enable_ldm=True)
    with (
        out.open("wb") as file,
        zstandard.ZstdCompressor(compression_params=parameters).stream_writer(file) as stream,
    ):
        for entry in record(tasks, range(first, first + seeds), attempts):
            stream.write(json.dumps(entry, separators=(",", ":")).encode() + b"\n")


if __name__ == "__main__":
    typer.run(main)
