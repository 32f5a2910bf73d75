# SPDX-License-Identifier: Apache-2.0
"""Makes random number generators in processes believe that they were forked, so that they seed themselves anew.

Libraries that keep a generator in memory (BoringSSL in Chromium, the kernel's vDSO) mark a page with
MADV_WIPEONFORK: the kernel empties it in a child, and a library that finds it empty asks the kernel for new seeds. A
branch is no child, so the page is carried with the rest; what is done here is what the kernel does.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

__all__ = ["family", "wipe_marked"]

_MAPPING = re.compile(r"^([0-9a-f]+)-([0-9a-f]+) rw", re.M)


def family(pid: int) -> Iterator[int]:
    """A process and all that descend from it; of process 1 of a workspace, all that runs there."""
    yield pid
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in task.read_text().split():
            yield from family(int(child))


def wipe_marked(pid: int) -> int:
    """Empties the marked memory of a process that stands still; returns how many bytes were not empty."""
    wiped = 0
    with open(f"/proc/{pid}/mem", "r+b", buffering=0) as memory:
        for start, end in _marked(Path(f"/proc/{pid}/smaps").read_text()):
            for at in range(start, end, os.sysconf("SC_PAGE_SIZE")):
                memory.seek(at)
                page = memory.read(os.sysconf("SC_PAGE_SIZE"))
                if any(page):
                    memory.seek(at)
                    wiped += memory.write(bytes(len(page)))
    return wiped


def _marked(smaps: str) -> Iterator[tuple[int, int]]:
    """Addresses of writable mappings that have the flag `wf`."""
    mappings = list(_MAPPING.finditer(smaps))
    for number, mapping in enumerate(mappings):
        end = mappings[number + 1].start() if number + 1 < len(mappings) else len(smaps)
        if re.compile(r"^VmFlags:.*\bwf\b", re.M).search(smaps, mapping.end(), end):
            yield int(mapping[1], 16), int(mapping[2], 16)
