# SPDX-License-Identifier: Apache-2.0
"""What an env knows of its episode beside the workspace, as one file without pickle; written whole or not at all.

    magic, SHA-256 of the rest, msgpack [skeleton, contents by name]; see `cache/store/codec.py` for the skeleton

The file holds how the env was made, the episode, the last screen, and the state of its random numbers.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgpack
import numpy as np
from numpy.random import Generator

from bunshin_gym.cache.store import codec
from bunshin_gym.cache.store.blobs import digest_of
from bunshin_gym.episode import Run
from bunshin_gym.errors import SnapshotDamaged
from bunshin_gym.tasks import Message, Setup

if TYPE_CHECKING:
    from bunshin_gym.envs import BunshinEnv

__all__ = ["read_state", "restore", "stored_state", "write_state"]

_MAGIC: Final = b"bunshin env 1\n"


def stored_state(env: BunshinEnv) -> dict[str, Any]:
    """All of an env in an episode that is not in its workspace."""
    run = env._run
    assert run is not None
    return {
        "task": env.task.id,
        "made": {
            "image": env._base_key.image,
            "screen": [env.screen.width, env.screen.height],
            "engine": env._base_key.engine,
            "memory_max_bytes": env._base_key.memory_max_bytes,
            "measure_memory": env._measure_memory,
            "elapsed_time": env._elapsed_time,
            "tree": env._tree,
        },
        "setup": {"goal": run.setup.goal, "state": dict(run.setup.state), "info": dict(run.setup.info)},
        "elapsed_ns": time.monotonic_ns() - run.started_ns,
        "messages": [[message.role, message.text] for message in run.messages],
        "counts": [run.steps, run.forks],
        "last": [run.last_action, run.last_error],
        "done": run.done,
        "pixels": env._pixels,
        "random": _random(env.np_random),
        "random_seed": env._np_random_seed,
        "action_random": _random(env.action_space.np_random),
    }


def restore(env: BunshinEnv, state: Mapping[str, Any]) -> None:
    """Puts a fresh env, which has no workspace, where the one stood that the state was taken of."""
    (steps, forks), (action, error) = state["counts"], state["last"]
    setup = state["setup"]
    env._run = Run(
        setup=Setup(goal=setup["goal"], state=setup["state"], info=setup["info"]),
        started_ns=time.monotonic_ns() - int(state["elapsed_ns"]),
        messages=tuple(Message(role=role, text=text) for role, text in state["messages"]),
        last_action=action,
        last_error=error,
        steps=int(steps),
        forks=int(forks),
        done=bool(state["done"]),
    )
    env._pixels = state["pixels"]
    env._np_random = _generator(state["random"])
    env._np_random_seed = state["random_seed"]
    env.action_space._np_random = _generator(state["action_random"])


def write_state(path: Path, state: Mapping[str, Any]) -> None:
    """Writes the file, and that to the disk.

    Raises:
        UsageError: a task's state holds what cannot be stored; the message says where.
    """
    contents: dict[bytes, bytes] = {}

    def put(content: bytes | memoryview) -> bytes:
        name = digest_of(content)
        contents[name] = bytes(content)
        return name

    skeleton = codec.encode(dict(state), put)
    body = msgpack.packb([skeleton, contents])
    with path.open("xb") as file:
        file.write(_MAGIC + hashlib.sha256(body).digest() + body)
        file.flush()
        os.fsync(file.fileno())


def read_state(path: Path) -> dict[str, Any]:
    """What `write_state` wrote.

    Raises:
        SnapshotDamaged: it is not there, or not what was written.
    """
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        raise SnapshotDamaged(f"{path} is missing") from None
    head, body = raw[: len(_MAGIC) + 32], raw[len(_MAGIC) + 32 :]
    if head != _MAGIC + hashlib.sha256(body).digest():
        raise SnapshotDamaged(f"{path} is damaged: it is not what was written, or of another version")
    skeleton, contents = msgpack.unpackb(body, strict_map_key=False, raw=False)
    state: dict[str, Any] = codec.decode(skeleton, contents.__getitem__)
    return state


def _random(generator: Generator) -> dict[str, Any]:
    return dict(generator.bit_generator.state)


def _generator(state: Mapping[str, Any]) -> Generator:
    kind: Any = getattr(np.random, str(state["bit_generator"]))
    bits = kind()
    bits.state = state
    return Generator(bits)
