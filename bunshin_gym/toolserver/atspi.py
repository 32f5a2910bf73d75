# SPDX-License-Identifier: Apache-2.0
"""Reads the accessibility trees of all programs of a desktop, over D-Bus, with many questions under way at once.

An application hands out what it knows of its objects in one answer (`org.a11y.atspi.Cache.GetItems`): names, roles,
states, parents. What is left to ask (extents, texts, values, actions, attributes) is asked only of what is on the
screen, and without waiting for one answer before the next question. Of a spreadsheet only the cells in view are read.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from dbus_fast import Message, MessageType
from dbus_fast.aio import MessageBus
from dbus_fast.auth import AuthExternal

__all__ = ["STATES", "Accessibility", "Accessible"]

_STATE_WORDS = (
    "invalid active armed busy checked collapsed defunct editable enabled expandable expanded focusable "
    "focused has-tooltip horizontal iconified modal multi-line multiselectable opaque pressed resizable "
    "selectable selected sensitive showing single-line stale transient vertical visible manages- "
    "descendants indeterminate required truncated animated invalid-entry supports-autocompletion "
    "selectable-text is-default visited checkable has-popup read-only"
)
STATES = tuple(_STATE_WORDS.split())
_FOCUSED, _SHOWING, _VISIBLE = (STATES.index(name) for name in ("focused", "showing", "visible"))

_A11Y = "org.a11y.atspi."
_ROOT = "/org/a11y/atspi/accessible/root"
_CACHE = "/org/a11y/atspi/cache"
_TIMEOUT_S = 3.0
_QUESTIONS = 96
_PER_APP_NODES = 2500
_CELLS = 3000
_SELECTED = 200
_TEXT_CHARACTERS = 20_000
_DEPTH = 60

Ref = tuple[str, str]
"""An object: its program's name on the bus, its path."""


@dataclass(slots=True)
class Accessible:
    """One object of a tree, as it was read."""

    ref: Ref
    name: str = ""
    role: str = ""
    states: int = 0
    interfaces: frozenset[str] = frozenset()
    child_count: int = -1
    attributes: dict[str, str] = field(default_factory=dict)
    extents: tuple[int, int, int, int] | None = None
    text: str = ""
    value: tuple[float, float, float, float] | None = None
    actions: list[tuple[str, str, str]] = field(default_factory=list)
    description: str = ""
    children: list[Accessible] = field(default_factory=list)

    def has(self, state: int) -> bool:
        """Whether a state, by its number, is set."""
        return bool(self.states >> state & 1)

    @property
    def on_screen(self) -> bool:
        """Whether it says that it is drawn, and that nothing above it hides it."""
        return self.has(_SHOWING) and self.has(_VISIBLE)


class NoAnswerError(Exception):
    """An object did not answer: it is gone, or it has no such thing."""


