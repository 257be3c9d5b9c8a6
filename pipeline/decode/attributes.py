"""Raw `KeyValue` messages -> attribute columns, one parse per distinct message.

What a message means (its column, coerced value, fault, share of the series key) is kept by its raw
bytes in a bounded cache, so that a batch costs one dictionary look-up per attribute.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
import xxhash
from google.protobuf.message import DecodeError

from pipeline.decode import pruned, values
from pipeline.decode.strings import NO_STRING, Column, Learned, Strings, count
from pipeline.keys import Key, KeyKind
from pipeline.model import Attributes, Dictionary, Floats, Int32s, Int64s, UInt64s

MAX_ENTRIES: Final = 32_768
MAX_RAW_BYTES: Final = 4 << 20
"""Past either bound the cache is emptied before the next batch."""

MAX_CACHED_BYTES: Final = 512
"""A longer message is parsed each time: it is a prompt or a URL, not a label."""

LANE: Final = (1 << 64) - 1
_NO_COLUMN: Final = -1
_NO_FAULT, _BAD_ATTRIBUTE, _INVALID_UTF8 = range(3)


@dataclass(frozen=True, slots=True, eq=False)
class AttributeRows:
    """The attributes of n items: `entries` of item `rows[i]`, in the order sent.

    `rows` int64[a] ascending, `entries` int32[a].
    """

    n: int
    rows: Int64s
    entries: Int32s


@dataclass(frozen=True, slots=True, eq=False)
class AttributeIds:
    """Columns of n items that still hold string ids: int32[n] text, float64[n] numbers, by key."""

    n: int
    text: dict[str, Int32s]
    number: dict[str, Floats]


class _Meaning(NamedTuple):
    column: int = _NO_COLUMN
    text: int = NO_STRING
    number: float = math.nan
    fault: int = _NO_FAULT


_NOTHING: Final = _Meaning()


class AttributeCache:
    """What each raw attribute means for one list of keys."""

    def __init__(self, keys: Sequence[Key], strings: Strings, *, hashed: bool) -> None:
        """`hashed` caches also compute each attribute's share of the series key."""
        self._keys = tuple(keys)
        self._columns = {key.name.encode(): i for i, key in enumerate(self._keys)}
        self._strings = strings
        self._hashed = hashed
        self._reset()

    def _reset(self) -> None:
        self._ids = Learned(self._learn)
        self._key_ids: dict[bytes, int] = {}
        self._raw_bytes = 0
        self._has_faults = False
        self._column = Column(np.int32)
        self._text = Column(np.int32)
        self._number = Column(np.float64)
        self._fault = Column(np.uint8)
        self._key_id = Column(np.int64)
        self._lanes = Column(np.uint64, 2)
        self._add(_NOTHING)  # entry 0 is "the item has no such attribute"

    def __len__(self) -> int:
        """How many attributes are remembered."""
        return len(self._column)

    def trim(self) -> None:
        """Empty the cache if it is full; call between batches."""
        if len(self._column) > MAX_ENTRIES or self._raw_bytes > MAX_RAW_BYTES:
            self._reset()

    def rows(self, raw: Sequence[bytes], counts: Sequence[int]) -> AttributeRows:
        """Item i owns the next `counts[i]` of the raw `KeyValue` messages."""
        n = len(counts)
        return AttributeRows(n, np.repeat(np.arange(n), counts), self._ids.ids(raw))

    def columns(self, attributes: AttributeRows, dropped: dict[str, int]) -> AttributeIds:
        """Known attributes as columns; the first usable value of a key wins. Faults are counted."""
        self._count_faults(attributes.entries, dropped)
        entry_columns = self._column.array()[attributes.entries]
        known = entry_columns != _NO_COLUMN
        present = np.flatnonzero(np.bincount(entry_columns[known], minlength=len(self._keys)))
        compact = np.empty(len(self._keys), np.int64)
        compact[present] = np.arange(len(present))
        grid = np.zeros((len(present), attributes.n), np.int32)
        backwards = np.flatnonzero(known)[::-1].copy()
        # Of equal places the last written is kept, so writing backwards lets the first one win.
        grid[compact[entry_columns[backwards]], attributes.rows[backwards]] = attributes.entries[
            backwards
        ]
        result = AttributeIds(attributes.n, {}, {})
        for entries, key in zip(grid, [self._keys[i] for i in present.tolist()], strict=True):
            if key.kind is KeyKind.TEXT:
                result.text[key.name] = self._text.array()[entries]
            else:
                result.number[key.name] = self._number.array()[entries]
        return result

    def lanes(self, attributes: AttributeRows) -> UInt64s:
        """uint64[n, 2]: per item the wrapping sum of its attributes' hashes, each key once."""
        rows, entries = attributes.rows, attributes.entries
        pair = (rows << 32) | self._key_id.array()[entries]
        ordered = np.sort(pair)
        if (ordered[1:] == ordered[:-1]).any():
            first = np.sort(np.unique(pair, return_index=True)[1])
            rows, entries = rows[first], entries[first]
        sums = np.zeros((len(rows) + 1, 2), np.uint64)
        np.cumsum(self._lanes.array()[entries], axis=0, out=sums[1:])
        borders = np.searchsorted(rows, np.arange(attributes.n + 1))
        return sums[borders[1:]] - sums[borders[:-1]]

    def _count_faults(self, entries: Int32s, dropped: dict[str, int]) -> None:
        if not self._has_faults:
            return
        counts = np.bincount(self._fault.array()[entries], minlength=3).tolist()
        for fault, reason in ((_BAD_ATTRIBUTE, "bad_attribute"), (_INVALID_UTF8, "invalid_utf8")):
            count(dropped, reason, counts[fault])

    def _learn(self, raw: bytes) -> int:
        try:
            pair = pruned.KeyValue.FromString(raw)
        except DecodeError:
            entry = self._add(_Meaning(fault=_BAD_ATTRIBUTE))
        else:
            entry = self._add(self._meaning(pair.key, pair.value), *self._hash(pair))
        if len(raw) <= MAX_CACHED_BYTES:
            self._ids[raw] = entry
            self._raw_bytes += len(raw)
        return entry

    def _meaning(self, key: bytes, value: Any) -> _Meaning:
        column = self._columns.get(key, _NO_COLUMN)
        if column == _NO_COLUMN:
            return _NOTHING
        try:
            if self._keys[column].kind is KeyKind.NUMBER:
                number = values.to_number(value)
                return _NOTHING if number is None else _Meaning(column, number=number)
            text = values.to_text(value)
        except (DecodeError, values.NotCoercibleError):
            return _Meaning(fault=_BAD_ATTRIBUTE)
        if text is None:
            return _NOTHING
        found = self._strings.id(text)
        invalid = self._strings.invalid((text,))
        return _Meaning(column, text=found, fault=_INVALID_UTF8 if invalid else _NO_FAULT)

    def _hash(self, pair: Any) -> tuple[int, tuple[int, int]]:
        """The id of the key (0 = none) and the attribute's share of the series key."""
        if not self._hashed:
            return 0, (0, 0)
        key_id = self._key_ids.get(pair.key, 0)
        if not key_id:
            key_id = self._key_ids[pair.key] = len(self._key_ids) + 1
            self._raw_bytes += len(pair.key)
        digest = xxhash.xxh3_128_intdigest(values.canonical(pair.key, pair.value))
        return key_id, (digest & LANE, digest >> 64)

    def _add(self, meaning: _Meaning, key_id: int = 0, lanes: tuple[int, int] = (0, 0)) -> int:
        entry = len(self._column)
        self._column.append(meaning.column)
        self._text.append(meaning.text)
        self._number.append(meaning.number)
        self._fault.append(meaning.fault)
        self._has_faults = self._has_faults or meaning.fault != _NO_FAULT
        self._key_id.append(key_id)
        self._lanes.append(lanes)
        return entry


def with_codes(
    strings: Strings,
    columns: Sequence[Int32s],
    resources: AttributeIds,
    attributes: AttributeIds,
) -> tuple[Dictionary, list[Int32s], Attributes, Attributes]:
    """Ids -> codes of one dictionary: `columns`, then resources' and attributes' texts, by key."""
    given = [*columns, *resources.text.values(), *attributes.text.values()]
    dictionary, codes = strings.dictionary(given)
    rest = iter(codes[len(columns) :])
    return (
        dictionary,
        codes[: len(columns)],
        Attributes(resources.n, dict(zip(resources.text, rest, strict=False)), resources.number),
        Attributes(attributes.n, dict(zip(attributes.text, rest, strict=False)), attributes.number),
    )
