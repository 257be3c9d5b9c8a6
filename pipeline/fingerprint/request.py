"""Kinds of requests: their names, their 64-bit fingerprints, and the bounded table of both.

A fingerprint is XXH3 over the fields in a fixed order, each with its length, so that it depends on
neither process nor batch nor the order of attributes. Full tables refuse new kinds and keep the
ones that live (a live series is never evicted for a new one); what they refuse is counted by pool.
"""

from collections import Counter
from collections.abc import Iterable
from typing import Final, NamedTuple

import numpy as np

from pipeline.fingerprint.config import FingerprintConfig
from pipeline.model import Int32s, Int64s, UInt64s
from pipeline.symbols import hash64

OTHER: Final = "_other"
"""Routes, models and classes of a pool beyond the limit."""
MAX_FIELD: Final = 128
"""Characters of a field that count: senders write them."""
METHODS: Final = frozenset(
    ("GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH", "QUERY")
)
ANY_METHOD: Final = "_OTHER"
"""What OpenTelemetry calls a method that is none of HTTP's."""
_FORMAT: Final = b"\x01"
"""Begins every hashed kind; another number would be another definition."""
_RESTORED: Final = -1
"""When a restored kind was used: not known until time is told for the first time."""


class Kind(NamedTuple):
    """What requests have in common that are of one kind; "" = not known."""

    pool: str
    method: str = ""
    route: str = ""
    model: str = ""
    request_class: str = ""
    length: str = ""
    """Of the prompt, in tokens, as `<=512` or `>32768`."""

    @property
    def fingerprint(self) -> int:
        """The key of the kind, 1..2^64-1.

        >>> hex(Kind("chat", "POST", "/v1/completions", "llama", "", "<=512").fingerprint)
        '0x2900ad509307be1f'
        """
        fields = (field.encode("utf-8", "replace") for field in self)
        key = _FORMAT + b"".join(len(field).to_bytes(4, "little") + field for field in fields)
        return hash64(key) or 1

    @property
    def text(self) -> str:
        """For a person.

        >>> Kind("chat", "POST", "/v1/completions", "llama", "batch", "<=512").text
        'chat: POST /v1/completions llama [batch] <=512 tokens'
        """
        what = [self.method, self.route, self.model]
        what += [f"[{self.request_class}]" if self.request_class else ""]
        what += [f"{self.length} tokens" if self.length else ""]
        return f"{self.pool}: {' '.join(part for part in what if part) or 'any request'}"


def method_of(text: str) -> str:
    """A method of HTTP by its one name; other text is `_OTHER`, none is none.

    >>> [method_of(text) for text in ("post", "GET", "PROPFIND", "")]
    ['POST', 'GET', '_OTHER', '']
    """
    method = text.upper()
    return method if method in METHODS or not text else ANY_METHOD


def printable(text: str) -> str:
    """`text` as it can be shown and kept: bounded, without control characters.

    >>> printable("a" + chr(10) + "b"), len(printable("x" * 999))
    ('a?b', 128)
    """
    text = text[:MAX_FIELD]
    return text if text.isprintable() else "".join(c if c.isprintable() else "?" for c in text)


def length_names(bounds: Iterable[int]) -> tuple[str, ...]:
    """Names of the buckets below and above `bounds`, and "" for an unknown length.

    >>> length_names((512, 2048))
    ('<=512', '<=2048', '>2048', '')
    """
    bounds = tuple(bounds)
    if not bounds:
        return ("", "")
    return (*(f"<={bound}" for bound in bounds), f">{bounds[-1]}", "")


