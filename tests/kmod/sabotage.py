# SPDX-License-Identifier: GPL-2.0-only
"""The module with one thing wrong at a time, and the test that has to notice."""

from __future__ import annotations

from dataclasses import dataclass

from modbuild import Edit


@dataclass(frozen=True, slots=True, kw_only=True)
class Sabotage:
    """One mistake, and the name of the C test that fails because of it."""

    name: str
    test: str
    edits: tuple[Edit, ...]


def _one(name: str, test: str, file: str, old: str, new: str = "") -> Sabotage:
    return Sabotage(name=name, test=test, edits=(Edit(file=file, old=old, new=new),))


SABOTAGES = (
    _one(
        "no-tlb-flush",
        "running-source",
        "range.c",
        "bsh_call(flush_tlb_mm_range)(source, range->start, end, PAGE_SHIFT, false);",
    ),
    _one(
        "pages-stay-writable",
        "source-writes",
        "mapping.c",
        "part.vm_start = start;",
        "part.vm_start = start;\n\tvm_flags_init(&part, part.vm_flags | VM_SHARED);",
    ),
    _one("no-pages", "kind-anon", "mapping.c", "return bsh_call(copy_page_range)(twin, &part);", "return 0;"),
    _one(
        "offset-lost",
        "swap-shared",
        "mapping.c",
        "twin->vm_pgoff = pgoff;\n\tbsh_anon_pgoff_set(twin, anon_pgoff);",
    ),
    _one(
        "no-reverse-map",
        "swap-shared",
        "mapping.c",
        "rc = bsh_call(anon_vma_fork)(twin, vma);",
        "rc = 0;",
    ),
    _one(
        "size-not-counted",
        "kind-use",
        "mapping.c",
        "bsh_call(vm_stat_account)(own, twin->vm_flags, vma_pages(twin));",
    ),
    _one("wiped-in-forks", "kind-not-for-forks", "mapping.c", "VM_LOCKONFAULT | VM_WIPEONFORK |", "VM_LOCKONFAULT |"),
    _one("mm-leaks", "leaks-200", "range.c", "\tmmput(source);\n\treturn rc;", "\treturn rc;"),
    _one(
        "file-leaks-in",
        "kind-detached-file",
        "mapping.c",
        "detach && vma->vm_file);",
        "false);",
    ),
    _one("no-undo", "refuse-no-memory", "range.c", "if (rc < 0 && bsh_call", "if (rc == 1 && bsh_call"),
    _one("shared-is-shared", "refuse-shared", "mapping.c", "return BUNSHIN_REFUSED_SHARED;", "return 0;"),
    _one("file-pages-detached", "refuse-detach-file-page", "range.c", "rc = detach ?", "rc = false ?"),
    _one("anyone-opens", "who-may-open", "device.c", "capable(CAP_SYS_PTRACE) ? 0 : -EPERM", "0"),
    _one("reserved-ignored", "bad-fields", "device.c", "|| range.reserved)", ")"),
)

# Not a mistake of ours but of the kernel: it lacks a function.
MISSING = Sabotage(
    name="missing-symbol",
    test="",
    edits=(
        Edit(
            file="compat.h",
            old="/* Hidden from modules;",
            new="void no_such_function(void);\n/* Hidden from modules;",
        ),
        Edit(file="symbols.h", old="X(anon_vma_fork)", new="X(no_such_function) X(anon_vma_fork)"),
    ),
)
