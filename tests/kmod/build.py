# SPDX-License-Identifier: GPL-2.0-only
"""Builds what runs in the guest: the module, its sabotaged variants, and the C tests."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

from kernels import Kernel

HERE = Path(__file__).resolve().parent
KMOD = HERE.parents[1] / "kmod"


def _make(folder: Path, kernel: Kernel, *options: str) -> str:
    command = ["nice", "make", "-C", str(folder), f"KDIR={kernel.headers}", "-j2", *options]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        raise SystemExit(f"kmod: the module does not build for {kernel.release}:\n{done.stdout}")
    return done.stdout


def _warnings(output: str) -> list[str]:
    return [line for line in output.splitlines() if re.search(r"\.[ch]:\d+:.*warning:", line)]


def module(kernel: Kernel, folder: Path, edits: tuple[tuple[str, str, str], ...] = (), *options: str) -> Path:
    """Builds kmod/ in a copy, after replacing text in it.

    Args:
        edits: (file, old, new); old must be there exactly once, or the build stops.
        options: more arguments for make.

    Returns:
        The path of the module.

    Raises:
        SystemExit: it does not build, or builds with a warning.
    """
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(KMOD, folder, ignore=shutil.ignore_patterns("*.o", "*.ko", "*.mod*", ".*.cmd"))
    for name, old, new in edits:
        text = (folder / name).read_text()
        if text.count(old) != 1:
            raise SystemExit(f"kmod: {name} has {text.count(old)} places like this, not one:\n{old}")
        (folder / name).write_text(text.replace(old, new))
    warnings = _warnings(_make(folder, kernel, *options))
    if warnings and not edits:
        raise SystemExit("kmod: the module builds with warnings:\n" + "\n".join(warnings))
    return folder / "bunshin.ko"


def guest_tests(folder: Path) -> Path:
    """Compiles the C tests into one static program."""
    folder.mkdir(parents=True, exist_ok=True)
    program = folder / "kmodtest"
    flags = ["-static", "-O2", "-g", "-std=gnu17", "-Wall", "-Wextra", "-Werror", "-pthread", f"-I{KMOD}/uapi"]
    sources = sorted(str(path) for path in (HERE / "guest").glob("*.c"))
    subprocess.run(["gcc", *flags, *sources, "-o", program], check=True)
    return program
