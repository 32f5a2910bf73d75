# SPDX-License-Identifier: Apache-2.0
"""Who may include whom in csrc/: the table of ARCHITECTURE.md, held by walking the #include lines."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

CSRC = Path(__file__).resolve().parent.parent / "csrc"
INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.MULTILINE)

# Layer -> the layers it may include besides itself. The public header knows nothing and may be seen by all.
MAY_INCLUDE = {
    "include": set(),
    "base": {"include"},
    "host": {"include", "base"},
    "engine": {"include", "base", "host", "third_party"},
    "top": {"include", "base", "host", "engine"},
    "init": {"host"},
}


def layer_of(path: str) -> str:
    """The layer of a path relative to csrc/: its first folder, or "top" for the files beside them."""
    head, _, rest = path.partition("/")
    return head if rest else "top"


def resolve(source: Path, name: str) -> str:
    """The included file relative to csrc/; includes are written from csrc/ or beside the source."""
    if "third_party" in name:
        return "third_party/" + Path(name).name
    for base in (CSRC, source.parent):
        if (base / name).is_file():
            return (base / name).resolve().relative_to(CSRC).as_posix()
    raise AssertionError(f"{source}: #include {name!r} is in no folder of csrc/")


def sources() -> list[Path]:
    return sorted(path for path in CSRC.rglob("*.[ch]") if path.is_file())


@pytest.mark.parametrize("source", sources(), ids=lambda path: path.relative_to(CSRC).as_posix())
def test_includes_point_downwards(source: Path) -> None:
    own = layer_of(source.relative_to(CSRC).as_posix())
    for name in INCLUDE.findall(source.read_text()):
        target = resolve(source, name)
        other = layer_of(target)
        assert other == own or other in MAY_INCLUDE[own], f"{own} must not include {target}"


def test_an_engine_includes_no_other_engine() -> None:
    shared = {"engine", "command"}  # the table; running our CRIU
    for source in (CSRC / "engine").glob("*.c"):
        for name in INCLUDE.findall(source.read_text()):
            target = resolve(source, name)
            assert layer_of(target) != "engine" or Path(target).stem in {*shared, source.stem}, (
                f"{source.name} must not include {target}"
            )


def test_only_the_engine_table_names_engines() -> None:
    for source in [*CSRC.glob("*.c")]:
        assert not re.search(r"\bbsh_engine_(criu|pool|kmod)\b", source.read_text()), (
            f"{source.name} names an engine; go through bsh_engine_find"
        )


def test_the_core_is_a_library() -> None:
    """No main, no exit, no printing to stderr, no Python.h outside the in-workspace init."""
    forbidden = re.compile(r"\bint main\(|[^_a-z]exit\(|fprintf\(stderr|perror\(|Python\.h")
    for source in sources():
        if layer_of(source.relative_to(CSRC).as_posix()) != "init":
            found = forbidden.search(source.read_text())
            assert not found, f"{source}: {found.group(0) if found else ''}"
