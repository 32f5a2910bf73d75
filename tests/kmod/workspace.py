# SPDX-License-Identifier: GPL-2.0-only
"""What a guest needs to fork a live workspace: our core, our CRIU, kernel modules, a root file system."""

from __future__ import annotations

import lzma
import os
import re
import shutil
import subprocess
from pathlib import Path

from kernels import BOOKWORM, CACHE, Apt, Kernel

HERE = Path(__file__).resolve().parent
REPO = HERE.parents[1]
#: In the order in which they load. The kernel would load them by itself if it had modprobe.
MODULES = (
    *("overlay", "tun", "veth", "crc32c_generic", "libcrc32c", "nfnetlink", "nf_tables", "inet_diag", "tcp_diag"),
    *("udp_diag", "raw_diag", "unix_diag", "netlink_diag", "af_packet_diag"),
)


def _compile(sources: list[Path], target: Path, *flags: str) -> Path:
    common = ["-std=gnu17", "-D_GNU_SOURCE", "-O1", "-static", "-pthread", "-Wall", "-Wextra", "-Werror"]
    subprocess.run(["gcc", *common, *flags, *map(str, sources), "-o", str(target)], check=True)
    return target


def programs(folder: Path) -> dict[str, Path]:
    """Builds the core with its driver, the workspace's init and its main command."""
    core = sorted(path for path in (REPO / "csrc").rglob("*.c") if "init" not in path.relative_to(REPO / "csrc").parts)
    folder.mkdir(parents=True, exist_ok=True)
    init = folder / "init"
    subprocess.run(["make", "-s", "-C", str(REPO / "csrc"), f"OUT={init}"], check=True)
    driver = [*core, HERE / "workspace/forkwork.c"]
    return {
        "init": init,
        "forkwork": _compile(driver, folder / "forkwork", f"-I{REPO}/csrc", "-Wno-unused-parameter"),
        "life": _compile([HERE / "workspace/life.c"], folder / "life"),
    }


def criu() -> dict[str, Path]:
    """Our CRIU and the libraries that it is linked with, by their path in the guest."""
    subprocess.run([REPO / "third_party/criu/build.sh"], check=True)
    binary = (CACHE.parents[1] / "criu/current").resolve() / "sbin/criu"
    listed = subprocess.run(["ldd", binary], check=True, capture_output=True, text=True).stdout
    libraries = {path: Path(path).resolve() for path in re.findall(r"(/[^ ]+) \(0x", listed)}
    return {"/criu/criu": binary, **libraries}


def modules(kernel: Kernel, folder: Path) -> dict[str, Path]:
    """The kernel's own modules that the core and CRIU use, unpacked."""
    found: dict[str, Path] = {}
    folder.mkdir(parents=True, exist_ok=True)
    for name in MODULES:
        path = next(kernel.modules.rglob(f"{name}.ko*"), None)
        if not path:
            continue
        target = folder / f"{name}.ko"
        data = path.read_bytes()
        target.write_bytes(lzma.decompress(data) if path.suffix == ".xz" else data)
        found[f"/modules/{name}.ko"] = target
    return found


#: An X server and clients; GLX, which most of their dependencies serve, is switched off.
DISPLAY = ("xvfb", "x11-apps", "x11-utils")
UNUSED = re.compile(r"libllvm|libgl1-mesa-dri|libicu|libz3|man-db|groff|libxml2|fonts-|bsdextrautils|debconf")


def display_layer() -> Path:
    """A root file system with an X server, made once."""
    done = CACHE / "display"
    if done.exists():
        return done
    print("kmod: fetching an X server", flush=True)
    making = CACHE / "display.making"
    shutil.rmtree(making, ignore_errors=True)
    for archive in Apt(making / "apt", BOOKWORM).closure(list(DISPLAY)):
        if not UNUSED.match(archive.name):
            subprocess.run(["dpkg-deb", "-x", archive, making / "root"], check=True)
    root = making / "root"
    for name in ("doc", "man", "locale", "lintian", "bug"):
        shutil.rmtree(root / "usr/share" / name, ignore_errors=True)
    _finish_root(root)
    root.rename(done)
    shutil.rmtree(making)
    return done


def _finish_root(root: Path) -> None:
    """A shell and its tools, account files, and the folders that every root has."""
    for name in ("bin", "etc", "tmp", "root", "run", "var"):
        (root / name).mkdir(parents=True, exist_ok=True)
    busybox = shutil.which("busybox")
    assert busybox
    shutil.copy2(busybox, root / "bin/busybox")
    for applet in subprocess.run([busybox, "--list"], check=True, capture_output=True, text=True).stdout.split():
        if applet != "busybox" and not (root / "bin" / applet).exists():
            (root / "bin" / applet).symlink_to("busybox")
    (root / "etc/passwd").write_text("root:x:0:0:root:/root:/bin/sh\n")


def layers(built: dict[str, Path], folder: Path) -> Path:
    """The workspace's two layers: what the core puts into each, and a root file system of busybox."""
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "runtime/.bunshin").mkdir(parents=True)
    shutil.copy2(built["init"], folder / "runtime/.bunshin/init")
    root = folder / "root"
    _finish_root(root)
    shutil.copy2(built["life"], root / "bin/life")
    for path in (folder / "runtime", root, *root.rglob("*")):
        if path.is_dir():
            os.chmod(path, 0o755)
    return folder


def files(kernel: Kernel, folder: Path) -> dict[str, Path]:
    """All of it, by the path in the guest."""
    built = programs(folder)
    return {
        "/bin/forkwork": built["forkwork"],
        "/layers": layers(built, folder / "layers"),
        "/layers/display": display_layer(),
        **criu(),
        **modules(kernel, folder / "modules"),
    }


def prelude() -> str:
    """What comes first in every script that forks workspaces."""
    loads = [f"test -e /modules/{name}.ko && insmod /modules/{name}.ko" for name in MODULES]
    # CRIU looks at what TCP sockets can do by connecting one, so loopback must be up.
    return "\n".join([*loads, "mkdir -p /home", "ifconfig lo up"])


def fork(mib: int, *words: str) -> str:
    """The command that forks a workspace of that size; words: module or none, then engines."""
    return f"forkwork /home /criu/criu /layers/runtime /layers/root {mib} {' '.join(words)}"


def fork_display(*words: str) -> str:
    """As that, for a workspace with an X server and a client."""
    return f"forkwork /home /criu/criu /layers/runtime /layers/display display {' '.join(words)}"


def script(mib: int, options: str) -> str:
    """Forks through both engines in one run, then once more without our module."""
    return f"""
{prelude()}
insmod /bunshin.ko {options}
{fork(mib, "module", "pool", "kmod")}
{fork_display("module", "kmod")}
rmmod bunshin && echo 'PASS workspace leaves the module unused' || echo 'FAIL workspace leaves the module unused'
{fork(32, "none", "kmod")}
left=$(find /home/workspaces /home/snapshots /home/trash -mindepth 1 -maxdepth 1; pidof life; grep /home /proc/mounts)
test -z "$left" && echo 'PASS workspace leaves nothing' || echo "$left
FAIL workspace leaves nothing"
echo '== dmesg =='
dmesg
"""
