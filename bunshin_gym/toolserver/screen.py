# SPDX-License-Identifier: Apache-2.0
"""Takes the picture of the screen from the X server."""

from __future__ import annotations

from typing import Any

import zstandard
from mss import MSS

from .damage import Damage

__all__ = ["Screen"]

_STRIP_BYTES = 1 << 20
_PIXEL_BYTES = 4


class Screen:
    """One connection to the X server, kept open and forked with the workspace.

    Pictures come through the connection's socket, not through shared memory, and in strips, not as a
    whole: a buffer of a screen's size would be a few MiB that each branch has to have of its own, and
    that the kernel has to find anew for every picture.
    """

    def __init__(self, *, with_cursor: bool = False) -> None:
        self._grabber = MSS(backend="xgetimage", with_cursor=with_cursor)
        area = self._grabber.monitors[0]
        self._width, self._height = area["width"], area["height"]
        self._rows = max(1, _STRIP_BYTES // (self._width * _PIXEL_BYTES))
        self._compressor = zstandard.ZstdCompressor(level=1)
        # Of the cursor's moves it is not told.
        self._damage = None if with_cursor else Damage()
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

    def _take(self) -> dict[str, Any]:
        stream = self._compressor.compressobj(size=self._width * self._height * _PIXEL_BYTES)
        parts = []
        for top in range(0, self._height, self._rows):
            rows = min(self._rows, self._height - top)
            strip = {"left": 0, "top": top, "width": self._width, "height": rows}
            parts.append(stream.compress(self._grabber.grab(strip).raw))
        parts.append(stream.flush())
        return {"width": self._width, "height": self._height, "bgrx_zstd": b"".join(parts)}
