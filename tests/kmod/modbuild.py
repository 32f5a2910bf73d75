# SPDX-License-Identifier: GPL-2.0-only
"""Builds what runs in the guest: the module, its sabotaged variants, and the C tests."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from kernels import Kernel

HERE = Path(__file__).resolve().parent
KMOD = HERE.parents[1] / "kmod"


@dataclass(frozen=True, slots=True, kw_only=True)
class Edit:
    """Text of a file that gives way to other text."""

    file: str
    old: str
    new: str

    def apply(self, path: Path) -> None:
        """Replaces it; old must be there exactly once, or the tests stop."""
        text = path.read_text()
        if text.count(self.old) != 1:
            raise SystemExit(f"kmod: {self.file} has {text.count(self.old)} places like this, not one:\n{self.old}")
        path.write_text(text.replace(self.old, self.new))


def _make(folder: Path, kernel: Kernel) -> str:
    command = ["nice", "make", "-C", str(folder), f"KDIR={kernel.headers}", "-j2", *kernel.make]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        raise SystemExit(f"kmod: the module does not build for {kernel.release}:\n{done.stdout}")
    return done.stdout


def _copy_sources(folder: Path) -> None:
    """kmod/ without what a build left there."""
    shutil.copytree(KMOD, folder, ignore=shutil.ignore_patterns("*.o", "*.ko", "*.mod*", ".*.cmd"))


def _warnings(output: str) -> list[str]:
    return [line for line in output.splitlines() if re.search(r"\.[ch]:\d+:.*warning:", line)]


class ModuleBuild:
    """A copy of kmod/ that is built for one kernel, as it is and with changes."""

    def __init__(self, kernel: Kernel, folder: Path) -> None:
        self._kernel, self._folder = kernel, folder
        shutil.rmtree(folder, ignore_errors=True)
        _copy_sources(folder / "kmod")

    def plain(self) -> Path:
        """Builds it unchanged; a warning stops the tests."""
        output = _make(self._folder / "kmod", self._kernel)
        warnings = _warnings(output)
        if warnings:
            raise SystemExit("kmod: the module builds with warnings:\n" + "\n".join(warnings))
        return self._keep("bunshin")

    def changed(self, name: str, edits: tuple[Edit, ...]) -> Path:
        """Builds it with some text replaced, then puts the text back."""
        before = {edit.file: (self._folder / "kmod" / edit.file).read_text() for edit in edits}
        try:
            for edit in edits:
                edit.apply(self._folder / "kmod" / edit.file)
            _make(self._folder / "kmod", self._kernel)
            return self._keep(name)
        finally:
            for file, text in before.items():
                (self._folder / "kmod" / file).write_text(text)

    def _keep(self, name: str) -> Path:
        return Path(shutil.copy2(self._folder / "kmod/bunshin.ko", self._folder / f"{name}.ko"))


def dkms_trouble(kernel: Kernel, folder: Path) -> str:
    """What DKMS says when it does not build the module for a kernel; nothing if it does. All in trees of our own."""
    shutil.rmtree(folder, ignore_errors=True)
    trees = ["--dkmstree", str(folder / "built"), "--sourcetree", str(folder / "source")]
    (folder / "built").mkdir(parents=True)
    version = re.search(r'PACKAGE_VERSION="(.+)"', (KMOD / "dkms.conf").read_text())
    if version is None:
        raise SystemExit("kmod: dkms.conf has no PACKAGE_VERSION")
    module = f"bunshin/{version[1]}"
    _copy_sources(folder / "source" / module.replace("/", "-"))
    headers = ["--kernelsourcedir", str(kernel.headers), "--config", str(kernel.headers / ".config")]
    for command in (["add", module, *trees], ["build", module, "-k", kernel.release, *headers, *trees]):
        done = subprocess.run(["nice", "dkms", *command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if done.returncode:
            return done.stdout
    return "" if list((folder / "built").rglob("bunshin.ko*")) else "it built nothing"


def guest_tests(folder: Path) -> Path:
    """Compiles the C tests into one static program."""
    folder.mkdir(parents=True, exist_ok=True)
    program = folder / "kmodtest"
    flags = ["-static", "-O2", "-g", "-std=gnu17", "-Wall", "-Wextra", "-Werror", "-pthread", f"-I{KMOD}/uapi"]
    sources = sorted(str(path) for path in (HERE / "guest").glob("*.c"))
    subprocess.run(["gcc", *flags, *sources, "-o", program], check=True)
    return program
