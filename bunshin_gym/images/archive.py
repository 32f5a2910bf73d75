# SPDX-License-Identifier: Apache-2.0
"""Root file systems from a tar stream or a folder, with owners, devices, links and attributes.

Unpacking is GNU tar's work: it keeps what Python's tarfile drops (extended attributes, file
capabilities), strips leading `/` and `..` from names and link targets, and makes symbolic links
that lead upwards only after all else is in place, so no member is written through one.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import stat
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path

from bunshin_gym.errors import ImageBuildError, ImageError
from bunshin_gym.images.run import Report, need_program, run

__all__ = ["copy_tree", "file_digest", "remove_tree", "tree_digest", "unpack_file", "unpack_stream"]

_CHUNK_BYTES = 1 << 20
_TAR_OPTIONS = (
    "--extract",
    "--numeric-owner",
    "--same-owner",
    "--preserve-permissions",
    "--xattrs",
    "--xattrs-include=*",
    "--delay-directory-restore",
    "--no-overwrite-dir",
)


def unpack_file(archive: Path, rootfs: Path, report: Report) -> None:
    """Unpacks a tarball (compressed as GNU tar knows) into `rootfs`, absent before.

    Raises:
        ImageBuildError: it is not a tar archive, is damaged, or privilege is missing.
    """
    tar = _prepare(rootfs)
    report(f"unpacking {archive.name}")
    run([tar, *_TAR_OPTIONS, f"--directory={rootfs}", f"--file={archive}"], report)


def unpack_stream(chunks: Iterable[bytes], rootfs: Path, report: Report) -> None:
    """Unpacks an uncompressed tar stream into `rootfs`, absent before.

    Raises:
        ImageBuildError: the stream is not a whole tar archive.
    """
    tar = _prepare(rootfs)
    argv = [tar, *_TAR_OPTIONS, f"--directory={rootfs}", "--file=-"]
    done = 0
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stderr is not None
        try:
            for chunk in chunks:
                process.stdin.write(chunk)
                done += len(chunk)
                report(f"unpacked {done >> 20} MiB")
            process.stdin.close()
        except BrokenPipeError:
            pass  # tar gave up; its exit status and message say why
        except BaseException:
            process.kill()
            raise
        said = process.stderr.read().decode(errors="replace").strip()
    if process.returncode != 0:
        raise ImageBuildError(f"tar: exit status {process.returncode}: {said}")


def copy_tree(source: Path, rootfs: Path, report: Report) -> None:
    """Copies a folder, one file system deep, sharing blocks where the file system can."""
    if rootfs.resolve().is_relative_to(source.resolve()):
        raise ImageBuildError(f"{source} holds the image store itself")
    report(f"copying {source}")
    copy = need_program("cp", "coreutils")
    run([copy, "--archive", "--one-file-system", "--reflink=auto", f"{source}/.", str(rootfs)], report)


def file_digest(path: Path) -> str:
    """SHA-256 of a file's content."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def tree_digest(root: Path) -> str:
    """SHA-256 over a folder: names, types, modes, owners, attributes, link targets, content."""
    hasher = hashlib.sha256()
    for path in _walk(root):
        info = path.lstat()
        line = [os.fsencode(path.relative_to(root)), b"%o %d %d" % (info.st_mode, info.st_uid, info.st_gid)]
        if stat.S_ISREG(info.st_mode):
            line.append(file_digest(path).encode())
        elif stat.S_ISLNK(info.st_mode):
            line.append(os.fsencode(os.readlink(path)))
        elif stat.S_ISCHR(info.st_mode) or stat.S_ISBLK(info.st_mode):
            line.append(b"%d" % info.st_rdev)
        for name in sorted(os.listxattr(path, follow_symlinks=False)):
            line.append(name.encode() + b"=" + os.getxattr(path, name, follow_symlinks=False))
        hasher.update(b"".join(b"%d:%s" % (len(part), part) for part in line))
    return hasher.hexdigest()


def _walk(root: Path) -> Iterator[Path]:
    yield root
    for folder, subfolders, files in os.walk(root):
        subfolders.sort()
        for name in sorted([*subfolders, *files]):
            yield Path(folder, name)


def _prepare(rootfs: Path) -> str:
    if os.geteuid() != 0:
        raise ImageBuildError("unpacking a root file system needs root, to keep owners and devices")
    rootfs.mkdir()
    rootfs.chmod(0o755)
    return need_program("tar", "tar")


def remove_tree(path: Path) -> None:
    """Removes a tree that may hold anything; what is already gone is no error.

    Raises:
        ImageError: something is mounted inside, whose content would be removed too.
    """
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        if Path(line.split()[4]).is_relative_to(path.resolve()):
            raise ImageError(f"{path} is not removed: {line.split()[4]} is a mount point; unmount it first")
    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(path)
