"""Decoded columns as bytes, from a receiver process to the deciding one, and back without copying.

A frame is a msgpack header with all counts, then little-endian arrays: those of eight bytes an
item, of four, of one, so that every array is aligned. All dictionary codes stand together and are
checked at once. What does not fit exactly is `CorruptFrame`: nothing behind this checks again.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt

from pipeline.errors import TailraceError
from pipeline.model import (
    Attributes,
    Columns,
    Dictionary,
    HistogramTable,
    Int32s,
    LogColumns,
    MetricTable,
    PointColumns,
    PointKind,
    ProfileColumns,
    SpanColumns,
    Temporality,
)

MAX_COUNT: Final = 1 << 31
"""Of anything in a frame: what an int32 can index."""
_ALIGN: Final = 8
_LENGTH_BYTES: Final = 4

_F8, _I8, _U8 = np.dtype("<f8"), np.dtype("<i8"), np.dtype("<u8")
_I4, _U4 = np.dtype("<i4"), np.dtype("<u4")
_U1 = np.dtype("u1")
_SECTIONS: Final = (8, 4, 1)


class CorruptFrame(TailraceError):
    """A frame that was not written by `encode`."""


class _Header(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    """Every count of a frame; `sections` are bytes of arrays by item size."""

    kind: str
    sections: tuple[int, int, int]
    n: int
    dropped: dict[str, int]
    strings: int = 0
    resources: int = 0
    text: tuple[str, ...] = ()
    number: tuple[str, ...] = ()
    resource_text: tuple[str, ...] = ()
    resource_number: tuple[str, ...] = ()
    metrics: int = 0
    histograms: int = 0
    buckets: int = 0
    bounds: tuple[int, ...] = ()
    rejected: int = 0


_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final = msgspec.msgpack.Decoder(_Header)


def encode(columns: Columns) -> bytes:
    """The frame of one batch."""
    if isinstance(columns, SpanColumns):
        return _frame(columns, "spans", *_of_spans(columns))
    if isinstance(columns, PointColumns):
        histograms = columns.histograms
        return _frame(
            columns,
            "points",
            *_of_points(columns),
            metrics=len(columns.metrics.name),
            histograms=len(histograms.count),
            buckets=len(histograms.counts),
            bounds=tuple(map(len, histograms.bounds)),
            rejected=columns.rejected,
        )
    if isinstance(columns, LogColumns):
        return _frame(columns, "logs", *_of_logs(columns))
    return _joined(_Header("profiles", (0, 0, 0), columns.n, dict(columns.dropped)), [])


def decode(frame: bytes | bytearray | memoryview) -> Columns:
    """The batch of a frame, as views of it; `CorruptFrame` when it is none.

    `frame` begins at an address that is a multiple of eight, and is not changed afterwards.
    """
    view = memoryview(frame)
    header, start = _header(view)
    cursor = _Cursor(view, header, start)
    match header.kind:
        case "spans":
            columns: Columns = _spans(cursor)
        case "points":
            columns = _points(cursor)
        case "logs":
            columns = _logs(cursor)
        case "profiles":
            columns = ProfileColumns(header.n, header.dropped)
        case _:
            raise CorruptFrame(f"unknown kind {header.kind[:32]!r}")
    cursor.end()
    return columns


# writing

_Arrays = Sequence[tuple[npt.NDArray[Any], np.dtype[Any]]]


def _of_spans(c: SpanColumns) -> tuple[list[Int32s], _Arrays]:
    return [c.scope, c.name, c.trace_state], [
        (c.start_ns, _I8),
        (c.end_ns, _I8),
        (c.resource, _I4),
        (c.flags, _U4),
        (c.kind, _U1),
        (c.status, _U1),
        (c.trace_id, _U1),
        (c.span_id, _U1),
        (c.parent_span_id, _U1),
    ]


def _of_logs(c: LogColumns) -> tuple[list[Int32s], _Arrays]:
    return [c.scope], [
        (c.time_ns, _I8),
        (c.observed_ns, _I8),
        (c.resource, _I4),
        (c.severity, _U1),
        (c.trace_id, _U1),
    ]


def _of_points(c: PointColumns) -> tuple[list[Int32s], _Arrays]:
    m, h = c.metrics, c.histograms
    return [c.scope, m.name, m.unit, m.description], [
        (c.series, _U8),
        (c.start_ns, _I8),
        (c.time_ns, _I8),
        (c.value, _F8),
        (c.count, _F8),
        (h.starts, _I8),
        (h.counts, _F8),
        (h.zero_count, _F8),
        (h.count, _F8),
        (h.sum, _F8),
        *((bounds, _F8) for bounds in h.bounds),
        (c.resource, _I4),
        (c.metric, _I4),
        (c.histogram, _I4),
        (h.bounds_id, _I4),
        (h.scale, _I4),
        (h.offset, _I4),
        (c.flags, _U4),
        (m.kind, _U1),
        (m.temporality, _U1),
        (m.monotonic.view(np.uint8), _U1),
    ]


def _frame(
    columns: SpanColumns | PointColumns | LogColumns,
    kind: str,
    codes: list[Int32s],
    arrays: _Arrays,
    **more: Any,
) -> bytes:
    strings, own, resources = columns.strings, columns.attributes, columns.resources
    parts: dict[int, list[npt.NDArray[Any] | bytes]] = {size: [] for size in _SECTIONS}
    for attributes in (own, resources):
        parts[8] += [np.ascontiguousarray(a, _F8) for a in attributes.number.values()]
        parts[4] += [np.ascontiguousarray(a, _I4) for a in attributes.text.values()]
    parts[4] += [np.ascontiguousarray(a, _I4) for a in codes]
    parts[8].append(np.ascontiguousarray(strings.hashes, _U8))
    parts[4].append(np.ascontiguousarray(strings.offsets, _I4))
    parts[1].append(strings.data)
    for array, dtype in arrays:
        parts[dtype.itemsize].append(np.ascontiguousarray(array, dtype))
    sizes = [
        sum(len(a) if isinstance(a, bytes) else a.nbytes for a in parts[size]) for size in _SECTIONS
    ]
    header = _Header(
        kind,
        (sizes[0], sizes[1], sizes[2]),
        columns.n,
        dict(columns.dropped),
        len(strings),
        resources.n,
        tuple(own.text),
        tuple(own.number),
        tuple(resources.text),
        tuple(resources.number),
        **more,
    )
    return _joined(header, [a for size in _SECTIONS for a in parts[size]])


def _joined(header: _Header, parts: Sequence[Any]) -> bytes:
    """`parts` are contiguous arrays or bytes, in the order of the sections."""
    head = _encoder.encode(header)
    padding = bytes(-(_LENGTH_BYTES + len(head)) % _ALIGN)
    return b"".join((len(head).to_bytes(_LENGTH_BYTES, "little"), head, padding, *parts))


# reading


def _header(view: memoryview) -> tuple[_Header, int]:
    """The header and where the arrays begin."""
    length = int.from_bytes(view[:_LENGTH_BYTES], "little")
    end = _LENGTH_BYTES + length
    if len(view) < end:
        raise CorruptFrame("cut in its header")
    try:
        header = _decoder.decode(view[_LENGTH_BYTES:end])
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise CorruptFrame(f"header: {error}") from error
    counts = (
        *(header.n, header.strings, header.resources, header.metrics, header.histograms),
        *(header.buckets, header.rejected, *header.bounds, *header.sections),
        *header.dropped.values(),
    )
    if min(counts) < 0 or max(counts) >= MAX_COUNT:
        raise CorruptFrame("a count is out of range")
    return header, end + -end % _ALIGN


class _Cursor:
    """Takes arrays from the three sections of a frame, never past their ends."""

    def __init__(self, view: memoryview, header: _Header, start: int) -> None:
        self.header = header
        self._view = view
        self._at: dict[int, int] = {}
        self._end: dict[int, int] = {}
        for size, length in zip(_SECTIONS, header.sections, strict=True):
            self._at[size] = start
            start += length
            self._end[size] = start
        if start != len(view):
            raise CorruptFrame(f"{len(view)} bytes where its counts say {start}")

    def array(self, dtype: np.dtype[Any], count: int) -> npt.NDArray[Any]:
        """The next `count` items of `dtype`."""
        size = dtype.itemsize
        at = self._at[size]
        end = self._at[size] = at + size * count
        if end > self._end[size]:
            raise CorruptFrame("an array goes past its section")
        return np.frombuffer(self._view, dtype, count, at)

    def index(self, count: int, low: int, high: int) -> npt.NDArray[Any]:
        """int32[count] of numbers from `low` to below `high`."""
        return _within(self.array(_I4, count), low, high)

    def small(self, count: int, high: int = 256) -> npt.NDArray[Any]:
        """uint8[count] of numbers below `high`."""
        found = self.array(_U1, count)
        return found if high > 255 else _within(found, 0, high)

    def ids(self, width: int) -> npt.NDArray[Any]:
        """uint8[n, width]."""
        return self.array(_U1, self.header.n * width).reshape(self.header.n, width)

    def end(self) -> None:
        """Every section was read to its end."""
        if self._at != self._end:
            raise CorruptFrame("bytes that belong to nothing")


def _within(array: npt.NDArray[Any], low: int, high: int) -> npt.NDArray[Any]:
    if len(array) and (array.min() < low or array.max() >= high):
        raise CorruptFrame("an index is out of range")
    return array


class _Common:
    """What all columns begin with: attributes, resources, the codes of `lengths`, the strings."""

    def __init__(self, cursor: _Cursor, lengths: Sequence[int]) -> None:
        header = cursor.header
        n, resources = header.n, header.resources
        number = _numbers(cursor, header.number, n)
        resource_number = _numbers(cursor, header.resource_number, resources)
        sizes = [n] * len(header.text) + [resources] * len(header.resource_text) + [*lengths]
        block = cursor.index(sum(sizes), -1, header.strings)
        columns, at = [], 0
        for size in sizes:
            columns.append(block[at : at + size])
            at += size
        first, second = len(header.text), len(header.text) + len(header.resource_text)
        text = _keyed(header.text, columns[:first])
        resource_text = _keyed(header.resource_text, columns[first:second])
        self.codes: list[Int32s] = columns[second:]
        self.attributes = Attributes(n, text, number)
        self.resources = Attributes(resources, resource_text, resource_number)
        self.strings = _dictionary(cursor)


def _numbers(cursor: _Cursor, keys: tuple[str, ...], n: int) -> Mapping[str, npt.NDArray[Any]]:
    return _keyed(keys, [cursor.array(_F8, n) for _ in keys])


def _keyed(
    keys: tuple[str, ...], columns: list[npt.NDArray[Any]]
) -> Mapping[str, npt.NDArray[Any]]:
    found = dict(zip(keys, columns, strict=True))
    if len(found) != len(keys):
        raise CorruptFrame("a key is there twice")
    return found


def _dictionary(cursor: _Cursor) -> Dictionary:
    n = cursor.header.strings
    hashes = cursor.array(_U8, n)
    offsets = cursor.array(_I4, n + 1)
    if offsets[0] != 0 or (offsets[1:] < offsets[:-1]).any():
        raise CorruptFrame("strings that do not follow each other")
    return Dictionary(cursor.array(_U1, int(offsets[-1])).tobytes(), offsets, hashes)


def _spans(cursor: _Cursor) -> SpanColumns:
    n = cursor.header.n
    common = _Common(cursor, (n, n, n))
    scope, name, trace_state = common.codes
    return SpanColumns(
        n=n,
        strings=common.strings,
        resources=common.resources,
        attributes=common.attributes,
        scope=scope,
        name=name,
        trace_state=trace_state,
        start_ns=cursor.array(_I8, n),
        end_ns=cursor.array(_I8, n),
        resource=cursor.index(n, 0, cursor.header.resources),
        flags=cursor.array(_U4, n),
        kind=cursor.small(n),
        status=cursor.small(n),
        trace_id=cursor.ids(16),
        span_id=cursor.ids(8),
        parent_span_id=cursor.ids(8),
        dropped=cursor.header.dropped,
    )


def _logs(cursor: _Cursor) -> LogColumns:
    n = cursor.header.n
    common = _Common(cursor, (n,))
    return LogColumns(
        n=n,
        strings=common.strings,
        resources=common.resources,
        attributes=common.attributes,
        scope=common.codes[0],
        time_ns=cursor.array(_I8, n),
        observed_ns=cursor.array(_I8, n),
        resource=cursor.index(n, 0, cursor.header.resources),
        severity=cursor.small(n),
        trace_id=cursor.ids(16),
        dropped=cursor.header.dropped,
    )


def _points(cursor: _Cursor) -> PointColumns:
    header = cursor.header
    n, m, h = header.n, header.metrics, header.histograms
    common = _Common(cursor, (n, m, m, m))
    scope, name, unit, description = common.codes
    series = cursor.array(_U8, 2 * n).reshape(n, 2)
    start_ns, time_ns = cursor.array(_I8, n), cursor.array(_I8, n)
    value, count = cursor.array(_F8, n), cursor.array(_F8, n)
    starts, counts = cursor.array(_I8, h + 1), cursor.array(_F8, header.buckets)
    zero_count, total, sums = (cursor.array(_F8, h) for _ in range(3))
    bounds = tuple(cursor.array(_F8, length) for length in header.bounds)
    resource = cursor.index(n, 0, header.resources)
    metric, histogram = cursor.index(n, 0, m), cursor.index(n, -1, h)
    bounds_id = cursor.index(h, -1, len(bounds))
    _check_rows(starts, header.buckets, bounds_id, header.bounds)
    return PointColumns(
        n=n,
        strings=common.strings,
        resources=common.resources,
        attributes=common.attributes,
        histograms=HistogramTable(
            starts=starts,
            counts=counts,
            bounds=bounds,
            bounds_id=bounds_id,
            scale=cursor.array(_I4, h),
            offset=cursor.array(_I4, h),
            zero_count=zero_count,
            count=total,
            sum=sums,
        ),
        flags=cursor.array(_U4, n),
        metrics=MetricTable(
            name=name,
            unit=unit,
            description=description,
            kind=cursor.small(m, len(PointKind)),
            temporality=cursor.small(m, len(Temporality)),
            monotonic=cursor.small(m, 2).view(np.bool_),
        ),
        resource=resource,
        scope=scope,
        metric=metric,
        series=series,
        start_ns=start_ns,
        time_ns=time_ns,
        value=value,
        count=count,
        histogram=histogram,
        dropped=header.dropped,
        rejected=header.rejected,
    )


def _check_rows(
    starts: npt.NDArray[Any], buckets: int, bounds_id: Int32s, bounds: tuple[int, ...]
) -> None:
    """Histogram rows follow each other, and one with bounds has a bucket more than bounds."""
    lengths = np.diff(starts)
    if starts[0] != 0 or starts[-1] != buckets or (lengths < 0).any():
        raise CorruptFrame("histograms that do not follow each other")
    explicit = (bounds_id >= 0) & (lengths > 0)  # a histogram may have a count alone
    wanted = np.array([length + 1 for length in bounds], np.int64)[bounds_id[explicit]]
    if (lengths[explicit] != wanted).any():
        raise CorruptFrame("a histogram whose buckets do not fit its bounds")
