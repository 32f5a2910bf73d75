# SPDX-License-Identifier: Apache-2.0
"""Every Python block of the README and of docs/ runs, a page's blocks one after the other."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import gymnasium
import pytest

import bunshin_gym

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)
PAGES = [path for path in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))] if BLOCK.search(path.read_text())]
ELSEWHERE = {"desktop.md", "sites.md"}
"""Pages whose blocks need an image that takes long to build, or a docker daemon that holds images of other people."""


@pytest.mark.usefixtures("logging_as_it_was")
@pytest.mark.filterwarnings("ignore:::(?!bunshin_gym)")
@pytest.mark.parametrize("path", [page for page in PAGES if page.name not in ELSEWHERE], ids=lambda path: path.name)
def test_a_page(path: Path, tmp_path: Path) -> None:
    bunshin_gym.register_envs()
    text = path.read_text()
    names: dict[str, Any] = {"gym": gymnasium, "__name__": "page"}
    for block in BLOCK.finditer(text):
        line = text.count("\n", 0, block.start()) + 1
        code = block[1].replace("/var/cache/my-training", str(tmp_path / "cache"))
        exec(compile("\n" * line + code, str(path), "exec"), names)
    for value in names.values():
        if isinstance(value, gymnasium.Env | gymnasium.vector.VectorEnv):
            value.close()
