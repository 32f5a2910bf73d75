# SPDX-License-Identifier: Apache-2.0
"""Writes accessibility trees in OSWorld's XML shape: an element a role, states and extents as attributes."""

from __future__ import annotations

from collections.abc import Sequence
from xml.etree import ElementTree
from xml.sax.saxutils import escape, quoteattr

from .atspi_model import STATES, Accessible

__all__ = ["focused_terminal", "render"]

_BASE = "https://accessibility.ubuntu.example.org/ns/"
_SPACES = {
    "st": _BASE + "state",
    "attr": _BASE + "attributes",
    "cp": _BASE + "component",
    "doc": _BASE + "document",
    "docattr": _BASE + "document/attributes",
    "txt": _BASE + "text",
    "val": _BASE + "value",
    "act": _BASE + "action",
}
for _prefix, _uri in _SPACES.items():
    ElementTree.register_namespace(_prefix, _uri)

_NOT_TEXT = {0xFFFC: None, 0xFFFD: None}
# What XML cannot hold.
_NOT_XML = dict.fromkeys([*range(9), 11, 12, *range(14, 32), 65534, 65535])


def _key(prefix: str, name: str) -> str:
    return f"{{{_SPACES[prefix]}}}{name}"


_STATE_KEYS = [_key("st", name.replace("-", "_")) for name in STATES]
_COORD, _SIZE = _key("cp", "screencoord"), _key("cp", "size")


def render(apps: Sequence[Accessible], *, max_characters: int) -> tuple[str, bool]:
    """The document, and whether objects were left out to keep it below a size; it is well-formed in any case."""
    root = ElementTree.Element("desktop-frame")
    budget = _Budget(max_characters - 2000)
    for app in apps:
        _add(root, app, budget)
    return ElementTree.tostring(root, encoding="unicode"), budget.spent


class _Budget:
    def __init__(self, left: int) -> None:
        self.left = left
        self.spent = False

    def take(self, cost: int) -> bool:
        self.spent = self.spent or cost > self.left
        self.left -= 0 if self.spent else cost
        return not self.spent


def _add(parent: ElementTree.Element, node: Accessible, budget: _Budget) -> None:
    attributes = _attributes(node)
    role = _tag(node.role)
    text = node.text.translate(_NOT_TEXT).translate(_NOT_XML)
    cost = 2 * len(role) + 6 + len(escape(text)) + sum(_cost(key, value) for key, value in attributes.items())
    if not budget.take(cost):
        return
    element = ElementTree.SubElement(parent, role, attributes)
    if text:
        element.text = text
    for child in node.children:
        _add(element, child, budget)


def _cost(key: str, value: str) -> int:
    """How long an attribute is when it is written: a name space's address as its short prefix."""
    return len(key.rpartition("}")[2]) + 8 + len(quoteattr(value))


def _tag(role: str) -> str:
    tag = "".join(c if c.isalnum() or c in "-_" else "-" for c in role.strip()) or "unknown"
    return tag if not tag[0].isdigit() else f"role-{tag}"


def _attributes(node: Accessible) -> dict[str, str]:
    found = {"name": node.name.translate(_NOT_XML)}
    found.update((key, "true") for number, key in enumerate(_STATE_KEYS) if node.states >> number & 1)
    for name, value in node.attributes.items():
        found[_key("attr", _tag(name))] = str(value).translate(_NOT_XML)
    if node.extents is not None:
        x, y, width, height = node.extents
        found[_COORD], found[_SIZE] = f"({x}, {y})", f"({width}, {height})"
    if node.value is not None:
        for name, number in zip(("value", "min", "max", "step"), node.value, strict=True):
            found[_key("val", name)] = str(number)
    for name, description, binding in node.actions:
        tag = _tag(name)
        found[_key("act", f"{tag}_desc")] = description.translate(_NOT_XML)
        found[_key("act", f"{tag}_kb")] = binding.translate(_NOT_XML)
    return found


def focused_terminal(apps: Sequence[Accessible]) -> str | None:
    """What the focused terminal of the active terminal window shows; None when there is none."""
    active, focused = STATES.index("active"), STATES.index("focused")
    for app in apps:
        for frame in app.children:
            if frame.role == "frame" and frame.has(active):
                for node in _below(frame):
                    if node.role == "terminal" and node.has(focused):
                        return node.text.rstrip()
    return None


def _below(node: Accessible) -> list[Accessible]:
    return [found for child in node.children for found in (child, *_below(child))]
