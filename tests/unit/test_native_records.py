# SPDX-License-Identifier: Apache-2.0
"""The registry's reader, and where things are."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from bunshin_gym import paths, records
from bunshin_gym.records import list_snapshots, list_workspaces

BOOT = Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def start_time(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]


def write(home: Path, kind: str, name: str, *lines: str) -> None:
    folder = home / kind / name
    folder.mkdir(parents=True)
    (folder / "record").write_text("\n".join([f"id={name}", *lines, ""]))


def test_record_as_the_core_writes_it(tmp_path: Path) -> None:
    me = f"{os.getpid()} {start_time(os.getpid())} {BOOT}"
    lines = (
        f"owner={me}",
        f"init={me}",
        "layer=/a",
        r"layer=/b\nc\\",
        "env=A=1",
        r'label={"kind": "branch", "note": "x\\n"}',
    )
    write(tmp_path, "workspaces", "0123456789ab", *lines, "engine=criu", "parent=aaaa", "created_ns=7")
    (record,) = list_workspaces(tmp_path)
    assert record.layers == (Path("/a"), Path("/b\nc\\"))
    assert record.label == {"kind": "branch", "note": "x\n"}
    assert (record.engine, record.parent, record.created_ns) == ("criu", "aaaa", 7)
    assert (record.pid, record.owner_pid, record.alive, record.owned) == (os.getpid(), os.getpid(), True, True)
    assert list_snapshots(tmp_path) == []


def test_dead_owners(tmp_path: Path) -> None:
    pid = os.getpid()
    write(tmp_path, "snapshots", "a", f"owner={pid} {start_time(pid)} another-boot", "created_ns=2")
    write(tmp_path, "snapshots", "b", f"owner={pid} 1 {BOOT}", "created_ns=1")
    write(tmp_path, "snapshots", "c", f"owner=4194305 1 {BOOT}", "created_ns=3")
    found = list_snapshots(tmp_path)
    assert [record.id for record in found] == ["b", "a", "c"]
    assert not any(record.owned or record.alive for record in found)


def test_labels_of_others_are_kept_as_text(tmp_path: Path) -> None:
    write(tmp_path, "workspaces", "a", "owner=1 1 x", "label=plain words")
    write(tmp_path, "workspaces", "b", "owner=1 1 x", "label=[1]")
    write(tmp_path, "workspaces", "c", "owner=1 1 x")
    labels = {record.id: record.label for record in list_workspaces(tmp_path)}
    assert labels == {"a": {"text": "plain words"}, "b": {"text": "[1]"}, "c": {}}


def test_a_damaged_record_names_nothing_but_is_no_crash(tmp_path: Path) -> None:
    assert records._unescape(r"a\nb\\n") == "a\nb\\n"
    (tmp_path / "workspaces" / "half").mkdir(parents=True)
    assert list_workspaces(tmp_path) == []


def test_paths_follow_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("BUNSHIN_HOME", str(tmp_path))
    monkeypatch.delenv("BUNSHIN_CRIU", raising=False)
    assert paths.home_path() == tmp_path
    criu = tmp_path / "criu" / "current" / "sbin" / "criu"
    criu.parent.mkdir(parents=True)
    criu.touch()
    assert paths.criu_path() == criu
    monkeypatch.setenv("BUNSHIN_CRIU", "/elsewhere/criu")
    assert paths.criu_path() == Path("/elsewhere/criu")
    monkeypatch.setenv("BUNSHIN_HOME", "")
    assert paths.home_path() == paths.DEFAULT_HOME
