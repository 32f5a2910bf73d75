# SPDX-License-Identifier: Apache-2.0
"""render_mode="human": a window on a real X display shows what the env saw; without one, a file does."""

from __future__ import annotations

import importlib.util
import logging
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image, ImageGrab
from support import need
from support.chroot import wait_until


@pytest.fixture(scope="module")
def display() -> Iterator[str]:
    """An X server of the test's own, larger than the window, without a window manager: windows are at its corner."""
    need(shutil.which("Xvfb") is not None, "Xvfb is not installed: apt-get install xvfb")
    need(importlib.util.find_spec("_tkinter") is not None, "this Python has no tkinter: apt-get install python3-tk")
    ready, theirs = os.pipe()
    argv = ["Xvfb", "-screen", "0", "1400x800x24", "-nolisten", "tcp", "-displayfd", str(theirs)]
    with subprocess.Popen(argv, pass_fds=(theirs,), stderr=subprocess.DEVNULL) as server, os.fdopen(ready) as number:
        os.close(theirs)
        yield f":{number.readline().strip()}"
        server.terminate()


def on_screen(display: str) -> NDArray[np.uint8]:
    with ImageGrab.grab(xdisplay=display) as picture:
        return np.asarray(picture.convert("RGB"))


def wait_for(display: str, picture: NDArray[np.uint8]) -> None:
    """Until it is at the corner of the screen: the X server draws after the window has asked it to."""
    height, width, _ = picture.shape
    for attempt in wait_until(AssertionError, 20):
        with attempt:
            assert (on_screen(display)[:height, :width] == picture).all()


def test_a_window_shows_every_observation(
    make: Callable[..., Any], display: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DISPLAY", display)
    env = make("EnterText", render_mode="human")
    seen, _ = env.reset(seed=1)
    first = seen["screenshot"]
    nothing = np.zeros_like(on_screen(display))
    wait_for(display, first)
    box = re.search(r"\[(\d+)\] textbox", seen["axtree_txt"])
    assert box is not None
    seen = env.step(f"fill('{box[1]}', 'shown')")[0]
    assert (seen["screenshot"] != first).any()
    wait_for(display, seen["screenshot"])
    assert env.render() is None
    env.close()
    wait_for(display, nothing)
    env.reset(seed=1)
    wait_for(display, first)


@pytest.mark.parametrize("address", [None, ":4711"], ids=["no display", "a display that is not there"])
def test_without_a_display_the_view_is_a_file(
    make: Callable[..., Any], address: str | None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    if address is None:
        monkeypatch.delenv("DISPLAY", raising=False)
    else:
        monkeypatch.setenv("DISPLAY", address)
    env = make("ClickTest", render_mode="human")
    with caplog.at_level(logging.WARNING, logger="bunshin_gym"):
        seen, _ = env.reset(seed=1)
    told = re.search(r"the live view is the file (\S+)", caplog.text)
    assert told is not None, caplog.text
    path = Path(told[1])
    with Image.open(path) as picture:
        assert (np.asarray(picture) == seen["screenshot"]).all()
    seen = env.step("mouse_click(5, 5)")[0]
    with Image.open(path) as picture:
        assert (np.asarray(picture) == seen["screenshot"]).all()
    env.close()
    assert not path.parent.exists()