class Accessibility:
    """A connection to the accessibility bus, kept open and forked with the workspace."""

    def __init__(self, session_bus: str, uid: int) -> None:
        self._session_bus = session_bus
        self._uid = uid
        self._bus: MessageBus | None = None
        # More would overfill the socket, and the library takes a full socket for a broken one.
        self._gate = asyncio.Semaphore(_QUESTIONS)

    async def connect(self) -> None:
        """Finds the accessibility bus by the session's and connects to it."""
        session = await self._open(self._session_bus)
        message = Message(
            destination="org.a11y.Bus", path="/org/a11y/bus", interface="org.a11y.Bus", member="GetAddress"
        )
        reply = await session.call(message)
        session.disconnect()
        if reply is None or reply.message_type is not MessageType.METHOD_RETURN:
            raise RuntimeError("there is no accessibility bus")
        self._bus = await self._open(reply.body[0])

    async def _open(self, address: str) -> MessageBus:
        """Connects as the user: a message bus takes no one else, not even root. Done while nothing else is served."""
        own = os.geteuid()
        os.seteuid(self._uid)
        try:
            return await MessageBus(bus_address=address, auth=AuthExternal(uid=self._uid)).connect()
        finally:
            os.seteuid(own)

    async def read(self, only: str = "") -> list[Accessible]:
        """The trees of all programs, or of those of one name; a program that does not answer is left out."""
        apps = await self._children(("org.a11y.atspi.Registry", _ROOT))
        trees = await asyncio.gather(*(self._read_app(app, only) for app in apps))
        return [tree for tree in trees if tree is not None]

    async def _read_app(self, app: Ref, only: str) -> Accessible | None:
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                root = Accessible(app, role="application", states=1 << _SHOWING | 1 << _VISIBLE)
                root.name = await self._property(app, "Accessible", "Name")
                if only and root.name != only:
                    return None
        except (TimeoutError, NoAnswerError):
            return None
        walk = _Walk(self, root)
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                await walk.run()
        except TimeoutError:
            pass  # what was read until now is what there is to show
        except NoAnswerError:
            return None
        return root

    # ---- questions

    async def call(self, ref: Ref, interface: str, member: str, signature: str = "", *body: Any) -> list[Any]:
        """Calls a method of an object.

        Raises:
            NoAnswerError: it answered with an error.
        """
        assert self._bus is not None
        message = Message(
            destination=ref[0],
            path=ref[1],
            interface=interface if "." in interface else _A11Y + interface,
            member=member,
            signature=signature,
            body=list(body),
        )
        async with self._gate:
            reply = await self._bus.call(message)
        if reply is None or reply.message_type is not MessageType.METHOD_RETURN:
            raise NoAnswerError(f"{member} of {ref}: {reply.body if reply is not None else None}")
        return list(reply.body)

    async def _property(self, ref: Ref, interface: str, name: str) -> Any:
        answer = await self.call(ref, "org.freedesktop.DBus.Properties", "Get", "ss", _A11Y + interface, name)
        return answer[0].value

    async def properties(self, ref: Ref, interface: str, names: Sequence[str], *, at_once: bool) -> dict[str, Any]:
        """Properties of one of an object's interfaces, by one question or by one for each."""
        if not at_once:
            values = await asyncio.gather(*(self._property(ref, interface, name) for name in names))
            return dict(zip(names, values, strict=True))
        (got,) = await self.call(ref, "org.freedesktop.DBus.Properties", "GetAll", "s", _A11Y + interface)
        return {name: got[name].value for name in names if name in got}

    async def _children(self, ref: Ref) -> list[Ref]:
        return [_ref(child) for child in (await self.call(ref, "Accessible", "GetChildren"))[0]]


def _ref(pair: Sequence[str]) -> Ref:
    return str(pair[0]), str(pair[1])


def _bits(words: Sequence[int]) -> int:
    return words[0] | (words[1] << 32 if len(words) > 1 else 0)


