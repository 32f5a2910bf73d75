# SPDX-License-Identifier: Apache-2.0
"""What a snapshot is worth: the rebuilding that it is expected to save, from measured costs. Pure.

A workspace in the state of a node is reached from the root by booting, or from a snapshot by branching, and
then by running the calls between. An attempt needs one where it leaves the tree. So

    worth(snapshot) = sum over nodes of demand(node) * (reach without it - reach with it)

with demand(node) = heat (visits, the older the less) * share of visits that leave the tree there.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

__all__ = ["Credit", "Estimate", "Estimates", "Use", "demand", "leave_share", "reach", "worth_ns"]

UNREACHABLE_NS: Final = 600 * 10**9
"""What it counts that a node cannot be rebuilt at all: more than any rebuilding takes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """What is known of a node, without its result. See `Node` and `Counts`.

    Attributes:
        wall_ns: of the call that leads here; of the boot for a root.
        replayable: whether running that call again leads here again.
        over: the episode ends here, so that nobody needs a workspace in this state.
    """

    id: int
    parent: int | None
    wall_ns: int
    replayable: bool
    over: bool
    visits: int
    misses: int
    heat: float


def leave_share(visits: int, misses: int) -> float:
    """The share of visits that leave the tree; one in three is the guess after the visit that made the node."""
    return (misses + 1) / (visits + 2)


def demand(use: Use) -> float:
    """Workspaces that are expected to be needed at the node, in the time that heat looks back on."""
    return 0.0 if use.over else use.heat * leave_share(use.visits, use.misses)


def reach(uses: Iterable[Use], starts: Mapping[int, int]) -> dict[int, int]:
    """The cheapest way to each node, in ns.

    Args:
        uses: nodes of one context, each after its parent.
        starts: snapshots: node to what a branch from it takes, in ns.
    """
    costs: dict[int, int] = {}
    for use in uses:
        if use.parent is None:
            way = use.wall_ns
        elif use.replayable:
            way = costs[use.parent] + use.wall_ns
        else:
            way = UNREACHABLE_NS
        costs[use.id] = min(way, starts.get(use.id, way), UNREACHABLE_NS)
    return costs


def worth_ns(uses: list[Use], node: int, start_ns: int, others: Mapping[int, int]) -> float:
    """Time that a snapshot of `node` is expected to save, given the other snapshots.

    Args:
        uses: nodes of its context, each after its parent.
        start_ns: what a branch from it takes.
        others: the other starts there are; one of the same node counts too (another tier).
    """
    without = reach(uses, others)
    both = min(start_ns, others.get(node, start_ns))
    have = reach(uses, {**others, node: both})
    return sum(demand(use) * (without[use.id] - have[use.id]) for use in uses)


class Estimate:
    """A moving mean of something measured; thread-safe.

    The first measurement counts whole, later ones a quarter.
    """

    def __init__(self, guess: float) -> None:
        self._value = guess
        self._measured = False
        self._lock = threading.Lock()

    @property
    def value(self) -> float:
        """The mean, or the guess while nothing was measured."""
        return self._value

    @property
    def measured(self) -> bool:
        """Whether it is more than a guess."""
        return self._measured

    def add(self, value: float) -> None:
        """Takes in one measurement."""
        with self._lock:
            share = 0.25 if self._measured else 1.0
            self._value += share * (value - self._value)
            self._measured = True


class Estimates:
    """What a snapshot costs on this machine, as measured so far.

    Attributes:
        snapshot_ns: taking one.
        branch_ns: a branch from memory.
        load_ns: a branch from disk.
        persist_ns: writing one to disk.
        snapshot_bytes: memory that one owns.
    """

    def __init__(self) -> None:
        self.snapshot_ns = Estimate(0.0)
        self.branch_ns = Estimate(0.0)
        self.load_ns = Estimate(0.0)
        self.persist_ns = Estimate(0.0)
        self.snapshot_bytes = Estimate(0.0)


class Credit:
    """Keeps the time spent on snapshots within a share of the time spent on running; thread-safe.

    It may be overdrawn by one snapshot, or the first one could never be taken.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.executed_ns = 0.0
        self.spent_ns = 0.0

    def earn(self, executed_ns: float) -> None:
        """Calls or a boot were run."""
        with self._lock:
            self.executed_ns += executed_ns

    def spend(self, ns: float) -> None:
        """A snapshot was taken."""
        with self._lock:
            self.spent_ns += ns

    def allows(self, share: float) -> bool:
        """Whether the next snapshot may be taken now, if that share of the time may go there."""
        with self._lock:
            return share > 0 and self.spent_ns <= share * self.executed_ns
