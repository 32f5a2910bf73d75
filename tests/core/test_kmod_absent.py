# SPDX-License-Identifier: Apache-2.0
"""The kmod engine on a machine with and without the kernel module; with it, tests/kmod has the rest."""

from __future__ import annotations

from pathlib import Path

from bunshin_gym.workspace import Workspace


def test_kmod_copies_where_the_module_is_absent_and_says_so(workspace: Workspace) -> None:
    workspace.exec(["sh", "-c", "echo before > /tmp/note"])
    with workspace.snapshot(engine="kmod") as snapshot, snapshot.branch() as branch:
        branch.exec(["sh", "-c", "echo after > /tmp/note"])
        assert branch.exec(["cat", "/tmp/note"]).stdout == b"after\n"
        assert workspace.exec(["cat", "/tmp/note"]).stdout == b"before\n"
        absent = any(phase.name.startswith("no kmod") for phase in snapshot.stats.phases)
        assert absent is not Path("/dev/bunshin").exists()
