# SPDX-License-Identifier: Apache-2.0
"""Builds the C core as a cffi extension and the workspace's init; everything else is in pyproject.toml."""

import platform
import shutil
import subprocess
import sys
from pathlib import Path

from setuptools import setup
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parent


class BuildNative(build_ext):
    """Builds csrc/init too: a static program, which goes into each workspace as package data."""

    def run(self) -> None:
        if sys.platform != "linux" or platform.machine() != "x86_64":
            sys.exit("bunshin-gym runs on x86-64 Linux only")
        super().run()
        package = ROOT / "bunshin_gym" if self.inplace else Path(self.build_lib).resolve() / "bunshin_gym"
        target = package / "_runtime" / "init"
        target.parent.mkdir(parents=True, exist_ok=True)
        subprocess.run(["make", "-s", "-C", str(ROOT / "csrc"), f"OUT={target}"], check=True)


class BuildWithEnvs(build_py):
    """Takes the image and task definitions into the package; a checkout is read where it is."""

    def run(self) -> None:
        super().run()
        if not self.editable_mode:
            target = Path(self.build_lib).resolve() / "bunshin_gym" / "_envs"
            shutil.rmtree(target, ignore_errors=True)
            shutil.copytree(ROOT / "envs", target, ignore=shutil.ignore_patterns("__pycache__", "*.pyc"))


setup(
    cffi_modules=["bunshin_gym/_build_native.py:ffibuilder"],
    cmdclass={"build_ext": BuildNative, "build_py": BuildWithEnvs},
)
