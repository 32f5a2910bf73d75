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
BEGIN = "== begin =="
# A clock that is taken for good: else the kernel finds out that it runs unevenly and patches its own code all over,
# which the emulator, with several threads, does not always get right.
COMMAND_LINE = "console=ttyS0 panic=-1 nokaslr loglevel=6 random.trust_cpu=on tsc=reliable"
BOOTS = 3
STALE_CODE = "Oops: int3"


@dataclass(frozen=True, slots=True, kw_only=True)
class Guest:
    """What to boot.

    Attributes:
        image: the kernel.
        folder: for the initramfs, the disks and the logs; emptied first.
        files: path in the guest to file on the host.
        script: sh, run as root; its output is the result.
        disk_mib: 0 boots into an initramfs, with swap_mib of swap on a disk; otherwise into an ext4 root on a disk of
            that size, without swap (an initramfs cannot be pivoted away from, which containers do).
    """

    image: Path
    folder: Path
    files: dict[str, Path]
    script: str
    memory_mib: int = 2048
    swap_mib: int = 512
    disk_mib: int = 0
    timeout_s: int = 600


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


def _root(guest: Guest) -> Path:
    """Everything that the guest sees, in a folder."""
    root = guest.folder / "root"
    for name in ("bin", "dev", "proc", "sys", "tmp", "mnt", "run"):
        (root / name).mkdir(parents=True)
    root.chmod(0o755)
    busybox = shutil.which("busybox")
    if not busybox:
        raise SystemExit("kmod: busybox is needed: apt-get install busybox-static")
    shutil.copy2(busybox, root / "bin/busybox")
    for name, source in guest.files.items():
        target = root / name.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target, symlinks=True)
        else:
            shutil.copy2(source, target)
    shutil.copy2(HERE / "init", root / "init")
    (root / "init").chmod(0o755)
    (root / "script").write_text(guest.script)
    return root


def _initramfs(guest: Guest) -> list[str]:
    root, archive, swap = _root(guest), guest.folder / "initramfs", guest.folder / "disk"
    names = "\n".join(str(path.relative_to(root)) for path in sorted(root.rglob("*"))) + "\n"
    with archive.open("wb") as out:
        command = [str(root / "bin/busybox"), "cpio", "-o", "-H", "newc", "-R", "0:0"]
        subprocess.run(command, cwd=root, input=names.encode(), stdout=out, stderr=subprocess.DEVNULL, check=True)
    with swap.open("wb") as out:
        out.truncate(guest.swap_mib << 20)
    return ["-initrd", str(archive), "-append", COMMAND_LINE]


def _disk(guest: Guest) -> list[str]:
    disk = guest.folder / "disk"
    command = ["mke2fs", "-q", "-t", "ext4", "-d", str(_root(guest)), str(disk), f"{guest.disk_mib}M"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return ["-append", f"{COMMAND_LINE} root=/dev/nvme0n1 rw init=/init"]


def _qemu(guest: Guest) -> list[str]:
    command = ["nice", "-n", "10", "qemu-system-x86_64", "-M", "q35", "-accel", "tcg,thread=multi", "-cpu", "max"]
    command += ["-smp", "2", "-m", str(guest.memory_mib), "-nodefaults", "-display", "none", "-no-reboot"]
    command += ["-serial", f"file:{guest.folder}/console", "-serial", f"file:{guest.folder}/output"]
    command += ["-kernel", str(guest.image), *(_disk(guest) if guest.disk_mib else _initramfs(guest))]
    command += ["-drive", f"if=none,id=disk,format=raw,file={guest.folder}/disk", "-device", "nvme,drive=disk,serial=0"]
    return command


def run(guest: Guest) -> Result:
    """Boots it and waits for its end, or for timeout_s.

    A kernel that did not come as far as the script boots again. So does one that died of a breakpoint of its own: it
    puts them where it patches itself, and the emulator may still run one on its other processor when it is taken out.
    """
    if not shutil.which("qemu-system-x86_64"):
        raise SystemExit("kmod: QEMU is needed: apt-get install --no-install-recommends qemu-system-x86")
    began = time.monotonic()
    for _ in range(BOOTS):
        shutil.rmtree(guest.folder, ignore_errors=True)
        guest.folder.mkdir(parents=True)
        note = _boot(guest)
        output = _text(guest.folder / "output").splitlines()
        if BEGIN in output and STALE_CODE not in _text(guest.folder / "console"):
            break
    return Result(
        output=[line for line in output if line not in (BEGIN, END)],
        console=_text(guest.folder / "console") + note,
        finished=END in output,
        seconds=time.monotonic() - began,
        folder=guest.folder,
    )


def _boot(guest: Guest) -> str:
    try:
        return subprocess.run(
            _qemu(guest),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=guest.timeout_s,
        ).stdout
    except subprocess.TimeoutExpired:
        return f"stopped after {guest.timeout_s} s"


def _text(path: Path) -> str:
    return path.read_text(errors="replace").replace("\r", "") if path.exists() else ""
