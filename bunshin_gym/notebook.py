# SPDX-License-Identifier: Apache-2.0
"""What notebooks show: an env, a snapshot tree from whose nodes envs are forked, memory over time.

An env shows itself: make it the last line of a cell. The rest is

    view = TreeView(tree)          # hits, tiers and thumbnails; numbers name the nodes
    env = view.open(3)             # an env in that state, ready to step
    view.widget()                  # the same, with buttons (extra `notebook`)
    with MemoryWatch() as memory:  # then: memory, on a line of its own
        ...
"""

from __future__ import annotations

import base64
import html
import io
import os
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from bunshin_gym.accounting import account_ids
from bunshin_gym.cache.tree import SnapshotTree
from bunshin_gym.cache.tree_view import Branch, branches, thumbnail, title
from bunshin_gym.envs import BunshinEnv
from bunshin_gym.errors import BunshinError, UsageError
from bunshin_gym.figures import pyplot
from bunshin_gym.records import list_workspaces
from bunshin_gym.wrappers.tool_sequence_cache import ToolSequenceCache

if TYPE_CHECKING:
    import ipywidgets

__all__ = ["MemoryWatch", "Spot", "TreeView", "env_html"]

_MIB = 1 << 20


def picture(pixels: NDArray[np.uint8] | Image.Image, width: int | None = None) -> str:
    """An <img> with the picture in it."""
    encoded = io.BytesIO()
    image = pixels if isinstance(pixels, Image.Image) else Image.fromarray(pixels)
    image.save(encoded, format="PNG")
    source = base64.b64encode(encoded.getvalue()).decode()
    size = "" if width is None else f' width="{width}"'
    return f'<img alt="screen" src="data:image/png;base64,{source}"{size} style="border:1px solid #8886">'


def env_html(env: BunshinEnv) -> str:
    """The env's last screen, its task and what was done last."""
    run, pixels = env._run, env._pixels
    if run is None or pixels is None:
        return f"<p><b>{html.escape(env.task.id)}</b>: no episode yet; call <code>reset()</code></p>"
    rows = {
        "task": env.task.id,
        "goal": run.setup.goal,
        "last action": run.last_action or "none yet",
        "error": run.last_error,
        "steps": f"{run.steps}, reward {run.reward:g}{', done' if run.done else ''}",
        "workspace": env.workspace_id or "",
    }
    lines = [f"<tr><th>{name}</th><td>{html.escape(text)}</td></tr>" for name, text in rows.items() if text]
    return f'<div style="display:flex;gap:1em">{picture(pixels)}<table>{"".join(lines)}</table></div>'


@dataclass(frozen=True, slots=True, kw_only=True)
class Spot:
    """A node of the tree, with the way to it.

    Attributes:
        number: its name in the view.
        body: the context: task, seed, screen.
        way: the node's branches from the start down to it.
    """

    number: int
    body: Mapping[str, Any]
    way: tuple[Branch, ...]

    @property
    def branch(self) -> Branch:
        """The node itself."""
        return self.way[-1]