class _Walk:
    """One application's tree."""

    def __init__(self, bus: Accessibility, root: Accessible) -> None:
        self._bus = bus
        self._root = root
        self._known: dict[Ref, Accessible] = {}
        self._child_refs: dict[Ref, list[tuple[int, Ref]]] = {}
        self._left = _PER_APP_NODES
        self._at_once = True

    async def run(self) -> None:
        # Qt ends the program when it is asked for all properties at once.
        self._at_once = await self._bus._property(self._root.ref, "Application", "ToolkitName") != "Qt"
        await self._load_cache()
        await self._descend(self._root, 0, is_root=True)

    async def _load_cache(self) -> None:
        """Takes what the program has ready; one that has no cache is asked object by object."""
        try:
            (items,) = await self._bus.call((self._root.ref[0], _CACHE), "Cache", "GetItems")
        except NoAnswerError:
            return
        for item in items:
            if len(item) != 10:
                return  # the form of before 2.0, without counts
            ref, parent = _ref(item[0]), _ref(item[2])
            if ref == self._root.ref:
                continue
            self._known[ref] = Accessible(
                ref,
                name=item[6],
                role=str(item[7]),
                states=_bits(item[9]),
                interfaces=frozenset(name.removeprefix(_A11Y) for name in item[5]),
                child_count=item[4],
                description=item[8],
            )
            self._child_refs.setdefault(parent, []).append((item[3], ref))

    async def _descend(self, node: Accessible, depth: int, *, is_root: bool = False) -> None:
        """Reads the children of a node that is on the screen, then all of theirs, at once."""
        if depth >= _DEPTH or self._left <= 0:
            return
        if "Table" in node.interfaces and node.child_count > _CELLS:
            node.children = await _Sheet(self._bus, node).read()
            return
        refs = (await self._refs_of(node, is_root))[: max(self._left, 0)]
        if node.role == "menu" and refs and not await self._is_open(refs[0]):
            return
        self._left -= len(refs)
        children = await asyncio.gather(*(self._load(ref) for ref in refs))
        node.children = [child for child in children if child is not None]
        await asyncio.gather(*(self._visit(child, depth) for child in node.children))

    async def _visit(self, node: Accessible, depth: int) -> None:
        """A node's details and what is below it; of what is not on the screen only the node itself."""
        shown = node.on_screen
        await asyncio.gather(
            self._detail(node), self._descend(node, depth + 1) if shown and node.child_count != 0 else _nothing()
        )

    async def _refs_of(self, node: Accessible, is_root: bool) -> list[Ref]:
        cached = self._child_refs.get(node.ref, [])
        if cached and len(cached) == node.child_count and not is_root:
            return [ref for _, ref in sorted(cached)]
        try:
            return await self._bus._children(node.ref)
        except NoAnswerError:
            return []

    async def _is_open(self, item: Ref) -> bool:
        """Whether a menu's items are shown, told by the first of them: most of an office's are not."""
        try:
            (words,) = await self._bus.call(item, "Accessible", "GetState")
        except NoAnswerError:
            return False
        return bool(_bits(words) >> _SHOWING & 1)

    async def _load(self, ref: Ref) -> Accessible | None:
        """An object with its name, role and states: from the cache, or asked for."""
        known = self._known.get(ref)
        bus = self._bus
        try:
            if known is not None:
                known.role = (await bus.call(ref, "Accessible", "GetRoleName"))[0]
                return known
            node = Accessible(ref)
            role, states, facts = await asyncio.gather(
                bus.call(ref, "Accessible", "GetRoleName"),
                bus.call(ref, "Accessible", "GetState"),
                bus.properties(ref, "Accessible", ("Name", "ChildCount"), at_once=self._at_once),
            )
            node.role, node.states = role[0], _bits(states[0])
            node.name, node.child_count = str(facts.get("Name", "")), int(facts.get("ChildCount", -1))
            if node.on_screen:
                (names,) = await bus.call(ref, "Accessible", "GetInterfaces")
                node.interfaces = frozenset(name.removeprefix(_A11Y) for name in names)
        except NoAnswerError:
            return None
        return node

    async def _detail(self, node: Accessible) -> None:
        """Asks for the rest of an object: only what it has, and of what is hidden nothing."""
        if not node.on_screen:
            return
        questions = [self._ask_attributes(node)]
        if "Component" in node.interfaces:
            questions.append(self._ask_extents(node))
        if "Text" in node.interfaces:
            questions.append(self._ask_text(node))
        if "Value" in node.interfaces:
            questions.append(self._ask_value(node))
        if "Action" in node.interfaces:
            questions.append(self._ask_actions(node))
        answers = await asyncio.gather(*questions, return_exceptions=True)
        for answer in answers:
            if isinstance(answer, BaseException) and not isinstance(answer, NoAnswerError):
                raise answer

    async def _ask_attributes(self, node: Accessible) -> None:
        node.attributes = dict((await self._bus.call(node.ref, "Accessible", "GetAttributes"))[0])

    async def _ask_extents(self, node: Accessible) -> None:
        x, y, width, height = (await self._bus.call(node.ref, "Component", "GetExtents", "u", 0))[0]
        node.extents = (x, y, width, height)

    async def _ask_text(self, node: Accessible) -> None:
        node.text = (await self._bus.call(node.ref, "Text", "GetText", "ii", 0, _TEXT_CHARACTERS))[0]

    async def _ask_value(self, node: Accessible) -> None:
        names = ("CurrentValue", "MinimumValue", "MaximumValue", "MinimumIncrement")
        got = await self._bus.properties(node.ref, "Value", names, at_once=self._at_once)
        value, least, most, step = (float(got.get(name, 0.0)) for name in names)
        node.value = (value, least, most, step)

    async def _ask_actions(self, node: Accessible) -> None:
        node.actions = [tuple(row) for row in (await self._bus.call(node.ref, "Action", "GetActions"))[0]]


