# SPDX-License-Identifier: Apache-2.0
"""Waits until what an action set off is on the screen, within bounds.

Nothing here outlives a call: no timer, no task waits between two of them, so none can fire late
in a branch.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from playwright.async_api import Error as PlaywrightError

if TYPE_CHECKING:
    from playwright.async_api import BrowserContext, Page, Request

__all__ = ["Traffic", "next_frame", "settle"]

# A page that is not drawn (it is covered, or behind another tab) has no frames to wait for.
_FRAME_SCRIPT = """
() => Promise.race([
  new Promise((done) => requestAnimationFrame(done)),
  new Promise((done) => setTimeout(done, 250)),
])
"""
_ENDLESS = frozenset({"websocket", "eventsource", "media", "ping"})
_ROUNDS = 6
_FRAME_TIMEOUT_S = 2.0


class Traffic:
    """Counts the requests that a page has open."""

    def __init__(self, context: BrowserContext) -> None:
        self._open: dict[Request, None] = {}
        self._expected_pages = 0
        self._changed = asyncio.Event()
        context.on("request", self._started)
        context.on("requestfinished", self._ended)
        context.on("requestfailed", self._ended)

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
        """Drops the requests of a page that is gone: nobody will tell us of their end."""
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


async def settle(page: Page, traffic: Traffic, *, network_timeout_s: float) -> None:
    """Returns when what is scheduled for the page's next frame has run and no request is open.

    That frame is on the screen, as a rule, when the one after it begins: see `next_frame`.
    A page that never comes to rest is left alone when the bounds are over; so is one that is closed,
    or that does not answer.
    """
    for _ in range(_ROUNDS):
        try:
            await asyncio.wait_for(page.evaluate(_FRAME_SCRIPT), _FRAME_TIMEOUT_S)
        except TimeoutError:
            return  # its script runs without end
        except PlaywrightError:
            if page.is_closed():
                return
            # A navigation took the document away under us: wait for the next one.
            if not await _loaded(page, network_timeout_s):
                return
            continue
        if not traffic.open_requests(page):
            return
        if not await traffic.wait_idle(page, network_timeout_s):
            traffic.forget(page)
            return


async def next_frame(page: Page) -> None:
    """Returns when the page begins another frame: as a rule the one before it has then been handed to the screen.

    It has not if drawing it takes longer than a frame, as what is drawn in depth may.
    """
    try:
        await asyncio.wait_for(page.evaluate(_FRAME_SCRIPT), _FRAME_TIMEOUT_S)
    except (TimeoutError, PlaywrightError):
        return  # what is on the screen now is what there is to see


async def _loaded(page: Page, timeout_s: float) -> bool:
    try:
        await page.wait_for_load_state("load", timeout=timeout_s * 1000)
    except PlaywrightError:
        return False
    return True
