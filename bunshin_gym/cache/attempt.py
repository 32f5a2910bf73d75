# SPDX-License-Identifier: Apache-2.0
"""An attempt: a walk over the snapshot tree that runs only what nobody ran before.

It has a cursor, the node it stands at, and maybe a workspace. A step along a known call moves the cursor and
runs nothing. The first step that is new materialises a workspace at the cursor, runs the call there, and adds
a node. A call whose outcome cannot be reused takes the attempt off the tree: from there on it just runs.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal, Protocol, Self, runtime_checkable

from bunshin_gym.cache.keys import Context, call_digest
from bunshin_gym.cache.live import RESET, LiveWorkspace, Spent
from bunshin_gym.cache.materialise import Booted
from bunshin_gym.cache.store.blobs import BlobMissingError
from bunshin_gym.cache.store.index import NewNode, Node, NodeGoneError
from bunshin_gym.errors import ClosedError, UsageError
from bunshin_gym.types import Forkable, ToolCall, ToolEffect, ToolResult

if TYPE_CHECKING:
    from bunshin_gym.cache.sequence import SequenceCache

__all__ = ["RESET", "Attempt", "CachedStep", "Source", "Stateful"]

_log = logging.getLogger(__name__)

Source = Literal["boot", "run", "hit", "waited", "audit", "off_tree"]
"""Where a step's result came from: a boot; a call that was run and stored; the store; the store, after another
attempt had run the call; a call that was run to check the store; a call that nobody will find."""


@runtime_checkable
class Stateful(Protocol):
    """A workspace that can say in what state it is."""

    def state_digest(self) -> bytes | None:
        """Equal for equal states, as far as an agent could tell beside what it saw: pages, files. None: unknown."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class CachedStep:
    """What a step brought, and how.

    Attributes:
        key: of the sequence so far; None off the tree.
        wall_ns: how long the caller waited for it.
        saved_ns: how long running it took whoever ran it; 0 unless the store gave it.
        spent: where the time went that was not saved.
    """

    result: ToolResult
    source: Source
    key: bytes | None
    wall_ns: int = 0
    saved_ns: int = 0
    spent: Spent = field(default_factory=Spent)


@dataclass(frozen=True, slots=True)
class _Call:
    """A call on its way: what it is, its canonical arguments, and what the caller calls it."""

    call: ToolCall
    args: str
    effect: ToolEffect
    call_id: str | None
    action: str | None


