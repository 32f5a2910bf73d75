# SPDX-License-Identifier: Apache-2.0
"""Builds a root file system from a definition: Debian packages, wheels, files."""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import sys
import zipfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path, PurePosixPath

from bunshin_gym.errors import ImageBuildError
from bunshin_gym.images.archive import copy_tree
from bunshin_gym.images.definition import DAEMONS_FILE, Daemon, Definition, FileCopy, WheelData
from bunshin_gym.images.run import Report, need_program, run
from bunshin_gym.scratch import ScratchFolder

__all__ = ["build_rootfs", "mirrors", "write_daemons"]

_DEFAULT_MIRROR = "http://deb.debian.org/debian"
_DEFAULT_SECURITY = "http://deb.debian.org/debian-security"
_KEYRINGS = (
    Path("/usr/share/keyrings/debian-archive-keyring.gpg"),
    Path("/usr/share/keyrings/debian-archive-keyring.pgp"),
)
_NO_DOCS = (
    "/usr/share/doc/*",
    "/usr/share/info/*",
    "/usr/share/lintian/*",
    "/usr/share/locale/*",
    "/usr/share/man/*",
)
_ALWAYS_TRIMMED = (
    "etc/machine-id",
    "tmp/*",
    "tmp/.[!.]*",
    "usr/share/doc/*",
    "usr/share/info/*",
    "usr/share/locale/*",
    "usr/share/man/*",
    "var/cache/apt/*",
    "var/cache/debconf/*-old",
    "var/lib/apt/lists/*",
    "var/lib/dpkg/*-old",
    "var/log/*",
)
# Wheels must run on the image's glibc, whatever the host's is.
_GLIBC_MINOR = {"bookworm": 36, "trixie": 41}


def build_rootfs(definition: Definition, rootfs: Path, report: Report, *, base: Path | None = None) -> None:
    """Fills `rootfs` (absent before) from a definition. Needs root.

    Args:
        definition: what to build.
        rootfs: where.
        report: takes lines of progress.
        base: root file system of the definition's base.

    Raises:
        ImageBuildError: privilege, a program, a package or a file is missing.
    """
    if os.geteuid() != 0:
        raise ImageBuildError("building a root file system needs root")
    if platform.machine() != "x86_64":
        raise ImageBuildError(f"images are built for x86-64 only, this is {platform.machine()}")
    if base is None:
        _bootstrap(definition, rootfs, report)
    else:
        copy_tree(base, rootfs, report)
        _add_packages(definition, rootfs, report)
    if definition.python_packages or definition.python_source_packages:
        _install_wheels(definition, rootfs, report)
    for wheel in definition.wheels:
        _copy_wheel_data(wheel, rootfs, report)
    for copy in definition.files:
        _copy_files(copy, definition.folder, rootfs)
    write_daemons(definition.daemons, rootfs)
    for command in definition.run:
        report("running " + " ".join(command))
        run(_chroot_argv(rootfs, command), report, env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"})
    _trim(rootfs, (*_ALWAYS_TRIMMED, *definition.trim))


def write_daemons(daemons: Sequence[Daemon], rootfs: Path) -> None:
    """Puts the list of what the tool server starts into a root file system."""
    if not daemons:
        return
    path = _inside(rootfs, DAEMONS_FILE)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps([asdict(daemon) for daemon in daemons], indent=2, sort_keys=True) + "\n")


def mirrors(suite: str) -> tuple[str, str]:
    """(archive, security archive): $BUNSHIN_MIRROR, else the host's own if it runs that suite."""
    own = os.environ.get("BUNSHIN_MIRROR")
    if own:
        beside = own.rstrip("/") + "-security"
        fallback = beside if own.rstrip("/").endswith("/debian") else _DEFAULT_SECURITY
        return own, os.environ.get("BUNSHIN_SECURITY_MIRROR", fallback)
    archive, security = _DEFAULT_MIRROR, _DEFAULT_SECURITY
    for uri, suites in _host_sources():
        if suite in suites and "security" not in uri:
            archive = uri
        if f"{suite}-security" in suites:
            security = uri
    return archive, security


