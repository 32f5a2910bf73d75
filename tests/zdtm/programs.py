# SPDX-License-Identifier: Apache-2.0
"""The programs of ZDTM, CRIU's test suite: compiled from its tarball, described, and put into a root file system."""

from __future__ import annotations

import ast
import functools
import re
import shutil
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bunshin_gym.paths import criu_path

REPOSITORY = Path(__file__).resolve().parents[2]
TREE_TOOL = REPOSITORY / "third_party" / "criu" / "zdtm-tree.sh"
SETS = ("static", "transition")
# The suite's own directory in a workspace.
HOME = "/zdtm"


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """One program and how the suite starts it.

    Attributes:
        name: as "static/pipe00".
        arguments: its command line, to be run in the directory of its set.
        root: it wants to run as root; otherwise it takes the user of the suite.
        alone: others in the same workspace would disturb it, or it them.
        refusable: the suite itself expects that it cannot be dumped.
        skipped: why it does not take part; empty if it does.
    """

    name: str
    arguments: tuple[str, ...]
    root: bool
    alone: bool
    refusable: bool
    skipped: str

    @property
    def environment(self) -> Mapping[str, str]:
        user = {} if self.root else {"ZDTM_UID": "18943", "ZDTM_GID": "58467", "ZDTM_GROUPS": "27495 48244"}
        return {"ZDTM_THREAD_BOMB": "5", "TMPDIR": "/tmp", **user}


def tree() -> Path:
    """Where the suite is unpacked: the directory test/zdtm of CRIU's source."""
    done = subprocess.run([TREE_TOOL], check=True, capture_output=True, text=True)
    return Path(done.stdout.strip().splitlines()[-1])


def _describe(suite: Path, name: str) -> dict[str, object]:
    path = suite / f"{name}.desc"
    text = path.read_text().strip() if path.exists() else ""
    if text.startswith("os.getenv"):  # made of what its caller says of a device
        return {"flags": "noauto"}
    return dict(ast.literal_eval(text)) if text else {}


@functools.cache
def _has_feature(feature: str) -> bool:
    done = subprocess.run([criu_path(), "check", "--no-default-config", "--feature", feature], capture_output=True)
    return done.returncode == 0


def _why_skipped(suite: Path, name: str, description: Mapping[str, object]) -> str:
    """As zdtm.py decides for the flavour ns."""
    flags = str(description.get("flags", "")).split()
    if "ns" not in str(description.get("flavor", "h ns uns")).split():
        return "not for namespaces"
    if "noauto" in flags:
        return "only on demand"
    if description.get("arch", "x86_64") != "x86_64":
        return "for another processor"
    missing = [word for word in str(description.get("feature", "")).split() if not _has_feature(word)]
    if missing:
        return f"the kernel lacks {' '.join(missing)}"
    check = suite / f"{name}.checkskip"
    if check.exists() and subprocess.run([check], cwd=suite.parent, capture_output=True).returncode:
        return "its own check says so"
    return ""


def _read_program(suite: Path, name: str, arguments: Sequence[str]) -> Program:
    description = _describe(suite, name)
    flags = str(description.get("flags", "")).split()
    return Program(
        name=name,
        arguments=tuple(arguments),
        root="suid" in flags,
        alone=bool({"excl", "samens", "crfail"} & set(flags)) or (suite / f"{name}.hook").exists(),
        refusable="crfail" in flags,
        skipped=_why_skipped(suite, name, description),
    )


def _commands(suite: Path, kind: str, names: Iterable[str]) -> dict[str, list[str]]:
    """The suite's makefile knows each program's arguments."""
    goals = [f"{name}.pid" for name in names]
    printed = subprocess.run(
        ["make", "--no-print-directory", "-n", "-k", "-C", suite / kind, *goals], capture_output=True, text=True
    ).stdout
    lines = (line.split() for line in printed.splitlines() if re.match(r"\./\S+ --pidfile=", line))
    return {line[0].removeprefix("./"): line for line in lines}


def read_programs(suite: Path, wanted: Sequence[str] = ()) -> list[Program]:
    """All programs of the suite, or those wanted ("static/pipe00"), compiled."""
    found = []
    for kind in SETS:
        names = [name.partition("/")[2] for name in wanted if name.startswith(f"{kind}/")]
        if wanted and not names:
            continue
        make = ["nice", "make", "--no-print-directory", "-j2"]
        subprocess.run([*make, "-C", suite / "lib"], check=True, capture_output=True)
        # All but a few compile everywhere; those that do not are not among what follows.
        subprocess.run([*make, "-k", "-C", suite / kind, *(names or ["all"])], capture_output=True)
        built = names or sorted(path.stem for path in (suite / kind).glob("*.c") if path.with_suffix("").exists())
        commands = _commands(suite, kind, built)
        found += [_read_program(suite, f"{kind}/{name}", commands[name]) for name in built if name in commands]
    return found


# ---- their root file system ----------------------------------------------------


def _libraries(program: Path) -> set[Path]:
    text = subprocess.run(["ldd", program], capture_output=True, text=True).stdout
    return {Path(path) for path in re.findall(r"(/\S+) \(0x", text)}


def _copy(source: Path, root: Path) -> None:
    target = root / source.relative_to("/")
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, target)


def _install_tools(root: Path) -> None:
    busybox = shutil.which("busybox")
    assert busybox, "busybox-static is not installed"
    shutil.copy(busybox, root / "bin" / "busybox")
    applets = subprocess.run([busybox, "--list"], check=True, capture_output=True, text=True).stdout.split()
    for applet in applets:
        if applet != "busybox":
            (root / "bin" / applet).symlink_to("busybox")


def furnish(root: Path, suite: Path, programs: Iterable[Program]) -> None:
    """Makes a root file system with these programs, what they are linked to, and busybox."""
    for name in ("bin", "etc", "tmp", "root", "run", "var", "sbin", "usr/bin", "dev", "proc", "sys"):
        (root / name).mkdir(parents=True)
    (root / "tmp").chmod(0o1777)
    (root / "etc" / "passwd").write_text("root:x:0:0:root:/root:/bin/sh\n")
    (root / "etc" / "group").write_text("root:x:0:\ntty:x:5:\n")
    _install_tools(root)
    for kind in SETS:
        (root / HOME[1:] / kind).mkdir(parents=True)
        (root / HOME[1:] / kind).chmod(0o777)
    for program in programs:
        binary = suite / program.name
        shutil.copy(binary, root / HOME[1:] / program.name)
        for library in _libraries(binary):
            _copy(library, root)
    root.chmod(0o755)
