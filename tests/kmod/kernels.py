# SPDX-License-Identifier: GPL-2.0-only
"""Debian's kernels and their headers: downloaded and unpacked under the cache, nothing installed.

apt runs with a configuration of its own, so that the machine's package sources stay as they are and every machine
gets the same suites.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

CACHE = Path(os.environ.get("BUNSHIN_HOME", "/var/lib/bunshin")) / "cache" / "kmod"
KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
#: What the build tools of a newer distribution run with.
RUNTIME = ("libc6", "libelf1t64", "zlib1g", "libzstd1")
NEWER_COMPILERS = (
    *("MIN_FUNCTION_ALIGNMENT", "COUNTED_BY", "COUNTED_BY_PTR", "ASSUME", "MULTIDIMENSIONAL_NONSTRING"),
    *("NAMED_AS_FIXED_SANITIZERS",),
)
ARCHIVE, SECURITY = "http://deb.debian.org/debian", "http://deb.debian.org/debian-security"


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """A line of kernels.

    Attributes:
        name: what the command line calls it.
        sources: lines of an apt sources list, without the options.
        meta: the package that depends on the newest image of the series.
        foreign: its build tools need a newer C library than this machine may have, and its compiler is not here.
        options: for loading the module.
    """

    name: str
    sources: tuple[str, ...]
    meta: str
    foreign: bool = False
    options: str = ""


BOOKWORM = (f"{ARCHIVE} bookworm main", f"{SECURITY} bookworm-security main")
SERIES = {
    series.name: series
    for series in (
        Series(name="6.1", sources=BOOKWORM, meta="linux-image-cloud-amd64"),
        Series(name="6.12", sources=BOOKWORM, meta="linux-image-6.12-cloud-amd64"),
        Series(name="sid", sources=(f"{ARCHIVE} sid main",), meta="linux-image-cloud-amd64", foreign=True),
        Series(
            name="experimental",
            sources=(f"{ARCHIVE} sid main", f"{ARCHIVE} experimental main"),
            meta="linux-image-cloud-amd64/experimental",
            foreign=True,
            options="untested=1",
        ),
    )
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """An unpacked kernel.

    Attributes:
        release: as `uname -r` says it.
        image: the compressed kernel.
        headers: what a module's build takes as KDIR.
        modules: the image's own modules.
        make: further arguments for a module's build.
        options: for loading our module.
    """

    series: str
    release: str
    image: Path
    headers: Path
    modules: Path
    make: tuple[str, ...]
    options: str


class Apt:
    """apt with private lists, for one set of sources."""

    def __init__(self, root: Path, sources: tuple[str, ...]) -> None:
        self._root = root
        for folder in ("state/lists/partial", "cache/archives/partial", "deb"):
            (root / folder).mkdir(parents=True, exist_ok=True)
        (root / "sources.list").write_text("".join(f"deb [signed-by={KEYRING}] {line}\n" for line in sources))
        (root / "apt.conf").write_text(
            f'Dir::Etc::sourcelist "{root}/sources.list";\nDir::Etc::sourceparts "/dev/null";\n'
            f'Dir::State "{root}/state";\nDir::State::status "/dev/null";\nDir::Cache "{root}/cache";\n'
            'Acquire::Languages "none";\nAcquire::Retries "3";\nAPT::Sandbox::User "root";\n'
            'APT::Architecture "amd64";\nAPT::Architectures { "amd64"; };\n'
        )
        self._run("apt-get", "-q", "update")

    def _run(self, *command: str, cwd: Path | None = None) -> str:
        environment = dict(os.environ, APT_CONFIG=str(self._root / "apt.conf"), LC_ALL="C")
        done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"kmod: {' '.join(command)} failed:\n{done.stderr}")
        return done.stdout

    def depends(self, package: str) -> list[str]:
        """What a package of that name, or name/suite, depends on."""
        name, _, suite = package.partition("/")
        target = ("-t", suite) if suite else ()
        text = self._run("apt-cache", *target, "show", "--no-all-versions", name)
        line = re.search(r"^Depends: (.*)$", text, re.MULTILINE)
        return re.findall(r"(?:^|, )([^ ,(|]+)", line[1]) if line else []

    def download(self, packages: list[str]) -> list[Path]:
        """Fetches them; the paths of their files."""
        folder = self._root / "deb"
        self._run("apt-get", "-q", "download", *packages, cwd=folder)
        return [next(folder.glob(f"{package}_*.deb")) for package in packages]

    def closure(self, packages: list[str]) -> list[Path]:
        """Fetches them with all that they depend on, as for an empty system."""
        options = ("-q", "-y", "--no-install-recommends", "--download-only")
        self._run("apt-get", *options, "install", *packages)
        return sorted((self._root / "cache/archives").glob("*.deb"))


def fetch(series: Series, *, update: bool = False) -> Kernel:
    """The series' newest kernel, or the one that the cache holds already."""
    folder = CACHE / series.name
    if update:
        shutil.rmtree(folder, ignore_errors=True)
    if not (folder / "release").exists():
        _download(series, folder)
    return _kernel(series, folder)