def _host_sources() -> list[tuple[str, list[str]]]:
    found: list[tuple[str, list[str]]] = []
    folder = Path("/etc/apt/sources.list.d")
    for path in sorted(folder.glob("*.sources")):
        for stanza in re.split(r"\n\s*\n", path.read_text(errors="replace")):
            fields = dict(re.findall(r"^(\w[\w-]*):[ \t]*(.*)$", stanza, re.MULTILINE))
            found += [(uri, fields.get("Suites", "").split()) for uri in fields.get("URIs", "").split()]
    for path in [Path("/etc/apt/sources.list"), *sorted(folder.glob("*.list"))]:
        if path.is_file():
            line = re.compile(r"^deb\s+(?:\[[^]]*\]\s+)?(\S+)\s+(\S+)", re.MULTILINE)
            found += [(uri, [suite]) for uri, suite in line.findall(path.read_text(errors="replace"))]
    return [(uri.rstrip("/"), suites) for uri, suites in found if uri.startswith("http")]


def _bootstrap(definition: Definition, rootfs: Path, report: Report) -> None:
    program = need_program("mmdebstrap", "mmdebstrap")
    keyring = next((path for path in _KEYRINGS if path.exists()), None)
    if keyring is None:
        raise ImageBuildError("Debian's archive keys are missing: apt-get install debian-archive-keyring")
    archive, security = mirrors(definition.suite)
    components = " ".join(definition.components)
    sources = [
        f"deb [signed-by={keyring}] {uri} {suite} {components}"
        for uri, suite in (
            (archive, definition.suite),
            (archive, f"{definition.suite}-updates"),
            (security, f"{definition.suite}-security"),
        )
    ]
    run(
        [
            *_confined(),
            program,
            "--mode=root",
            "--format=directory",
            f"--variant={definition.variant}",
            *([f"--include={','.join(definition.packages)}"] if definition.packages else []),
            '--aptopt=APT::Install-Recommends "false"',
            '--aptopt=Acquire::Languages "none"',
            '--aptopt=Acquire::Retries "3"',
            # The tree is put in place when it is whole; a power cut before that loses nothing.
            "--dpkgopt=force-unsafe-io",
            *(f"--dpkgopt=path-exclude={pattern}" for pattern in _NO_DOCS),
            definition.suite,
            str(rootfs),
            *sources,
        ],
        report,
        env={**os.environ, "LC_ALL": "C.UTF-8", "DEBIAN_FRONTEND": "noninteractive"},
    )


def _add_packages(definition: Definition, rootfs: Path, report: Report) -> None:
    """Installs Debian packages into a root file system that has some, by its own apt."""
    if not definition.packages:
        return
    options = ["-o", "APT::Install-Recommends=false", "-o", "Acquire::Languages=none", "-o", "Acquire::Retries=3"]
    options += ["-o", "Dpkg::Options::=--force-unsafe-io"]
    for pattern in _NO_DOCS:
        options += ["-o", f"Dpkg::Options::=--path-exclude={pattern}"]
    env = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C.UTF-8", "DEBIAN_FRONTEND": "noninteractive"}
    env |= {name: os.environ[name] for name in ("http_proxy", "https_proxy") if name in os.environ}
    resolver, policy = _inside(rootfs, "/etc/resolv.conf"), _inside(rootfs, "/usr/sbin/policy-rc.d")
    before = resolver.read_bytes() if resolver.exists() else None
    shutil.copyfile("/etc/resolv.conf", resolver)
    # Package scripts start nothing: there is nobody to stop it again.
    policy.write_text("#!/bin/sh\nexit 101\n")
    policy.chmod(0o755)
    try:
        run(_chroot_argv(rootfs, ["/usr/bin/apt-get", "update", *options]), report, env=env)
        install = ["/usr/bin/apt-get", "install", "--yes", *options, *definition.packages]
        run(_chroot_argv(rootfs, install), report, env=env)
    finally:
        policy.unlink()
        resolver.unlink()
        if before is not None:
            resolver.write_bytes(before)


def _pip(report: Report, *arguments: str) -> None:
    run([sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments], report)


