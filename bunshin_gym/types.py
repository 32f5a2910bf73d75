# SPDX-License-Identifier: Apache-2.0
"""Frozen values, and the one protocol, that the layers pass to each other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, Self

__all__ = [
    "ExecResult",
    "ForkStats",
    "Forkable",
    "GroupStats",
    "MemoryAccount",
    "Phase",
    "ToolCall",
    "ToolEffect",
    "ToolResult",
    "WorkspaceStats",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """One named part of a fork.

    Attributes:
        name: what was done.
        start_ns: from the start of the operation, in nanoseconds.
        length_ns: how long it took, in nanoseconds.
    """

    name: str
    start_ns: int
    length_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ForkStats:
    """What one snapshot or one branch cost.

    Attributes:
        total_ns: wall time of the call, in nanoseconds.
        frozen_ns: time the source stood still, in nanoseconds; 0 for a branch.
        copied_bytes: memory copied; pages shared copy-on-write are not counted.
        shared_bytes: memory shared copy-on-write.
        layer_bytes: file contents copied into the new layer.
        phases: where the time went, in order.
    """

    total_ns: int
    frozen_ns: int
    copied_bytes: int
    shared_bytes: int
    layer_bytes: int
    phases: tuple[Phase, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkspaceStats:
    """What a running workspace takes, in bytes except for the two counts."""

    processes: int
    threads: int
    pss_bytes: int
    unique_bytes: int
    shared_bytes: int
    page_table_bytes: int
    kernel_bytes: int
    layer_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryAccount:
    """What a workspace, a snapshot or a group of them takes; every page counted once.

    Unique is a page that no process outside maps; shared is one that others map too, and counted whole.

    Attributes:
        processes: how many.
        threads: how many, in all processes.
        private_unique_bytes: anonymous memory.
        private_shared_bytes: likewise.
        shm_unique_bytes: shared memory, mapped or not: memfd, /dev/shm, System V, shared anonymous.
        shm_shared_bytes: likewise.
        file_unique_bytes: mapped pages of files, which the kernel can drop and read again.
        file_shared_bytes: likewise.
        page_table_bytes: of all processes.
        kernel_bytes: as memory cgroups tell, page tables among it; 0 where they do not.
        disk_bytes: files: of a workspace what it changed, of a snapshot its layers and images.
        machine_bytes: what its end would give back: unique private and shared memory, and the
            greater of kernel memory and page tables.
    """

    processes: int
    threads: int
    private_unique_bytes: int
    private_shared_bytes: int
    shm_unique_bytes: int
    shm_shared_bytes: int
    file_unique_bytes: int
    file_shared_bytes: int
    page_table_bytes: int
    kernel_bytes: int
    disk_bytes: int
    machine_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupStats:
    """A group of workspaces and snapshots at one moment.

    Attributes:
        total: of all together, with the page pools that the workspaces stand on.
        members: each by its id, as if alone: a page that two members map is shared in both, and
            unique in the total if nobody else maps it.
    """

    total: MemoryAccount
    members: Mapping[str, MemoryAccount]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecResult:
    """A command that ran in a workspace.

    Attributes:
        exit_code: 0 to 255, or 128 + signal when a signal ended it.
        stdout: what it wrote, cut at the request's limit.
        stderr: likewise.
        truncated: whether either was cut.
    """

    exit_code: int
    stdout: bytes
    stderr: bytes
    truncated: bool = False


ToolEffect = Literal["deterministic", "stochastic", "external"]
"""What running a tool again means: the same result from the same state; another result;
or a second effect outside the workspace, which nothing can take back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """One thing that an agent does: a tool's name and its arguments (JSON values)."""

    name: str
    args: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolResult:
    """What a tool call brought.

    Attributes:
        observation: the observation, as the env's observation space says.
        reward: of this step.
        terminated: the task's verdict was reached.
        truncated: a budget was spent.
        info: the env's info.
    """

    observation: Any
    reward: float = 0.0
    terminated: bool = False
    truncated: bool = False
    info: Mapping[str, Any] = field(default_factory=dict)


class Forkable(Protocol):
    """All that the tree, the cache and the speculation know of a workspace."""

    def fork(self) -> Self: ...

    def run(self, call: ToolCall) -> ToolResult: ...

    def close(self) -> None: ...
