# SPDX-License-Identifier: Apache-2.0
"""A live view for render_mode="human": a window where there is a display, else a picture file."""

from __future__ import annotations

import logging
import os
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from bunshin_gym.scratch import ScratchFolder

__all__ = ["FileView", "View", "WindowView", "open_view"]

_log = logging.getLogger("bunshin_gym")


class View(Protocol):
    """Shows one picture after the other."""

    def show(self, pixels: NDArray[np.uint8]) -> None:
        """Shows (height, width, 3) uint8 pixels."""
        ...

    def close(self) -> None:
        """Idempotent."""
        ...


class WindowView:
    """A Tk window."""

    def __init__(self, title: str) -> None:
        import tkinter

        self._root = tkinter.Tk()
        self._root.title(title)
        self._label = tkinter.Label(self._root, borderwidth=0)
        self._label.pack()
        self._photo: Any = None
        self._closed = False
        self._root.protocol("WM_DELETE_WINDOW", self.close)

    def show(self, pixels: NDArray[np.uint8]) -> None:
        """Draws it; does nothing after the window was closed."""
        from PIL import ImageTk

        if self._closed:
            return
        self._photo = ImageTk.PhotoImage(Image.fromarray(pixels), master=self._root)
        self._label.configure(image=self._photo)
        self._root.update()

    def close(self) -> None:
        """Closes the window."""
        if not self._closed:
            self._closed = True
            self._root.destroy()


class FileView:
    """A PNG file that always holds the newest picture, for any viewer that reloads."""

    def __init__(self, title: str, why: str) -> None:
        self._folder = ScratchFolder("view")
        self.path = self._folder.path / "screen.png"
        _log.warning("%s: %s; the live view is the file %s", title, why, self.path)

    def show(self, pixels: NDArray[np.uint8]) -> None:
        """Replaces the file as a whole."""
        scratch = self.path.with_suffix(".new")
        Image.fromarray(pixels).save(scratch, format="PNG")
        scratch.replace(self.path)

    def close(self) -> None:
        """Removes the file."""
        self._folder.close()


def open_view(title: str) -> View:
    """Opens a window, or a file where there is no display or no Tk."""
    if not os.environ.get("DISPLAY"):
        return FileView(title, "there is no display (DISPLAY is not set)")
    try:
        import tkinter
    except ImportError:
        return FileView(title, "no window can be opened, since this Python has no tkinter (python3-tk)")
    try:
        return WindowView(title)
    except tkinter.TclError as error:
        return FileView(title, f"no window can be opened ({error})")
