# SPDX-License-Identifier: Apache-2.0
"""Whether anything was drawn on the screen, by the word of the X server: its Damage extension, through X's library."""

from __future__ import annotations

import ctypes

__all__ = ["Damage"]

_REPORT_NON_EMPTY = 3
_NO_REGION = 0
_KEEP, _DROP = 0, 1


def _library() -> tuple[ctypes.CDLL, ctypes.CDLL]:
    x11, extension = ctypes.CDLL("libX11.so.6"), ctypes.CDLL("libXdamage.so.1")
    display, xid, number = ctypes.c_void_p, ctypes.c_ulong, ctypes.c_int
    x11.XOpenDisplay.argtypes, x11.XOpenDisplay.restype = [ctypes.c_char_p], display
    x11.XDefaultRootWindow.argtypes, x11.XDefaultRootWindow.restype = [display], xid
    x11.XSync.argtypes = [display, number]
    x11.XPending.argtypes = [display]
    extension.XDamageQueryExtension.argtypes = [display, ctypes.POINTER(number), ctypes.POINTER(number)]
    extension.XDamageCreate.argtypes, extension.XDamageCreate.restype = [display, xid, number], xid
    extension.XDamageSubtract.argtypes = [display, xid, xid, xid]
    return x11, extension


class Damage:
    """One connection to the X server, kept open and forked with the workspace. Used by one thread at a time."""

    def __init__(self) -> None:
        """Raises RuntimeError if the X server does not answer, or does not tell what is drawn."""
        self._x11, self._extension = _library()
        self._display = self._x11.XOpenDisplay(None)
        if not self._display:
            raise RuntimeError("the X server does not answer")
        event, error = ctypes.c_int(), ctypes.c_int()
        if not self._extension.XDamageQueryExtension(self._display, event, error):
            raise RuntimeError("the X server has no Damage extension")
        root = self._x11.XDefaultRootWindow(self._display)
        self._damage = self._extension.XDamageCreate(self._display, root, _REPORT_NON_EMPTY)

    def since_last(self) -> bool:
        """Whether anything was drawn since it was asked last. What is drawn meanwhile is told of next time."""
        self._x11.XSync(self._display, _KEEP)
        if not self._x11.XPending(self._display):
            return False
        # No other event comes before the damage was taken away, so none that counts is dropped.
        self._x11.XSync(self._display, _DROP)
        self._extension.XDamageSubtract(self._display, self._damage, _NO_REGION, _NO_REGION)
        self._x11.XSync(self._display, _KEEP)
        return True
