# SPDX-License-Identifier: Apache-2.0
"""What an agent sees: the picture, the accessibility tree with element ids, the tabs, the last error."""

from __future__ import annotations

import asyncio
import json
import time
from typing import TYPE_CHECKING, Any

from playwright.async_api import Error as PlaywrightError

from .axtree import ElementFacts, FrameTree, facts_of_snapshot, render
from .bids import MARK_SCRIPT
from .browser import Browser, BrowserGoneError, describe_error
from .drawn import Drawing
from .screen import Screen
from .settle import settle

if TYPE_CHECKING:
    from playwright.async_api import CDPSession, Frame, Page

__all__ = ["Observer"]

_NETWORK_TIMEOUT_S = 2.0
_WINDOW_TIMEOUT_S = 2.0
_PAGE_TIMEOUT_S = 5.0
_TREE_NODES = 5000


class Observer:
    """Makes observations of a browser and its screen."""

    def __init__(self, browser: Browser, screen: Screen) -> None:
        self._browser = browser
        self._screen = screen
        self._seen: tuple[Page, dict[str, ElementFacts]] | None = None

    def last_box(self, page: Page, bid: str) -> tuple[float, float, float, float] | None:
        """Where an element of a page was when its tree was last read."""
        if self._seen is None or self._seen[0] is not page or bid not in self._seen[1]:
            return None
        return self._seen[1][bid].box

    async def observe(
        self,
        *,
        screenshot: bool = True,
        tree: bool = True,
        dom: bool = False,
        script: str = "",
        changed: bool,
        acted: bool,
    ) -> dict[str, Any]:
        """Waits until the page is drawn and reads it.

        Args:
            screenshot, tree, dom: which parts are wanted.
            script: JavaScript that is evaluated in the page meanwhile; `answer` has what came of it, a `value` or an
                `error`.
            changed: the page may have been changed by us since the last observation; if not, the screen
                shows it already and there is no frame to wait for.
            acted: the change was an agent's action: also wait, within bounds, for the requests it set off.
        """
        started = time.monotonic()
        async with Drawing(self._screen if screenshot else None) as drawing:
            marks = None
            if changed:
                timeout_s = _NETWORK_TIMEOUT_S if acted else 0.0
                marks = await self._settle(drawing, timeout_s, f"({MARK_SCRIPT})('')")
            if self._browser.network is not None:
                await self._browser.network.drain()
            settled = time.monotonic()
            page = self._browser.active_page()
            shot, titles, text, answer = await asyncio.gather(
                (drawing.picture() if changed else self._screen.picture()) if screenshot else _nothing(),
                self._other_titles(page),
                self._read(page, marks, tree=tree, dom=dom),
                _answer(page, script) if script else _nothing(),
            )
        timings = {"settle": (settled - started) * 1e3, "read": (time.monotonic() - settled) * 1e3}
        notices = self._browser.take_notices()
        tabs = self._tabs(page, {**titles, page: text["title"]})
        return {**text, **tabs, "screenshot": shot, "answer": answer, "notices": notices, "timings_ms": timings}

    async def rest(self) -> None:
        """As `observe`, without reading the page.

        Elements' ids count from what is read first, and so does Chromium's tree: of parts that were empty then it may
        not hear later.
        """
        async with Drawing(self._screen) as drawing:
            await self._settle(drawing, _NETWORK_TIMEOUT_S, "null")
            await drawing.picture()

    async def _settle(self, drawing: Drawing, network_timeout_s: float, question: str) -> Any:
        """Settles the active page, and the one that took its place meanwhile; what that one answers, if it does."""
        traffic = self._browser.traffic
        page = await self._browser.front_page()
        session = await self._browser.session(page)
        wanted: dict[str, Any] = {"network_timeout_s": network_timeout_s, "question": question}
        answer = await settle(page, session, traffic, drawing, **wanted)
        await traffic.wait_pages(_WINDOW_TIMEOUT_S)
        if self._browser.active_page() is not page:
            page = await self._browser.front_page()
            session = await self._browser.session(page)
            answer = await settle(page, session, traffic, drawing, **wanted)
        return answer if self._browser.active_page() is page else None

    async def _other_titles(self, page: Page) -> dict[Page, str]:
        """Titles of the tabs behind the active one; its own comes with its text."""
        others = [other for other in self._browser.pages() if other is not page]
        titles = await asyncio.gather(*(_title(other) for other in others))
        return dict(zip(others, titles, strict=True))

    def _tabs(self, page: Page, titles: dict[Page, str]) -> dict[str, Any]:
        pages = self._browser.pages()
        if page not in pages:
            raise BrowserGoneError("the page was closed while it was read")
        return {
            "url": page.url,
            "open_pages_urls": [other.url for other in pages],
            "open_pages_titles": [titles.get(other, "") for other in pages],
            "active_page_index": pages.index(page),
        }

    async def _read(self, page: Page, marks: Any, *, tree: bool, dom: bool) -> dict[str, Any]:
        """Tree and DOM text; a page that does not answer or navigates away just now has none."""
        empty = {
            "title": "",
            "axtree_txt": "",
            "axtree_cut": False,
            "dom": "",
            "focused_element_bid": "",
            "page_error": "",
        }
        try:
            async with asyncio.timeout(_PAGE_TIMEOUT_S):
                return {**empty, **await self._read_page(page, marks, tree=tree, dom=dom)}
        except TimeoutError:
            return {**empty, "page_error": "the page does not answer"}
        except PlaywrightError as error:
            return {**empty, "page_error": error.message.splitlines()[0]}

    async def _read_page(self, page: Page, marks: Any, *, tree: bool, dom: bool) -> dict[str, Any]:
        session = await self._browser.session(page)
        letters = self._browser.letters(page)
        inner = await asyncio.gather(*(_mark(frame, letters.of(frame)) for frame in page.frames[1:]))
        # The page's own elements are numbered before its tree is read: a session's questions are answered in turn.
        (title, focused), read = await asyncio.gather(
            _value(marks) if marks else _call(session, MARK_SCRIPT, ""),
            self._tree(page, session) if tree else _nothing(),
        )
        # Of a chain of frames that hold the focus, the innermost comes last.
        focused = next((bid for bid in reversed(inner) if bid), focused)
        result: dict[str, Any] = {"title": title, "focused_element_bid": focused}
        if tree:
            result["axtree_txt"], result["axtree_cut"] = read
        if dom:
            result["dom"] = await page.content()
        return result

    async def _tree(self, page: Page, session: CDPSession) -> tuple[str, bool]:
        # The longer answer first: it is on its way while the page makes the other.
        own, (facts, owners) = await asyncio.gather(_ask(session, "Accessibility.getFullAXTree"), _facts(session))
        self._seen = (page, {fact.bid: fact for fact in facts.values()})
        inner = [(frame, owner) for frame, owner in owners.items() if owner is not None]
        trees = await asyncio.gather(
            *(_ask(session, "Accessibility.getFullAXTree", frameId=frame) for frame, _ in inner)
        )
        frames = [FrameTree(nodes=own["nodes"], owner=None)]
        frames += [FrameTree(nodes=t["nodes"], owner=owner) for t, (_, owner) in zip(trees, inner, strict=True)]
        return render(frames, facts, max_nodes=_TREE_NODES)


