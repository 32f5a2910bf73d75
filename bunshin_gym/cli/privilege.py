# SPDX-License-Identifier: Apache-2.0
"""What needs root says so before it does anything."""

from __future__ import annotations

import os

from bunshin_gym.errors import PrivilegeError

__all__ = ["need_root"]


def need_root(command: str) -> None:
    """Returns if we are root.

    Args:
        command: the command's words, for the message.

    Raises:
        PrivilegeError: we are not; it says what to do.
    """
    if os.geteuid() != 0:
        keep = "--preserve-env=BUNSHIN_HOME " if "BUNSHIN_HOME" in os.environ else ""
        raise PrivilegeError(
            f"`bunshin {command}` needs root: run it as root, or by `sudo {keep}bunshin {command} ...`"
        )
