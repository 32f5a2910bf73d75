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
├── SnapshotDamaged                     a snapshot on disk is torn, changed, or of another format
├── EngineError                         a fork engine failed; the source runs on
│   └── SnapshotLost                        the process that held a snapshot's memory was killed
├── ImageError                          an image cannot be built, found or read
├── ReplayDiverged                      calls run again did not bring what they brought before
│   ├── ImageNotFoundError                  no image of that name or digest
│   └── ImageBuildError                     a builder failed; the store is as it was before
└── ToolError                           the tool server refused a call or broke
    ├── ToolUnavailableError                nothing answers on its socket
    └── ToolTimeoutError                    the call took longer than allowed; its effect is unknown
"""

from __future__ import annotations

__all__ = [
    "BunshinError",
    "CallTimeout",
    "ClosedError",
    "EngineError",
    "ImageBuildError",
    "ImageError",
    "ImageNotFoundError",
    "PrivilegeError",
    "ReplayDiverged",
    "ResourceError",
    "SnapshotDamaged",
    "SnapshotLost",
    "ToolError",
    "ToolTimeoutError",
    "ToolUnavailableError",
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


class SnapshotDamaged(BunshinError):
    """What is on disk is not the snapshot that was written; the message names the file."""


class EngineError(BunshinError):
    """A fork engine failed; the source runs on and nothing is left behind."""


class SnapshotLost(EngineError):
    """The process that held the snapshot's memory was killed; its branches live on, and can be forked."""


class ImageError(BunshinError):
    """An image cannot be built, found or read."""


class ImageNotFoundError(ImageError):
    """The store holds no image of that name or digest, and no definition of it was found."""


class ImageBuildError(ImageError):
    """A builder failed; what it had made so far is gone again."""


class ReplayDiverged(BunshinError):
    """A state cannot be rebuilt: a call run again brought something else than it did before."""


class ToolError(BunshinError):
    """The tool server in the workspace refused a call or broke."""


class ToolUnavailableError(ToolError):
    """Nothing answers on the tool server's socket."""


class ToolTimeoutError(ToolError):
    """The call took longer than its caller allowed; whether it took effect is unknown."""
