# SPDX-License-Identifier: Apache-2.0
"""Every exception that bunshin_gym raises on purpose.

BunshinError
├── UsageError (also ValueError)        the call itself is wrong
├── ClosedError                         the handle was closed, or belongs to another process
├── UnsupportedError                    a kernel object, a kernel or a machine that cannot be carried
├── PrivilegeError (also PermissionError)
├── ResourceError (also OSError)        memory, descriptors, disk, inotify instances ran out
├── WorkspaceDied                       the workspace ended by itself
├── CallTimeout (also TimeoutError)     a call took longer than it may
├── EngineError                         a fork engine failed; the source runs on
├── ImageError                          an image cannot be built, found or read
└── ToolError                           the tool server refused or broke
"""

from __future__ import annotations

__all__ = [
    "BunshinError",
    "CallTimeout",
    "ClosedError",
    "EngineError",
    "ImageError",
    "PrivilegeError",
    "ResourceError",
    "ToolError",
    "UnsupportedError",
    "UsageError",
    "WorkspaceDied",
]


class BunshinError(Exception):
    """Base of all exceptions of this package."""


class UsageError(BunshinError, ValueError):
    """An argument has the wrong value; nothing was changed."""


class ClosedError(BunshinError):
    """The handle was closed before, or was made in another process."""


class UnsupportedError(BunshinError):
    """Something here cannot be carried; the message names it, and the source runs on."""


class PrivilegeError(BunshinError, PermissionError):
    """Root, or a capability, is missing."""


class ResourceError(BunshinError, OSError):
    """The machine ran out of something; the message names the limit."""


class WorkspaceDied(BunshinError):
    """The workspace is gone; make a new one."""


class CallTimeout(BunshinError, TimeoutError):
    """The call was given up; its processes are ended."""


class EngineError(BunshinError):
    """A fork engine failed; the source runs on and nothing is left behind."""


class ImageError(BunshinError):
    """An image cannot be built, found or read."""


class ToolError(BunshinError):
    """The tool server in the workspace refused a call or broke."""
