# SPDX-License-Identifier: Apache-2.0
"""Start command of images that have a tool server: `python3 -m toolserver`."""

from __future__ import annotations

import sys

from .app import main

if __name__ == "__main__":
    sys.exit(main())
