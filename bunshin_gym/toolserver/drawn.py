# SPDX-License-Identifier: Apache-2.0
"""Takes the picture of a page once the screen shows all that the browser knows of."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any, Self

from playwright.async_api import Error as PlaywrightError

from . import quiet

if TYPE_CHECKING:
    from playwright.async_api import CDPSession

    from .screen import Screen

__all__ = ["Drawing"]

# Ends when the page's next frame was handed to the X server, or differs in nothing from the one before; says whether
# the page changed itself meanwhile. A page that is not drawn (it is covered, or behind another tab) has no frames to
# wait for. Chromium has this for benchmarks of its own.
_FRAME_SCRIPT = """
new Promise((done) => {
  const changes = [];
  const observer = new MutationObserver((records) => changes.push(...records));
  const end = () => {
    clearTimeout(timer);
    changes.push(...observer.takeRecords());
    observer.disconnect();
    done(changes.some((change) => change.attributeName !== 'bid'));
  };
  observer.observe(document, {subtree: true, childList: true, attributes: true, characterData: true});
  const timer = setTimeout(end, 250);
  chrome.gpuBenchmarking.addSwapCompletionEventListener(end);
})
"""
_FRAME = {"expression": _FRAME_SCRIPT, "awaitPromise": True}
_FRAME_TIMEOUT_S = 2.0
# Programs by what is in their command lines, and their threads that draw.
# Not the pages' main threads: these may be busy with being read, and have handed over what there is to draw. The
# graphics service is in the browser's own process, whose first thread opens menus.
_DRAWING = quiet.Threads(
    {
        b"--type=renderer": (b"Chrome_ChildIOT", b"Compositor", b"CompositorTileW", b"ThreadPoolForeg"),
        b"/chromium": (
            b"chromium",
            b"Chrome_InProcGp",
            b"Chrome_IOThread",
            b"CompositorTileW",
            b"VizCompositorTh",
            b"Thread<00>",
            b"Thread<01>",
        ),
        b"Xvfb": (),
    }
)
_DRAWING_CPU_S = 0.2
_FRAMES = 6


class Drawing:
    """Follows what the browser draws after a change, to a picture of all of it; an asynchronous context manager.

    Args:
        screen: takes the picture; None if none is wanted.
    """

    def __init__(self, screen: Screen | None) -> None:
        self._screen = screen
        self._taken: asyncio.Task[dict[str, Any]] | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stop()

    async def follow(self, session: CDPSession) -> None:
        """The picture is to show all that was changed so far in this page, instead of another one or of less."""
        if self._screen is not None:
            await self._stop()
            self._taken = asyncio.create_task(_take(self._screen, session))

    async def picture(self) -> dict[str, Any]:
        """The picture, once it shows all that the browser knows of."""
        assert self._taken is not None
        return await self._taken

    async def _stop(self) -> None:
        if self._taken is not None:
            self._taken.cancel()
            await asyncio.wait({self._taken})


async def _take(screen: Screen, session: CDPSession) -> dict[str, Any]:
    """A picture begun before a whole frame in which nothing was drawn and the page did nothing, and after which none of
    what draws ran for a moment.

    A page that goes on and on is left alone after some frames.
    """
    still: quiet.Stillness | None = None
    for _ in range(_FRAMES):
        frame = asyncio.create_task(_next_frame(session))
        drawn: asyncio.Task[None] | None = None
        try:
            taken = await screen.picture()
            drawn = asyncio.create_task(screen.drawn())
            if still is None:
                still = quiet.Stillness(_DRAWING_CPU_S, _DRAWING.find())
            await asyncio.wait({frame, drawn}, return_when=asyncio.FIRST_COMPLETED)
            if drawn.done() or await frame:
                continue
        finally:
            frame.cancel()
            if drawn is not None:
                drawn.cancel()
        if await still.wait() and await screen.picture() is taken:
            return taken
    return await screen.picture()


async def _next_frame(session: CDPSession) -> bool:
    """Returns when a page has drawn all that was changed when this was called, or cannot say; whether it went on
    changing."""
    with contextlib.suppress(TimeoutError, PlaywrightError):
        async with asyncio.timeout(_FRAME_TIMEOUT_S):
            answer = await session.send("Runtime.evaluate", _FRAME)
        return bool(answer["result"].get("value"))
    return False
