# SPDX-License-Identifier: Apache-2.0
"""The Python side of the C core: errors, arguments, handles; no root needed."""

from __future__ import annotations

import errno
import gc
import os
from pathlib import Path

import pytest
from bunshin_gym._native import ffi

from bunshin_gym.errors import BunshinError, ClosedError, PrivilegeError, ResourceError, UsageError
from bunshin_gym.native import NativeCore, Spec
from bunshin_gym.native.call import ERRORS, check


@pytest.fixture
def opened(tmp_path: Path) -> NativeCore:
    return NativeCore(tmp_path / "home", tmp_path / "criu")


def spec(**changes: object) -> Spec:
    return Spec(**{"layers": ["/"], "argv": ["true"], "env": {}, **changes})  # type: ignore[arg-type]


def test_features_are_text_by_name(opened: NativeCore) -> None:
    features = opened.features()
    major, minor = (int(part) for part in features["kernel"].split("."))
    assert os.uname().release.startswith(f"{major}.{minor}.")
    assert set(features) >= {"root", "overlay", "cgroup_v2", "cgroup_v1_freezer"}


def test_state_directory_is_made(opened: NativeCore, tmp_path: Path) -> None:
    assert sorted(path.name for path in (tmp_path / "home").iterdir()) == [
        "layers",
        "places",
        "snapshots",
        "trash",
        "workspaces",
    ]


def test_state_directory_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match=r"open the state directory .*/file: .*Not a directory"):
        NativeCore(tmp_path / "file", tmp_path)


def test_collection_of_nothing(opened: NativeCore) -> None:
    report = opened.gc()
    assert (report.workspaces, report.snapshots, report.processes, report.cgroups, report.layers) == (0, 0, 0, 0, 0)


def test_release_is_idempotent_and_calls_after_it_say_so(opened: NativeCore) -> None:
    opened.release()
    opened.release()
    with pytest.raises(ClosedError, match="has been closed"):
        opened.gc()


def test_many_handles_come_and_go(tmp_path: Path) -> None:
    for _ in range(50):
        NativeCore(tmp_path / "home", tmp_path)
    gc.collect()
    assert NativeCore(tmp_path / "home", tmp_path).gc().workspaces == 0


def test_a_forked_child_is_told(opened: NativeCore) -> None:
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            opened.gc()
        except ClosedError as error:
            os.write(write_end, str(error).encode())
        os._exit(0)
    os.waitpid(pid, 0)
    os.close(write_end)
    with os.fdopen(read_end) as pipe:
        assert f"belongs to process {os.getpid()}; this is its child {pid}" in pipe.read()
    assert opened.gc().workspaces == 0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"argv": "true"}, "argv: a list of strings"),
        ({"layers": "/"}, "layers: a list of strings"),
        ({"argv": ["a\0"]}, "NUL"),
        ({"env": {"": "1"}}, "no name of a variable"),
        ({"env": {"A=": "1"}}, "no name of a variable"),
        ({"pids_max": -1}, "pids_max: -1 is negative"),
        ({"memory_max_bytes": -5}, "memory_max_bytes: -5 is negative"),
        ({"argv": []}, "no command to run"),
    ],
)
def test_wrong_arguments_are_named(opened: NativeCore, changes: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        opened.start(spec(**changes))


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (errno.EPERM, PrivilegeError),
        (errno.ENOSPC, ResourceError),
        (errno.EINVAL, UsageError),
        (errno.ENXIO, BunshinError),
    ],
)
def test_errno_becomes_a_class_and_keeps_its_message(code: int, kind: type[BunshinError]) -> None:
    error = ffi.new("struct bsh_error *", {"code": code, "msg": b"what happened"})
    with pytest.raises(kind, match="what happened") as caught:
        check(-code, error)
    assert type(caught.value) is kind
    if isinstance(caught.value, OSError):
        assert caught.value.errno == code


def test_every_mapped_class_is_ours() -> None:
    assert all(issubclass(kind, BunshinError) for kind in ERRORS.values())
