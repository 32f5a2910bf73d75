# SPDX-License-Identifier: Apache-2.0
"""What an agent does in a browser: by element id, by coordinates, by keyboard, by tab.

Names and arguments are the field's habit. Each action waits until what it acts on can be acted on,
within Playwright's bound; the page's reaction is waited for by the caller.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal

from .bids import split_bid
from .browser import Browser
from .registry import ActionError, Handler

if TYPE_CHECKING:
    from playwright.async_api import Locator, Page

__all__ = ["Actions", "Box"]

Box = tuple[float, float, float, float]
"""x, y, width, height."""

Button = Literal["left", "middle", "right"]
Modifier = Literal["Alt", "Control", "ControlOrMeta", "Meta", "Shift"]

_LONGEST_WAIT_MS = 60_000

# Where to point at an element, if it stands where it was last seen, can be used and is what a click there
# hits; else null. Given in the coordinates of the page, through the frames around it.
_AIM_SCRIPT = """
([bid, [left, top, width, height]]) => {
  const element = document.querySelector(`[bid="${bid}"]`);
  if (!element || element.matches(':disabled') || element.ownerSVGElement)
    return null;
  const before = element.getBoundingClientRect();
  const off = (a, b) => Math.abs(a - b) > 1;
  if (off(before.left + scrollX, left) || off(before.top + scrollY, top) || off(before.width, width) ||
      off(before.height, height))
    return null;
  element.scrollIntoViewIfNeeded(true);
  const boxes = element.getClientRects();
  if (!boxes.length || getComputedStyle(element).visibility !== 'visible')
    return null;
  let x = boxes[0].left + boxes[0].width / 2;
  let y = boxes[0].top + boxes[0].height / 2;
  const hit = document.elementFromPoint(x, y);
  if (!hit || !element.contains(hit))
    return null;
  try {
    for (let inner = window; inner !== inner.top; inner = inner.parent) {
      const frame = inner.frameElement;
      const box = frame.getBoundingClientRect();
      x += box.left + frame.clientLeft;
      y += box.top + frame.clientTop;
      if (inner.parent.document.elementFromPoint(x, y) !== frame)
        return null;
    }
  } catch (error) {
    return null;  // of another origin, or scaled
  }
  return [x, y];
}
"""


class Actions:
    """Handlers of the actions; their results are errors or nothing."""

    def __init__(self, browser: Browser, last_box: Callable[[Page, str], Box | None]) -> None:
        """`last_box` tells where an element was in the last observation, if it was there."""
        self._browser = browser
        self._last_box = last_box
        self.messages: list[dict[str, str]] = []

    def handlers(self) -> dict[str, Handler]:
        """Name to handler."""
        names = (
            "check clear click dblclick drag_and_drop fill focus go_back go_forward goto hover keyboard_down "
            "keyboard_insert_text keyboard_press keyboard_type keyboard_up mouse_click mouse_dblclick mouse_down "
            "mouse_drag_and_drop mouse_move mouse_up mouse_upload_file new_tab noop press report_infeasible scroll "
            "scroll_at select_option send_msg_to_user tab_close tab_focus type uncheck upload_file"
        )
        return {name: getattr(self, name) for name in names.split()}

    # ---- by element id

    async def click(self, bid: str, button: Button = "left", modifiers: Sequence[Modifier] = ()) -> None:
        at = await self._aim(bid) if not modifiers else None
        if at is not None:
            await self._page().mouse.click(*at, button=button)
        else:
            await (await self._element(bid)).click(button=button, modifiers=list(modifiers))

    async def dblclick(self, bid: str, button: Button = "left", modifiers: Sequence[Modifier] = ()) -> None:
        at = await self._aim(bid) if not modifiers else None
        if at is not None:
            await self._page().mouse.dblclick(*at, button=button)
        else:
            await (await self._element(bid)).dblclick(button=button, modifiers=list(modifiers))

    async def hover(self, bid: str) -> None:
        at = await self._aim(bid)
        if at is not None:
            await self._page().mouse.move(*at)
        else:
            await (await self._element(bid)).hover()

    async def fill(self, bid: str, value: str, enable_autocomplete_menu: bool = False) -> None:
        element = await self._element(bid)
        if enable_autocomplete_menu:
            # Menus of suggestions open on key events, which fill() does not send.
            await element.clear()
            await element.press_sequentially(value)
        else:
            await element.fill(value)

    async def check(self, bid: str) -> None:
        await (await self._element(bid)).check()

    async def uncheck(self, bid: str) -> None:
        await (await self._element(bid)).uncheck()

    async def press(self, bid: str, key_comb: str) -> None:
        await (await self._element(bid)).press(key_comb)

    async def focus(self, bid: str) -> None:
        await (await self._element(bid)).focus()

    async def clear(self, bid: str) -> None:
        await (await self._element(bid)).clear()

    async def select_option(self, bid: str, options: str | list[str]) -> None:
        await (await self._element(bid)).select_option(options)

    async def drag_and_drop(self, from_bid: str, to_bid: str) -> None:
        source, target = await self._element(from_bid), await self._element(to_bid)
        await source.hover()
        await self._page().mouse.down()
        await target.hover()
        await self._page().mouse.up()

    async def upload_file(self, bid: str, file: str | list[str]) -> None:
        element = await self._element(bid)
        async with self._page().expect_file_chooser() as chooser:
            await element.click()
        await (await chooser.value).set_files(file)

    # ---- by coordinates

    async def scroll(self, delta_x: float = 0, delta_y: float = 0) -> None:
        await self._page().mouse.wheel(delta_x, delta_y)

    async def scroll_at(self, x: float, y: float, dx: float = 0, dy: float = 0) -> None:
        await self._page().mouse.move(x, y)
        await self._page().mouse.wheel(dx, dy)

    async def mouse_upload_file(self, x: float, y: float, file: str | list[str]) -> None:
        async with self._page().expect_file_chooser() as chooser:
            await self._page().mouse.click(x, y)
        await (await chooser.value).set_files(file)

    async def mouse_move(self, x: float, y: float) -> None:
        await self._page().mouse.move(x, y)

    async def mouse_click(self, x: float, y: float, button: Button = "left") -> None:
        await self._page().mouse.click(x, y, button=button)

    async def mouse_dblclick(self, x: float, y: float, button: Button = "left") -> None:
        await self._page().mouse.dblclick(x, y, button=button)

    async def mouse_down(self, x: float, y: float, button: Button = "left") -> None:
        await self._page().mouse.move(x, y)
        await self._page().mouse.down(button=button)

    async def mouse_up(self, x: float, y: float, button: Button = "left") -> None:
        await self._page().mouse.move(x, y)
        await self._page().mouse.up(button=button)

    async def mouse_drag_and_drop(self, from_x: float, from_y: float, to_x: float, to_y: float) -> None:
        await self._page().mouse.move(from_x, from_y)
        await self._page().mouse.down()
        # Widgets tell a drag from a click by the moves between.
        await self._page().mouse.move(to_x, to_y, steps=8)
        await self._page().mouse.up()

    # ---- by keyboard

    async def keyboard_press(self, key: str) -> None:
        await self._page().keyboard.press(key)

    async def keyboard_down(self, key: str) -> None:
        await self._page().keyboard.down(key)

    async def keyboard_up(self, key: str) -> None:
        await self._page().keyboard.up(key)

    async def keyboard_type(self, text: str) -> None:
        await self._page().keyboard.type(text)

    async def keyboard_insert_text(self, text: str) -> None:
        await self._page().keyboard.insert_text(text)

    async def type(self, text: str) -> None:
        await self.keyboard_type(text)

    # ---- navigation and tabs

    async def goto(self, url: str) -> None:
        await self._page().goto(url, wait_until="load")

    async def go_back(self) -> None:
        await self._travel(-1)

    async def go_forward(self) -> None:
        await self._travel(1)

    async def new_tab(self) -> None:
        await self._browser.activate(await self._browser.context.new_page())

    async def tab_close(self) -> None:
        closed = self._page()
        at = self._browser.pages().index(closed)
        if len(self._browser.pages()) == 1:
            await self._browser.context.new_page()
        await closed.close()
        rest = self._browser.pages()
        await self._browser.activate(rest[min(at, len(rest) - 1)])

    async def tab_focus(self, index: int) -> None:
        pages = self._browser.pages()
        if not 0 <= index < len(pages):
            raise ActionError(f"there is no tab {index}; the tabs are 0 to {len(pages) - 1}")
        await self._browser.activate(pages[index])

    # ---- beside the page

    async def noop(self, wait_ms: float = 1000) -> None:
        if not 0 <= wait_ms <= _LONGEST_WAIT_MS:
            raise ActionError(f"wait_ms must be 0 to {_LONGEST_WAIT_MS}")
        await asyncio.sleep(wait_ms / 1000)

    async def send_msg_to_user(self, text: str) -> None:
        self.messages.append({"role": "assistant", "message": text})

    async def report_infeasible(self, reason: str) -> None:
        self.messages.append({"role": "infeasible", "message": reason})

    def _page(self) -> Page:
        return self._browser.active_page()

    async def _travel(self, by: int) -> None:
        """Moves in the tab's history. Playwright's own go_back() does not say whether there was anything
        to go to when a page without a response (a file, a change of the fragment) is next."""
        page = self._page()
        session = await self._browser.session(page)
        history = await session.send("Page.getNavigationHistory")
        at = history["currentIndex"] + by
        if not 0 <= at < len(history["entries"]):
            raise ActionError(f"there is no page to go {'back' if by < 0 else 'forward'} to")
        await (page.go_back() if by < 0 else page.go_forward())

    async def _aim(self, bid: str) -> tuple[float, float] | None:
        """The quick way to point at an element that has not moved since it was observed.

        None sends the caller the long way, by Playwright, which waits until the element stands still for
        two frames and says what is wrong with it.
        """
        page = self._page()
        box = self._last_box(page, str(bid))
        if box is None:
            return None
        frame = self._browser.letters(page).find(page, split_bid(str(bid))[0])
        if frame is None:
            return None
        at = await frame.evaluate(_AIM_SCRIPT, [str(bid), list(box)])
        return (at[0], at[1]) if at is not None else None

    async def _element(self, bid: str) -> Locator:
        """The element with an id.

        Raises:
            ActionError: there is none now.
        """
        try:
            letters, _ = split_bid(str(bid))
        except ValueError as error:
            raise ActionError(str(error)) from error
        page = self._page()
        frame = self._browser.letters(page).find(page, letters)
        element: Any = frame.locator(f'[bid="{bid}"]') if frame is not None else None
        if element is None or await element.count() == 0:
            raise ActionError(f"there is no element with id {bid!r} on this page")
        return element.first
