# SPDX-License-Identifier: Apache-2.0
"""Pictures of a snapshot tree: text, SVG, HTML, and hits over time. They read the store and change nothing."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from xml.etree import ElementTree

import numpy as np
import rich.tree
from numpy.typing import NDArray
from PIL import Image
from rich.markup import escape

from bunshin_gym.cache.store.index import Counts, Node
from bunshin_gym.cache.store.ledger import Rate
from bunshin_gym.cache.tree import SnapshotTree
from bunshin_gym.errors import BunshinError, UsageError
from bunshin_gym.figures import pyplot

__all__ = ["Branch", "branches", "rate_plot", "to_html", "to_svg", "to_text"]

_THUMBNAIL: Final = (160, 120)
_TIER_MARKS: Final = {"memory": "●", "disk": "◆"}
_TIER_COLOURS: Final = {"memory": "#2a9d8f", "disk": "#457b9d", "": "#b0b0b0"}
_LABEL_LENGTH: Final = 48
_STYLE: Final = """
body { font: 14px/1.4 system-ui, sans-serif; margin: 2em; }
details { margin-left: 1.4em; border-left: 1px solid #ddd; padding-left: .6em; }
summary { cursor: pointer; padding: .15em 0; }
img { vertical-align: middle; margin-right: .5em; border: 1px solid #ccc; }
code { background: #f3f3f3; padding: 0 .3em; }
.num { color: #666; } .memory { color: #2a9d8f; } .disk { color: #457b9d; } .over { font-weight: bold; }
"""


@dataclass(slots=True)
class Branch:
    """A node with all below it."""

    node: Node
    counts: Counts
    tiers: frozenset[str]
    children: list[Branch] = field(default_factory=list)

    @property
    def label(self) -> str:
        """The call, shortened."""
        if self.node.call is None:
            return "start"
        args = ", ".join(f"{name}={value!r}" for name, value in self.node.call.args.items())
        text = f"{self.node.call.name}({args})"
        return text if len(text) <= _LABEL_LENGTH else text[: _LABEL_LENGTH - 1] + "…"

    @property
    def facts(self) -> str:
        """Hits, visits, cost, end."""
        parts = [f"{self.counts.hits} hits of {self.counts.visits}", f"{self.node.wall_ns / 1e6:.0f} ms"]
        if self.node.reward or self.node.terminated:
            parts.append(f"reward {self.node.reward:g}")
        if self.node.over:
            parts.append("end")
        return ", ".join(parts)

    def walk(self) -> Iterator[Branch]:
        """This one and all below, parents first."""
        yield self
        for child in self.children:
            yield from child.walk()


def branches(tree: SnapshotTree, task: str | None = None) -> list[tuple[Mapping[str, Any], Branch]]:
    """The trees of all contexts, or of one task's, with the contexts' bodies."""
    tiers: dict[int, set[str]] = {}
    for row in tree.ledger.snapshots():
        if row.tier == "disk" or row.owner.alive():
            tiers.setdefault(row.node, set()).add(row.tier)
    found: list[tuple[Mapping[str, Any], Branch]] = []
    for context, body in tree.index.contexts().items():
        if task is not None and body["task"] != task:
            continue
        counts = tree.index.counts_of_context(context)
        by_id: dict[int, Branch] = {}
        for node in tree.index.of_context(context):
            branch = by_id[node.id] = Branch(node, counts[node.id], frozenset(tiers.get(node.id, ())))
            if node.parent is None:
                found.append((body, branch))
            else:
                by_id[node.parent].children.append(branch)
    return found


def title(body: Mapping[str, Any]) -> str:
    """A context in a few words."""
    return f"{body['task']}, seed {body['seed']}"


def to_text(found: list[tuple[Mapping[str, Any], Branch]]) -> rich.tree.Tree:
    """For a terminal; ● is a snapshot in memory, ◆ one on disk."""
    top = rich.tree.Tree("snapshot tree  [dim]● snapshot in memory  ◆ on disk[/]")

    def add(parent: rich.tree.Tree, branch: Branch) -> None:
        marks = "".join(_TIER_MARKS[tier] for tier in sorted(branch.tiers))
        style = "green" if branch.node.reward > 0 else "red" if branch.node.reward < 0 else ""
        label = escape(branch.label) if not style else f"[{style}]{escape(branch.label)}[/]"
        below = parent.add(f"{label} [dim]{escape(branch.facts)}[/] {marks}")
        for child in branch.children:
            add(below, child)

    for body, branch in found:
        add(top.add(f"[bold]{escape(title(body))}[/]"), branch)
    return top


def to_html(found: list[tuple[Mapping[str, Any], Branch]], tree: SnapshotTree, path: Path) -> None:
    """One page that needs nothing else: the tree to fold and unfold, with thumbnails."""
    html = ElementTree.Element("html", lang="en")
    head = ElementTree.SubElement(html, "head")
    ElementTree.SubElement(head, "meta", charset="utf-8")
    ElementTree.SubElement(head, "title").text = "Snapshot tree"
    ElementTree.SubElement(head, "style").text = _STYLE
    page = ElementTree.SubElement(html, "body")
    ElementTree.SubElement(page, "h1").text = "Snapshot tree"
    for body, branch in found:
        ElementTree.SubElement(page, "h2").text = title(body)
        _html_branch(page, branch, tree)
    path.write_bytes(b"<!doctype html>\n" + ElementTree.tostring(html, encoding="utf-8", method="html"))


def _html_branch(parent: ElementTree.Element, branch: Branch, tree: SnapshotTree) -> None:
    details = ElementTree.SubElement(parent, "details", open="")
    summary = ElementTree.SubElement(details, "summary")
    picture = thumbnail(tree, branch.node)
    if picture is not None:
        encoded = io.BytesIO()
        picture.save(encoded, "png")
        source = f"data:image/png;base64,{base64.b64encode(encoded.getvalue()).decode()}"
        ElementTree.SubElement(summary, "img", src=source, alt="", width=str(picture.width))
    kind = {"class": "over"} if branch.node.over else {}
    ElementTree.SubElement(summary, "code", kind).text = branch.label
    ElementTree.SubElement(summary, "span", {"class": "num"}).text = f" {branch.facts} "
    for tier in sorted(branch.tiers):
        ElementTree.SubElement(summary, "span", {"class": tier}).text = f"{_TIER_MARKS[tier]} {tier} "
    for child in branch.children:
        _html_branch(details, child, tree)


def to_svg(body: Mapping[str, Any], root: Branch, tree: SnapshotTree, path: Path, *, thumbnails: bool = True) -> None:
    """One context's tree, from left to right; the wider a line, the more attempts took it.

    Raises:
        UsageError: matplotlib is not installed.
    """
    plt = pyplot()
    places = _places(root)
    depth = max(x for x, _ in places.values())
    height = max(y for _, y in places.values())
    figure, axes = plt.subplots(figsize=(3.2 * (depth + 1.6), 1.25 * (height + 1.4)))
    axes.set_axis_off()
    axes.set_title(title(body))
    axes.set_xlim(-0.4, depth + 1.0)
    axes.set_ylim(height + 0.7, -0.7)
    for branch in root.walk():
        x, y = places[branch.node.id]
        for child in branch.children:
            to_x, to_y = places[child.node.id]
            width = 1 + np.log2(1 + child.counts.visits)
            axes.plot([x, to_x], [y, to_y], color="#cccccc", linewidth=width, zorder=1)
    for branch in root.walk():
        _svg_node(plt, axes, branch, places[branch.node.id], thumbnail(tree, branch.node) if thumbnails else None)
    figure.savefig(path, bbox_inches="tight")
    plt.close(figure)


def _svg_node(plt: Any, axes: Any, branch: Branch, place: tuple[float, float], picture: Image.Image | None) -> None:
    from matplotlib.offsetbox import AnnotationBbox, OffsetImage

    x, y = place
    tier = "memory" if "memory" in branch.tiers else "disk" if "disk" in branch.tiers else ""
    edge = _TIER_COLOURS[tier]
    if picture is None:
        axes.scatter([x], [y], s=140, color=edge, zorder=2)
    else:
        box = OffsetImage(np.asarray(picture), zoom=0.45)
        axes.add_artist(AnnotationBbox(box, (x, y), pad=0.15, bboxprops={"edgecolor": edge, "linewidth": 2}))
    short = branch.label if len(branch.label) <= 30 else branch.label[:29] + "…"
    axes.text(x, y + 0.42, short, ha="center", va="top", fontsize=6)
    axes.text(x, y + 0.51, branch.facts, ha="center", va="top", fontsize=5, color="#666666")


def _places(root: Branch) -> dict[int, tuple[float, float]]:
    """Leaves one below the other, each parent in the middle of its children."""
    places: dict[int, tuple[float, float]] = {}
    row = 0.0
    for branch in reversed(list(root.walk())):  # children before parents, from the last leaf up
        if branch.children:
            rows = [places[child.node.id][1] for child in branch.children]
            y = (min(rows) + max(rows)) / 2
        else:
            y, row = row, row + 1
        places[branch.node.id] = (float(branch.node.depth), y)
    lowest = max(y for _, y in places.values())
    return {node: (x, lowest - y) for node, (x, y) in places.items()}


def thumbnail(tree: SnapshotTree, node: Node) -> Image.Image | None:
    """The node's screen, made small; None where the observation has none."""
    try:
        observation = tree.result(node).observation
    except BunshinError:
        return None  # its contents are damaged; the next attempt that comes by runs the call again
    screen: NDArray[np.uint8] | None = observation.get("screenshot") if isinstance(observation, dict) else None
    if not isinstance(screen, np.ndarray) or screen.ndim != 3 or screen.shape[2] != 3:
        return None
    picture = Image.fromarray(screen)
    picture.thumbnail(_THUMBNAIL)
    return picture


def rate_plot(rates: list[Rate], path: Path) -> None:
    """The share of steps that ran nothing, and the tool time saved, over the steps so far.

    Raises:
        UsageError: nothing was recorded yet, or matplotlib is not installed.
    """
    if not rates:
        raise UsageError("no steps were recorded in this tree yet")
    plt = pyplot()
    hits = np.array([rate.hits for rate in rates])
    steps = hits + np.array([rate.misses for rate in rates])
    window = min(len(rates), max(8, len(rates) // 20))
    smooth = np.convolve(hits, np.ones(window), "valid") / np.convolve(steps, np.ones(window), "valid")
    at = np.cumsum(steps)
    figure, (top, bottom) = plt.subplots(2, 1, figsize=(8, 6), sharex=True)
    top.plot(at[window - 1 :], smooth, label="lately", color="#2a9d8f")
    top.plot(at, np.cumsum(hits) / at, label="since the start", color="#999999", linestyle="--")
    top.set_ylim(0, 1)
    top.set_ylabel("share of steps that hit")
    top.legend(loc="lower right")
    bottom.plot(at, np.cumsum([rate.saved_ns for rate in rates]) / 1e9, label="saved", color="#2a9d8f")
    bottom.plot(at, np.cumsum([rate.executed_ns for rate in rates]) / 1e9, label="run", color="#e76f51")
    bottom.set_ylabel("tool time, s")
    bottom.set_xlabel("steps")
    bottom.legend(loc="upper left")
    figure.tight_layout()
    figure.savefig(path)
    plt.close(figure)