async def _ask(session: CDPSession, method: str, **params: Any) -> Any:
    """As `session.send`, without the copy it makes of an answer, value by value: a fifth of a large page's step."""
    return await session._impl_obj.send(method, params, None)


async def _facts(session: CDPSession) -> tuple[dict[int, ElementFacts], dict[str, int | None]]:
    return facts_of_snapshot(await _ask(session, "DOMSnapshot.captureSnapshot", computedStyles=[]))


async def _nothing() -> Any:
    return None


async def _value(known: Any) -> Any:
    return known


async def _title(page: Page) -> str:
    try:
        return await asyncio.wait_for(page.title(), _PAGE_TIMEOUT_S)
    except (PlaywrightError, TimeoutError):
        return ""


async def _answer(page: Page, script: str) -> dict[str, Any]:
    try:
        return {"value": await asyncio.wait_for(page.evaluate(script), _PAGE_TIMEOUT_S)}
    except TimeoutError:
        return {"error": "the page does not answer"}
    except PlaywrightError as error:
        return {"error": describe_error(error)}


async def _call(session: CDPSession, function: str, *args: Any) -> Any:
    """What a JavaScript function returns in the page itself, if that can be written as JSON.

    `Page.evaluate` is for values of any kind, and takes twice as long.
    """
    expression = f"({function})({', '.join(map(json.dumps, args))})"
    answer = await _ask(session, "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
    if "exceptionDetails" in answer:
        thrown = answer["exceptionDetails"].get("exception", {})
        raise PlaywrightError(str(thrown.get("description", thrown.get("value", "the script failed"))))
    return answer["result"].get("value")


async def _mark(frame: Frame, letters: str) -> str:
    """Numbers an inner frame's elements; the id of its focused one. None of a frame that just went away."""
    try:
        _, focused = await frame.evaluate(MARK_SCRIPT, letters)
    except PlaywrightError:
        return ""
    return str(focused)
