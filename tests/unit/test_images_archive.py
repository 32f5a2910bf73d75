# SPDX-License-Identifier: Apache-2.0
"""Tarballs: everything a root file system holds survives, nothing is written outside of it."""

from __future__ import annotations

import contextlib
import io
import os
import stat
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from bunshin_gym.errors import ImageBuildError
from bunshin_gym.images.archive import tree_digest, unpack_file, unpack_stream

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="keeps owners and devices: needs root")


def member(name: str, kind: bytes = tarfile.REGTYPE, **fields: object) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type = kind
    for field, value in fields.items():
        setattr(info, field, value)
    return info


def archive(path: Path, *members: tuple[tarfile.TarInfo, bytes]) -> Path:
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as tar:
        for info, data in members:
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return path


def quiet(_: str) -> None:
    """Takes progress and does nothing with it."""


@needs_root
def test_owners_modes_devices_links_and_capabilities_are_kept(tmp_path: Path) -> None:
    capability = bytes.fromhex("0100000200040000000000000000000000000000")
    tar = archive(
        tmp_path / "a.tar",
        (member("bin", tarfile.DIRTYPE, mode=0o755), b""),
        (member("bin/tool", mode=0o4755, uid=12, gid=34), b"#!"),
        (member("bin/same", tarfile.LNKTYPE, linkname="bin/tool"), b""),
        (member("null", tarfile.CHRTYPE, mode=0o666, devmajor=1, devminor=3), b""),
        (member("pipe", tarfile.FIFOTYPE, mode=0o600), b""),
        (member("sticky", tarfile.DIRTYPE, mode=0o1777), b""),
        (member("abs", tarfile.SYMTYPE, linkname="/bin/tool"), b""),
        (
            member(
                "capable",
                mode=0o755,
                pax_headers={"SCHILY.xattr.security.capability": capability.decode("utf-8", "surrogateescape")},
            ),
            b"",
        ),
    )
    root = tmp_path / "root"
    unpack_file(tar, root, quiet)
    tool = (root / "bin/tool").stat()
    assert (tool.st_uid, tool.st_gid, stat.S_IMODE(tool.st_mode), tool.st_nlink) == (12, 34, 0o4755, 2)
    assert (root / "null").stat().st_rdev == os.makedev(1, 3)
    assert stat.S_ISFIFO((root / "pipe").stat().st_mode)
    assert stat.S_IMODE((root / "sticky").stat().st_mode) == 0o1777
    assert os.readlink(root / "abs") == "/bin/tool"
    assert os.getxattr(root / "capable", "security.capability") == capability
    assert stat.S_IMODE(root.stat().st_mode) == 0o755


def climb(outside: Path) -> list[tuple[tarfile.TarInfo, bytes]]:
    return [(member(f"../{outside.name}/hit"), b"out")]


def absolute(outside: Path) -> list[tuple[tarfile.TarInfo, bytes]]:
    return [(member(f"{outside}/hit"), b"out")]


def through_absolute_link(outside: Path) -> list[tuple[tarfile.TarInfo, bytes]]:
    return [(member("door", tarfile.SYMTYPE, linkname=str(outside)), b""), (member("door/hit"), b"out")]


def through_climbing_link(outside: Path) -> list[tuple[tarfile.TarInfo, bytes]]:
    link = member("door", tarfile.SYMTYPE, linkname=f"../{outside.name}")
    return [(link, b""), (member("door/hit"), b"out")]


def through_two_links(outside: Path) -> list[tuple[tarfile.TarInfo, bytes]]:
    return [
        (member("up", tarfile.SYMTYPE, linkname=".."), b""),
        (member("door", tarfile.SYMTYPE, linkname=f"up/{outside.name}"), b""),
        (member("door/hit"), b"out"),
    ]


def by_hard_link(outside: Path) -> list[tuple[tarfile.TarInfo, bytes]]:
    link = member("victim", tarfile.LNKTYPE, linkname=f"../{outside.name}/victim")
    return [(link, b""), (member("victim"), b"overwritten")]


@needs_root
@pytest.mark.parametrize(
    "attack", [climb, absolute, through_absolute_link, through_climbing_link, through_two_links, by_hard_link]
)
def test_no_member_is_written_outside(
    tmp_path: Path, attack: Callable[[Path], list[tuple[tarfile.TarInfo, bytes]]]
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "victim").write_text("untouched")
    tar = archive(tmp_path / "evil.tar", *attack(outside))
    before = {p.name: p.read_text() for p in outside.iterdir()}
    with contextlib.suppress(ImageBuildError):  # refusing is as good as defusing
        unpack_file(tar, tmp_path / "root", quiet)
    assert {p.name: p.read_text() for p in outside.iterdir()} == before


@needs_root
def test_a_stream_that_breaks_off_is_an_error(tmp_path: Path) -> None:
    whole = archive(tmp_path / "a.tar", (member("data"), b"x" * 100_000)).read_bytes()
    unpack_stream(iter([whole[:5000], whole[5000:]]), tmp_path / "whole", quiet)
    assert (tmp_path / "whole/data").stat().st_size == 100_000
    with pytest.raises(ImageBuildError, match="tar"):
        unpack_stream(iter([whole[:5000]]), tmp_path / "cut", quiet)


@needs_root
def test_an_error_of_the_source_stops_tar(tmp_path: Path) -> None:
    def broken() -> object:
        yield b"\0" * 512
        raise OSError("the daemon went away")

    with pytest.raises(OSError, match="went away"):
        unpack_stream(broken(), tmp_path / "root", quiet)  # type: ignore[arg-type]


def test_the_digest_of_a_tree_sees_what_a_root_file_system_is_made_of(tmp_path: Path) -> None:
    def make(name: str) -> Path:
        root = tmp_path / name
        (root / "d").mkdir(parents=True)
        (root / "d/f").write_text("content")
        (root / "l").symlink_to("d")
        return root

    plain = tree_digest(make("a"))
    assert tree_digest(make("b")) == plain
    changes: list[Callable[[Path], object]] = [
        lambda root: (root / "d/f").write_text("Content"),
        lambda root: (root / "d/f").chmod(0o600),
        lambda root: (root / "d/f").rename(root / "d/g"),
        lambda root: ((root / "l").unlink(), (root / "l").symlink_to("e")),
        lambda root: os.setxattr(root / "d/f", "user.x", b"1"),
        lambda root: (root / "empty").mkdir(),
    ]
    for number, change in enumerate(changes):
        root = make(f"c{number}")
        change(root)
        assert tree_digest(root) != plain, number
