# SPDX-License-Identifier: Apache-2.0
"""Contents by their hash: each once, compressed, in a file that is written whole or not at all."""

from __future__ import annotations

import hashlib
import mmap
import os
import secrets
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import zstandard
from cachetools import LRUCache

from bunshin_gym import faults
from bunshin_gym.cache.store.locks import PerThread
from bunshin_gym.errors import BunshinError

__all__ = ["BlobMissingError", "BlobStore", "digest_of"]

_DIGEST_BYTES: Final = 20
_LEVEL: Final = 1  # a screenshot must cost little beside the call that made it


class BlobMissingError(BunshinError):
    """A content is gone or damaged; whoever needed it must make it again."""


def digest_of(content: bytes | memoryview) -> bytes:
    """The name of a content: cut SHA-256, which processors have an instruction for."""
    return hashlib.sha256(content).digest()[:_DIGEST_BYTES]


class _Codec(PerThread):
    """zstd objects must not be shared by threads."""

    def __init__(self) -> None:
        # With a checksum in each frame, a torn or rotten file is noticed when it is read.
        self.compressor = zstandard.ZstdCompressor(level=_LEVEL, write_checksum=True)
        self.decompressor = zstandard.ZstdDecompressor()


class BlobStore:
    """A folder of contents; safe for threads and processes.

    Files are memory-mapped to be read. What was read or written last is kept decompressed, up to
    `cache_bytes`, so that one screenshot met by eight attempts is decompressed once.
    """

    def __init__(self, root: Path, *, cache_bytes: int = 256 << 20) -> None:
        self.root = root
        root.mkdir(parents=True, exist_ok=True)
        self._codec = _Codec()
        self._recent: LRUCache[bytes, bytes] = LRUCache(max(1, cache_bytes), getsizeof=len)
        self._recent_lock = threading.Lock()

    def path(self, digest: bytes) -> Path:
        """Where a content is or would be."""
        name = digest.hex()
        return self.root / name[:2] / name[2:]

    def put(self, content: bytes | memoryview) -> bytes:
        """Stores a content unless it is there, and returns its name.

        Raises:
            OSError: the disk is full or out of reach; nothing was stored.
        """
        digest = digest_of(content)
        path = self.path(digest)
        if not path.exists():
            self._write(path, content)
        with self._recent_lock:
            known = digest in self._recent
        if not known:
            self._remember(digest, bytes(content))
        return digest

    def get(self, digest: bytes) -> bytes:
        """The content of that name.

        Raises:
            BlobMissingError: it is not there, or its file is damaged (the file is removed then).
        """
        with self._recent_lock:
            recent = self._recent.get(digest)
        if recent is not None:
            return recent
        path = self.path(digest)
        try:
            content = self._read(path)
        except FileNotFoundError as error:
            raise BlobMissingError(f"content {digest.hex()} is gone") from error
        except (zstandard.ZstdError, ValueError) as error:
            path.unlink(missing_ok=True)
            raise BlobMissingError(f"content {digest.hex()} is damaged: {error}") from error
        self._remember(digest, content)
        return content

    def stored_bytes(self) -> int:
        """What all files take, compressed."""
        return sum(size for _, size in self._files())

    def count(self) -> int:
        """How many contents there are."""
        return sum(1 for _ in self._files())

    def sweep(self, referenced: set[bytes]) -> int:
        """Removes what is not referenced, and half-written files; returns the bytes freed.

        The caller makes sure that nobody stores meanwhile.
        """
        freed_bytes = 0
        for path, size in list(self._files(partial=True)):
            if self._digest(path) not in referenced:
                path.unlink(missing_ok=True)
                freed_bytes += size
        with self._recent_lock:
            self._recent.clear()
        return freed_bytes

    def _write(self, path: Path, content: bytes | memoryview) -> None:
        path.parent.mkdir(exist_ok=True)
        temporary = path.with_name(f".{path.name}.{secrets.token_hex(6)}")
        try:
            with temporary.open("wb") as file:
                faults.point("blob.temporary_open")
                file.write(self._codec.compressor.compress(content))
            faults.point("blob.temporary_written")
            temporary.rename(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        faults.point("blob.renamed")

    def _read(self, path: Path) -> bytes:
        with (
            path.open("rb") as file,
            mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped,
            memoryview(mapped) as view,
        ):
            return self._codec.decompressor.decompress(view)

    def _remember(self, digest: bytes, content: bytes) -> None:
        with self._recent_lock:
            if len(content) <= self._recent.maxsize:
                self._recent[digest] = content

    def _files(self, *, partial: bool = False) -> Iterator[tuple[Path, int]]:
        for folder in self.root.iterdir():
            for entry in os.scandir(folder):
                if partial or not entry.name.startswith("."):
                    yield Path(entry.path), entry.stat().st_size

    @staticmethod
    def _digest(path: Path) -> bytes | None:
        return None if path.name.startswith(".") else bytes.fromhex(path.parent.name + path.name)
