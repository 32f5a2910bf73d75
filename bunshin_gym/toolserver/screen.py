# SPDX-License-Identifier: Apache-2.0
"""Takes the picture of the screen from the X server."""

from __future__ import annotations

from typing import Any

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

    def capture(self) -> dict[str, Any]:
        """The whole screen.

        Returns:
            width, height, and `bgrx`: rows of 4-byte pixels (blue, green, red, unused), top to bottom.
        """
        shot = self._grabber.grab(self._area)
        return {"width": shot.width, "height": shot.height, "bgrx": bytes(shot.raw)}
