# SPDX-License-Identifier: Apache-2.0
"""Takes the picture of the screen from the X server."""

from __future__ import annotations

from typing import Any

import zstandard
from mss import MSS

__all__ = ["Screen"]


class Screen:
    """One connection to the X server, kept open and forked with the workspace.

    Pictures come through the connection's socket, not through shared memory: a shared segment would be
    one more thing that each branch has to have a copy of.
    """

    def __init__(self) -> None:
        self._grabber = MSS(backend="xgetimage")
        self._area = self._grabber.monitors[0]
        self._compressor = zstandard.ZstdCompressor(level=1)

    def capture(self) -> dict[str, Any]:
        """The whole screen.

        Returns:
            width, height, and `bgrx_zstd`: rows of 4-byte pixels (blue, green, red, unused), top to bottom,
            compressed, for screens are mostly flat and the copies to the host are not free.
        """
        shot = self._grabber.grab(self._area)
        return {"width": shot.width, "height": shot.height, "bgrx_zstd": self._compressor.compress(shot.raw)}
