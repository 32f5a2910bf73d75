# SPDX-License-Identifier: Apache-2.0
"""Reads the registry: which workspaces and snapshots there are, of this and of other processes."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from bunshin_gym.errors import PrivilegeError
from bunshin_gym.paths import home_path

__all__ = ["Record", "list_records", "list_snapshots", "list_workspaces", "record_layers"]

_PF_EXITING: Final = 0x4
Kind = Literal["workspaces", "snapshots"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One workspace or snapshot, as its state directory tells.

    Attributes:
        kind: "workspaces" or "snapshots".
        id: 12 hexadecimal digits.
        dir: its state directory.
        owner_pid: the process that made it.
        owned: whether that process lives; without it the next collection reaps this.
        pid: process 1 of a workspace as the host sees it; 0 for a snapshot, or before it runs.
        alive: whether that process lives.
        pool_pid: the process that holds the memory of a snapshot, or of the one that a branch came from; 0 for none.
        parent: id of the snapshot that a workspace, or of the workspace that a snapshot, was made from.
        engine: what carried it; None for a workspace that was started.
        label: what its maker noted (JSON object).
        layers: lower directories, top first.
        created_ns: time of its making, nanoseconds since 1970.
    """

    kind: Kind
    id: str
    dir: Path
    owner_pid: int
    owned: bool
    pid: int
    alive: bool
    pool_pid: int
    parent: str | None
    engine: str | None
    label: Mapping[str, Any]
    layers: tuple[Path, ...]
    created_ns: int


def _unescape(value: str) -> str:
    return re.sub(r"\\(.)", lambda match: "\n" if match[1] == "n" else match[1], value)


def _is_alive(process: str, boot_id: str, *, single: bool = False) -> bool:
    """process: "PID START_TIME BOOT_ID". single: it has one thread, so that it ends with that one."""
    pid, start_time, boot = process.split()
    if boot != boot_id:
        return False
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    fields = stat.rpartition(")")[2].split()
    ending = single and int(fields[6]) & _PF_EXITING
    return fields[0] not in "ZX" and fields[19] == start_time and not ending


def _label(text: str) -> Mapping[str, Any]:
    """Labels that another program wrote need not be JSON."""
    try:
        value = json.loads(text) if text else {}
    except ValueError:
        value = text
    return value if isinstance(value, dict) else {"text": str(value)}


def _parse(kind: Kind, folder: Path, text: str, boot_id: str) -> Record:
    values: dict[str, list[str]] = {}
    for line in text.splitlines():
        key, _, value = line.partition("=")
        values.setdefault(key, []).append(value)
    owner, init, pool = (values.get(key, [""])[0] for key in ("owner", "init", "pool"))

    def first(key: str) -> str | None:
        return _unescape(values[key][0]) if key in values else None

    return Record(
        kind=kind,
        id=values["id"][0],
        dir=folder,
        owner_pid=int(owner.split()[0]),
        owned=_is_alive(owner, boot_id),
        pid=int(init.split()[0]) if init else 0,
        alive=bool(init) and _is_alive(init, boot_id, single=True),
        pool_pid=int(pool.split()[0]) if pool and _is_alive(pool, boot_id) else 0,
        parent=first("parent"),
        engine=first("engine"),
        label=_label(first("label") or ""),
        layers=tuple(Path(_unescape(value)) for value in values.get("layer", [])),
        created_ns=int(values.get("created_ns", ["0"])[0]),
    )


def list_records(kind: Kind, home: Path | None = None) -> list[Record]:
    """All records of a kind, oldest first. Needs no C core.

    Raises:
        PrivilegeError: they are not ours to read.
    """
    boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    folder = (home or home_path()) / kind
    if folder.exists() and not os.access(folder, os.R_OK | os.X_OK):
        raise PrivilegeError(f"cannot read {folder}: root is needed, run it by sudo")
    records = []
    for path in sorted(folder.glob("*/record")):
        try:
            records.append(_parse(kind, path.parent, path.read_text(errors="surrogateescape"), boot_id))
        except FileNotFoundError:
            continue  # gone since it was listed
    return sorted(records, key=lambda record: record.created_ns)


def list_workspaces(home: Path | None = None) -> list[Record]:
    """Workspaces, oldest first."""
    return list_records("workspaces", home)


def list_snapshots(home: Path | None = None) -> list[Record]:
    """Snapshots, oldest first."""
    return list_records("snapshots", home)


def record_layers(text: str) -> tuple[Path, ...]:
    """The layers that a record names, top first."""
    return tuple(
        Path(_unescape(line.removeprefix("layer="))) for line in text.splitlines() if line.startswith("layer=")
    )