class KindTable:
    """Up to `max_kinds` kinds by id; id 0 is "none", fingerprint 0."""

    def __init__(self, config: FingerprintConfig) -> None:
        """Only id 0."""
        self._config = config
        self._ids: dict[Kind, int] = {}
        self._kinds: list[Kind | None] = [None]
        self._free: list[int] = []
        self._by_fingerprint: dict[int, int] = {}
        self._per_pool: Counter[str] = Counter()
        self._values: dict[tuple[str, str], Counter[str]] = {}
        self._fingerprints = np.zeros(config.max_kinds + 1, np.uint64)
        self._used_ns = np.zeros(config.max_kinds + 1, np.int64)
        self.collisions = 0
        """Kinds refused because another has their fingerprint."""

    def __len__(self) -> int:
        """How many kinds there are."""
        return len(self._ids)

    def __contains__(self, fingerprint: int) -> bool:
        """Whether a fingerprint is of a kind here."""
        return fingerprint in self._by_fingerprint

    def id_of(self, kind: Kind, now_ns: int) -> int:
        """The id of a kind, newly given if need be; 0 when there is no room for it."""
        kind = self._within_limits(kind)
        found = self._ids.get(kind)
        if found is not None:
            return found
        pools_own = self._per_pool[kind.pool]
        if len(self) >= self._config.max_kinds or pools_own >= self._config.max_kinds_per_pool:
            return 0
        if kind.fingerprint in self._by_fingerprint:
            self.collisions += 1
            return 0
        return self._insert(kind, now_ns)

    def _within_limits(self, kind: Kind) -> Kind:
        """The kind with what a pool has too many of named `_other`."""
        config = self._config
        for field, value, most in (
            ("route", kind.route, config.max_routes),
            ("model", kind.model, config.max_models),
            ("request_class", kind.request_class, config.max_classes),
        ):
            known = self._values.get((kind.pool, field))
            if value and known is not None and value not in known and len(known) >= most:
                kind = kind._replace(**{field: OTHER})
        return kind

    def _insert(self, kind: Kind, now_ns: int) -> int:
        place = self._free.pop() if self._free else len(self._kinds)
        if place == len(self._kinds):
            self._kinds.append(None)
        self._kinds[place] = kind
        self._ids[kind] = place
        self._fingerprints[place] = kind.fingerprint
        self._by_fingerprint[kind.fingerprint] = place
        self._used_ns[place] = now_ns
        self._count(kind, 1)
        return place

    def _count(self, kind: Kind, step: int) -> None:
        """Count the kinds of a pool and those of each of its values."""
        self._per_pool[kind.pool] += step
        if not self._per_pool[kind.pool]:
            del self._per_pool[kind.pool]
        for field in ("route", "model", "request_class"):
            value = getattr(kind, field)
            if not value or value == OTHER:
                continue
            values = self._values.setdefault((kind.pool, field), Counter())
            values[value] += step
            if not values[value]:
                del values[value]

    def fingerprints(self, ids: Int32s) -> UInt64s:
        """uint64[n] fingerprints of ids."""
        found: UInt64s = self._fingerprints.take(ids)
        return found

    def used(self, ids: Int32s, now_ns: int) -> None:
        """Requests of these kinds were seen."""
        self._used_ns[ids] = now_ns

    def kind(self, fingerprint: int) -> Kind | None:
        """The kind behind a fingerprint; None for 0 and what was forgotten."""
        return self._kinds[self._by_fingerprint.get(fingerprint, 0)]

    def kinds(self) -> dict[int, Kind]:
        """Every kind by fingerprint, oldest first."""
        return {kind.fingerprint: kind for kind in self._ids}

    def expire(self, now_ns: int) -> list[Kind]:
        """Forget and return the kinds without a request for `forget_after_s`."""
        used = self._used_ns
        used[used == _RESTORED] = now_ns
        horizon_ns = now_ns - round(self._config.forget_after_s * 1e9)
        gone: list[Kind] = []
        old: Int64s = np.flatnonzero(used[: len(self._kinds)] < horizon_ns)
        for place in old.tolist():
            kind = self._kinds[place]
            if kind is not None:
                gone.append(kind)
                self._remove(kind, place)
        return gone

    def _remove(self, kind: Kind, place: int) -> None:
        del self._ids[kind], self._by_fingerprint[kind.fingerprint]
        self._kinds[place] = None
        self._fingerprints[place] = 0
        self._free.append(place)
        self._count(kind, -1)

    def has_pool(self, pool: str) -> bool:
        """Whether a pool has kinds."""
        return pool in self._per_pool

    def export_state(self) -> list[list[str]]:
        """The fields of every kind; see `restore`."""
        return [list(kind) for kind in self._ids]

    def restore(self, state: Iterable[Iterable[str]]) -> None:
        """Take up exported kinds, as if used when time is told first; for an empty table."""
        for fields in state:
            kind = Kind(*fields)
            if not all(isinstance(field, str) for field in kind):
                raise ValueError("a kind is made of text")
            place = self.id_of(kind, _RESTORED)
            if place:
                self._used_ns[place] = _RESTORED
