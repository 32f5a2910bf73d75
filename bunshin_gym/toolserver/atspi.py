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
from typing import Any

from dbus_fast import Message, MessageType
from dbus_fast.aio import MessageBus
from dbus_fast.auth import AuthExternal

from .atspi_model import SHOWING, VISIBLE, Accessible, NoAnswerError, Ref, bits, move_below_menu, to_ref
from .atspi_sheet import CELLS, TEXT_CHARACTERS, Sheet

__all__ = ["Accessibility"]

_A11Y = "org.a11y.atspi."
_ROOT = "/org/a11y/atspi/accessible/root"
_CACHE = "/org/a11y/atspi/cache"
_SILENCE_S = 4.0
_WHOLE_S = 20.0
_QUESTIONS = 96
_PER_APP_NODES = 2500
_DEPTH = 60


class Accessibility:
    """A connection to the accessibility bus, kept open and forked with the workspace."""

    def __init__(self, session_bus: str, uid: int) -> None:
        self._session_bus = session_bus
        self._uid = uid
        self._bus: MessageBus | None = None
        self._silent: set[str] = set()
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
        self._silent.clear()
        apps = await self._children(("org.a11y.atspi.Registry", _ROOT))
        trees = await asyncio.gather(*(self._read_app(app, only) for app in apps))
        return [tree for tree in trees if tree is not None]

    async def _read_app(self, app: Ref, only: str) -> Accessible | None:
        root = Accessible(app, role="application", states=1 << SHOWING | 1 << VISIBLE)
        try:
            root.name = await self.get(app, "Accessible", "Name")
            if only and root.name != only:
                return None
            async with asyncio.timeout(_WHOLE_S):
                await _Walk(self, root).run()
            for window in root.children:
                move_below_menu(window)
        except TimeoutError:
            return root  # what was read until now is what there is to show
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
            if ref[0] in self._silent:
                raise NoAnswerError(f"{ref[0]} does not answer")
            try:
                async with asyncio.timeout(_SILENCE_S):
                    reply = await self._bus.call(message)
            except TimeoutError:
                # It hangs: nothing more is asked of it this time.
                self._silent.add(ref[0])
                raise NoAnswerError(f"{ref[0]} does not answer") from None
        if reply is None or reply.message_type is not MessageType.METHOD_RETURN:
            raise NoAnswerError(f"{member} of {ref}: {reply.body if reply is not None else None}")
        return list(reply.body)

    async def get(self, ref: Ref, interface: str, name: str) -> Any:
        """One property of one of an object's interfaces."""
        answer = await self.call(ref, "org.freedesktop.DBus.Properties", "Get", "ss", _A11Y + interface, name)
        return answer[0].value

    async def properties(self, ref: Ref, interface: str, names: Sequence[str], *, at_once: bool) -> dict[str, Any]:
        """Properties of one of an object's interfaces, by one question or by one for each."""
        if not at_once:
            values = await asyncio.gather(*(self.get(ref, interface, name) for name in names))
            return dict(zip(names, values, strict=True))
        (got,) = await self.call(ref, "org.freedesktop.DBus.Properties", "GetAll", "s", _A11Y + interface)
        return {name: got[name].value for name in names if name in got}

    async def _children(self, ref: Ref) -> list[Ref]:
        return [to_ref(child) for child in (await self.call(ref, "Accessible", "GetChildren"))[0]]


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
        self._at_once = await self._bus.get(self._root.ref, "Application", "ToolkitName") != "Qt"
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
            ref, parent = to_ref(item[0]), to_ref(item[2])
            if ref == self._root.ref or ref[0] != self._root.ref[0]:
                continue  # what another program has put into a window of this one is that one's to tell
            self._known[ref] = Accessible(
                ref,
                name=item[6],
                role=str(item[7]),
                states=bits(item[9]),
                interfaces=frozenset(name.removeprefix(_A11Y) for name in item[5]),
                child_count=item[4],
                description=item[8],
            )
            self._child_refs.setdefault(parent, []).append((item[3], ref))

    async def _descend(self, node: Accessible, depth: int, *, is_root: bool = False) -> None:
        """Reads the children of a node that is on the screen, then all of theirs, at once."""
        if depth >= _DEPTH or self._left <= 0:
            return
        if "Table" in node.interfaces and node.child_count > CELLS:
            node.children = await Sheet(self._bus, node).read()
            return
        refs = (await self._refs_of(node, is_root))[: max(self._left, 0)]
        if node.role == "menu" and refs and not await self._is_open({*refs[:2], refs[-1]}):
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

    async def _is_open(self, items: set[Ref]) -> bool:
        """Whether a menu is open, told by some of its items; most of an office's hundreds of items are not shown."""
        answers = await asyncio.gather(
            *(self._bus.call(item, "Accessible", "GetState") for item in items), return_exceptions=True
        )
        words = [answer[0] for answer in answers if not isinstance(answer, BaseException)]
        return any(bits(word) >> SHOWING & 1 for word in words)

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
            node.role, node.states = role[0], bits(states[0])
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
        node.text = (await self._bus.call(node.ref, "Text", "GetText", "ii", 0, -1))[0][:TEXT_CHARACTERS]

    async def _ask_value(self, node: Accessible) -> None:
        names = ("CurrentValue", "MinimumValue", "MaximumValue", "MinimumIncrement")
        got = await self._bus.properties(node.ref, "Value", names, at_once=self._at_once)
        value, least, most, step = (float(got.get(name, 0.0)) for name in names)
        node.value = (value, least, most, step)

    async def _ask_actions(self, node: Accessible) -> None:
        node.actions = [tuple(row) for row in (await self._bus.call(node.ref, "Action", "GetActions"))[0]]


async def _nothing() -> None:
    return None
