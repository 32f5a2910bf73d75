# SPDX-License-Identifier: Apache-2.0
"""The accessibility tree as text, from what the DevTools protocol returns.

Pure: dictionaries in, text out. One node a line, indented by tabs, as agents of this field read it:

    [12] button 'Submit', clickable, focused
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["ElementFacts", "FrameTree", "facts_of_snapshot", "render"]

# Nodes of these roles say nothing that their children do not say.
_TRANSPARENT = frozenset({"none", "generic", "InlineTextBox", "LineBreak", "presentation"})
# Shown when they differ from what one expects of any element.
_FLAGS = ("focused", "disabled", "required", "readonly", "modal", "multiselectable", "busy")
_VALUES = ("checked", "pressed", "selected", "expanded", "invalid", "level", "valuemin", "valuemax", "hasPopup")
# Shown whatever they are: that a box is not ticked is worth knowing.
_STATES = ("checked", "pressed", "expanded")
_DULL = (None, "", "false", False)
_LONGEST_TEXT = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class ElementFacts:
    """What the layout knows of one element.

    Attributes:
        bid: its element id.
        clickable: whether a click would be noticed.
        box: x, y, width, height in its document, in CSS pixels; None if it has none.
    """

    bid: str
    clickable: bool
    box: tuple[float, float, float, float] | None

    @property
    def visible(self) -> bool:
        """Whether it has a box of some size."""
        return self.box is not None and self.box[2] > 0 and self.box[3] > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameTree:
    """The accessibility nodes of one frame.

    Attributes:
        nodes: as `Accessibility.getFullAXTree` returns them.
        owner: backend node id of the element that holds the frame; None for the page's own.
    """

    nodes: list[dict[str, Any]]
    owner: int | None


def facts_of_snapshot(snapshot: Mapping[str, Any]) -> tuple[dict[int, ElementFacts], dict[str, int | None]]:
    """Reads `DOMSnapshot.captureSnapshot`.

    Returns:
        Backend node id to facts, for elements that have a bid; and frame id to the backend node id of
        the element that holds the frame (None for the page's own), in document order.
    """
    strings: list[str] = snapshot["strings"]
    try:
        bid_name = strings.index("bid")
    except ValueError:
        bid_name = -2
    facts: dict[int, ElementFacts] = {}
    owners: dict[int, int] = {}
    for document in snapshot["documents"]:
        nodes = document["nodes"]
        backend: list[int] = nodes["backendNodeId"]
        clickable = set(nodes.get("isClickable", {}).get("index", ()))
        boxes = dict(zip(document["layout"]["nodeIndex"], document["layout"]["bounds"], strict=True))
        for index, attributes in enumerate(nodes["attributes"]):
            for at in range(0, len(attributes), 2):
                if attributes[at] == bid_name:
                    box = boxes.get(index)
                    facts[backend[index]] = ElementFacts(
                        bid=strings[attributes[at + 1]],
                        clickable=index in clickable,
                        box=(box[0], box[1], box[2], box[3]) if box is not None else None,
                    )
                    break
        held = nodes.get("contentDocumentIndex", {"index": [], "value": []})
        owners.update((value, backend[index]) for index, value in zip(held["index"], held["value"], strict=True))
    frames = {strings[d["frameId"]]: owners.get(n) for n, d in enumerate(snapshot["documents"]) if d["frameId"] >= 0}
    return facts, frames


def render(frames: list[FrameTree], facts: Mapping[int, ElementFacts], *, max_nodes: int) -> tuple[str, bool]:
    """Renders a page, frames inside the elements that hold them.

    Returns:
        The text, and whether it was cut at `max_nodes` lines.
    """
    inner: dict[int, list[FrameTree]] = {}
    roots: list[FrameTree] = []
    for frame in frames:
        if frame.owner is None:
            roots.append(frame)
        else:
            inner.setdefault(frame.owner, []).append(frame)
    lines: list[str] = []
    for frame in roots:
        for line in _walk(frame, inner, facts, 0):
            if len(lines) >= max_nodes:
                return "\n".join(lines), True
            lines.append(line)
    return "\n".join(lines), False


def _walk(
    frame: FrameTree, inner: Mapping[int, list[FrameTree]], facts: Mapping[int, ElementFacts], start_depth: int
) -> Iterator[str]:
    by_id = {node["nodeId"]: node for node in frame.nodes}
    root = next((node for node in frame.nodes if not node.get("parentId")), None)
    # (node, depth, name of the nearest line above); a list instead of recursion: pages nest deeply.
    stack = [(root, start_depth, "")] if root is not None else []
    while stack:
        node, depth, above = stack.pop()
        line = _line(node, facts, above)
        below = depth
        if line is not None:
            yield "\t" * depth + line
            below = depth + 1
            above = _text(node.get("name"))
        for held in inner.get(node.get("backendDOMNodeId", -1), ()):
            yield from _walk(held, inner, facts, below)
        children = [by_id[child] for child in node.get("childIds", ()) if child in by_id]
        stack.extend((child, below, above) for child in reversed(children))


def _line(node: Mapping[str, Any], facts: Mapping[int, ElementFacts], above: str) -> str | None:
    """A node's line; None when it has nothing of its own to say."""
    if node.get("ignored"):
        return None
    role, name = _text(node.get("role")), _text(node.get("name"))
    fact = facts.get(node.get("backendDOMNodeId", -1))
    if role == "StaticText":
        return f"StaticText {name!r}" if name.strip() and name.strip() != above.strip() else None
    if role in _TRANSPARENT and not (fact is not None and fact.clickable and fact.visible):
        return None
    parts = [f"[{fact.bid}] {role} {name!r}" if fact is not None else f"{role} {name!r}"]
    value = _text(node.get("value"))
    if value:
        parts.append(f"value={value!r}")
    if fact is not None and fact.clickable:
        parts.append("clickable")
    if fact is not None and not fact.visible and role != "option":
        parts.append("hidden")
    parts += _properties(node)
    return ", ".join(parts)


def _properties(node: Mapping[str, Any]) -> Iterator[str]:
    values = {p["name"]: p.get("value", {}).get("value") for p in node.get("properties", ())}
    for name in _FLAGS:
        if values.get(name) not in _DULL:
            yield name
    for name in _VALUES:
        value = values.get(name)
        if value not in _DULL or (name in _STATES and name in values):
            yield f"{name}={str(value).lower()}" if isinstance(value, bool) else f"{name}={value}"
    description = _text(node.get("description"))
    if description:
        yield f"description={description!r}"


def _text(value: Mapping[str, Any] | None) -> str:
    if value is None:
        return ""
    text = str(value.get("value", ""))
    return text if len(text) <= _LONGEST_TEXT else text[:_LONGEST_TEXT] + "…"
