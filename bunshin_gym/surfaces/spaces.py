# SPDX-License-Identifier: Apache-2.0
"""Gymnasium spaces for text as it comes from real pages."""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from typing import Any, Final, cast, overload

import numpy as np
from gymnasium import spaces
from gymnasium.vector.utils.shared_memory import read_from_shared_memory
from numpy.typing import NDArray

from bunshin_gym.errors import UsageError

__all__ = ["Unicode", "clip_text"]

_CODE_POINTS: Final = 0x110000
_SAMPLED: Final = "".join(map(chr, range(0x20, 0x7F))) + "äéßñøЖλ中文字😀"


class _AllCharacters(Sequence[str], AbstractSet[str]):
    """Every Unicode character, as a list and as a set, without holding one of them."""

    def __len__(self) -> int:
        return _CODE_POINTS

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[str]: ...
    def __getitem__(self, index: int | slice) -> str | Sequence[str]:
        if isinstance(index, slice):
            return [chr(code) for code in range(*index.indices(_CODE_POINTS))]
        return chr(index)

    def __contains__(self, char: object) -> bool:
        return isinstance(char, str) and len(char) == 1

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _AllCharacters)

    def __hash__(self) -> int:
        return hash(_AllCharacters)


_ALL: Final = _AllCharacters()


class Unicode(spaces.Text):
    """Text of any Unicode characters, with a bound on its length.

    A `gymnasium.spaces.Text` that names every character would hold a million entries; this one
    holds none, and flattens (so that vector envs can share it) to code points.
    """

    def __init__(self, max_length: int, *, min_length: int = 0, seed: int | None = None) -> None:
        super().__init__(max_length, min_length=min_length, charset=_SAMPLED, seed=seed)

    def sample(self, mask: Any = None, probability: Any = None) -> str:
        """Returns a random text of at most 64 characters, or of `min_length` if that is more.

        Raises:
            UsageError: a mask or a probability was given.
        """
        if mask is not None or probability is not None:
            raise UsageError("a Unicode space has no masks: it has no list of characters")
        longest = max(self.min_length, min(self.max_length, 64))
        length = int(self.np_random.integers(self.min_length, longest + 1))
        picks = self.np_random.integers(0, len(_SAMPLED), size=length)
        return "".join(_SAMPLED[pick] for pick in picks)

    def contains(self, x: Any) -> bool:
        """Whether x is a string of the right length."""
        return isinstance(x, str) and self.min_length <= len(x) <= self.max_length

    @property
    def character_set(self) -> frozenset[str]:
        """Every character; its length is the number of code points."""
        return cast("frozenset[str]", _ALL)

    @property
    def character_list(self) -> tuple[str, ...]:
        """Every character, by code point."""
        return cast("tuple[str, ...]", _ALL)

    def character_index(self, char: str) -> np.int32:
        """The character's code point."""
        return np.int32(ord(char))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.max_length}, min_length={self.min_length})"

    def __eq__(self, other: object, /) -> bool:
        return (
            isinstance(other, Unicode)
            and type(other) is type(self)
            and (self.min_length, self.max_length) == (other.min_length, other.max_length)
        )

    __hash__ = None  # type: ignore[assignment]  # as the other spaces, which compare by value


@spaces.utils.flatten.register(Unicode)
def _flatten(space: Unicode, x: str) -> NDArray[np.int32]:  # type: ignore[misc]  # the stubs know no subclasses
    codes = np.full(space.max_length, _CODE_POINTS, dtype=np.int32)
    codes[: len(x)] = np.frombuffer(x.encode("utf-32-le", "surrogatepass"), dtype="<i4")
    return codes


class _LiveTexts(Sequence[str]):
    """The texts that worker processes wrote last, decoded when they are looked at.

    Gymnasium's AsyncVectorEnv reads shared memory once, when it is made, and copies what it got at each step.
    Arrays stay views of the memory; a tuple of strings would stay what it was. A deep copy of this is a tuple.
    """

    def __init__(self, codes: NDArray[np.int32]) -> None:
        self._codes = codes

    def __len__(self) -> int:
        return len(self._codes)

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[str]: ...
    def __getitem__(self, index: int | slice) -> str | Sequence[str]:
        if isinstance(index, slice):
            return tuple(self)[index]
        row = self._codes[index]
        return str(row[row < _CODE_POINTS].astype("<u4").tobytes(), "utf-32-le", "surrogatepass")

    def __deepcopy__(self, memo: object) -> tuple[str, ...]:
        return tuple(self)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and tuple(self) == tuple(other)

    __hash__ = None  # type: ignore[assignment]  # its value changes


@read_from_shared_memory.register(Unicode)
def _read(space: Unicode, shared_memory: Any, n: int = 1) -> _LiveTexts:
    codes = np.frombuffer(shared_memory.get_obj(), dtype=np.int32)
    return _LiveTexts(codes.reshape(n, space.max_length))


def clip_text(text: str, max_length: int) -> str:
    """Returns text, cut to the length with a mark that says how much is missing."""
    if len(text) <= max_length:
        return text
    mark = f"… ({len(text) - max_length} more characters)"
    return text[: max(0, max_length - len(mark))] + mark[:max_length]
