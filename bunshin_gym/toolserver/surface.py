# SPDX-License-Identifier: Apache-2.0
"""The browser surface: the tools of an image that has a desktop with Chromium."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from playwright.async_api import Error as PlaywrightError

from .actions import Actions, Box
from .browser import Browser, BrowserGoneError, describe_error
from .desktop import Desktop
from .observe import Observer
from .registry import ActionError, Handler, Registry, Tool, ToolRefusedError
from .screen import Screen

if TYPE_CHECKING:
    from playwright.async_api import Page

__all__ = ["BrowserSurface"]

log = logging.getLogger(__name__)


_ACTION_ERRORS = (
    ActionError,
    BrowserGoneError,
    OSError,
    PlaywrightError,
    ToolRefusedError,
    TypeError,
    ValueError,
)


class BrowserSurface:
    """Desktop, browser, actions and observations; one call at a time."""

    def __init__(self, desktop: Desktop, registry: Registry) -> None:
        self._desktop = desktop
        self._registry = registry
        self._browser = Browser(desktop.size)
        self._actions = Actions(self._browser, self._last_box)
        self._observer: Observer | None = None
        self._changed = True
        self._turn = asyncio.Lock()
        self._last_error = ""
        self._started_ns = time.monotonic_ns()
        registry.add("action", self._actions.handlers())
        registry.add("function", self._functions())

    async def start(self) -> None:
        """Returns when the screen shows a blank page."""
        await self._desktop.start()
        await self._browser.start()
        self._observer = Observer(self._browser, Screen())

    async def run_action(self, tool: Tool, args: Mapping[str, Any]) -> dict[str, Any]:
        """Runs an action; what went wrong is in the result, for the agent."""
        async with self._turn:
            return await self._act(tool, args)

    async def _act(self, tool: Tool, args: Mapping[str, Any]) -> dict[str, Any]:
        started = time.monotonic()
        await self._browser.ensure_running()
        self._last_error = ""
        self._changed = True
        try:
            await self._browser.session(self._browser.active_page())
            await tool.bind(args)
        except _ACTION_ERRORS as error:
            self._last_error = f"{tool.name}: {describe_error(error)}"
        return {"last_action_error": self._last_error, "action_ms": (time.monotonic() - started) * 1e3}

    def _functions(self) -> dict[str, Handler]:
        return {
            "describe_tools": self.describe_tools,
            "evaluate": self.evaluate,
            "observe": self.observe,
            "reset_browser": self.reset_browser,
            "rest": self.rest,
            "seed": self.seed,
            "step": self.step,
        }

    async def describe_tools(self) -> dict[str, dict[str, str]]:
        """All tools, with their kinds and signatures."""
        return self._registry.describe()

    async def observe(
        self, screenshot: bool = True, tree: bool = True, dom: bool = False, script: str = ""
    ) -> dict[str, Any]:
        """What the agent sees now, and what came of a task's script."""
        async with self._turn:
            return await self._observe(screenshot=screenshot, tree=tree, dom=dom, script=script, acted=False)

    async def step(
        self,
        name: str,
        args: dict[str, Any],
        screenshot: bool = True,
        tree: bool = True,
        dom: bool = False,
        script: str = "",
    ) -> dict[str, Any]:
        """An action, the page's reaction, an observation, and a task's script, in one call."""
        tool = self._registry.find(name)
        if tool.kind != "action":
            raise ToolRefusedError(f"{name} is not an action")
        async with self._turn:
            acted = await self._act(tool, args)
            seen = await self._observe(screenshot=screenshot, tree=tree, dom=dom, script=script, acted=True)
            seen["action_ms"] = acted["action_ms"]
            return seen

    async def evaluate(self, js: str, arg: Any = None) -> Any:
        """Runs a task's JavaScript in the active page; a function is called with `arg`."""
        async with self._turn:
            await self._browser.ensure_running()
            self._changed = True
            return await self._browser.active_page().evaluate(js, arg)

    async def rest(self) -> None:
        """Returns when the page has come to rest on the screen: for a state that many branches begin in."""
        assert self._observer is not None
        async with self._turn:
            await self._browser.ensure_running()
            await self._observer.rest()
            self._changed = False

    async def reset_browser(self) -> None:
        """One blank tab, nothing remembered."""
        async with self._turn:
            await self._browser.reset()
            self._actions.messages.clear()
            self._last_error = ""
            self._changed = True
            self._started_ns = time.monotonic_ns()

    async def seed(self, value: int) -> None:
        """Seeds the server's own random numbers; pages are seeded by their task."""
        random.seed(value)

    def _last_box(self, page: Page, bid: str) -> Box | None:
        return self._observer.last_box(page, bid) if self._observer is not None else None

    async def _observe(self, *, acted: bool, **wanted: Any) -> dict[str, Any]:
        assert self._observer is not None
        try:
            await self._browser.ensure_running()
            seen = await self._observer.observe(**wanted, changed=self._changed, acted=acted)
        except (BrowserGoneError, PlaywrightError) as error:
            # The page or the browser went away while we looked: look at what takes its place.
            log.info("observing again: %s", describe_error(error))
            await self._browser.ensure_running()
            seen = await self._observer.observe(**wanted, changed=True, acted=acted)
        # Whatever a script may have changed is waited for before the next look.
        self._changed = bool(wanted["script"])
        seen["last_action_error"] = self._last_error
        seen["messages"] = list(self._actions.messages)
        seen["elapsed_s"] = (time.monotonic_ns() - self._started_ns) / 1e9
        return seen
