# SPDX-License-Identifier: Apache-2.0
"""What an agent sees of a workspace and does to it: one surface a file, one protocol."""

from bunshin_gym.surfaces.base import ActionError, Episode, Screen, Surface
from bunshin_gym.surfaces.browser import BrowserSurface
from bunshin_gym.surfaces.desktop import DesktopSurface

__all__ = ["ActionError", "BrowserSurface", "DesktopSurface", "Episode", "Screen", "Surface"]