class Attempt:
    """One walk from a context's start; used by one thread at a time. `close` leaves nothing behind."""

    def __init__(self, cache: SequenceCache, context: Context, boot: Callable[[], Booted]) -> None:
        self._cache, self._tree, self._context, self._boot = cache, cache.tree, context, boot
        self._live = LiveWorkspace(cache, context, boot)
        self._context_id = -1
        self._cursor: Node | None = None
        self._state: Literal["new", "open", "closed"] = "new"
        self._answered_ns = self._tree.clock()

    @property
    def cursor(self) -> Node | None:
        """Where the attempt stands in the tree; None off the tree."""
        return self._cursor

    @property
    def workspace(self) -> Forkable | None:
        """The workspace, if there is one; maybe in a state behind the cursor's."""
        return self._live.workspace

    @property
    def has_live(self) -> bool:
        """Whether there is a workspace, at the cursor or behind it."""
        return self._live.workspace is not None

    def start(self) -> CachedStep:
        """The context's first observation.

        Raises:
            BunshinError: no workspace could be made; the attempt may be started again.
        """
        if self._state != "new":
            raise ClosedError("an attempt starts once; make another")
        begun_ns = self._tree.clock()
        if self._context.seed is None:
            result = self._cache.stamps.unstored(self._live.boot()[0], None)
            step = CachedStep(result=result, source="off_tree", key=None)
        else:
            self._context_id = self._tree.index.context(self._context)
            step = self._known_or_run(self._context.digest(), None)
            if step.source == "boot":
                step = replace(step, result=self._cache.stamps.unstored(step.result, None))
        self._state = "open"
        spent, self._live.spent = self._live.spent, Spent()
        self._answered_ns = self._tree.clock()
        return replace(step, wall_ns=self._answered_ns - begun_ns, spent=spent)

    def step(self, call: ToolCall, *, call_id: str | None = None, action: str | None = None) -> CachedStep:
        """One tool call.

        Args:
            call_id: the caller's id of it, for results that repeat it.
            action: the caller's words for it, likewise.

        Raises:
            UsageError: the episode is over.
            ReplayDiverged: the cursor's state cannot be rebuilt.
            BunshinError: the workspace failed; the attempt still stands where it stood, and has none.
        """
        self._check_open()
        begun_ns = self._tree.clock()
        self._tree.thinking.add(begun_ns - self._answered_ns)
        step = self._step(call, call_id, action)
        if step.source not in ("hit", "waited"):
            step = replace(step, result=self._cache.stamps.unstored(step.result, action))
        spent, self._live.spent = self._live.spent, Spent()
        self._answered_ns = self._tree.clock()
        return replace(step, wall_ns=self._answered_ns - begun_ns, spent=spent)

    def known(self, call: ToolCall) -> bool:
        """Whether `step` would run nothing for this call now."""
        if self._state != "open" or self._cursor is None or self._cursor.over:
            return False
        if self._cache.effect(self._context.task, call) != "deterministic":
            return False
        try:
            args = self._cache.spec(call.name).canonical_args(call.args)
        except UsageError:
            return False
        return self._tree.find(call_digest(self._cursor.digest, call.name, args)) is not None

    def live(self) -> Forkable:
        """A workspace in the attempt's state; it stays the attempt's.

        Raises:
            ReplayDiverged: that state cannot be rebuilt.
            BunshinError: no workspace can be made.
        """
        self._check_open()
        return self._live.ensure(self._cursor)

    def fork(self, *, boot: Callable[[], Booted] | None = None, live: Forkable | None = None) -> Attempt:
        """Another attempt that stands where this one does; without a workspace if the tree can make one.

        Args:
            boot: the twin's own way to a start, if it cannot share this one's.
            live: a workspace in this attempt's state, for the twin to own.
        """
        self._check_open()
        twin = Attempt(self._cache, self._context, self._boot if boot is None else boot)
        twin._context_id, twin._cursor, twin._state = self._context_id, self._cursor, "open"
        if live is not None:
            twin._live.workspace, twin._live.node = live, self._cursor
        elif self._cursor is None or any(
            node.effect != "deterministic" for node in self._tree.index.path(self._cursor)
        ):
            twin._live.workspace, twin._live.node = self.live().fork(), self._cursor
        return twin

    def close(self) -> None:
        """Ends the attempt and its workspace; idempotent."""
        if self._state == "closed":
            return
        self._state = "closed"
        try:
            self._live.close()
        finally:
            self._tree.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _check_open(self) -> None:
        if self._state != "open":
            raise ClosedError("the attempt was not started, or it was closed")

    def _step(self, call: ToolCall, call_id: str | None, action: str | None) -> CachedStep:
        cursor = self._cursor
        if cursor is None:
            return self._step_off_tree(call)
        if cursor.over:
            raise UsageError("the episode is over: reset first")
        effect = self._cache.effect(self._context.task, call)
        if effect == "external" or (effect == "stochastic" and self._cache.policy.reuse_stochastic == 0):
            return self._step_off_tree(call)
        try:
            args = self._cache.spec(call.name).canonical_args(call.args)
        except UsageError:  # no key can be made of these arguments: the tool itself has to refuse them
            return self._step_off_tree(call)
        step = _Call(call, args, effect, call_id, action)
        if effect == "stochastic":
            return self._step_stochastic(cursor, step)
        return self._known_or_run(call_digest(cursor.digest, call.name, args), step)

    # -- known calls

    def _known_or_run(self, digest: bytes, step: _Call | None) -> CachedStep:
        """The stored result of a key; else runs the call (or boots), once for all who want it now."""
        known = self._known(digest)
        if known is not None and step is not None and self._cache.due(known[0]):
            return self._audit(step, known[0])
        if known is not None:
            hit = self._hit(*known, step, "hit")
            self._live.foresee(known[0])
            return hit
        claim = self._tree.claim(digest, wait=self._cache.policy.single_flight == "wait")
        try:
            known = self._known(digest)
            if known is not None:
                waited = self._hit(*known, step, "waited")
                self._live.foresee(known[0])
                return waited
            done = self._run(digest, step, mend=self._tree.find(digest) is not None)
        finally:
            if claim is not None:
                claim.release()
        self._live.consider()
        return done

    def _known(self, digest: bytes) -> tuple[Node, ToolResult] | None:
        node = self._tree.find(digest)
        if node is None:
            return None
        try:
            return node, self._tree.result(node)
        except BlobMissingError as error:
            _log.warning("node %s must be run again: %s", digest.hex(), error)
            return None

    def _hit(self, node: Node, stored: ToolResult, step: _Call | None, source: Literal["hit", "waited"]) -> CachedStep:
        self._cursor = node
        self._tree.visit(node, hit=True)
        self._tree.step(hit=True, saved_ns=node.wall_ns)
        self._tree.count_tool(self._context.task, RESET if step is None else step.call.name, hits=1)
        call_id, action = (step.call_id, step.action) if step is not None else (None, None)
        result = self._cache.stamps.to_caller(stored, call_id=call_id, action=action)
        return CachedStep(result=result, source=source, key=node.digest, saved_ns=node.wall_ns)

    def _audit(self, step: _Call, node: Node) -> CachedStep:
        """Runs a known call and compares; what the caller gets is what its workspace really did."""
        result, wall_ns = self._live.run(self._cursor, step.call)
        self._counted(step.call.name, wall_ns, audits=1)
        differs = self._differences(node, result)
        if differs:
            what = f"{differs} differ from those of node {node.digest.hex()}"
            self._cache.disagreed(self._context.task, step.call.name, what)
            self._stand_at(None)
            return CachedStep(result=result, source="audit", key=None)
        self._tree.visit(node, hit=False)
        self._stand_at(node)
        return CachedStep(result=result, source="audit", key=node.digest)

    def _differences(self, node: Node, result: ToolResult) -> str:
        differs = []
        if not self._cache.agrees(node, result):
            differs.append("results")
        if isinstance(self._live.workspace, Stateful):
            state = self._live.workspace.state_digest()
            if state is not None and node.state is None:
                self._tree.index.set_state(node.id, state)
            elif state is not None and node.state != state:
                differs.append("states")
        return " and ".join(differs)

    # -- calls that are run

    def _run(self, digest: bytes, step: _Call | None, *, mend: bool = False, sample: int = 0) -> CachedStep:
        cursor = self._cursor
        if step is None:
            name, source = RESET, "boot"
            result, wall_ns = self._live.boot()
        else:
            name, source = step.call.name, "run"
            result, wall_ns = self._live.run(cursor, step.call)
        self._counted(name, wall_ns)
        try:
            node, agrees = self._store(digest, step, result, wall_ns, mend=mend, sample=sample)
        except NodeGoneError:  # the tree was cut above us: this attempt just runs on
            self._stand_at(None)
            return CachedStep(result=result, source="off_tree", key=None)
        except BaseException:
            self._live.discard()
            raise
        if not agrees:  # another attempt ran it at the same time, and its result won
            if step is None or step.effect == "deterministic":
                self._cache.disagreed(self._context.task, name, f"two runs of node {digest.hex()} differ")
            self._stand_at(None)
            return CachedStep(result=result, source="off_tree", key=None)
        if self._cache.policy.audit > 0 and node.state is None and isinstance(self._live.workspace, Stateful):
            state = self._live.workspace.state_digest()  # what audits will compare with
            if state is not None:
                self._tree.index.set_state(node.id, state)
        self._tree.visit(node, hit=False)
        self._stand_at(node)
        return CachedStep(result=result, source="boot" if source == "boot" else "run", key=digest)

    def _store(
        self, digest: bytes, step: _Call | None, result: ToolResult, wall_ns: int, *, mend: bool, sample: int
    ) -> tuple[Node, bool]:
        """The stored node, and whether its outcome is this one's."""
        outcome = self._cache.stamps.outcome(result)

        def new(skeleton: bytes, result_bytes: int) -> NewNode:
            return NewNode(
                digest=digest,
                parent=self._cursor,
                context=self._context_id,
                call=None if step is None else step.call,
                canonical="" if step is None else step.args,
                sample=sample,
                effect="deterministic" if step is None else step.effect,
                skeleton=skeleton,
                outcome=outcome,
                reward=float(result.reward),
                terminated=bool(result.terminated),
                truncated=bool(result.truncated),
                wall_ns=wall_ns,
                result_bytes=result_bytes,
            )

        node, ours = self._tree.put(new, self._cache.stamps.to_store(result), replace=mend)
        return node, ours or self._cache.agrees(node, result)

    def _step_off_tree(self, call: ToolCall) -> CachedStep:
        result, wall_ns = self._live.run(self._cursor, call)
        self._stand_at(None)
        self._counted(call.name, wall_ns)
        return CachedStep(result=result, source="off_tree", key=None)

    # -- calls with more than one outcome

    def _step_stochastic(self, cursor: Node, step: _Call) -> CachedStep:
        policy = self._cache.policy
        if not self._cache.chance(policy.reuse_stochastic):
            return self._new_outcome(cursor, step)
        known = self._known_outcome(cursor, step, "hit")
        if known is not None:
            return known
        # Who would take a known outcome waits for the attempt that is about to make one.
        claim = self._tree.claim(self._sample(cursor, step, 0), wait=policy.single_flight == "wait")
        try:
            return self._known_outcome(cursor, step, "waited") or self._new_outcome(cursor, step)
        finally:
            if claim is not None:
                claim.release()

    def _known_outcome(self, cursor: Node, step: _Call, source: Literal["hit", "waited"]) -> CachedStep | None:
        # An outcome whose state cannot be had again would be a dead end.
        usable = [node for node in self._samples(cursor, step) if node.over or self._tree.anchored(node)]
        if not usable:
            return None
        node = usable[self._cache.pick(len(usable))]
        known = None if self._cache.due(node) else self._known(node.digest)
        if known is None or not (node.over or self._live.anchor(node)):
            return None
        return self._hit(*known, step, source)

    def _new_outcome(self, cursor: Node, step: _Call) -> CachedStep:
        number = len(self._samples(cursor, step))
        if number >= self._cache.policy.samples_max:
            return self._step_off_tree(step.call)
        done = self._run(self._sample(cursor, step, number), step, sample=number)
        self._live.keep()
        return done

    def _samples(self, cursor: Node, step: _Call) -> list[Node]:
        samples: list[Node] = []
        while len(samples) < self._cache.policy.samples_max:
            node = self._tree.find(self._sample(cursor, step, len(samples)))
            if node is None:
                break
            samples.append(node)
        return samples

    @staticmethod
    def _sample(cursor: Node, step: _Call, number: int) -> bytes:
        return call_digest(cursor.digest, step.call.name, step.args, sample=number)

    def _counted(self, name: str, wall_ns: int, *, audits: int = 0) -> None:
        self._tree.credit.earn(wall_ns)
        self._tree.count_tool(self._context.task, name, runs=1, run_ns=wall_ns, audits=audits)
        self._tree.step(hit=False, executed_ns=wall_ns)

    def _stand_at(self, node: Node | None) -> None:
        """The workspace, which just ran, and the cursor are at that node now."""
        self._cursor = self._live.node = node
