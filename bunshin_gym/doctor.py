# SPDX-License-Identifier: Apache-2.0
"""Finds out what this machine can do, what is missing, and how to get it.

Each check is a function that reads the machine through a `Machine` and returns findings, so that
tests can hand it another one.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import re
import shutil
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

from bunshin_gym.paths import criu_path, home_path

__all__ = ["CHECKS", "Finding", "Machine", "diagnose"]

State = Literal["ok", "none", "warn", "fail"]

_KERNEL_MIN: Final = (5, 15)
_INOTIFY_MIN: Final = 1024
_PIDS_MIN: Final = 32768
_FILES_MIN: Final = 1 << 20
_DISK_MIN_BYTES: Final = 8 << 30
_MEMORY_MIN_BYTES: Final = 4 << 30
_CAPABILITIES: Final = {"SYS_ADMIN": 21, "SYS_PTRACE": 19, "NET_ADMIN": 12, "SYS_CHROOT": 18, "MKNOD": 27, "SETUID": 7}
_CONFIG: Final = (
    "CHECKPOINT_RESTORE",
    "NAMESPACES",
    "PID_NS",
    "NET_NS",
    "IPC_NS",
    "UTS_NS",
    "OVERLAY_FS",
    "CGROUP_FREEZER",
    "SECCOMP_FILTER",
    "UNIX_DIAG",
    "INET_DIAG",
    "FHANDLE",
    "EVENTFD",
    "EPOLL",
    "INOTIFY_USER",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing looked at.

    Attributes:
        name: what.
        state: fail: nothing works without it; warn: it works until a limit is met; none: it is not there, and
            only some do without.
        detail: what was found.
        advice: what to do, unless it is ok.
    """

    name: str
    state: State
    detail: str
    advice: str = ""


@dataclass(slots=True, kw_only=True)
class Machine:
    """How checks see the machine; a test gives another root and another runner.

    Attributes:
        root: where /proc, /sys, /dev and /boot are below.
        home: the state directory.
        criu: our CRIU.
    """

    root: Path = Path("/")
    home: Path = field(default_factory=home_path)
    criu: Path = field(default_factory=criu_path)
    run: Callable[[list[str]], tuple[int, str]] = lambda argv: _run(argv)
    euid: int = field(default_factory=os.geteuid)
    release: str = field(default_factory=platform.release)
    arch: str = field(default_factory=platform.machine)
    env: Mapping[str, str] = field(default_factory=lambda: os.environ)

    def read(self, path: str) -> str:
        """A small file's text; empty if it cannot be read."""
        try:
            return (self.root / path.lstrip("/")).read_text()
        except OSError:
            return ""


def _run(argv: list[str]) -> tuple[int, str]:
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return 127, str(error)
    return done.returncode, (done.stdout + done.stderr).strip()


def diagnose(machine: Machine | None = None) -> list[Finding]:
    """Runs every check."""
    seen = machine if machine is not None else Machine()
    return [finding for check in CHECKS for finding in check(seen)]


def _kernel(machine: Machine) -> list[Finding]:
    found = re.match(r"(\d+)\.(\d+)", machine.release)
    version = (int(found[1]), int(found[2])) if found else (0, 0)
    wanted = ".".join(map(str, _KERNEL_MIN))
    return [
        Finding(name="architecture", state="ok", detail=machine.arch)
        if machine.arch == "x86_64"
        else Finding(name="architecture", state="fail", detail=machine.arch, advice="use an x86-64 machine"),
        Finding(name="kernel", state="ok", detail=machine.release)
        if version >= _KERNEL_MIN
        else Finding(name="kernel", state="fail", detail=machine.release, advice=f"boot Linux {wanted} or later"),
    ]


def _kernel_options(machine: Machine) -> list[Finding]:
    text = machine.read(f"/boot/config-{machine.release}") or _config_gz(machine)
    if not text:
        detail = "the kernel's configuration is not readable (/boot/config-*, /proc/config.gz)"
        advice = "modprobe configs, or install the kernel's config file; without it, CRIU's check below decides"
        return [Finding(name="kernel options", state="warn", detail=detail, advice=advice)]
    missing = [f"CONFIG_{name}" for name in _CONFIG if not re.search(rf"^CONFIG_{name}=[ym]$", text, re.M)]
    if missing:
        advice = "boot a distribution's kernel, or build one with these options"
        return [Finding(name="kernel options", state="fail", detail=f"off: {', '.join(missing)}", advice=advice)]
    return [Finding(name="kernel options", state="ok", detail=f"all {len(_CONFIG)} that are needed are on")]


