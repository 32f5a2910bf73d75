# SPDX-License-Identifier: Apache-2.0
"""What goes into the core and comes out of it as a value: each C struct as a dataclass."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, TypeVar

from bunshin_gym._native import ffi
from bunshin_gym.types import ForkStats, Phase

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

__all__ = ["GcReport", "Spec", "read_fork_stats", "read_struct"]

T = TypeVar("T", bound="DataclassInstance")


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """How to start a workspace.

    Attributes:
        layers: lower directories, top first, absolute.
        argv: the main command.
        env: its environment; also that of later commands unless they bring one.
        cwd: its working directory.
        hostname: the same in all branches.
        label: free text kept in the registry.
        uid: user of the main command.
        gid: group of the main command.
        pids_max: limit of processes and threads; 0: none.
        cpu_weight: 1 to 10000, 100 is normal; 0: leave it.
        memory_max_bytes: limit of memory; 0: none.
        shm_bytes: size of /dev/shm; 0: 1 GiB.
    """

    layers: Sequence[str]
    argv: Sequence[str]
    env: Mapping[str, str]
    cwd: str = "/"
    hostname: str = "bunshin"
    label: str = ""
    uid: int = 0
    gid: int = 0
    pids_max: int = 0
    cpu_weight: int = 0
    memory_max_bytes: int = 0
    shm_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class GcReport:
    """What a collection found without a living owner, and reaped.

    Attributes:
        strays: workspaces whose state directory was deleted as a whole; they are counted nowhere else.
    """

    workspaces: int
    snapshots: int
    processes: int
    cgroups: int
    layers: int
    strays: int


def read_struct(kind: type[T], struct: Any) -> T:
    """A dataclass out of the C struct with the same members."""
    return kind(**{field.name: getattr(struct, field.name) for field in fields(kind)})


def read_fork_stats(stats: Any) -> ForkStats:
    """What a fork cost, with its phases."""
    phases = (stats.phases[i] for i in range(stats.n_phases))
    return ForkStats(
        total_ns=stats.total_ns,
        frozen_ns=stats.frozen_ns,
        copied_bytes=stats.copied_bytes,
        shared_bytes=stats.shared_bytes,
        layer_bytes=stats.layer_bytes,
        phases=tuple(
            Phase(name=ffi.string(phase.name).decode(), start_ns=phase.start_ns, length_ns=phase.length_ns)
            for phase in phases
        ),
    )
