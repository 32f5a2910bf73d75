# SPDX-License-Identifier: Apache-2.0
"""Takes the picture of the screen from the X server."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import zstandard
from mss import MSS

from .damage import Damage
from .x11 import Display, SharedStrips

__all__ = ["Screen"]

_STRIP_ROWS = 90
_PIXEL_BYTES = 4
_LEVEL = -1


class Screen:
    """Pictures of the screen, by connections to the X server that are kept open and forked with the workspace.

    They come in strips: a buffer of a screen's size would be a few MiB that each branch has to have of its own, and
    that the kernel has to find anew for every picture.
    """

    def __init__(self, *, with_cursor: bool = False) -> None:
        self._display = Display()
        self._width, self._height = self._display.size
        self._compressor = zstandard.ZstdCompressor(level=_LEVEL)
        # Of the cursor's moves we are not told, and it is in no pixels but those of this library.
        self._grabber = MSS(backend="xgetimage", with_cursor=True) if with_cursor else None
        self._damage = None if with_cursor else Damage(self._display)
        self._last: dict[str, Any] | None = None

    def capture(self) -> dict[str, Any]:
        """The whole screen; taken anew only if something was drawn since the last time.

        Returns:
            width, height, and `bgrx_zstd`: rows of 4-byte pixels (blue, green, red, unused), top to bottom,
            compressed, for screens are mostly flat and the copies to the host are not free.
        """
        drawn = self._damage is None or self._damage.since_last()
        if drawn or self._last is None:
            self._last = self._take()
        return self._last

    async def picture(self) -> dict[str, Any]:
        """As `capture`, in a thread; when it is cancelled, the thread has ended."""
        taking = asyncio.ensure_future(asyncio.to_thread(self.capture))
        try:
            return await asyncio.shield(taking)
        except asyncio.CancelledError:
            await asyncio.wait({taking})
            raise

    async def drawn(self) -> None:
        """Returns when something was drawn since the last picture; nothing else may use the screen meanwhile."""
        assert self._damage is not None
        await self._damage.wait()

    def _take(self) -> dict[str, Any]:
        stream = self._compressor.compressobj(size=self._width * self._height * _PIXEL_BYTES)
        parts = [stream.compress(strip) for strip in self._strips()]
        parts.append(stream.flush())
        return {"width": self._width, "height": self._height, "bgrx_zstd": b"".join(parts)}

    def _strips(self) -> Iterator[Any]:
        rows = min(_STRIP_ROWS, self._height)
        if self._grabber is not None:
            for top in range(0, self._height, rows):
                strip = {"left": 0, "top": top, "width": self._width, "height": min(rows, self._height - top)}
                yield self._grabber.grab(strip).raw
            return
        with SharedStrips(self._display, self._width, rows) as strips:
            for top in range(0, self._height, rows):
                # The last one begins higher up if it would end below the screen.
                first = min(top, self._height - rows)
                yield strips.read(first)[(top - first) * self._width * _PIXEL_BYTES :]
