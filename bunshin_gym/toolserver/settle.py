# SPDX-License-Identifier: Apache-2.0
"""Waits until a page has done what an action set off, within bounds.

Nothing here outlives a call: no timer, no task waits between two of them, so none can fire late
in a branch.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from playwright.async_api import Error as PlaywrightError

if TYPE_CHECKING:
    from playwright.async_api import BrowserContext, CDPSession, Page, Request

    from .drawn import Drawing

__all__ = ["Traffic", "settle"]

# What is scheduled for the next frame has run, the frame has been handed over to be drawn, what it set off has begun,
# and transitions that end soon have ended; says whether there were any, and what is asked of the page then.
# A page that is not drawn (it is covered, or behind another tab) has no frames to wait for.
_REST_SCRIPT = """
(async () => {
  const within = (ms, ...what) => new Promise((done) => {
    const timer = setTimeout(done, ms);
    Promise.any(what).then(() => { clearTimeout(timer); done(); });
  });
  const frame = () => new Promise(requestAnimationFrame);
  const soon = (animation) => {
    const left = animation.effect?.getComputedTiming().endTime - animation.currentTime;
    return animation.playState === 'running' && left / Math.abs(animation.playbackRate) <= %d;
  };
  await within(250, frame());
  await new Promise((done) => setTimeout(done, 0));
  const ending = document.getAnimations().filter(soon).map((animation) => animation.finished);
  if (ending.length) {
    await within(%d, Promise.allSettled(ending));
    await within(250, frame());
  }
  return [ending.length > 0, %s];
})()
"""
_ANIMATION_MS = 1000
_ENDLESS = frozenset({"websocket", "eventsource", "media", "ping"})
_ROUNDS = 8
_REST_TIMEOUT_S = 4.0
_LOAD_TIMEOUT_S = 15.0


class Traffic:
    """Counts the requests that a page has open, and its documents that are not loaded yet."""

    def __init__(self, context: BrowserContext) -> None:
        self._open: dict[Request, None] = {}
        self._loading: WeakKeyDictionary[Page, set[str]] = WeakKeyDictionary()
        self._expected_pages = 0
        self._changed = asyncio.Event()
        context.on("request", self._started)
        context.on("requestfinished", self._ended)
        context.on("requestfailed", self._ended)

    def watch(self, page: Page, session: CDPSession) -> None:
        """Follows which frames load. The page says so itself, in order with its answers to what the session asks."""
        frames = self._loading.setdefault(page, set())

        def ended(event: dict[str, Any]) -> None:
            frames.discard(event["frameId"])
            self._changed.set()

        session.on("Page.frameStartedLoading", lambda event: frames.add(event["frameId"]))
        session.on("Page.frameStoppedLoading", ended)
        session.on("Page.frameDetached", ended)

    async def wait_loaded(self, page: Page, timeout_s: float) -> bool:
        """Waits until none of a page's frames loads; False when the time is over first, and it is not asked again."""
        frames = self._loading.get(page, set())
        if not await self._wait(lambda: not frames, timeout_s):
            frames.clear()
            return False
        return True

    def is_loading(self, page: Page) -> bool:
        """Whether one of its frames loads a document."""
        return bool(self._loading.get(page))

    def open_requests(self, page: Page) -> int:
        """How many of a page's requests will end but have not yet."""
        return sum(1 for request in self._open if _page_of(request) is page)

    def expect_page(self) -> None:
        """A page has asked for a new window."""
        self._expected_pages += 1

    def page_came(self) -> None:
        """A new page is there, asked for or not."""
        self._expected_pages = max(self._expected_pages - 1, 0)
        self._changed.set()

    async def wait_pages(self, timeout_s: float) -> None:
        """Waits for the windows that were asked for; one that did not come in time will not come."""
        await self._wait(lambda: self._expected_pages == 0, timeout_s)
        self._expected_pages = 0

    async def wait_idle(self, page: Page, timeout_s: float) -> bool:
        """Waits until none of a page's requests is open; False when the time is over first."""
        return await self._wait(lambda: not self.open_requests(page), timeout_s)

    async def _wait(self, condition: Callable[[], bool], timeout_s: float) -> bool:
        try:
            async with asyncio.timeout(timeout_s):
                while not condition():
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            return False
        return True

    def forget(self, page: Page) -> None:
        """Drops what a page that is gone has open: nobody will tell us of its end."""
        self._loading.get(page, set()).clear()
        for request in [r for r in self._open if _page_of(r) in (page, None)]:
            self._ended(request)

    def _started(self, request: Request) -> None:
        if request.resource_type not in _ENDLESS:
            self._open[request] = None

    def _ended(self, request: Request) -> None:
        self._open.pop(request, None)
        self._changed.set()


def _page_of(request: Request) -> Page | None:
    try:
        return request.frame.page
    except PlaywrightError:
        return None  # of a service worker, or of a page that is not there yet


async def settle(
    page: Page, session: CDPSession, traffic: Traffic, drawing: Drawing, *, network_timeout_s: float, question: str
) -> Any:
    """Returns when the page is loaded, what is scheduled for its next frame has run and no request is open.

    A page that never comes to rest is left alone when the bounds are over; so is one that is closed,
    or that does not answer.

    Args:
        question: an expression in JavaScript.

    Returns:
        Its value at that time, if that can be written as JSON; None if the page did not come to rest.
    """
    script = _REST_SCRIPT % (_ANIMATION_MS, _ANIMATION_MS, question)
    rest = {"expression": script, "awaitPromise": True, "returnByValue": True}
    for _ in range(_ROUNDS):
        await drawing.follow(session)
        try:
            async with asyncio.timeout(_REST_TIMEOUT_S):
                answer = await session.send("Runtime.evaluate", rest)
        except TimeoutError:
            return None  # its script runs without end
        except PlaywrightError:
            if page.is_closed():
                return None
            # A navigation took the document away under us: wait for the next one.
            if not await _loaded(page, _LOAD_TIMEOUT_S):
                return None
            continue
        waited, value = answer["result"].get("value") or (False, None)
        if waited:
            await drawing.follow(session)
        if traffic.is_loading(page):
            if not await traffic.wait_loaded(page, _LOAD_TIMEOUT_S):
                return None
        elif not traffic.open_requests(page):
            return value
        elif not await traffic.wait_idle(page, network_timeout_s):
            traffic.forget(page)
            return None
    return None


async def _loaded(page: Page, timeout_s: float) -> bool:
    try:
        await page.wait_for_load_state("load", timeout=timeout_s * 1000)
    except PlaywrightError:
        return False
    return True
