# SPDX-License-Identifier: Apache-2.0
"""The tool-sequence cache: what the attempts of a process share, and what is reused, checked and kept.

An attempt that follows known tool calls from a known start gets the stored results and runs nothing;
see `attempt.py` for how it walks, `tree.py` for where results and snapshots are.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np

from bunshin_gym.cache.attempt import RESET, Attempt, CachedStep, Source, Stateful
from bunshin_gym.cache.keys import Context, ToolSpec
from bunshin_gym.cache.materialise import Booted
from bunshin_gym.cache.stamps import Stamps
from bunshin_gym.cache.store.blobs import BlobMissingError
from bunshin_gym.cache.store.index import Node, NodeGoneError
from bunshin_gym.cache.tree import SnapshotTree
from bunshin_gym.errors import UsageError
from bunshin_gym.types import ToolCall, ToolEffect, ToolResult

__all__ = ["RESET", "Attempt", "CachePolicy", "CachedStep", "SequenceCache", "Source", "Stateful"]

_log = logging.getLogger(__name__)

_DOUBTS_MAX: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class CachePolicy:
    """What is reused, checked and kept.

    Attributes:
        reuse_stochastic: the chance that a known outcome of a stochastic tool is taken instead of a new one.
        samples_max: how many outcomes of one stochastic call are kept.
        fresh_every: every so many times that a node is hit, its call is run all the same; 0 for never.
        audit: the share of hits that are run all the same, to compare observation and state.
        quarantine_after: disagreements after which a tool's results are not reused any more; 0 for never.
        single_flight: what an attempt does that needs a call which another attempt is running.
        snapshot_share: time that attempts wait for snapshots, as a share of the time spent on boots and calls.
        snapshots: `between_steps` takes them while the agent thinks, and its next step waits for what is left
            to do; `at_once` before the step returns.
        ahead: while the agent thinks at a known node, a workspace is made in its state if at least this share of
            attempts leaves the tree there; it takes processor time that nobody else wants. 0 for never.
        unknown: what a tool is taken for that was not declared.
    """

    reuse_stochastic: float = 0.0
    samples_max: int = 8
    fresh_every: int = 0
    audit: float = 0.0
    quarantine_after: int = 0
    single_flight: Literal["wait", "go_on"] = "wait"
    snapshot_share: float = 0.025
    snapshots: Literal["between_steps", "at_once"] = "between_steps"
    ahead: float = 0.2
    unknown: ToolEffect = "external"

    def __post_init__(self) -> None:
        for name in ("reuse_stochastic", "audit", "snapshot_share", "ahead"):
            if not 0 <= getattr(self, name) <= 1:
                raise UsageError(f"{name} is {getattr(self, name)}; it must be between 0 and 1")
        for name in ("samples_max", "fresh_every", "quarantine_after"):
            if getattr(self, name) < 0:
                raise UsageError(f"{name} is {getattr(self, name)}; it must not be negative")


class SequenceCache:
    """What the attempts of one process share: the tree, the tools' meaning, the policy. Thread-safe."""

    def __init__(
        self,
        tree: SnapshotTree,
        tools: Mapping[str, ToolSpec],
        *,
        stamps: Stamps | None = None,
        policy: CachePolicy | None = None,
        effect: Callable[[ToolCall], ToolEffect] | None = None,
        seed: int = 0,
    ) -> None:
        """Args:
        tools: what is known of each tool; the tree is borrowed, and not closed here.
        stamps: places in results that belong to the run.
        effect: what running a call again means, where it depends on more than the tool; None asks `tools`.
        seed: of the draws that `audit` and `reuse_stochastic` need.
        """
        self.tree = tree
        self.tools = dict(tools)
        self.stamps = stamps if stamps is not None else Stamps()
        self.policy = policy if policy is not None else CachePolicy()
        self._effect = effect
        self._rng = np.random.default_rng(seed)
        self._doubts: dict[int, ToolResult] = {}
        self._lock = threading.Lock()

    def attempt(self, context: Context, boot: Callable[[], Booted]) -> Attempt:
        """A new attempt, not started yet. `boot` is called when a workspace at the start is needed."""
        return Attempt(self, context, boot)

    def spec(self, name: str) -> ToolSpec:
        """What is known of a tool."""
        spec = self.tools.get(name)
        return spec if spec is not None else ToolSpec(effect=self.policy.unknown)

    def effect(self, task: str, call: ToolCall) -> ToolEffect:
        """What running a call again means, and `external` for a tool in quarantine."""
        row = self.tree.ledger.tool(task, call.name)
        if row is not None and row.quarantined is not None:
            return "external"
        return self.spec(call.name).effect if self._effect is None else self._effect(call)

    def chance(self, share: float) -> bool:
        """True in that share of calls."""
        if share <= 0:
            return False
        with self._lock:
            return bool(self._rng.random() < share)

    def pick(self, count: int) -> int:
        """A number below `count`."""
        with self._lock:
            return int(self._rng.integers(count))

    def due(self, node: Node) -> bool:
        """Whether a hit of the node is to be run all the same."""
        if self.policy.fresh_every and self.tree.asked_for(node) % self.policy.fresh_every == 0:
            return True
        return self.chance(self.policy.audit)

    def agrees(self, node: Node, result: ToolResult) -> bool:
        """Whether a fresh result is what is stored, as far as the env's stamps let them be compared.

        Raises:
            UsageError: the result holds what cannot be stored.
        """
        if self.stamps.outcome(result) != node.outcome:
            return False
        if not self.stamps.has_screens:
            return True
        try:
            return self.stamps.screens_agree(self.tree.result(node), result)
        except BlobMissingError:
            return True  # the stored screen is lost; the next attempt that comes by stores another

    def doubt(self, node: Node, result: ToolResult) -> None:
        """A replay brought another result than is stored. When two did, and the same one, the store takes theirs over:
        what was stored was the odd one out, and would fail every attempt that comes by."""
        with self._lock:
            before = self._doubts.pop(node.id, None)
            if before is None or not self._equal(before, result):
                self._doubts[node.id] = result
                while len(self._doubts) > _DOUBTS_MAX:
                    del self._doubts[next(iter(self._doubts))]
                return
        try:
            self.tree.mend(node, self.stamps.to_store(result), self.stamps.outcome(result))
        except NodeGoneError:
            return  # nobody comes by it any more
        _log.warning("node %s takes over what two replays brought", node.digest.hex())

    def _equal(self, one: ToolResult, other: ToolResult) -> bool:
        same = self.stamps.outcome(one) == self.stamps.outcome(other)
        return same and (not self.stamps.has_screens or self.stamps.screens_agree(one, other))

    def disagreed(self, task: str, name: str, what: str) -> None:
        """Notes that a tool brought something else than before, and may put it into quarantine."""
        _log.warning("task %s: %s: %s", task, name, what)
        self.tree.ledger.add_tool(task, name, disagreements=1)
        row = self.tree.ledger.tool(task, name)
        limit = self.policy.quarantine_after
        if limit and row is not None and row.disagreements >= limit and row.quarantined is None:
            self.tree.ledger.quarantine(task, name, f"{row.disagreements} disagreements, the last: {what}")