def _config_gz(machine: Machine) -> str:
    path = machine.root / "proc/config.gz"
    if not path.exists():
        return ""
    import gzip

    try:
        return gzip.decompress(path.read_bytes()).decode()
    except OSError:
        return ""


def _privileges(machine: Machine) -> list[Finding]:
    if machine.euid != 0:
        return [Finding(name="root", state="fail", detail=f"uid {machine.euid}", advice="run as root (sudo)")]
    found = re.search(r"^CapEff:\s*([0-9a-f]+)", machine.read("/proc/self/status"), re.M)
    effective = int(found[1], 16) if found else 0
    missing = [f"CAP_{name}" for name, bit in _CAPABILITIES.items() if not effective >> bit & 1]
    if missing:
        advice = "in a container: start it with --privileged, or add these capabilities"
        return [Finding(name="root", state="fail", detail=f"without {', '.join(missing)}", advice=advice)]
    return [Finding(name="root", state="ok", detail="with the capabilities that are needed")]


def _criu(machine: Machine) -> list[Finding]:
    if not machine.criu.exists():
        return [Finding(name="CRIU", state="fail", detail=f"{machine.criu} is not there", advice="run `make criu`")]
    if machine.euid != 0:
        # Its own advice, a file capability, would not do: a fork needs all of root.
        detail = f"{machine.criu} is there; whether it works here only root can find out"
        return [Finding(name="CRIU", state="warn", detail=detail, advice="run this again as root (sudo)")]
    code, text = machine.run([str(machine.criu), "check"])
    last = text.splitlines()[-1] if text else "no output"
    if code != 0:
        advice = f"`{machine.criu} check -v4` tells what the kernel lacks: boot one that has it"
        return [Finding(name="CRIU", state="fail", detail=last, advice=advice)]
    return [Finding(name="CRIU", state="ok", detail=f"{machine.criu}: {last}")]


def _core(_: Machine) -> list[Finding]:
    if importlib.util.find_spec("bunshin_gym._native") is None:
        advice = "run `make core`, or install the package again (pip install .)"
        return [Finding(name="C core", state="fail", detail="not built", advice=advice)]
    return [Finding(name="C core", state="ok", detail="built")]


def _freezer(machine: Machine) -> list[Finding]:
    mounts = machine.read("/proc/self/mountinfo")
    v2 = re.search(r"^\S+ \S+ \S+ \S+ (\S+) .* - cgroup2 ", mounts, re.M)
    v1 = re.search(r"^\S+ \S+ \S+ \S+ (\S+) .* - cgroup \S+ \S*\bfreezer\b", mounts, re.M)
    if v1:
        return [Finding(name="cgroup freezer", state="ok", detail=f"version 1 at {v1[1]}")]
    if v2:
        return [Finding(name="cgroup freezer", state="ok", detail=f"version 2 at {v2[1]}")]
    advice = "mount it: mount -t cgroup2 none /sys/fs/cgroup"
    return [Finding(name="cgroup freezer", state="fail", detail="no cgroup file system is mounted", advice=advice)]


def _overlay(machine: Machine) -> list[Finding]:
    if re.search(r"\boverlay$", machine.read("/proc/filesystems"), re.M):
        return [Finding(name="overlayfs", state="ok", detail="there")]
    code, _ = machine.run(["modprobe", "overlay"])
    if code == 0:
        return [Finding(name="overlayfs", state="ok", detail="loaded as a module")]
    return [Finding(name="overlayfs", state="fail", detail="not there", advice="load it: modprobe overlay")]


