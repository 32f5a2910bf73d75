# SPDX-License-Identifier: Apache-2.0
"""Builds and runs the C tests with both compilers, and with gcc's address and undefined-behaviour sanitizers."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
CORE = HERE.parents[1] / "csrc"
BASE = sorted(CORE.glob("base/*.c"))
HOST = [CORE / "host" / f"{name}.c" for name in ("cgroup-weight", "features", "pagemap", "procfs", "spawn", "trace")]
REGISTRY = [CORE / f"{name}.c" for name in ("places", "record", "registry")]
SOURCES = {"test_base": BASE, "test_host": [*BASE, *HOST, *REGISTRY]}
BUILDS = {
    "gcc": ["gcc", "-O2"],
    "clang": ["clang", "-O2"],
    "sanitized": ["gcc", "-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"],
}


@pytest.mark.parametrize("build", BUILDS)
@pytest.mark.parametrize("name", SOURCES)
def test_program(name: str, build: str, tmp_path: Path) -> None:
    command = BUILDS[build]
    if shutil.which(command[0]) is None:
        if os.environ.get("BUNSHIN_MUST_WORK") == "1":
            pytest.fail(f"BUNSHIN_MUST_WORK=1, but {command[0]} is not installed")
        pytest.skip(f"{command[0]} is not installed")
    program = tmp_path / name
    flags = ["-std=gnu17", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror", f"-I{CORE}", f"-I{HERE}"]
    subprocess.run([*command, *flags, HERE / f"{name}.c", *SOURCES[name], "-lpthread", "-o", program], check=True)
    data = tmp_path / "data"
    data.mkdir()
    arguments = [program, data] if name == "test_base" else [program]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, f"{done.stderr}\nrun again: {' '.join(map(str, arguments))}"
