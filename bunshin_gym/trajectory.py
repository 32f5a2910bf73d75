# SPDX-License-Identifier: Apache-2.0
"""Recorded episodes: JSON Lines with the pictures beside them, to be read, replayed and compared.

    NAME.jsonl      {"kind": "start", ...}, one {"kind": "step", ...} for each step, {"kind": "end", ...}
    images/HASH.png screens, each stored once

Arrays of bytes of shape (H, W, 3) are `{"$image": "images/HASH.png"}`, other arrays
`{"$array": [dtype, shape, base64]}`, bytes `{"$bytes": base64}`, tool calls `{"$call": [name, arguments]}`;
what cannot be stored is `{"$repr": text}`, and is not compared.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TextIO

import gymnasium
import numpy as np
from PIL import Image

from bunshin_gym.cache.stamps import pixels_agree
from bunshin_gym.errors import UsageError
from bunshin_gym.types import ToolCall

if TYPE_CHECKING:
    from bunshin_gym.cache.tree import SnapshotTree

__all__ = [
    "Difference",
    "RecordedStep",
    "Trajectory",
    "TrajectoryWriter",
    "export_tree",
    "read_trajectories",
    "read_trajectory",
    "replay",
]

_VERSION: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedStep:
    """One step.

    Attributes:
        action: what the agent did: text, a `ToolCall`, or another JSON value.
        think_ns: from the observation before to this action.
        wall_ns: how long the step took.
    """

    action: Any
    observation: Any
    reward: float
    terminated: bool
    truncated: bool
    info: Mapping[str, Any]
    think_ns: int
    wall_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Trajectory:
    """One episode.

    Attributes:
        env: the env's id, or its class's name.
        seed: what reset was given; `options` likewise.
        ended: whether the episode was closed or reset, and not cut off by a crash.
        notes: what the recorder was told about the attempt: group, number, policy.
    """

    env: str
    seed: int | None
    options: Mapping[str, Any] | None
    observation: Any
    info: Mapping[str, Any]
    wall_ns: int
    steps: tuple[RecordedStep, ...]
    ended: bool
    notes: Mapping[str, Any] = field(default_factory=dict)

    @property
    def total_reward(self) -> float:
        """Sum over all steps."""
        return sum(step.reward for step in self.steps)


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """Where a replay left the record.

    Attributes:
        step: number from 1; 0 is the reset.
        what: `observation.KEY`, `reward`, `terminated` or `truncated`.
    """

    step: int
    what: str
    recorded: Any = field(repr=False)
    replayed: Any = field(repr=False)


class TrajectoryWriter:
    """Writes one episode, line by line: what was written is there after a crash."""

    def __init__(self, directory: Path, name: str | None = None) -> None:
        """Raises UsageError if there is a trajectory of that name."""
        self.directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        self.path = directory / f"{name if name is not None else secrets.token_hex(8)}.jsonl"
        try:
            self._file: TextIO = self.path.open("x", encoding="utf-8")
        except FileExistsError as error:
            raise UsageError(f"{self.path} is there already") from error

    def start(
        self,
        *,
        env: str,
        seed: int | None,
        options: Mapping[str, Any] | None,
        observation: Any,
        info: Mapping[str, Any],
        wall_ns: int,
        notes: Mapping[str, Any],
    ) -> None:
        """The reset."""
        head = {"kind": "start", "version": _VERSION, "env": env, "seed": seed, "options": options, "notes": notes}
        self._line({**head, "observation": observation, "info": info, "wall_ns": wall_ns})

    def step(self, step: RecordedStep) -> None:
        """One step."""
        self._line({"kind": "step", **{name: getattr(step, name) for name in RecordedStep.__slots__}})

    def close(self) -> None:
        """The end; idempotent."""
        if not self._file.closed:
            self._line({"kind": "end"})
            self._file.close()

    def _line(self, body: Mapping[str, Any]) -> None:
        self._file.write(json.dumps(self._plain(body), ensure_ascii=False, separators=(",", ":")) + "\n")
        self._file.flush()

    def _plain(self, value: Any) -> Any:
        if value is None or (isinstance(value, bool | int | float | str) and not isinstance(value, np.generic)):
            return value
        if isinstance(value, np.generic):
            return value.item()
        if isinstance(value, np.ndarray):
            return self._array(value)
        if isinstance(value, bytes):
            return {"$bytes": base64.b64encode(value).decode()}
        if isinstance(value, ToolCall):
            return {"$call": [value.name, self._plain(value.args)]}
        if isinstance(value, Mapping):
            return {str(key): self._plain(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self._plain(item) for item in value]
        return {"$repr": repr(value)}

    def _array(self, value: np.ndarray[Any, Any]) -> Any:
        if value.dtype.hasobject:
            return {"$repr": repr(value)}
        if value.dtype == np.uint8 and value.ndim == 3 and value.shape[2] == 3 and value.size:
            name = f"images/{hashlib.blake2b(value.tobytes(), digest_size=16).hexdigest()}.png"
            self._image(self.directory / name, value)
            return {"$image": name}
        return {"$array": [value.dtype.str, list(value.shape), base64.b64encode(value.tobytes()).decode()]}

    @staticmethod
    def _image(path: Path, pixels: np.ndarray[Any, Any]) -> None:
        if path.exists():
            return
        path.parent.mkdir(exist_ok=True)
        encoded = io.BytesIO()
        Image.fromarray(pixels).save(encoded, "png", compress_level=1)
        temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
        temporary.write_bytes(encoded.getvalue())
        temporary.rename(path)


def read_trajectory(path: str | Path) -> Trajectory:
    """Reads one episode; a line that a crash tore is left out.

    Raises:
        UsageError: it is no trajectory, or of another version.
    """
    path = Path(path)
    lines = list(_lines(path))
    if not lines or lines[0].get("kind") != "start" or lines[0].get("version") != _VERSION:
        raise UsageError(f"{path} is no trajectory of version {_VERSION}")
    head = lines[0]
    names = RecordedStep.__slots__
    steps = [RecordedStep(**{name: line[name] for name in names}) for line in lines if line["kind"] == "step"]
    return Trajectory(
        env=head["env"],
        seed=head["seed"],
        options=head["options"],
        observation=head["observation"],
        info=head["info"],
        wall_ns=head["wall_ns"],
        steps=tuple(steps),
        ended=lines[-1]["kind"] == "end",
        notes=head["notes"],
    )


def read_trajectories(directory: str | Path) -> Iterator[Trajectory]:
    """All episodes in a directory, by name."""
    for path in sorted(Path(directory).glob("*.jsonl")):
        yield read_trajectory(path)


def replay(
    trajectory: Trajectory,
    env: gymnasium.Env[Any, Any],
    *,
    ignore: Sequence[str] = (),
    pixels: bool = False,
    think: Callable[[RecordedStep], object] | None = None,
) -> list[Difference]:
    """Takes the recorded steps in an env again, and says where what it shows differs from the record.

    Args:
        ignore: observation keys that are not compared.
        pixels: whether screens that look the same are equal, and not only those that are to the last bit.
        think: called before each step, to take the agent's time.

    Returns:
        Every difference, those of the reset first; none if the replay is equal.
    """
    observation, _ = env.reset(seed=trajectory.seed, options=dict(trajectory.options) if trajectory.options else None)
    found = list(_differences(0, trajectory.observation, observation, ignore, pixels))
    for number, step in enumerate(trajectory.steps, start=1):
        if think is not None:
            think(step)
        observation, reward, terminated, truncated, _ = env.step(step.action)
        found += _differences(number, step.observation, observation, ignore, pixels)
        pairs = {"reward": (step.reward, float(reward)), "terminated": (step.terminated, bool(terminated))}
        pairs["truncated"] = (step.truncated, bool(truncated))
        found += [
            Difference(step=number, what=what, recorded=old, replayed=new)
            for what, (old, new) in pairs.items()
            if old != new
        ]
    return found


def export_tree(tree: SnapshotTree, directory: str | Path, *, task: str | None = None) -> int:
    """Writes each way from a start to a leaf as a trajectory of its own; returns how many.

    Steps took what they took whoever ran them, and nobody thought between them.
    """
    count = 0
    for context, body in tree.index.contexts().items():
        nodes = tree.index.of_context(context) if task in (None, body["task"]) else []
        parents = {node.parent for node in nodes}
        for leaf in (node for node in nodes if node.id not in parents):
            path = tree.index.path(leaf)
            writer = TrajectoryWriter(Path(directory), leaf.digest.hex())
            planned = bool(body["image"])  # then the seed is the task's own, and not that of reset
            first = tree.result(path[0])
            writer.start(
                env=body["task"],
                seed=None if planned else body["seed"],
                options={"task_seed": body["seed"]} if planned else body["options"] or None,
                observation=first.observation,
                info=first.info,
                wall_ns=path[0].wall_ns,
                notes={"context": body},
            )
            for node in path[1:]:
                result = tree.result(node)
                writer.step(
                    RecordedStep(
                        action=node.call,
                        observation=result.observation,
                        reward=result.reward,
                        terminated=result.terminated,
                        truncated=result.truncated,
                        info=result.info,
                        think_ns=0,
                        wall_ns=node.wall_ns,
                    )
                )
            writer.close()
            count += 1
    return count


def _differences(step: int, recorded: Any, replayed: Any, ignore: Sequence[str], pixels: bool) -> Iterator[Difference]:
    if isinstance(recorded, Mapping) and isinstance(replayed, Mapping):
        for key in sorted({*map(str, recorded), *map(str, replayed)} - set(ignore)):
            old, new = recorded.get(key), replayed.get(key)
            if not _equal(old, new, pixels):
                yield Difference(step=step, what=f"observation.{key}", recorded=old, replayed=new)
    elif not _equal(recorded, replayed, pixels):
        yield Difference(step=step, what="observation", recorded=recorded, replayed=replayed)


def _equal(one: Any, other: Any, pixels: bool = False) -> bool:
    if isinstance(one, np.ndarray) or isinstance(other, np.ndarray):
        screens = pixels and isinstance(one, np.ndarray) and one.ndim == 3
        return pixels_agree(one, other) if screens else bool(np.array_equal(one, other))
    if isinstance(one, Mapping) and set(one) == {"$repr"}:
        return True
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return set(one) == set(map(str, other)) and all(_equal(item, one[str(key)]) for key, item in other.items())
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(_equal, one, other))
    return bool(one == other)


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    with path.open(encoding="utf-8") as file:
        for line in file:
            if not line.endswith("\n"):
                return
            try:
                yield _rich(json.loads(line), path.parent)
            except ValueError as error:
                raise UsageError(f"{path} holds a line that is no JSON: {error}") from error


def _rich(value: Any, directory: Path) -> Any:
    if isinstance(value, list):
        return [_rich(item, directory) for item in value]
    if not isinstance(value, dict):
        return value
    if set(value) == {"$image"}:
        with Image.open(directory / value["$image"]) as image:
            return np.asarray(image.convert("RGB")).copy()
    if set(value) == {"$array"}:
        dtype, shape, data = value["$array"]
        return np.frombuffer(base64.b64decode(data), dtype=np.dtype(dtype)).reshape(shape).copy()
    if set(value) == {"$bytes"}:
        return base64.b64decode(value["$bytes"])
    if set(value) == {"$call"}:
        return ToolCall(name=value["$call"][0], args=_rich(value["$call"][1], directory))
    return {key: _rich(item, directory) for key, item in value.items()}
