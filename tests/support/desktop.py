# SPDX-License-Identifier: Apache-2.0
"""What the tests of desktops share."""

from __future__ import annotations

from typing import Any

from tenacity import Retrying, retry_if_result, stop_after_delay, wait_fixed

from bunshin_gym.bases import BaseKey
from bunshin_gym.paths import home_path
from bunshin_gym.surfaces import Screen

__all__ = ["key", "run", "wait_still", "wait_window"]

_STILL_LOOKS = 6


def key(width: int = 1920, height: int = 1080) -> BaseKey:
    """A desktop with nothing done yet."""
    screen = Screen(width=width, height=height)
    return BaseKey(home=str(home_path()), image="desktop", screen=screen, surface="desktop")


def run(guest: Any, command: str) -> str:
    """What a shell command of the user wrote; it must succeed."""
    done = guest.call("run", {"command": command, "shell": True})
    assert done["exit_code"] == 0, done
    return str(done["stdout"].decode())


def wait_window(guest: Any, title: str, timeout_s: float = 240) -> None:
    """Returns when a window has come whose title has this in it, and the screen is still."""
    retrying = Retrying(
        retry=retry_if_result(lambda there: not there), stop=stop_after_delay(timeout_s), wait=wait_fixed(0.2)
    )
    retrying(lambda: title in run(guest, "wmctrl -l"))
    guest.call("rest", {"longest_cpu_s": 20.0}, timeout_s=timeout_s)
    wait_still(guest, timeout_s)


def wait_still(guest: Any, timeout_s: float = 240) -> None:
    """Returns when the picture has stayed the same for some looks: windows draw themselves in several goes."""
    looks: list[bytes] = []

    def same() -> bool:
        looks.append(guest.act(()).view["screenshot"].tobytes())
        del looks[:-_STILL_LOOKS]
        return len(looks) == _STILL_LOOKS and len(set(looks)) == 1

    Retrying(retry=retry_if_result(lambda it: not it), stop=stop_after_delay(timeout_s), wait=wait_fixed(0.3))(same)