class _Sheet:
    """The cells of a large table that are in view.

    Of each cell its text is asked for, and its states if it has any text or is selected. Empty cells share the states
    of the first of them, and a cell's place follows from those of its row and its column.
    """

    def __init__(self, bus: Accessibility, table: Accessible) -> None:
        self._bus = bus
        self._table = table

    async def read(self) -> list[Accessible]:
        """Cells from the first to the last one in view, row by row."""
        try:
            x, y, width, height = (await self._bus.call(self._table.ref, "Component", "GetExtents", "u", 0))[0]
            top, left = await self._cell_at(x + 2, y + 2)
            bottom, right = await self._cell_at(x + width - 3, y + height - 3)
        except NoAnswerError:
            return []
        rows, columns = range(top, bottom + 1), range(left, right + 1)
        places = [(row, column) for row in rows for column in columns][:_CELLS]
        found = await asyncio.gather(*(self._cell(*place) for place in places))
        cells = {place: cell for place, cell in zip(places, found, strict=True) if cell is not None}
        await asyncio.gather(self._place(cells), self._name(cells), self._states(cells))
        return list(cells.values())

    async def _cell_at(self, x: int, y: int) -> tuple[int, int]:
        ref = _ref((await self._bus.call(self._table.ref, "Component", "GetAccessibleAtPoint", "iiu", x, y, 0))[0])
        (index,) = await self._bus.call(ref, "Accessible", "GetIndexInParent")
        (row,) = await self._bus.call(self._table.ref, "Table", "GetRowAtIndex", "i", index)
        (column,) = await self._bus.call(self._table.ref, "Table", "GetColumnAtIndex", "i", index)
        return row, column

    async def _cell(self, row: int, column: int) -> Accessible | None:
        try:
            ref = _ref((await self._bus.call(self._table.ref, "Table", "GetAccessibleAt", "ii", row, column))[0])
            (text,) = await self._bus.call(ref, "Text", "GetText", "ii", 0, _TEXT_CHARACTERS)
        except NoAnswerError:
            return None
        return Accessible(ref, role="table cell", text=text)

    async def _place(self, cells: dict[tuple[int, int], Accessible]) -> None:
        """Extents: asked of the first cell in each row and column, and of those with text, which may be merged."""
        first: dict[tuple[str, int], tuple[int, int]] = {}
        for row, column in cells:
            first.setdefault(("row", row), (row, column))
            first.setdefault(("column", column), (row, column))
        asked = {*first.values(), *(place for place, cell in cells.items() if cell.text)}
        answers = await asyncio.gather(*(self._extents(cells[place]) for place in asked), return_exceptions=True)
        known = {p: a for p, a in zip(asked, answers, strict=True) if not isinstance(a, BaseException)}
        for place, cell in cells.items():
            across, down = known.get(first["row", place[0]]), known.get(first["column", place[1]])
            if place in known:
                cell.extents = known[place]
            elif across is not None and down is not None:
                cell.extents = (down[0], across[1], down[2], across[3])

    async def _extents(self, cell: Accessible) -> tuple[int, int, int, int]:
        x, y, width, height = (await self._bus.call(cell.ref, "Component", "GetExtents", "u", 0))[0]
        return x, y, width, height

    async def _name(self, cells: dict[tuple[int, int], Accessible]) -> None:
        """Names are the cells' addresses in a spreadsheet; another kind of table is asked."""
        place, sample = next(iter(cells.items()))
        first = await self._bus._property(sample.ref, "Accessible", "Name")
        if first == _address(*place):
            for spot, cell in cells.items():
                cell.name = _address(*spot)
            return
        names = await asyncio.gather(*(self._bus._property(cell.ref, "Accessible", "Name") for cell in cells.values()))
        for cell, name in zip(cells.values(), names, strict=True):
            cell.name = name

    async def _states(self, cells: dict[tuple[int, int], Accessible]) -> None:
        selected = set(await self._selected())
        empty = [cell for cell in cells.values() if not cell.text and cell.ref not in selected]
        asked = [cell for cell in cells.values() if cell.text or cell.ref in selected] + empty[:1]
        answers = await asyncio.gather(
            *(self._bus.call(cell.ref, "Accessible", "GetState") for cell in asked), return_exceptions=True
        )
        for cell, answer in zip(asked, answers, strict=True):
            cell.states = 0 if isinstance(answer, BaseException) else _bits(answer[0])
        for cell in empty[1:]:
            cell.states = empty[0].states & ~(1 << _FOCUSED)

    async def _selected(self) -> list[Ref]:
        """The selected cells, if they are few: a whole column has a million."""
        if "Selection" not in self._table.interfaces:
            return []
        try:
            count = await self._bus._property(self._table.ref, "Selection", "NSelectedChildren")
            picks = range(min(count, _SELECTED))
            refs = await asyncio.gather(
                *(self._bus.call(self._table.ref, "Selection", "GetSelectedChild", "i", n) for n in picks)
            )
        except NoAnswerError:
            return []
        return [_ref(ref[0]) for ref in refs]


def _address(row: int, column: int) -> str:
    """A cell's name in a spreadsheet: B3."""
    letters = ""
    column += 1
    while column:
        column, digit = divmod(column - 1, 26)
        letters = chr(ord("A") + digit) + letters
    return f"{letters}{row + 1}"


async def _nothing() -> None:
    return None