def _install_wheels(definition: Definition, rootfs: Path, report: Report) -> None:
    minor = _GLIBC_MINOR.get(definition.suite)
    if minor is None:
        raise ImageBuildError(f"suite {definition.suite}: its glibc is not known to the wheel installer")
    names = [f"manylinux_2_{n}_x86_64" for n in range(5, minor + 1)]
    names += ["manylinux2014_x86_64", "manylinux2010_x86_64", "manylinux1_x86_64", "linux_x86_64"]
    target = _inside(rootfs, definition.python_target)
    with ScratchFolder("wheels") as scratch:
        _pip(
            report,
            "install",
            "--no-deps",
            "--no-compile",
            "--only-binary=:all:",
            "--implementation=cp",
            f"--python-version={definition.python_version}",
            *(f"--platform={name}" for name in names),
            "--root-user-action=ignore",
            f"--target={target}",
            *definition.python_packages,
            *_make_wheels(definition.python_source_packages, scratch.path, report),
        )
    python = f"/usr/bin/python{definition.python_version}"
    report("compiling Python modules")
    run(
        _chroot_argv(rootfs, [python, "-m", "compileall", "-q", definition.python_target]),
        report,
        env={"PATH": "/usr/bin:/bin"},
    )


def _make_wheels(requirements: Sequence[str], folder: Path, report: Report) -> list[str]:
    """Wheels of packages that are published as source only, made here; they must fit any Python."""
    if not requirements:
        return []
    _pip(
        report,
        "wheel",
        "--no-deps",
        f"--no-binary={','.join(r.split('==')[0] for r in requirements)}",
        "-w",
        str(folder),
        *requirements,
    )
    made = sorted(folder.glob("*.whl"))
    wrong = [path.name for path in made if not path.name.endswith("-none-any.whl")]
    if wrong:
        raise ImageBuildError(f"not pure Python: {', '.join(wrong)}")
    return [str(path) for path in made]


def _copy_wheel_data(wheel: WheelData, rootfs: Path, report: Report) -> None:
    with ScratchFolder("wheel") as scratch:
        _pip(report, "download", "--no-deps", "--only-binary=:all:", "-d", str(scratch.path), wheel.requirement)
        archives = list(scratch.path.glob("*.whl"))
        if len(archives) != 1:
            raise ImageBuildError(f"{wheel.requirement}: expected one wheel, got {archives}")
        prefix = wheel.source.rstrip("/") + "/"
        count = 0
        with zipfile.ZipFile(archives[0]) as archive:
            for info in archive.infolist():
                inner = info.filename.removeprefix(prefix)
                if info.is_dir() or inner == info.filename or ".." in PurePosixPath(inner).parts:
                    continue
                path = _inside(rootfs, f"{wheel.target}/{inner}")
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(archive.read(info))
                count += 1
    if count == 0:
        raise ImageBuildError(f"{wheel.requirement} has nothing below {prefix}")


def _copy_files(copy: FileCopy, folder: Path, rootfs: Path) -> None:
    source, target = folder / copy.source, _inside(rootfs, copy.target)
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_dir():
        shutil.copytree(source, target, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
    else:
        shutil.copyfile(source, target)
        target.chmod(copy.mode if copy.mode is not None else source.stat().st_mode & 0o777)
    # Only what was copied: beside it are files of the image, whose owners and links are its own.
    copied = [target / path.relative_to(source) for path in source.rglob("*")] if source.is_dir() else []
    for path in (target, *(path for path in copied if os.path.lexists(path))):
        os.chown(path, 0, 0, follow_symlinks=False)


def _chroot_argv(rootfs: Path, command: Sequence[str]) -> list[str]:
    """The command in the new root."""
    return [*_confined(f"--root={rootfs}", "--mount-proc"), *command]


def _confined(*options: str) -> list[str]:
    """Start of a command line: what the command mounts and starts is gone when it or we are."""
    setpriv, unshare = need_program("setpriv", "util-linux"), need_program("unshare", "util-linux")
    return [setpriv, "--pdeathsig", "KILL", unshare, "--mount", "--pid", "--fork", "--kill-child", *options, "--"]


def _inside(rootfs: Path, path: str) -> Path:
    """A path of the image on the host; its parents must not lead out by a symbolic link."""
    full = rootfs / path.lstrip("/")
    if not full.parent.resolve().is_relative_to(rootfs.resolve()):
        raise ImageBuildError(f"{path} leaves the image by a symbolic link")
    return full


def _trim(rootfs: Path, globs: Sequence[str]) -> None:
    for pattern in globs:
        for path in rootfs.glob(pattern):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
    for folder in ("tmp", "var/tmp"):
        if (rootfs / folder).is_dir():
            (rootfs / folder).chmod(0o1777)
