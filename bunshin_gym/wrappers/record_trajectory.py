# SPDX-License-Identifier: Apache-2.0
"""A wrapper that writes every episode down, to be replayed."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gymnasium

from bunshin_gym.trajectory import RecordedStep, TrajectoryWriter

__all__ = ["RecordTrajectory"]


class RecordTrajectory(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Records each episode into a file of its own; see `trajectory.py` for the format, and for `replay`.

    Lines are written as they come, so a crash costs the step that runs. Files are closed at the next
    reset and by `close()`.

    Args:
        env: the env.
        directory: where trajectories go; made if it is absent.
        name: makes the next file's name (without ending); None draws one.
        notes: kept with each episode; may be changed between episodes.

    Raises:
        UsageError: at reset, if there is a file of that name.
    """

    def __init__(
        self,
        env: gymnasium.Env[Any, Any],
        directory: str | os.PathLike[str],
        *,
        name: Callable[[], str] | None = None,
        notes: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(env)
        self.directory = Path(directory)
        self.notes: dict[str, Any] = dict(notes or {})
        self._name = name
        self._writer: TrajectoryWriter | None = None
        self._shown_ns = 0

    @property
    def path(self) -> Path | None:
        """The running episode's file."""
        return None if self._writer is None else self._writer.path

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Resets, and begins a file."""
        self._finish()
        begun_ns = time.perf_counter_ns()
        observation, info = self.env.reset(seed=seed, options=options)
        wall_ns = time.perf_counter_ns() - begun_ns
        writer = TrajectoryWriter(self.directory, None if self._name is None else self._name())
        spec = self.env.spec
        env = str(spec.id) if spec is not None else type(self.env.unwrapped).__qualname__
        self._writer = writer
        writer.start(
            env=env,
            seed=seed,
            options=options,
            observation=observation,
            info=info,
            wall_ns=wall_ns,
            notes=self.notes,
        )
        self._shown_ns = time.perf_counter_ns()
        return observation, info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Steps, and writes the step down."""
        if self._writer is None:
            raise gymnasium.error.ResetNeeded("there is no episode: call reset() first")
        begun_ns = time.perf_counter_ns()
        observation, reward, terminated, truncated, info = self.env.step(action)
        wall_ns = time.perf_counter_ns() - begun_ns
        self._writer.step(
            RecordedStep(
                action=action,
                observation=observation,
                reward=float(reward),
                terminated=bool(terminated),
                truncated=bool(truncated),
                info=info,
                think_ns=begun_ns - self._shown_ns,
                wall_ns=wall_ns,
            )
        )
        self._shown_ns = time.perf_counter_ns()
        return observation, reward, terminated, truncated, info

    def close(self) -> None:
        """Ends the file and closes the env; idempotent."""
        self._finish()
        super().close()

    def _finish(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()
