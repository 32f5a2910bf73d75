# SPDX-License-Identifier: Apache-2.0
"""A connection to the X server through X's own library, and pixels through memory that both share."""

from __future__ import annotations

import ctypes
from typing import Any, Self

__all__ = ["Display", "SharedStrips"]

_KEEP, _DROP = 0, 1
_DEPTH = 24
_PIXEL_BYTES = 4
_ALL_PLANES = 0xFFFFFFFF
_Z_PIXMAP = 2
_IPC_PRIVATE, _IPC_RMID, _MODE = 0, 0, 0o600
_Pointer, _Id, _Int = ctypes.c_void_p, ctypes.c_ulong, ctypes.c_int


class _Segment(ctypes.Structure):
    """XShmSegmentInfo."""

    _fields_ = (("seg", _Id), ("id", _Int), ("address", _Pointer), ("read_only", _Int))


class _Image(ctypes.Structure):
    """The beginning of XImage."""

    _fields_ = (("width", _Int), ("height", _Int), ("offset", _Int), ("format", _Int), ("data", _Pointer))


class Display:
    """One connection to the X server, kept open and forked with the workspace. Used by one thread at a time."""

    def __init__(self) -> None:
        """Raises RuntimeError if the X server does not answer."""
        self.x11 = x11 = ctypes.CDLL("libX11.so.6")
        x11.XOpenDisplay.argtypes, x11.XOpenDisplay.restype = [ctypes.c_char_p], _Pointer
        x11.XDefaultRootWindow.argtypes, x11.XDefaultRootWindow.restype = [_Pointer], _Id
        x11.XDefaultVisual.argtypes, x11.XDefaultVisual.restype = [_Pointer, _Int], _Pointer
        x11.XDisplayWidth.argtypes = x11.XDisplayHeight.argtypes = [_Pointer, _Int]
        x11.XSync.argtypes = [_Pointer, _Int]
        x11.XPending.argtypes = x11.XConnectionNumber.argtypes = [_Pointer]
        x11.XDestroyImage.argtypes = [ctypes.POINTER(_Image)]
        self.handle = x11.XOpenDisplay(None)
        if not self.handle:
            raise RuntimeError("the X server does not answer")
        self.root: int = x11.XDefaultRootWindow(self.handle)

    @property
    def size(self) -> tuple[int, int]:
        """Width and height of the screen."""
        return self.x11.XDisplayWidth(self.handle, 0), self.x11.XDisplayHeight(self.handle, 0)

    def sync(self, *, drop_events: bool = False) -> None:
        """Returns when the server has done all that it was asked to."""
        self.x11.XSync(self.handle, _DROP if drop_events else _KEEP)

    def pending(self) -> bool:
        """Whether there is an event to read."""
        return bool(self.x11.XPending(self.handle))

    @property
    def socket(self) -> int:
        """The descriptor on which events come."""
        return int(self.x11.XConnectionNumber(self.handle))


class SharedStrips:
    """Pixels of the screen through memory shared with the server, some rows at a time.

    The memory is there from `__enter__` to `__exit__`, so that no branch comes to own it.
    """

    def __init__(self, display: Display, width: int, rows: int) -> None:
        self._display, self._width, self._rows = display, width, rows
        self._libc, self._extension = ctypes.CDLL(None, use_errno=True), _shared_memory_extension()
        self._segment = _Segment()
        self._image: Any = None

    def __enter__(self) -> Self:
        size = self._width * self._rows * _PIXEL_BYTES
        self._segment.id = self._libc.shmget(_IPC_PRIVATE, size, _MODE)
        if self._segment.id < 0:
            raise OSError(ctypes.get_errno(), "shmget")
        self._libc.shmat.restype = _Pointer
        self._segment.address = self._libc.shmat(self._segment.id, None, 0)
        # Gone once nobody has it mapped.
        self._libc.shmctl(self._segment.id, _IPC_RMID, None)
        shape = (self._width, self._rows)
        visual = self._display.x11.XDefaultVisual(self._display.handle, 0)
        segment = ctypes.byref(self._segment)
        handle = self._display.handle
        self._image = self._extension.XShmCreateImage(handle, visual, _DEPTH, _Z_PIXMAP, None, segment, *shape)
        self._image.contents.data = self._segment.address
        self._extension.XShmAttach(handle, segment)
        self._pixels = (ctypes.c_char * size).from_address(self._segment.address)
        return self

    def __exit__(self, *_: object) -> None:
        self._extension.XShmDetach(self._display.handle, ctypes.byref(self._segment))
        self._display.sync()
        self._image.contents.data = None
        self._display.x11.XDestroyImage(self._image)
        self._libc.shmdt(ctypes.c_void_p(self._segment.address))

    def read(self, top: int) -> memoryview:
        """The rows from there on, 4 bytes a pixel: blue, green, red, unused. Overwritten by the next call."""
        self._extension.XShmGetImage(self._display.handle, self._display.root, self._image, 0, top, _ALL_PLANES)
        return memoryview(self._pixels)


def _shared_memory_extension() -> ctypes.CDLL:
    extension = ctypes.CDLL("libXext.so.6")
    size = ctypes.c_uint
    extension.XShmCreateImage.argtypes = [_Pointer, _Pointer, size, _Int, _Pointer, _Pointer, size, size]
    extension.XShmCreateImage.restype = ctypes.POINTER(_Image)
    extension.XShmAttach.argtypes = extension.XShmDetach.argtypes = [_Pointer, _Pointer]
    extension.XShmGetImage.argtypes = [_Pointer, _Id, ctypes.POINTER(_Image), _Int, _Int, _Id]
    return extension
