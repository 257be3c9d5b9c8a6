"""Distinct metrics: their strings, type and share of the series key, remembered by identity."""

import struct
from typing import Final, TypeAlias

import numpy as np
import xxhash

from pipeline.decode.attributes import LANE
from pipeline.decode.strings import Column, Learned, Strings, count
from pipeline.model import Int32s, MetricTable, UInt64s

MAX_METRICS: Final = 16_384
MAX_METRIC_BYTES: Final = 4 << 20
"""Past either bound all are forgotten before the next batch."""


Identity: TypeAlias = tuple[bytes, bytes, bytes, int, int, bool, bytes, bytes]
"""Name, unit, description, kind, temporality, monotonic, scope name, scope version, as sent."""


def digest(identity: Identity) -> tuple[int, int]:
    """Both halves of the XXH3-128 `metric` of the series key (`pipeline.decode.points`)."""
    name, unit, _, kind, temporality, monotonic, scope_name, scope_version = identity
    shape = bytes((kind, temporality, monotonic))
    packed = _text(name) + _text(unit) + shape + _text(scope_name) + _text(scope_version)
    number = xxhash.xxh3_128_intdigest(packed)
    return number & LANE, number >> 64


def _text(raw: bytes) -> bytes:
    return struct.pack("<I", len(raw)) + raw


class MetricCache:
    """Metrics by identity; ids are local to the cache."""

    def __init__(self, strings: Strings) -> None:
        """Start with none known."""
        self._strings = strings
        self._reset()

    def _reset(self) -> None:
        self.ids: Learned[Identity] = Learned(self._learn)
        self._codes = Column(np.int32, 3)
        self._types = Column(np.uint8, 3)
        self._lanes = Column(np.uint64, 2)
        self._identities: list[Identity] = []
        self._bytes = 0

    def trim(self) -> None:
        """Forget all metrics when there are too many; call between batches."""
        if len(self.ids) > MAX_METRICS or self._bytes > MAX_METRIC_BYTES:
            self._reset()

    def table(self, ids: Int32s, dropped: dict[str, int]) -> tuple[MetricTable, UInt64s]:
        """Rows of the metrics `ids`, with string ids for codes, and uint64[m, 2] of their lanes."""
        for i in ids.tolist() if self._strings.has_invalid() else ():
            count(dropped, "invalid_utf8", self._strings.invalid(self._identities[i][:3]))
        codes, types = self._codes.array()[ids], self._types.array()[ids]
        table = MetricTable(
            name=codes[:, 0],
            unit=codes[:, 1],
            description=codes[:, 2],
            kind=types[:, 0],
            temporality=types[:, 1],
            monotonic=types[:, 2].astype(np.bool_),
        )
        return table, self._lanes.array()[ids]

    def _learn(self, identity: Identity) -> int:
        found = len(self._identities)
        self._identities.append(identity)
        self._codes.append(tuple(self._strings.ids(identity[:3], {}).tolist()))
        self._types.append(identity[3:6])
        self._lanes.append(digest(identity))
        self._bytes += sum(map(len, (*identity[:3], *identity[6:])))
        self.ids[identity] = found
        return found