def _limits(machine: Machine) -> list[Finding]:
    wanted = {
        "fs.inotify.max_user_instances": (_INOTIFY_MIN, "a desktop takes about 6; they run out at some 20 workspaces"),
        "kernel.pid_max": (_PIDS_MIN, "a desktop takes about 130 threads"),
        "fs.file-max": (_FILES_MIN, "a desktop takes about 500 open files"),
    }
    findings = []
    for name, (least, why) in wanted.items():
        text = machine.read(f"/proc/sys/{name.replace('.', '/')}").strip()
        if text.isdigit() and int(text) >= least:
            findings.append(Finding(name=name, state="ok", detail=text))
        else:
            advice = f"sysctl -w {name}={least}  (keep it in /etc/sysctl.d/)"
            findings.append(Finding(name=name, state="warn", detail=f"{text or 'unknown'}: {why}", advice=advice))
    return findings


def _disk(machine: Machine) -> list[Finding]:
    folder = machine.home
    while not folder.exists():
        folder = folder.parent
    free = shutil.disk_usage(folder).free
    detail = f"{free / (1 << 30):.1f} GiB free for {machine.home}"
    if free >= _DISK_MIN_BYTES:
        return [Finding(name="disk", state="ok", detail=detail)]
    advice = "free some, or set BUNSHIN_HOME to a larger disk; images take 1 to 3 GiB"
    return [Finding(name="disk", state="warn", detail=detail, advice=advice)]


def _memory(machine: Machine) -> list[Finding]:
    found = re.search(r"^MemAvailable:\s*(\d+) kB", machine.read("/proc/meminfo"), re.M)
    available = int(found[1]) * 1024 if found else 0
    detail = f"{available / (1 << 30):.1f} GiB available"
    if available >= _MEMORY_MIN_BYTES:
        return [Finding(name="memory", state="ok", detail=detail)]
    advice = "a first desktop takes about 0.7 GiB, each branch some tens of MiB"
    return [Finding(name="memory", state="warn", detail=detail, advice=advice)]


def _images(machine: Machine) -> list[Finding]:
    from bunshin_gym.images import ImageStore

    names = {image.name for image in ImageStore(machine.home).list()}
    if names:
        return [Finding(name="images", state="ok", detail=", ".join(sorted(names)))]
    advice = "run `make image`, or `bunshin image build browser`"
    return [Finding(name="images", state="warn", detail="none is built: there is nothing to start", advice=advice)]


def _kmod(machine: Machine) -> list[Finding]:
    name, device = "kernel module (optional)", machine.root / "dev/bunshin"
    if not device.exists():
        detail = "no /dev/bunshin: engine `kmod` does what `pool` does, and says so"
        advice = "build it by `make kmod` and load it by `insmod kmod/bunshin.ko` (docs/kmod.md)"
        return [Finding(name=name, state="none", detail=detail, advice=advice)]
    if not os.access(device, os.R_OK | os.W_OK):
        detail = "/dev/bunshin cannot be opened: engine `kmod` does what `pool` does, and says so"
        return [Finding(name=name, state="none", detail=detail, advice="run as root; in a container, pass the device")]
    return [Finding(name=name, state="ok", detail="/dev/bunshin, for engine `kmod`")]


def _docker(machine: Machine) -> list[Finding]:
    name = "docker (optional)"
    if (machine.root / "var/run/docker.sock").exists() or machine.env.get("DOCKER_HOST"):
        return [Finding(name=name, state="ok", detail="a daemon to take images from")]
    detail = "no daemon: images come from Debian packages, folders and tarballs"
    advice = "apt-get install docker.io and start dockerd, or set DOCKER_HOST"
    return [Finding(name=name, state="none", detail=detail, advice=advice)]


def _display(machine: Machine) -> list[Finding]:
    name, display = "display (optional)", machine.env.get("DISPLAY")
    if display:
        return [Finding(name=name, state="ok", detail=f"DISPLAY={display}")]
    detail = 'none: render_mode="human" writes a picture file'
    advice = "set DISPLAY to an X server's, for a window; Python needs tkinter for it (apt-get install python3-tk)"
    return [Finding(name=name, state="none", detail=detail, advice=advice)]


CHECKS: Final[tuple[Callable[[Machine], list[Finding]], ...]] = (
    _kernel,
    _kernel_options,
    _privileges,
    _core,
    _criu,
    _freezer,
    _overlay,
    _limits,
    _disk,
    _memory,
    _images,
    _kmod,
    _docker,
    _display,
)
"""Every check, in the order in which a newcomer meets what it is about."""
