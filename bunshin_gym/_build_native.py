# SPDX-License-Identifier: Apache-2.0
"""Describes the C core to cffi (API mode); run by setup.py, not imported at run time."""

from __future__ import annotations

from pathlib import Path

from cffi import FFI

_ROOT = Path(__file__).resolve().parent.parent
_CORE = _ROOT / "csrc"

#: csrc/init is a program of its own, which setup.py builds beside the extension.
SOURCES = sorted(
    str(path.relative_to(_ROOT)) for path in _CORE.rglob("*.c") if path.relative_to(_CORE).parts[0] != "init"
)

ffibuilder = FFI()
ffibuilder.cdef((_CORE / "include" / "bunshin.h").read_text(encoding="utf-8"))
ffibuilder.set_source(
    "bunshin_gym._native",
    '#include "include/bunshin.h"',
    sources=SOURCES,
    include_dirs=["csrc"],
    define_macros=[("_GNU_SOURCE", None)],
    # Bound at load time: a forked child of many threads must not run the dynamic linker.
    extra_link_args=["-Wl,-z,now"],
    extra_compile_args=["-std=gnu17", "-O2", "-Wall", "-Wextra", "-Wno-unused-parameter", "-fvisibility=hidden"],
)