class TreeView:
    """A snapshot tree as it is now, for looking at and for forking envs from.

    Args:
        tree: what a `ToolSequenceCache` filled.
        task: shows that task's only.
        make_env: makes the env of a task at a screen's size; None makes a `BunshinEnv`.
    """

    def __init__(
        self,
        tree: SnapshotTree,
        task: str | None = None,
        *,
        make_env: Callable[[str, tuple[int, int]], Any] | None = None,
    ) -> None:
        self.tree, self.task = tree, task
        self._make_env = make_env or (lambda name, screen: BunshinEnv(name, screen=screen))
        self.opened: list[ToolSequenceCache] = []

    def spots(self) -> list[Spot]:
        """All nodes, parents first; their numbers are good as long as nobody adds to the tree."""
        self.tree.flush()
        found: list[Spot] = []

        def walk(body: Mapping[str, Any], way: tuple[Branch, ...]) -> None:
            found.append(Spot(number=len(found), body=body, way=way))
            for child in way[-1].children:
                walk(body, (*way, child))

        for body, root in branches(self.tree, self.task):
            walk(body, (root,))
        return found

    def open(self, number: int) -> ToolSequenceCache:
        """An env in the state of a node, with a workspace of its own; the caller closes it, or this view's `close`.

        Raises:
            UsageError: there is no such node, or its episode is over.
            ReplayDiverged: its state cannot be rebuilt.
        """
        spots = self.spots()
        if not 0 <= number < len(spots):
            raise UsageError(f"there is no node {number}; there are {len(spots)}")
        spot = spots[number]
        if spot.branch.node.over:
            raise UsageError(f"node {number} is an episode's end; open its parent")
        width, height = spot.body["options"]["screen"]
        env = ToolSequenceCache(self._make_env(spot.body["task"], (width, height)), self.tree)
        try:
            env.reset(options={"task_seed": spot.body["seed"]})
            for branch in spot.way[1:]:
                env.step(branch.node.call)
            env.materialise()
        except BaseException:
            env.close()
            raise
        self.opened.append(env)
        return env

    def close(self) -> None:
        """Closes the envs that it opened; idempotent."""
        while self.opened:
            self.opened.pop().close()

    def _row(self, spot: Spot) -> str:
        shown = thumbnail(self.tree, spot.branch.node)
        cells = [
            str(spot.number),
            picture(shown, 80) if shown is not None else "",
            f'<code style="margin-left:{len(spot.way) - 1}em">{html.escape(spot.branch.label)}</code>',
            html.escape(spot.branch.facts),
            html.escape(", ".join(sorted(spot.branch.tiers))),
        ]
        return f"<tr>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>"

    def _repr_html_(self) -> str:
        rows, last = [], None
        for spot in self.spots():
            if (head := title(spot.body)) != last:
                rows.append(f'<tr><th colspan="5" style="text-align:left">{html.escape(head)}</th></tr>')
                last = head
            rows.append(self._row(spot))
        names = "<th>node</th><th></th><th>call</th><th>use</th><th>snapshot</th>"
        return f"<table><tr>{names}</tr>{''.join(rows)}</table>"

    def widget(self) -> ipywidgets.VBox:
        """The tree with a button at each node that can go on: it forks an env from there and shows it.

        Raises:
            UsageError: ipywidgets is not installed.
        """
        try:
            import ipywidgets
        except ImportError as error:
            raise UsageError(f"{error}: pip install 'bunshin-gym[notebook]'") from error
        shown = ipywidgets.HTML()
        lines: list[ipywidgets.Widget] = []
        for spot in self.spots():
            button = ipywidgets.Button(description=f"fork {spot.number}", disabled=spot.branch.node.over)
            button.on_click(lambda _, number=spot.number: self._click(number, shown))
            row = ipywidgets.HTML(f"<table>{self._row(spot)}</table>")
            lines.append(ipywidgets.HBox([button, row]))
        return ipywidgets.VBox([*lines, shown])

    def _click(self, number: int, shown: ipywidgets.HTML) -> None:
        try:
            env = self.open(number)
        except BunshinError as error:
            shown.value = f"<p>node {number}: {html.escape(str(error))}</p>"
        else:
            shown.value = f"<p><code>view.opened[{len(self.opened) - 1}]</code></p>{env_html(env.unwrapped)}"  # type: ignore[arg-type]


class MemoryWatch:
    """What this process's workspaces take together, over time; a plot in a notebook.

    Args:
        every_s: how often it looks.
    """

    def __init__(self, *, every_s: float = 0.5) -> None:
        self.points: list[tuple[float, float]] = []
        self._every_s = every_s
        self._over = threading.Event()
        self._begun_s = time.monotonic()
        self._thread = threading.Thread(target=self._run, name="bunshin-memory", daemon=True)

    def look(self) -> None:
        """Looks now, as well as every so often."""
        mine = [record.id for record in list_workspaces() if record.owner_pid == os.getpid() and record.alive]
        taken = account_ids(mine).total.machine_bytes if mine else 0
        self.points.append((time.monotonic() - self._begun_s, taken / _MIB))

    def _run(self) -> None:
        while True:
            self.look()
            if self._over.wait(self._every_s):
                return

    @property
    def peak_bytes(self) -> int:
        """The most that it saw."""
        return int(max((taken for _, taken in self.points), default=0) * _MIB)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _repr_html_(self) -> str:
        plt = pyplot()
        figure, axes = plt.subplots(figsize=(6, 2.5), layout="constrained")
        axes.plot(*zip(*self.points, strict=True), drawstyle="steps-post")
        axes.set(xlabel="seconds", ylabel="MiB of its own", ylim=(0, None))
        drawn = io.StringIO()
        figure.savefig(drawn, format="svg")
        plt.close(figure)
        return drawn.getvalue()
