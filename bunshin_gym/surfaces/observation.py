# SPDX-License-Identifier: Apache-2.0
"""What every surface's observations have: texts of limited length, a screenshot, and the elapsed time on request."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from bunshin_gym.errors import ToolError
from bunshin_gym.surfaces.base import Episode, Screen
from bunshin_gym.surfaces.spaces import Unicode, clip_text

__all__ = ["common_entries", "common_spaces"]


def common_spaces(lengths: Mapping[str, int], screen: Screen, *, elapsed_time: bool) -> dict[str, spaces.Space[Any]]:
    """The spaces of what `common_entries` returns, for texts of these greatest lengths."""
    entries: dict[str, spaces.Space[Any]] = {name: Unicode(max_length) for name, max_length in lengths.items()}
    entries["screenshot"] = spaces.Box(0, 255, shape=(screen.height, screen.width, 3), dtype=np.uint8)
    if elapsed_time:
        entries["elapsed_time"] = spaces.Box(0.0, np.inf, shape=(1,), dtype=np.float64)
    return entries


def common_entries(
    texts: Mapping[str, str], lengths: Mapping[str, int], pixels: NDArray[np.uint8], screen: Screen, episode: Episode
) -> dict[str, Any]:
    """Texts, each clipped to its greatest length, a copy of the screenshot, and the elapsed time if it is observed.

    Raises:
        ToolError: the screenshot is not of the screen's size.
    """
    if pixels.shape != (screen.height, screen.width, 3) or pixels.dtype != np.uint8:
        raise ToolError(f"the screenshot is {pixels.shape} {pixels.dtype}, not of {screen.width}x{screen.height}")
    entries: dict[str, Any] = {name: clip_text(text, lengths[name]) for name, text in texts.items()}
    entries["screenshot"] = pixels.copy()
    if episode.elapsed_ns is not None:
        entries["elapsed_time"] = np.array([episode.elapsed_ns / 1e9], dtype=np.float64)
    return entries
