# SPDX-License-Identifier: GPL-2.0-only
"""Boots a kernel under QEMU with an initramfs of ours, runs a script in it, and returns what the script printed.

The processor is emulated (TCG): modules cannot be loaded on every machine that tests run on, and nested
virtualisation is not to be had everywhere either.
"""

from __future__ import annotations

import shutil
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).resolve().parent
END = "== end =="


@dataclass(frozen=True, slots=True, kw_only=True)
class Guest:
    """What to boot.

    Attributes:
        image: the kernel.
        folder: for the initramfs, the disks and the logs; emptied first.
        files: path in the guest to file on the host.
        script: sh, run as root; its output is the result.
        disk: a file system image to attach as the second disk, written to only in memory.
    """

    image: Path
    folder: Path
    files: dict[str, Path]
    script: str
    memory_mib: int = 2048
    swap_mib: int = 512
    disk: Path | None = None
    timeout_s: int = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What came of it.

    Attributes:
        output: the script's lines.
        console: the kernel's and QEMU's.
        finished: whether the script reached its end.
    """

    output: list[str]
    console: str
    finished: bool
    seconds: float
    folder: Path = field(repr=False)


def _initramfs(guest: Guest) -> Path:
    root = guest.folder / "root"
    for name in ("bin", "dev", "proc", "sys", "tmp", "mnt"):
        (root / name).mkdir(parents=True)
    root.chmod(0o755)
    busybox = shutil.which("busybox")
    if not busybox:
        raise SystemExit("kmod: busybox is needed: apt-get install busybox-static")
    shutil.copy2(busybox, root / "bin/busybox")
    for name, source in guest.files.items():
        target = root / name.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(source, target)
    shutil.copy2(HERE / "init", root / "init")
    (root / "init").chmod(0o755)
    (root / "script").write_text(guest.script)
    archive = guest.folder / "initramfs"
    names = "\n".join(str(path.relative_to(root)) for path in sorted(root.rglob("*"))) + "\n"
    with archive.open("wb") as out:
        command = [busybox, "cpio", "-o", "-H", "newc", "-R", "0:0"]
        subprocess.run(command, cwd=root, input=names.encode(), stdout=out, stderr=subprocess.DEVNULL, check=True)
    return archive


def _qemu(guest: Guest, initramfs: Path) -> list[str]:
    swap = guest.folder / "swap"
    with swap.open("wb") as out:
        out.truncate(guest.swap_mib << 20)
    command = ["nice", "-n", "10", "qemu-system-x86_64", "-M", "q35", "-accel", "tcg,thread=multi", "-cpu", "max"]
    command += ["-smp", "2", "-m", str(guest.memory_mib), "-nodefaults", "-display", "none", "-no-reboot"]
    command += ["-serial", f"file:{guest.folder}/console", "-serial", f"file:{guest.folder}/output"]
    command += ["-kernel", str(guest.image), "-initrd", str(initramfs)]
    command += ["-append", "console=ttyS0 panic=-1 nokaslr loglevel=6 random.trust_cpu=on"]
    disks = [swap] + ([guest.disk] if guest.disk else [])
    for i, disk in enumerate(disks):
        command += ["-drive", f"if=none,id=d{i},format=raw,snapshot=on,file={disk}"]
        command += ["-device", f"nvme,drive=d{i},serial=d{i}"]
    return command


def run(guest: Guest) -> Result:
    """Boots it and waits for its end, or for timeout_s."""
    if not shutil.which("qemu-system-x86_64"):
        raise SystemExit("kmod: QEMU is needed: apt-get install --no-install-recommends qemu-system-x86")
    shutil.rmtree(guest.folder, ignore_errors=True)
    guest.folder.mkdir(parents=True)
    began = time.monotonic()
    command = _qemu(guest, _initramfs(guest))
    note = ""
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=guest.timeout_s,
        )
        note = done.stdout
    except subprocess.TimeoutExpired:
        note = f"stopped after {guest.timeout_s} s"
    output = _text(guest.folder / "output").splitlines()
    return Result(
        output=[line for line in output if line != END],
        console=_text(guest.folder / "console") + note,
        finished=END in output,
        seconds=time.monotonic() - began,
        folder=guest.folder,
    )


def _text(path: Path) -> str:
    return path.read_text(errors="replace").replace("\r", "") if path.exists() else ""
