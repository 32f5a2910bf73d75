# SPDX-License-Identifier: Apache-2.0
"""Observations as bytes, without pickle: a msgpack skeleton, and contents stored beside it.

What is large (arrays, long texts) goes into the blob store and the skeleton names it, so that a
screenshot that many steps share is stored once whatever else differs between them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import msgpack
import numpy as np

from bunshin_gym.cache.store.blobs import digest_of
from bunshin_gym.errors import UsageError

__all__ = ["decode", "encode", "fingerprint", "references"]

_ARRAY, _SCALAR, _TUPLE, _TEXT, _BYTES, _INTEGER = range(1, 7)
_LARGE: Final = 2048
_INT64: Final = range(-(1 << 63), 1 << 64)

Put = Callable[[bytes | memoryview], bytes]
Get = Callable[[bytes], bytes]


def encode(value: Any, put: Put) -> bytes:
    """The skeleton of a value; its large parts go through `put`, which returns their names.

    Takes None, bool, int, float, str, bytes, lists, tuples, mappings with string or integer keys, numpy arrays
    (not of objects) and numpy scalars, nested.

    Raises:
        UsageError: there is anything else in it; the message says where.
    """
    return _pack(_fold(value, put, "value"))


def decode(skeleton: bytes, get: Get) -> Any:
    """The value again; arrays are fresh and writable, mappings are dicts.

    Raises:
        BlobMissingError: as `get` does.
    """

    def unfold(code: int, data: bytes) -> Any:
        return _unfold(code, data, get, unfold)

    return msgpack.unpackb(skeleton, ext_hook=unfold, strict_map_key=False)


def references(skeleton: bytes) -> set[bytes]:
    """Names of the contents that a skeleton needs."""
    found: set[bytes] = set()

    def visit(code: int, data: bytes) -> None:
        if code == _TUPLE:
            msgpack.unpackb(data, ext_hook=visit, strict_map_key=False)
        elif code in (_TEXT, _BYTES):
            found.add(data)
        elif code == _ARRAY:
            found.add(msgpack.unpackb(data)[2])

    msgpack.unpackb(skeleton, ext_hook=visit, strict_map_key=False)
    return found


def fingerprint(value: Any) -> bytes:
    """A digest that equal values share, whatever the order of their keys; NaN equals itself."""
    return digest_of(_pack(_fold(_sorted(value), digest_of, "value")))


def _sorted(value: Any) -> Any:
    if isinstance(value, Mapping):
        items = sorted(value.items(), key=lambda item: (str(type(item[0])), item[0]))
        return {key: _sorted(item) for key, item in items}
    if isinstance(value, tuple):
        return tuple(_sorted(item) for item in value)
    if isinstance(value, list):
        return [_sorted(item) for item in value]
    return value


def _pack(value: Any) -> bytes:
    packed: bytes = msgpack.packb(value, strict_types=True)
    return packed


def _fold(value: Any, put: Put, path: str) -> Any:
    if value is None or (isinstance(value, bool | float) and not isinstance(value, np.generic)):
        return value
    if isinstance(value, np.ndarray):
        return _fold_array(value, put, path)
    if isinstance(value, np.generic):
        return msgpack.ExtType(_SCALAR, _pack([_descr(value.dtype, path), value.tobytes()]))
    if isinstance(value, int):
        return int(value) if value in _INT64 else msgpack.ExtType(_INTEGER, str(value).encode())
    if isinstance(value, str):
        return value if len(value) < _LARGE else msgpack.ExtType(_TEXT, put(value.encode()))
    if isinstance(value, bytes | bytearray):
        return bytes(value) if len(value) < _LARGE else msgpack.ExtType(_BYTES, put(bytes(value)))
    if isinstance(value, tuple):
        items = [_fold(item, put, f"{path}[{i}]") for i, item in enumerate(value)]
        return msgpack.ExtType(_TUPLE, _pack(items))
    if isinstance(value, list):
        return [_fold(item, put, f"{path}[{i}]") for i, item in enumerate(value)]
    if isinstance(value, Mapping):
        return {_key(key, path): _fold(item, put, f"{path}.{key}") for key, item in value.items()}
    raise UsageError(f"{path}: {type(value).__name__} cannot be stored")


def _key(key: Any, path: str) -> str | int:
    if isinstance(key, str | int) and not isinstance(key, bool):
        return key
    raise UsageError(f"{path}: the key {key!r} is neither a string nor an integer")


def _descr(dtype: np.dtype[Any], path: str) -> Any:
    if dtype.hasobject:
        raise UsageError(f"{path}: an array of Python objects cannot be stored")
    return np.lib.format.dtype_to_descr(dtype)


def _fold_array(value: np.ndarray[Any, Any], put: Put, path: str) -> Any:
    descr = _descr(value.dtype, path)
    # The array's own memory, not a copy of it: screens are large.
    name = put(np.ascontiguousarray(value).reshape(-1).view(np.uint8).data)
    head = [descr, list(value.shape), name]
    return msgpack.ExtType(_ARRAY, _pack(_lists(head)))


def _lists(value: Any) -> Any:
    """numpy describes records by lists of tuples."""
    return [_lists(item) for item in value] if isinstance(value, list | tuple) else value


def _dtype(descr: Any) -> np.dtype[Any]:
    if isinstance(descr, list):
        descr = [tuple(tuple(x) if isinstance(x, list) else x for x in field) for field in descr]
    return np.lib.format.descr_to_dtype(descr)


def _unfold(code: int, data: bytes, get: Get, hook: Callable[[int, bytes], Any]) -> Any:
    if code == _TUPLE:
        return tuple(msgpack.unpackb(data, ext_hook=hook, strict_map_key=False))
    if code == _TEXT:
        return get(data).decode()
    if code == _BYTES:
        return get(data)
    if code == _INTEGER:
        return int(data)
    if code == _SCALAR:
        descr, raw = msgpack.unpackb(data)
        return np.frombuffer(raw, dtype=_dtype(descr))[0]
    if code == _ARRAY:
        descr, shape, name = msgpack.unpackb(data)
        return np.frombuffer(get(name), dtype=_dtype(descr)).reshape(shape).copy()
    raise UsageError(f"code {code} in a stored value is of another version")
