"""Spans of one request inside each other: which one counts, and what it learns from the others.

An SDK's call holds the HTTP call that it makes, and that one the call of a sidecar: the outermost
counts. A proxy's downstream span holds its upstream attempts: those count. Only spans of one
observer towards one endpoint are the same request; spans of other observers are left alone.
"""

from dataclasses import replace
from typing import Any, Final, NamedTuple, TypeVar

import numpy as np

from pipeline.model import (
    Bools,
    Floats,
    Int32s,
    Int64s,
    Observer,
    RequestRows,
    RequestTraits,
    SpanColumns,
    UInt64s,
)
from pipeline.normalise.among import among
from pipeline.normalise.batch import Batch, Indices
from pipeline.normalise.joins import Observers
from pipeline.normalise.traits import ids

CLIENT: Final = 3
"""OTLP span kind."""
MAX_HOPS: Final = 4
"""How far up the ancestors of a span are looked for: SDK, HTTP client, a wrapper or two."""
GENAI: Final = ("gen_ai.operation.name", "gen_ai.provider.name", "gen_ai.system")
_CLIENT, _PROXY = int(Observer.CLIENT), int(Observer.PROXY)

_FIGURES: Final = ("ttft_s", "prompt_tokens", "cached_tokens", "output_tokens")
_WORDS: Final = (
    "method",
    "route",
    "path",
    "rpc_service",
    "rpc_method",
    "operation",
    "model",
    "request_class",
    "tenant",
    "conversation",
    "prefix",
    "adapter",
    "cache_salt",
    "request_id",
)
_Column = TypeVar("_Column", Floats, Int32s)


class Nesting(NamedTuple):
    """Rows that are the same request as others, and who takes over what they know."""

    is_nested: Bools
    source: Indices
    target: Indices
    """Row `source[i]`, left out, may tell row `target[i]`, which is kept."""


def find_nesting(
    columns: SpanColumns, observer: Observers, slot: Int32s, batch: Batch
) -> Nesting | None:
    """Which rows of `batch` to leave out so that one is left a request and observer; None = none.

    `observer` and `slot` are of its rows; `columns` holds all spans, those between them too.
    """
    span, above = ids(columns.span_id), ids(columns.parent_span_id)
    parent = batch.cut(above)
    has_parent = parent != 0
    if not np.count_nonzero(has_parent):
        return None
    own = batch.cut(span)
    if not np.count_nonzero(among(parent[has_parent], span[span != 0])):
        return None
    tree = _Tree(span, above, batch.cut(np.arange(columns.n)))
    kind = batch.cut(columns.kind)
    is_proxy = observer == _PROXY
    is_downstream = np.zeros(len(own), np.bool_)
    direct = tree.row_above(tree.first())
    attempts = ((direct >= 0) & is_proxy & (kind == CLIENT)).nonzero()[0]
    attempts = attempts[is_proxy[direct[attempts]] & (kind[direct[attempts]] != CLIENT)]
    is_downstream[direct[attempts]] = True
    outer = _outer(tree, observer, slot, (kind == CLIENT) | ~is_proxy, batch.has_any(GENAI))
    is_nested = is_downstream | (outer >= 0)
    if not np.count_nonzero(is_nested):
        return None
    inner = ((outer >= 0) & ~is_nested[outer]).nonzero()[0]
    attempts = attempts[~is_nested[attempts]]
    return Nesting(
        is_nested,
        np.concatenate((direct[attempts], inner)),
        np.concatenate((attempts, outer[inner])),
    )


class _Tree:
    """Parents of all spans of a batch, and which of them are rows."""

    def __init__(self, span: UInt64s, above: UInt64s, rows: Int64s) -> None:
        order = np.argsort(span, kind="stable")
        place = np.minimum(np.searchsorted(span[order], above), len(span) - 1)
        self._up = order[place]
        is_root = (span[self._up] != above) | (above == 0)
        is_root |= self._up == np.arange(len(span))
        self._up[is_root] = -1
        self._rows = rows
        self._row_of = np.full(len(span) + 1, -1, np.int64)
        self._row_of[rows] = np.arange(len(rows))

    def first(self) -> Int64s:
        """int64[rows]: the span right above each row, -1 = none."""
        found: Int64s = self._up[self._rows]
        return found

    def next(self, at: Int64s) -> Int64s:
        """The spans above those `at`."""
        return np.where(at >= 0, self._up[at], -1)

    def row_above(self, at: Int64s) -> Int64s:
        """The rows that the spans `at` are, -1 = none."""
        found: Int64s = self._row_of[at]
        return found


def _outer(
    tree: _Tree, observer: Observers, slot: Int32s, can_hold: Bools, is_genai: Bools
) -> Int64s:
    """int64[rows]: the outermost row that holds each, -1 = none; rows in a circle hold nobody."""
    outer = np.full(len(slot), -1, np.int64)
    at = tree.first()
    for hop in range(MAX_HOPS):
        open_ = ((at >= 0) & (outer < 0)).nonzero()[0]
        if not len(open_):
            break
        row = tree.row_above(at[open_])
        is_row = row >= 0
        open_, row = open_[is_row], row[is_row]
        is_same = slot[row] == slot[open_]
        if hop == 0:  # an SDK may call an endpoint by another name than its HTTP client
            is_same |= is_genai[row] & (observer[open_] == _CLIENT)
        is_same &= (observer[row] == observer[open_]) & can_hold[row]
        outer[open_[is_same]] = row[is_same]
        at = tree.next(at)
    for _ in range(MAX_HOPS):
        further = outer[outer]
        outer = np.where((outer >= 0) & (further >= 0), further, outer)
    is_circle = (outer >= 0) & (outer[outer] >= 0)
    outer[is_circle] = -1
    return outer


def merged(
    rows: RequestRows, traits: RequestTraits, nesting: Nesting
) -> tuple[RequestRows, RequestTraits, Indices]:
    """The rows that count, with what only the others know, and their places."""
    source, target = nesting.source, nesting.target
    figures: dict[str, Any] = {
        name: _filled(getattr(rows, name), source, target) for name in _FIGURES
    }
    words: dict[str, Any] = {}
    for name in (*_WORDS, "body_bytes"):
        column = getattr(traits, name)
        if column is not None:
            words[name] = _filled(column, source, target)
    kept = (~nesting.is_nested).nonzero()[0]
    return replace(rows, **figures).only(kept), replace(traits, **words).only(kept), kept


def _filled(column: _Column, source: Indices, target: Indices) -> _Column:
    """`column` with what `target` lacks taken from `source`."""
    values = column[target]
    is_absent = np.isnan(values) if column.dtype.kind == "f" else values < 0
    if np.count_nonzero(is_absent):
        column = column.copy()
        column[target[is_absent]] = column[source[is_absent]]
    return column
