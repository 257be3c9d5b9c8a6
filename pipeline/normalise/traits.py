"""What requests are, in their senders' words: attribute columns -> `RequestTraits`.

Old and new attribute names become one column, the new one first; a column that no row has stays
None. Nothing is read or judged here: fingerprinting looks at each distinct string once.
"""

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from pipeline.keys import CLASS_KEYS, TENANT_KEYS
from pipeline.model import Bytes, Int32s, RequestTraits, SpanColumns, UInt64s
from pipeline.normalise.batch import Batch

METHOD: Final = ("http.request.method", "http.method", "method")
ROUTE: Final = ("http.route", "url.template")
PATH: Final = ("url.path", "http.target", "url.full", "http.url", "path")
MODEL: Final = ("gen_ai.request.model", "gen_ai.response.model")
REQUEST_ID: Final = ("guid:x-request-id", "x_request_id", "request_id")
BODY_BYTES: Final = ("http.request.body.size", "http.request_content_length", "bytes_received")


class TraitKeys(NamedTuple):
    """Which attributes, of the request or else of its resource, name a class and a tenant."""

    request_class: Sequence[str] = CLASS_KEYS
    tenant: Sequence[str] = TENANT_KEYS


def span_traits(columns: SpanColumns, batch: Batch, keys: TraitKeys) -> RequestTraits:
    """Of the rows of `batch`, which are spans of `columns`."""
    parent = ids(batch.cut(columns.parent_span_id))
    return RequestTraits(
        **_stated(batch, keys),
        span_id=ids(batch.cut(columns.span_id)),
        parent_span_id=parent if np.count_nonzero(parent) else None,
    )


def log_traits(batch: Batch, keys: TraitKeys) -> RequestTraits:
    """Of the rows of `batch`, which are access-log records."""
    return RequestTraits(**_stated(batch, keys), is_log=True)


def ids(raw: Bytes) -> UInt64s:
    """uint64[n] of span ids uint8[n, 8]; 0 = none."""
    return np.ascontiguousarray(raw).view(np.uint64).reshape(-1)


def _stated(batch: Batch, keys: TraitKeys) -> dict[str, Any]:
    return {
        "n": batch.n,
        "strings": batch.strings,
        "method": batch.first(METHOD),
        "route": batch.first(ROUTE),
        "path": batch.first(PATH),
        "rpc_service": batch.code("rpc.service"),
        "rpc_method": batch.code("rpc.method"),
        "operation": batch.code("gen_ai.operation.name"),
        "model": batch.first(MODEL),
        "request_class": _named(batch, keys.request_class),
        "tenant": _named(batch, keys.tenant),
        "conversation": batch.code("gen_ai.conversation.id"),
        "prefix": batch.code("tailrace.prefix_key"),
        "adapter": batch.code("tailrace.adapter"),
        "cache_salt": batch.code("tailrace.cache_salt"),
        "request_id": batch.first(REQUEST_ID),
        "body_bytes": batch.number(BODY_BYTES),
    }


def _named(batch: Batch, keys: Sequence[str]) -> Int32s | None:
    """The code of the first key that a row or else its resource has; None when none does."""
    own = batch.first(keys)
    inherited: Int32s | None = None
    for key in keys:
        column = batch.resources.text.get(key)
        if column is not None:
            inherited = column if inherited is None else np.where(inherited >= 0, inherited, column)
    if inherited is None:
        return own
    theirs: Int32s = inherited.take(batch.resource)
    return theirs if own is None else np.where(own >= 0, own, theirs)
