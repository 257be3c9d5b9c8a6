"""Strings seen so far -> small ids, and the `Dictionary` of one batch made from ids.

Ids live as long as the decoder's caches; a batch never shows them. Its dictionary numbers strings
by first use, column after column, so equal requests give equal codes whatever came before.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, Generic, TypeVar

import numpy as np
import numpy.typing as npt
import xxhash

from pipeline.model import Dictionary, Int32s

MAX_STRINGS: Final = 131_072
MAX_STRING_BYTES: Final = 16 << 20
"""Past either bound everything cached is dropped before the next batch and learned again."""

NO_STRING: Final = 0
"""The id of an absent string."""

_Key = TypeVar("_Key")
_Type = TypeVar("_Type", bound=np.generic)


class Learned(dict[_Key, int], Generic[_Key]):
    """Key -> id, calling `learn(key)` for a key not seen before."""

    def __init__(self, learn: Callable[[_Key], int]) -> None:
        """`learn` returns the id and, if it is to be remembered, stores it."""
        super().__init__()
        self._learn = learn

    def __missing__(self, key: _Key) -> int:
        """The id of a new key."""
        return self._learn(key)

    def ids(self, keys: Sequence[_Key]) -> Int32s:
        """int32[len(keys)]: one C loop over keys seen before."""
        return np.fromiter(map(self.__getitem__, keys), np.int32, len(keys))


class Column(Generic[_Type]):
    """An append-only array: cheap `append`, and `array()` as numpy (a view, until appended to)."""

    def __init__(self, dtype: type[_Type], width: int = 0) -> None:
        """Rows of `dtype`; with `width`, rows of that many."""
        self._pending: list[Any] = []
        self._n = 0
        shape: tuple[int, ...] = (64, width) if width else (64,)
        self._array: npt.NDArray[_Type] = np.zeros(shape, dtype)

    def __len__(self) -> int:
        """How many rows were appended."""
        return self._n + len(self._pending)

    def append(self, row: Any) -> None:
        """One more row: a number, or a tuple of `width` numbers."""
        self._pending.append(row)

    def array(self) -> npt.NDArray[_Type]:
        """All rows; valid until the next call after an append."""
        if self._pending:
            size = len(self)
            if size > len(self._array):
                grown = np.zeros((2 * size, *self._array.shape[1:]), self._array.dtype)
                grown[: self._n] = self._array[: self._n]
                self._array = grown
            self._array[self._n : size] = np.array(self._pending, self._array.dtype)
            self._n = size
            self._pending.clear()
        return self._array[: self._n]


def count(dropped: dict[str, int], reason: str, n: int) -> None:
    """Add n to the count of `reason`, unless n is 0."""
    if n:
        dropped[reason] = dropped.get(reason, 0) + n


class Strings:
    """Interns UTF-8 byte strings; invalid UTF-8 is replaced (U+FFFD), and `invalid` tells it."""

    def __init__(self) -> None:
        """Start empty; the empty string is not the absent one."""
        self._ids = Learned(self._learn)
        self._texts: list[bytes] = [b""]
        self._lengths = Column(np.int64)
        self._lengths.append(0)
        self._hashes = Column(np.uint64)
        self._hashes.append(0)
        self._bytes = 0
        self._replaced: set[bytes] = set()

    def __len__(self) -> int:
        """How many strings are remembered."""
        return len(self._ids)

    def is_full(self) -> bool:
        """Whether a bound is passed; the owner of all caches then starts afresh."""
        return len(self._ids) > MAX_STRINGS or self._bytes > MAX_STRING_BYTES

    def id(self, raw: bytes) -> int:
        """The id of a string; equal after replacement of invalid UTF-8 = equal id."""
        return self._ids[raw]

    def has_invalid(self) -> bool:
        """Whether any string had to be replaced since the start."""
        return bool(self._replaced)

    def invalid(self, raws: Iterable[bytes]) -> int:
        """How many of `raws`, all interned before, were invalid UTF-8."""
        if not self._replaced:
            return 0
        return sum(raw in self._replaced for raw in raws)

    def ids(self, raws: Sequence[bytes], dropped: dict[str, int]) -> Int32s:
        """int32[len(raws)] of ids; an empty string counts as absent, as proto3 has it.

        Invalid ones are added to `dropped`.
        """
        found = self._ids.ids(raws)
        count(dropped, "invalid_utf8", self.invalid(raws))
        if b"" in self._ids:
            found[found == self._ids[b""]] = NO_STRING
        return found

    def dictionary(self, columns: Sequence[Int32s]) -> tuple[Dictionary, list[Int32s]]:
        """Columns of ids -> the dictionary of their strings, and the columns as its codes."""
        joined = np.concatenate([np.empty(0, np.int32), *columns])
        given = joined[joined != NO_STRING]
        turn = np.arange(len(given), dtype=np.int32)
        scratch = np.empty(len(self._texts), np.int32)
        # Of equal indices the last written is kept: written backwards, the first use. (Copies, for
        # numpy walks a reversed view in memory order.)
        scratch[given[::-1].copy()] = turn[::-1].copy()
        used = given[scratch[given] == turn]
        scratch[used] = np.arange(len(used), dtype=np.int32)
        scratch[NO_STRING] = -1
        borders = np.cumsum([len(column) for column in columns])[:-1]
        return self._of(used), np.split(scratch[joined], borders)

    def _of(self, used: Int32s) -> Dictionary:
        texts = self._texts
        offsets = np.zeros(len(used) + 1, np.int32)
        np.cumsum(self._lengths.array()[used], out=offsets[1:])
        data = b"".join([texts[i] for i in used.tolist()])
        return Dictionary(data, offsets, self._hashes.array()[used])

    def _learn(self, raw: bytes) -> int:
        text = raw
        if not raw.isascii():
            text = raw.decode("utf-8", "replace").encode()
        if text != raw:
            self._replaced.add(raw)
            found = self._ids[text]
        else:
            found = len(self._texts)
            self._texts.append(text)
            self._lengths.append(len(text))
            self._hashes.append(xxhash.xxh3_64_intdigest(text))
        self._ids[raw] = found
        self._bytes += len(raw)
        return found
