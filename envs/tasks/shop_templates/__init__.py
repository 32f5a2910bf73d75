# SPDX-License-Identifier: Apache-2.0
"""Templates of the shop's tasks, by subject; the shop's own modules are in its image's folder."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "images" / "shop" / "site"))
