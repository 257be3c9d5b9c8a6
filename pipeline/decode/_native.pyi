"""The extension module built from `pipeline/decode/native`; `native_decoder` wraps it."""

from collections.abc import Sequence
from typing import TypeAlias, TypedDict

from pipeline.model import Bools, Bytes, Floats, Int32s, Int64s, UInt32s, UInt64s

Keys: TypeAlias = Sequence[tuple[str, bool]]
"""Names of keys in the order of their columns, and whether the values are numbers."""

Strings: TypeAlias = tuple[bytes, Int32s, UInt64s]
"""Data, offsets, hashes."""

Known: TypeAlias = tuple[int, tuple[str, ...], Int32s, tuple[str, ...], Floats]
"""n; k names and int32[k, n] of codes; j names and float64[j, n] of numbers."""

class Shared(TypedDict):
    """What the columns of all signals have."""

    n: int
    strings: Strings
    resources: Known
    attributes: Known
    resource: Int32s
    scope: Int32s
    dropped: dict[str, int]

class Spans(Shared):
    """The other fields of `SpanColumns`."""

    name: Int32s
    trace_state: Int32s
    kind: Bytes
    status: Bytes
    flags: UInt32s
    start_ns: Int64s
    end_ns: Int64s
    trace_id: Bytes
    span_id: Bytes
    parent_span_id: Bytes

class Metrics(TypedDict):
    """The fields of `MetricTable`."""

    name: Int32s
    unit: Int32s
    description: Int32s
    kind: Bytes
    temporality: Bytes
    monotonic: Bools

class Histograms(TypedDict):
    """The fields of `HistogramTable`."""

    starts: Int64s
    counts: Floats
    bounds: tuple[Floats, ...]
    bounds_id: Int32s
    scale: Int32s
    offset: Int32s
    zero_count: Floats
    count: Floats
    sum: Floats

class Points(Shared):
    """The other fields of `PointColumns`."""

    metrics: Metrics
    histograms: Histograms
    metric: Int32s
    series: UInt64s
    start_ns: Int64s
    time_ns: Int64s
    value: Floats
    count: Floats
    flags: UInt32s
    histogram: Int32s
    rejected: int

class Logs(Shared):
    """The other fields of `LogColumns`."""

    time_ns: Int64s
    observed_ns: Int64s
    severity: Bytes
    trace_id: Bytes

class Refused(Exception):  # as `errors.Rejected`, which it becomes
    """A request that is refused as a whole; `args` are the reason and a description."""

class Decoder:
    """Decodes the requests of one thread; each call scans without the GIL."""

    inflated_bytes: int

    def __init__(self, resource: Keys, span: Keys, point: Keys, log: Keys) -> None:
        """Keep these keys."""

    def spans(self, body: bytes, is_gzip: bool, max_bytes: int) -> Spans:
        """An ExportTraceServiceRequest; raises `Refused`."""

    def points(self, body: bytes, is_gzip: bool, max_bytes: int) -> Points:
        """An ExportMetricsServiceRequest; raises `Refused`."""

    def logs(self, body: bytes, is_gzip: bool, max_bytes: int) -> Logs:
        """An ExportLogsServiceRequest; raises `Refused`."""

    def profiles(self, body: bytes, is_gzip: bool, max_bytes: int) -> int:
        """How many profiles there are; raises `Refused`."""
