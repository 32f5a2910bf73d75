# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import subprocess
import sys

from support.examples import EXAMPLES


def test_the_best_of_four_is_done_for_real() -> None:
    done = subprocess.run([sys.executable, EXAMPLES / "best_of_four.py"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "click('14'): reward 1.0"
