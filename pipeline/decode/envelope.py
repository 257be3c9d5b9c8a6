"""The shell that every OTLP request shares: resources hold scopes, scopes hold items."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError

from pipeline.decode.sizes import MAX_ATTRIBUTES, check_items, too_many
from pipeline.decode.strings import count
from pipeline.errors import Rejected
from pipeline.model import Bytes, Int32s, Int64s, OtlpSignal

INT64_MAX = np.iinfo(np.int64).max


@dataclass(frozen=True, slots=True, eq=False)
class Envelope:
    """A request laid flat: n items, s scopes, r resources, in wire order."""

    items: list[Any]
    scope: Int32s
    """int32[n]: the scope of an item."""
    scopes: list[Any]
    """The s InstrumentationScope messages."""
    scope_resource: Int32s
    """int32[s]: the resource of a scope."""
    resource_raw: list[bytes]
    """The raw attributes of all resources, back to back."""
    resource_counts: list[int]
    """How many of them each of the r resources has."""

    @property
    def resource(self) -> Int32s:
        """int32[n]: the resource of an item."""
        return self.scope_resource[self.scope]


def parse(message: Any, signal: OtlpSignal, body: bytes) -> Any:
    """The parsed request; `Rejected` when the framing is broken or there are too many items."""
    check_items(signal, body)
    try:
        return message.FromString(body)
    except DecodeError:
        raise Rejected("malformed", f"not a valid OTLP {signal} request") from None


def lay_flat(groups: Iterable[Any], scopes_field: str, items_field: str) -> Envelope:
    """Flatten `groups`, a request's repeated ResourceSpans, ResourceMetrics or ResourceLogs."""
    items: list[Any] = []
    scopes: list[Any] = []
    counts: list[int] = []
    scope_resource: list[int] = []
    resources: list[Any] = []
    for row, group in enumerate(groups):
        resources.append(group.resource)
        for scope in getattr(group, scopes_field):
            found = getattr(scope, items_field)
            items.extend(found)
            counts.append(len(found))
            scopes.append(scope.scope)
            scope_resource.append(row)
    return Envelope(
        items,
        np.repeat(np.arange(len(counts), dtype=np.int32), counts),
        scopes,
        np.array(scope_resource, np.int32),
        *raw_attributes(resources),
    )


def raw_attributes(
    items: Iterable[Any], of: Callable[[Any], Any] = attrgetter("attributes")
) -> tuple[list[bytes], list[int]]:
    """The raw attributes of all items back to back, and how many each item has.

    `Rejected("too_many_items")` when there are more than a request may have.
    """
    raw: list[bytes] = []
    counts: list[int] = []
    for item in items:
        attributes = of(item)
        counts.append(len(attributes))
        raw.extend(attributes)
        if len(raw) > MAX_ATTRIBUTES:
            raise too_many("attributes", MAX_ATTRIBUTES)
    return raw, counts


def times(values: list[int], dropped: dict[str, int]) -> Int64s:
    """int64[n] of nanoseconds; a negative one was past 2^63, is clamped and counted."""
    result = np.array(values, np.int64)
    past = result < 0
    if past.any():
        result[past] = INT64_MAX
        count(dropped, "time_clamped", int(past.sum()))
    return result


def small(values: list[int]) -> Bytes:
    """uint8[n] of enum numbers; one that does not fit becomes 0 (negative) or 255."""
    return np.clip(np.array(values, np.int64), 0, 255).astype(np.uint8)


def ids(raws: Sequence[bytes], size: int) -> tuple[Bytes, Int64s]:
    """uint8[n, size] and the rows whose id has another length, there all zero."""
    wrong = (
        []
        if set(map(len, raws)) <= {size}
        else [row for row, raw in enumerate(raws) if len(raw) != size]
    )
    if wrong:
        whole = list(raws)
        for row in wrong:
            whole[row] = bytes(size)
        raws = whole
    joined = np.frombuffer(b"".join(raws), np.uint8).reshape(len(raws), size)
    return joined, np.array(wrong, np.int64)
