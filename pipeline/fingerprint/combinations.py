"""The few distinct combinations of words among the rows of a batch, found by whole columns.

Every row gets a 64-bit key of the words that make its kind. A key is of one process and table: it
says which rows are alike, and is no fingerprint. Words are told by the hashes of the batch's
dictionary; a sender that makes two of its words collide mislabels its own requests, as it could by
naming the other word.
"""

from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from pipeline.fingerprint.request import Kind, method_of, printable
from pipeline.fingerprint.routes import Routes
from pipeline.model import Floats, Int32s, Int64s, RequestTraits, UInt64s
from pipeline.symbols import hash64

_STEP: Final = np.uint64(0xBF58476D1CE4E5B9)
"""Odd multiplier of splitmix64; a word at a time, in a fixed order."""
_SHIFT: Final = np.uint64(29)
WORDS: Final = (
    "method",
    "route",
    "path",
    "rpc_service",
    "rpc_method",
    "operation",
    "model",
    "request_class",
)
"""Columns of `RequestTraits` that a kind is made from."""
_SALTS: Final = {word: np.uint64(hash64(word.encode())) for word in WORDS}

Indices = npt.NDArray[np.intp]


class Rows(NamedTuple):
    """The rows of a batch as kinds see them."""

    traits: RequestTraits
    path: Int32s | None
    """`traits.path`, without rows that have a route: it would tell them apart."""
    pool: Int32s
    """int32[n] of pool ids, -1 = none."""
    length: Int64s
    """int64[n] of length buckets."""
    key: UInt64s
    """Equal for equal combinations."""


def combine(
    traits: RequestTraits, pool: Int32s, pool_keys: UInt64s, length: Int64s, length_keys: UInt64s
) -> Rows:
    """The rows with their keys.

    `pool_keys` has a key for each pool and, last, one for none; `length_keys` one for each bucket.
    """
    path = _path_where_needed(traits)
    hashes = hashes_of(traits)
    key = pool_keys.take(pool, mode="wrap")
    key ^= length_keys.take(length)
    for word in WORDS:
        codes = path if word == "path" else getattr(traits, word)
        if codes is None:
            continue
        key ^= hashes.take(codes, mode="wrap")
        key ^= _SALTS[word]
        key *= _STEP
        key ^= key >> _SHIFT
    return Rows(traits, path, pool, length, key)


def hashes_of(traits: RequestTraits) -> UInt64s:
    """Hashes of the batch's strings and, last, 0 for "absent", which code -1 finds there."""
    return np.append(traits.strings.hashes, np.uint64(0))


def _path_where_needed(traits: RequestTraits) -> Int32s | None:
    path, route = traits.path, traits.route
    if path is None or route is None:
        return path
    needed: Int32s = np.where(route >= 0, np.int32(-1), path)
    return needed


def length_buckets(lengths: Floats, bounds: Floats) -> Int64s:
    """int64[n]: in which of the len(bounds) + 1 buckets a length is; the next one = unknown.

    `bounds` ends with infinity.

    >>> length_buckets(np.array([1.0, 512.0, 513.0, np.nan]), np.array([512.0, np.inf])).tolist()
    [0, 0, 1, 2]
    """
    return np.searchsorted(bounds, lengths, side="left")


def prompt_lengths(tokens: Floats, body_bytes: Floats | None, bytes_per_token: float) -> Floats:
    """Tokens told by the size of the body where that is known."""
    if body_bytes is None:
        return tokens
    is_known = body_bytes > 0
    return np.where(is_known, body_bytes / bytes_per_token, tokens)


class Reader:
    """Reads the kind of a row, one row of each new combination; words only once a batch."""

    def __init__(
        self, rows: Rows, pools: tuple[str, ...], lengths: tuple[str, ...], routes: Routes
    ) -> None:
        """`lengths` names the buckets."""
        self._rows = rows
        self._pools = pools
        self._lengths = lengths
        self._routes = routes
        self._texts: dict[int, str] = {-1: ""}

    def kind(self, row: int) -> Kind:
        """The kind of row `row`; its route may teach `routes`."""
        rows, traits = self._rows, self._rows.traits
        place = int(rows.pool[row])
        pool = printable(self._pools[place]) if place >= 0 else ""
        return Kind(
            pool=pool,
            method=method_of(self._text(traits.method, row)),
            route=self._route(pool, row),
            model=self._text(traits.model, row),
            request_class=self._text(traits.request_class, row),
            length=self._lengths[int(rows.length[row])],
        )

    def _route(self, pool: str, row: int) -> str:
        """The sender's template, else the path, the remote procedure, what is done, or nothing."""
        rows, traits = self._rows, self._rows.traits
        for codes in (traits.route, rows.path):
            if codes is not None and codes[row] >= 0:
                template = self._routes.template(pool, traits.strings.text(int(codes[row])))
                if template:
                    return printable(template)
        procedure = self._text(traits.rpc_method, row)
        if procedure:
            service = self._text(traits.rpc_service, row)
            whole = procedure if "/" in procedure or not service else f"{service}/{procedure}"
            return printable(self._routes.template(pool, whole))
        return self._text(traits.operation, row)

    def _text(self, codes: Int32s | None, row: int) -> str:
        if codes is None:
            return ""
        code = int(codes[row])
        text = self._texts.get(code)
        if text is None:
            text = self._texts[code] = printable(self._rows.traits.strings.text(code))
        return text


def first_rows(key: UInt64s) -> tuple[Indices, Indices]:
    """The first row of each distinct key, ascending, and int64[n]: which of them each row is like.

    >>> first_rows(np.array([9, 4, 9, 1], np.uint64))[0].tolist()
    [0, 1, 3]
    """
    _, first, inverse = np.unique(key, return_index=True, return_inverse=True)
    order = np.argsort(first)
    rank = np.empty(len(order), np.intp)
    rank[order] = np.arange(len(order))
    return first[order], rank[inverse]
