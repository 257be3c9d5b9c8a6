"""The one entry to decoding: the body of an OTLP export request -> columns.

A service keeps a `Decoder` per decoding thread, for what it learns makes the next request cheap;
the functions below decode one request with a fresh one. Only broken framing is refused, with
`errors.Rejected("malformed")`; every other flaw costs the one item or value and is counted.
"""

from typing import Final, Protocol

from pipeline.decode.reference import ReferenceDecoder
from pipeline.model import (
    Columns,
    LogColumns,
    OtlpSignal,
    PointColumns,
    ProfileColumns,
    SpanColumns,
)

DECODER: Final = "reference"
"""Which implementation `new_decoder` gives."""


class Decoder(Protocol):
    """Decodes requests one after the other; equal bytes give equal columns, in any order."""

    def decode(self, signal: OtlpSignal, body: bytes) -> Columns:
        """The columns of one request, `n` = 0 for an empty one."""


def new_decoder() -> Decoder:
    """A decoder with empty caches, to be used by one thread at a time."""
    return ReferenceDecoder()


def decode(signal: OtlpSignal, body: bytes) -> Columns:
    """One request of any kind."""
    return new_decoder().decode(signal, body)


def decode_spans(body: bytes) -> SpanColumns:
    """An ExportTraceServiceRequest."""
    return ReferenceDecoder().spans(body)


def decode_points(body: bytes) -> PointColumns:
    """An ExportMetricsServiceRequest."""
    return ReferenceDecoder().points(body)


def decode_logs(body: bytes) -> LogColumns:
    """An ExportLogsServiceRequest."""
    return ReferenceDecoder().logs(body)


def decode_profiles(body: bytes) -> ProfileColumns:
    """An ExportProfilesServiceRequest."""
    return ReferenceDecoder().profiles(body)