def _download(series: Series, folder: Path) -> None:
    print(f"kmod: fetching the {series.name} kernel", flush=True)
    shutil.rmtree(folder, ignore_errors=True)
    apt = Apt(folder / "apt", series.sources)
    image = next(name for name in apt.depends(series.meta) if name.startswith("linux-image-"))
    headers = image.replace("linux-image-", "linux-headers-")
    packages = [image, headers]
    # Newer packages come in parts.
    packages += [name for name in apt.depends(image) if re.match(r"linux-(binary|modules)-", name)]
    packages += [name for name in apt.depends(headers) if re.match(r"linux-(headers|kbuild)-", name)]
    for archive in apt.download(packages):
        subprocess.run(["dpkg-deb", "-x", archive, folder / "root"], check=True)
    release = image.removeprefix("linux-image-")
    makefile = folder / "root/usr/src" / f"linux-headers-{release}" / "Makefile"
    text = makefile.read_text()
    makefile.write_text(re.sub(r"([ =])/usr/src/", rf"\1{folder}/root/usr/src/", text))
    if series.foreign:
        for archive in apt.download(list(RUNTIME)):
            subprocess.run(["dpkg-deb", "-x", archive, folder / "runtime"], check=True)
        _adapt(folder, release)
    shutil.rmtree(folder / "apt")
    (folder / "release").write_text(release)


def _adapt(folder: Path, release: str) -> None:
    """Lets a newer distribution's build tools run here, with the C library that they were made for, and takes what
    this machine's compiler cannot do out of the kernel's configuration. The module's layout does not depend on it."""
    loader = next((folder / "runtime").rglob("ld-linux-x86-64.so.2"))
    for name, real in (("scripts/mod/modpost", "modpost.real-lsb-64"), ("tools/objtool/objtool", "objtool.real-x86")):
        for tool in (folder / "root/usr/lib").glob(f"linux-kbuild-*/{name}"):
            tool.write_text(f'#!/bin/sh\nexec {loader} --library-path {loader.parent} {tool.parent / real} "$@"\n')
    headers = folder / "root/usr/src" / f"linux-headers-{release}"
    pattern = rf"^(#define )?CONFIG_CC_HAS_({'|'.join(NEWER_COMPILERS)})[ =].*\n"
    for path in (headers / "include/config/auto.conf", headers / "include/generated/autoconf.h"):
        path.write_text(re.sub(pattern, "", path.read_text(), flags=re.MULTILINE))


def _kernel(series: Series, folder: Path) -> Kernel:
    release = (folder / "release").read_text()
    root = folder / "root"
    return Kernel(
        series=series.name,
        release=release,
        image=next(root.rglob("vmlinuz*")),
        headers=root / "usr/src" / f"linux-headers-{release}",
        modules=next(path for path in root.rglob(f"lib/modules/{release}") if path.is_dir()),
        make=("CC=gcc",) if series.foreign else (),
        options=series.options,
    )
