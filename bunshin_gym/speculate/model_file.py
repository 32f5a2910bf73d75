# SPDX-License-Identifier: Apache-2.0
"""A predictor as a file: an .npz of numbers and one JSON text, never a pickle.

schema       "bunshin-gym/predictor"
version      of this layout; another one is refused
indices, values   the weights that are not 0: int32, float64
calibration       float64, one for each piece of evidence and one more
meta         JSON as uint8: schema, version, settings, slots, n-grams
"""

from __future__ import annotations

import io
import json
import os
import tempfile
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from bunshin_gym.errors import UsageError

__all__ = ["SCHEMA", "VERSION", "Parts", "read_bytes", "write_atomically", "write_bytes"]

SCHEMA: Final = "bunshin-gym/predictor"
VERSION: Final = 2
_META_MAX_BYTES: Final = 1 << 30


@dataclass(frozen=True, slots=True)
class Parts:
    """What is in a file: dense weights, calibration, and the rest as JSON values."""

    weights: NDArray[np.float64]
    calibration: NDArray[np.float64]
    meta: Mapping[str, Any]


def write_bytes(parts: Parts) -> bytes:
    """The file's contents."""
    indices = np.flatnonzero(parts.weights).astype(np.int32)
    meta = {"schema": SCHEMA, "version": VERSION, "dimensions": len(parts.weights), **parts.meta}
    stream = io.BytesIO()
    np.savez_compressed(
        stream,
        indices=indices,
        values=parts.weights[indices],
        calibration=parts.calibration,
        meta=np.frombuffer(json.dumps(meta).encode(), dtype=np.uint8),
    )
    return stream.getvalue()


def read_bytes(data: bytes, *, dimensions: int, evidence: int, where: str) -> Parts:
    """Reads the contents back, trusting nothing of it.

    Raises:
        UsageError: it is no such file, another version's, or damaged; `where` is named.
    """
    try:
        with np.load(io.BytesIO(data), allow_pickle=False) as file:
            meta = json.loads(file["meta"].tobytes()[:_META_MAX_BYTES])
            indices, values, calibration = file["indices"], file["values"], file["calibration"]
        if meta.get("schema") != SCHEMA:
            raise UsageError(f"{where} is no predictor: its schema is {meta.get('schema')!r}")
        if meta.get("version") != VERSION or meta.get("dimensions") != dimensions:
            raise UsageError(
                f"{where} has version {meta.get('version')!r} with {meta.get('dimensions')!r} weights, "
                f"this is version {VERSION} with {dimensions}: train it anew"
            )
        weights = np.zeros(dimensions)
        if indices.shape != values.shape or (len(indices) and not 0 <= indices.min() <= indices.max() < dimensions):
            raise ValueError("weights out of place")
        weights[indices] = values
        if calibration.shape != (evidence + 1,) or not np.isfinite(weights).all() or not np.isfinite(calibration).all():
            raise ValueError("numbers that cannot be")
    except (ValueError, KeyError, TypeError, AttributeError, OSError, EOFError, zipfile.BadZipFile) as error:
        if isinstance(error, UsageError):
            raise
        raise UsageError(f"{where} is no predictor, or damaged: {error}") from error
    return Parts(weights, calibration.astype(np.float64), meta)


def write_atomically(path: Path, data: bytes) -> None:
    """Puts the file there whole or not at all."""
    descriptor, scratch = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(scratch, path)
    except BaseException:
        os.unlink(scratch)
        raise
