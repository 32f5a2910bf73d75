# SPDX-License-Identifier: Apache-2.0
"""Whether anything was drawn on the screen, by the word of the X server: its Damage extension."""

from __future__ import annotations

import asyncio
import ctypes

from .x11 import Display

__all__ = ["Damage"]

_REPORT_NON_EMPTY = 3
_NO_REGION = 0


def _library() -> ctypes.CDLL:
    extension = ctypes.CDLL("libXdamage.so.1")
    handle, xid, number = ctypes.c_void_p, ctypes.c_ulong, ctypes.c_int
    extension.XDamageQueryExtension.argtypes = [handle, ctypes.POINTER(number), ctypes.POINTER(number)]
    extension.XDamageCreate.argtypes, extension.XDamageCreate.restype = [handle, xid, number], xid
    extension.XDamageSubtract.argtypes = [handle, xid, xid, xid]
    return extension


class Damage:
    """What a connection of its own, on which no other events come, is told of."""

    def __init__(self, display: Display) -> None:
        """Raises RuntimeError if the X server does not tell what is drawn."""
        self._display = display
        self._extension = _library()
        event, error = ctypes.c_int(), ctypes.c_int()
        if not self._extension.XDamageQueryExtension(display.handle, event, error):
            raise RuntimeError("the X server has no Damage extension")
        self._damage = self._extension.XDamageCreate(display.handle, display.root, _REPORT_NON_EMPTY)

    async def wait(self) -> None:
        """Returns when something was drawn since it was asked last."""
        if self._display.pending():
            return
        loop, told = asyncio.get_running_loop(), asyncio.Event()
        loop.add_reader(self._display.socket, told.set)
        try:
            await told.wait()
        finally:
            loop.remove_reader(self._display.socket)

    def since_last(self) -> bool:
        """Whether anything was drawn since it was asked last. What is drawn meanwhile is told of next time."""
        self._display.sync()
        if not self._display.pending():
            return False
        # No other event comes before the damage was taken away, so none that counts is dropped.
        self._display.sync(drop_events=True)
        self._extension.XDamageSubtract(self._display.handle, self._damage, _NO_REGION, _NO_REGION)
        self._display.sync()
        return True
