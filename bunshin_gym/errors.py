# SPDX-License-Identifier: Apache-2.0
"""What BunshinGym raises: one tree, so that a caller catches as much as it means to.

BunshinError
    ImageError             an image cannot be defined, built, found or removed
        ImageNotFoundError     no image of that name or digest
        ImageBuildError        a builder failed; the store is as it was before
    ToolError              a tool call was refused by the tool server, or could not be made
        ToolUnavailableError   nothing answers on the tool server's socket
        ToolTimeoutError       the call took longer than its caller allowed; its effect is unknown
"""

from __future__ import annotations

__all__ = [
    "BunshinError",
    "ImageBuildError",
    "ImageError",
    "ImageNotFoundError",
    "ToolError",
    "ToolTimeoutError",
    "ToolUnavailableError",
]


class BunshinError(Exception):
    """Base of everything this package raises on purpose."""


class ImageError(BunshinError):
    """An image cannot be defined, built, found or removed."""


class ImageNotFoundError(ImageError):
    """The store holds no image of that name or digest, and no definition of it was found."""


class ImageBuildError(ImageError):
    """A builder failed; what it had made so far is gone again."""


class ToolError(BunshinError):
    """A tool call was refused by the tool server, or could not be made."""


class ToolUnavailableError(ToolError):
    """Nothing answers on the tool server's socket."""


class ToolTimeoutError(ToolError):
    """The call took longer than its caller allowed; whether it took effect is unknown."""
