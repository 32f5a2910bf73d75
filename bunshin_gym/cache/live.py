# SPDX-License-Identifier: Apache-2.0
"""The workspace of an attempt: made when it is needed, where it is needed, and kept in step with the tree."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol, runtime_checkable

from bunshin_gym.cache.keys import Context
from bunshin_gym.cache.materialise import Booted
from bunshin_gym.cache.pace import Pace
from bunshin_gym.cache.store.index import Node
from bunshin_gym.errors import BunshinError, ClosedError, ReplayDiverged
from bunshin_gym.types import Forkable, ToolCall, ToolResult

if TYPE_CHECKING:
    from bunshin_gym.cache.sequence import SequenceCache

__all__ = ["RESET", "LiveWorkspace", "Spent"]

_log = logging.getLogger(__name__)

_LOOKS: Final = 3
_THINKING_NS: Final = 100_000_000
"""Who thinks shorter than this needs nothing ahead."""
RESET: Final = "(reset)"
"""Stands for the boot where tools are counted."""


@runtime_checkable
class Looking(Protocol):
    """A workspace that shows its state without anything being done."""

    def look(self) -> Any:
        """The observation that its last call brought, as it would be now; None: it cannot."""
        ...


@dataclass(slots=True)
class Spent:
    """Where a step's time went, in ns.

    Attributes:
        ran_ns: the step's own call, or boot.
        made_ns: making a workspace in the state before it.
        replayed_ns: of these: boots and calls that had been run before.
        kept_ns: taking snapshots.
        ahead_ns: boots and calls that were run again while nobody waited.
    """

    ran_ns: int = 0
    made_ns: int = 0
    replayed_ns: int = 0
    kept_ns: int = 0
    ahead_ns: int = 0


class LiveWorkspace:
    """At most one workspace, and the node whose state it is in; `node` is None off the tree."""

    def __init__(self, cache: SequenceCache, context: Context, boot: Callable[[], Booted]) -> None:
        self._cache, self._tree, self._context, self._boot = cache, cache.tree, context, boot
        self._anchors = ExitStack()
        self.workspace: Forkable | None = None
        self.node: Node | None = None
        self.spent = Spent()
        self._job: threading.Thread | None = None
        self._pace: Pace | None = None
        self._failure: BaseException | None = None
        self._unclaimed = False  # made ahead, and not used yet
        self._ahead_ns = 0  # not yet told in `spent`: the step that settles it tells

    def boot(self) -> tuple[ToolResult, int]:
        """Makes a workspace at the start; returns what it showed, and how long that took in ns."""
        self._settle()
        begun_ns = self._tree.clock()
        booted = self._boot()
        wall_ns = self.spent.ran_ns = self._tree.clock() - begun_ns
        self.workspace, self.node = booted.live, None
        return booted.result, wall_ns

    def run(self, cursor: Node | None, call: ToolCall) -> tuple[ToolResult, int]:
        """Runs a call in the cursor's state; returns its result and how long it took in ns.

        Whose state the workspace is in then, the caller has to say, by setting `node`.

        Raises:
            ReplayDiverged: the cursor's state cannot be rebuilt.
            BunshinError: the workspace failed, and is closed.
        """
        workspace = self.ensure(cursor)
        begun_ns = self._tree.clock()
        try:
            result = workspace.run(call)
        except BaseException:  # nobody knows in what state the call left it
            self.discard()
            raise
        self.node = None
        self.spent.ran_ns = self._tree.clock() - begun_ns
        return result, self.spent.ran_ns

    def ensure(self, cursor: Node | None) -> Forkable:
        """The workspace in the cursor's state, made from the nearest snapshot if it is not; raises as `run`."""
        self._settle()
        if self.workspace is not None and (cursor is None or (self.node is not None and self.node.id == cursor.id)):
            if self._unclaimed and cursor is not None:
                self._unclaimed = False
                self._tree.left(cursor)
            return self.workspace
        if cursor is None:
            raise ClosedError("the workspace of this attempt failed, and it is off the tree: reset first")
        begun_ns = self._tree.clock()
        origin, replayed = self._make(cursor, self.spent, Pace())
        self._unclaimed = False
        self._tree.left(cursor)
        self.spent.made_ns += self._tree.clock() - begun_ns
        assert self.workspace is not None
        if (origin != "memory" or replayed) and self._may_keep() and self._worth_it(cursor):
            self.keep()  # at once: the next call changes the state
        return self.workspace

    def _make(self, cursor: Node, spent: Spent, pace: Pace) -> tuple[str, int]:
        """Puts a workspace in the cursor's state in the place of what there is; its origin, and how many calls ran."""
        old, old_at = self.workspace, self.node
        self.workspace = self.node = None
        try:
            made = self._tree.materialiser.materialise(
                cursor,
                boot=partial(self._boot_again, spent),
                replay=partial(self._replay, spent),
                check_boot=self._check_boot,
                behind=None if old is None or old_at is None else (old, old_at),
                pace=pace,
            )
        except BaseException:
            if old is not None:
                old.close()
            raise
        self.workspace, self.node = made.live, cursor
        if old is not None and made.live is not old:
            old.close()
        return made.origin, made.replayed

    def foresee(self, node: Node) -> None:
        """The attempt stands at a known node: maybe makes a workspace there while its agent thinks.

        It yields to everybody while it is made; whoever needs it meanwhile waits for it, at full speed.
        """
        busy = self._job is not None and self._job.is_alive()
        if not self._cache.policy.ahead or node.over or busy:
            return
        if self._tree.thinking.value < max(_THINKING_NS, self._tree.keeper.estimates.branch_ns.value):
            return  # it would not be done before it is needed
        self._settle()
        if self.node is not None and self.node.id == node.id:
            return
        self._pace = Pace(leisurely=True)
        self._start(self._make_ahead, node, self._pace)

    def _make_ahead(self, node: Node, pace: Pace) -> None:
        if not self._tree.spare_cores.acquire(blocking=False):
            return
        spent = Spent()
        try:
            if self._tree.leave_chance(node) >= self._cache.policy.ahead:
                origin, replayed = self._make(node, spent, pace)
                self._unclaimed = True
                if (origin != "memory" or replayed) and pace.leisurely and self._may_keep() and self._worth_it(node):
                    assert self.workspace is not None
                    self._keep_now(node, self.workspace)
        except BunshinError as error:  # the attempt may never need it, and will say so if it does
            _log.info("no workspace ahead of its need at node %s: %s", node.digest.hex(), error)
        finally:
            self._tree.spare_cores.release()
            self._ahead_ns += spent.replayed_ns

    def consider(self) -> None:
        """Takes a snapshot here if it is expected to save more than it costs, and time may be spent on it.

        Unless the policy wants it at once, that goes on after the return; whoever needs the workspace waits for it.
        """
        node, workspace = self.node, self.workspace
        if node is None or workspace is None or not self._may_keep():
            return
        if self._cache.policy.snapshots == "at_once":
            if self._worth_it(node):
                self.keep()
            return
        self._start(self._keep_behind, node, workspace)

    def keep(self) -> None:
        """Takes a snapshot here if the budget has room for what it is worth."""
        self._settle()
        if self.node is None or self.workspace is None or self.node.over:
            return
        self._keep_now(self.node, self.workspace)

    def anchor(self, node: Node) -> bool:
        """Holds the node's snapshot until `close`; False when it is gone."""
        return self._anchors.enter_context(self._tree.keeper.lease(node, lasting=True)) is not None

    def discard(self) -> None:
        """Closes the workspace; another can be made."""
        try:
            self._settle()
        finally:
            workspace, self.workspace, self.node = self.workspace, None, None
            if workspace is not None:
                workspace.close()

    def close(self) -> None:
        """Closes the workspace and lets go of the snapshots; idempotent."""
        try:
            self.discard()
        finally:
            self._anchors.close()

    def _may_keep(self) -> bool:
        over = self.node is None or self.node.over
        return not over and self._tree.credit.allows(self._cache.policy.snapshot_share)

    def _worth_it(self, node: Node) -> bool:
        return self._tree.worth_ns(node) > self._tree.keeper.estimates.snapshot_ns.value

    def _keep_now(self, node: Node, workspace: Forkable) -> None:
        begun_ns = self._tree.clock()
        self._keep(node, workspace)
        self._waited(begun_ns)

    def _keep(self, node: Node, workspace: Forkable) -> None:
        try:
            self._tree.keep(node, workspace)
        except BunshinError as error:  # a workspace that cannot be forked runs on, and so does the attempt
            _log.warning("no snapshot of node %s: %s", node.digest.hex(), error)

    def _keep_behind(self, node: Node, workspace: Forkable) -> None:
        if self._worth_it(node):
            self._keep(node, workspace)

    def _start(self, work: Callable[..., None], *args: Any) -> None:
        """Begins what may go on while the agent thinks; `_settle` waits for its end."""

        def job() -> None:
            try:
                work(*args)
            except BaseException as failure:  # noqa: BLE001 - raised where the workspace is used next
                self._failure = failure

        self._job = threading.Thread(target=job, name="bunshin-cache")
        self._job.start()

    def _settle(self) -> None:
        """Waits, at full speed, for what goes on; what went wrong with it in no known way is raised here."""
        thread, self._job = self._job, None
        pace, self._pace = self._pace, None
        begun_ns = self._tree.clock()
        if pace is not None:
            pace.hurry()
        if thread is None:
            return
        thread.join()
        ahead_ns, self._ahead_ns = self._ahead_ns, 0
        self.spent.ahead_ns += ahead_ns
        if pace is None:
            self._waited(begun_ns)
        else:
            self.spent.made_ns += self._tree.clock() - begun_ns
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def _waited(self, begun_ns: int) -> None:
        waited_ns = self._tree.clock() - begun_ns
        self.spent.kept_ns += waited_ns
        self._tree.credit.spend(waited_ns)

    def _boot_again(self, spent: Spent) -> Booted:
        begun_ns = self._tree.clock()
        booted = self._boot()
        spent.replayed_ns += self._tree.clock() - begun_ns
        return booted

    def _replay(self, spent: Spent, workspace: Forkable, node: Node) -> None:
        assert node.call is not None
        begun_ns = self._tree.clock()
        result = workspace.run(node.call)
        spent.replayed_ns += self._tree.clock() - begun_ns
        if node.effect == "deterministic" and not self._agrees(node, workspace, result):
            what = f"its result differs from that of node {node.digest.hex()} when it is replayed"
            self._cache.disagreed(self._context.task, node.call.name, what)
            self._cache.doubt(node, result)
            raise ReplayDiverged(f"{node.call.name}: {what}")

    def _agrees(self, node: Node, workspace: Forkable, result: ToolResult) -> bool:
        """Whether it is the node's result, if need be after another look: a screen may be drawn late."""
        if self._cache.agrees(node, result):
            return True
        if not isinstance(workspace, Looking):
            return False
        looks = (workspace.look() for _ in range(_LOOKS))
        return any(seen is not None and self._cache.agrees(node, replace(result, observation=seen)) for seen in looks)

    def _check_boot(self, booted: Booted, root: Node) -> None:
        if not self._agrees(root, booted.live, booted.result):
            what = f"the first observation differs from that of node {root.digest.hex()}"
            self._cache.disagreed(self._context.task, RESET, what)
            self._cache.doubt(root, booted.result)
            raise ReplayDiverged(what)
