# SPDX-License-Identifier: Apache-2.0
"""The documentation site builds without a warning: links, references, the reference's docstrings."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_it_builds(tmp_path: Path) -> None:
    done = subprocess.run(
        [
            sys.executable,
            "-W",
            "ignore",
            "-m",
            "mkdocs",
            "build",
            "--strict",
            "--quiet",
            "--site-dir",
            tmp_path / "site",
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    reference = (tmp_path / "site/reference.html").read_text()
    assert "bunshin_gym.vector.BunshinVectorEnv" in reference
    assert "One fork, step by step" in (tmp_path / "site/architecture.html").read_text()
