# SPDX-License-Identifier: Apache-2.0
"""Makes a workspace in the state of a node: from a snapshot or a boot, and by running the calls between again."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from bunshin_gym.cache.pace import Pace
from bunshin_gym.cache.store.index import Node, NodeIndex
from bunshin_gym.cache.tiers import SnapshotKeeper
from bunshin_gym.cache.worth import UNREACHABLE_NS
from bunshin_gym.errors import BunshinError, ReplayDiverged
from bunshin_gym.types import Forkable, ToolResult

__all__ = ["Booted", "Materialised", "Materialiser"]

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Booted:
    """A workspace at a context's start, and what it showed first."""

    live: Forkable
    result: ToolResult


@dataclass(frozen=True, slots=True, kw_only=True)
class Materialised:
    """A workspace in the state of a node.

    Attributes:
        origin: where it came from.
        replayed: how many calls were run to get from there to the node.
        wall_ns: how long all of it took.
    """

    live: Forkable
    origin: Literal["boot", "memory", "disk", "live"]
    replayed: int
    wall_ns: int


@dataclass(frozen=True, slots=True)
class _Start:
    position: int
    cost_ns: int
    origin: Literal["boot", "memory", "disk", "live"]


class Materialiser:
    """Knows the ways to a node, and what they cost."""

    def __init__(self, index: NodeIndex, keeper: SnapshotKeeper, clock: Callable[[], int]) -> None:
        self.index, self.keeper, self.clock = index, keeper, clock

    def materialise(
        self,
        node: Node,
        *,
        boot: Callable[[], Booted],
        replay: Callable[[Forkable, Node], None],
        check_boot: Callable[[Booted, Node], None],
        behind: tuple[Forkable, Node] | None = None,
        pace: Pace | None = None,
    ) -> Materialised:
        """Makes a workspace in the node's state the cheapest way there is, and the next one if that fails.

        Args:
            boot: makes a workspace at the start.
            replay: runs a node's call in a workspace and checks that it brings what it brought before.
            check_boot: likewise for the start.
            behind: a workspace of the caller's and the node it stands at; used if that node is on
                the way and nothing is cheaper. It is the caller's to close unless it is returned.
            pace: whether somebody waits for it.

        Raises:
            ReplayDiverged: no way leads there any more.
            BunshinError: no workspace can be made.
        """
        begun_ns = self.clock()
        pace = Pace() if pace is None else pace
        path = self.index.path(node)
        failure: BunshinError | None = None
        for start in self._ways(path, behind):
            try:
                live = self._start(start, path, boot, check_boot, behind, pace)
                if live is None:
                    continue
                try:
                    for after in path[start.position + 1 :]:
                        replay(live, after)
                except BaseException:
                    pace.lost()
                    if start.origin != "live":
                        live.close()
                    raise
            except ReplayDiverged as error:
                _log.warning("rebuilding node %s from %s failed: %s", node.digest.hex(), start.origin, error)
                failure = error
                continue
            replayed = len(path) - 1 - start.position
            return Materialised(live=live, origin=start.origin, replayed=replayed, wall_ns=self.clock() - begun_ns)
        if failure is not None:
            raise failure
        raise ReplayDiverged(f"node {node.digest.hex()} lies behind a call that cannot be run again, and no snapshot")

    def _ways(self, path: list[Node], behind: tuple[Forkable, Node] | None) -> list[_Start]:
        """Starts on the path, cheapest first."""
        run_ns = [0] * len(path)  # from each node to the end of the path
        for i in range(len(path) - 2, -1, -1):
            after = path[i + 1]
            run_ns[i] = run_ns[i + 1] + (after.wall_ns if after.effect == "deterministic" else UNREACHABLE_NS)
        tiers = self.keeper.tiers(path)
        costs = self.keeper.starts(tiers)
        starts = [
            _Start(i, costs[node.id] + run_ns[i], tiers[node.id]) for i, node in enumerate(path) if node.id in tiers
        ]
        starts.append(_Start(0, path[0].wall_ns + run_ns[0], "boot"))
        if behind is not None:
            starts += [_Start(i, run_ns[i], "live") for i, node in enumerate(path) if node.id == behind[1].id]
        return sorted((s for s in starts if s.cost_ns < UNREACHABLE_NS), key=lambda start: start.cost_ns)

    def _start(
        self,
        start: _Start,
        path: list[Node],
        boot: Callable[[], Booted],
        check_boot: Callable[[Booted, Node], None],
        behind: tuple[Forkable, Node] | None,
        pace: Pace,
    ) -> Forkable | None:
        if start.origin == "live":
            assert behind is not None
            pace.uses(behind[0])
            return behind[0]
        if start.origin == "boot":
            booted = boot()
            try:
                check_boot(booted, path[0])
                pace.uses(booted.live)
            except BaseException:
                booted.live.close()
                raise
            return booted.live
        return self._branch(path[start.position], start.origin, pace)

    def _branch(self, node: Node, tier: Literal["memory", "disk"], pace: Pace) -> Forkable | None:
        """A branch of the node's snapshot; None when there is none any more, or when it is broken."""
        begun_ns = self.clock()
        try:
            with self.keeper.lease(node) as snapshot:
                if snapshot is None:
                    return None
                live = pace.branch(snapshot)
        except BunshinError as error:
            _log.warning("snapshot of node %s is of no use and is dropped: %s", node.digest.hex(), error)
            self.keeper.drop(node)
            return None
        estimates = self.keeper.estimates
        estimate = estimates.branch_ns if tier == "memory" else estimates.load_ns
        if not (pace.leisurely and estimate.measured):  # one that yields takes as long as others let it
            estimate.add(self.clock() - begun_ns)
        return live
