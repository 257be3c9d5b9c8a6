"""The one entry to decoding: the body of an OTLP export request -> columns.

A service keeps a `Decoder` per decoding thread; the functions below decode one request with a fresh
one. Only broken framing, a broken encoding and absurd sizes are refused, with `errors.Rejected`;
every other flaw costs the one item or value and is counted. The decoder in Rust serves if it was
built; TAILRACE_DECODER=reference in the environment takes the reference decoder all the same.
"""

import os
from typing import Final, Protocol

from pipeline.decode.inflate import inflate
from pipeline.decode.reference import ReferenceDecoder
from pipeline.model import (
    Columns,
    Encoding,
    LogColumns,
    OtlpSignal,
    PointColumns,
    ProfileColumns,
    SpanColumns,
)

MAX_BYTES: Final = 64 << 20
"""What a request may become when inflated, unless the caller says otherwise."""


class Decoder(Protocol):
    """Decodes requests one after the other; equal bytes give equal columns, in any order."""

    @property
    def inflated_bytes(self) -> int:
        """Bytes of the last request that could be inflated, after that."""

    def decode(
        self,
        signal: OtlpSignal,
        body: bytes,
        encoding: Encoding = Encoding.IDENTITY,
        max_bytes: int = MAX_BYTES,
    ) -> Columns:
        """The columns of one request, `n` = 0 for an empty one.

        `Rejected` for a request as a whole: "malformed", "too_many_items", "too_large" (more than
        `max_bytes`, inflated or not), "corrupt_encoding".
        """


class InflatingDecoder:
    """The reference decoder behind `inflate`."""

    def __init__(self) -> None:
        """With empty caches."""
        self._reference = ReferenceDecoder()
        self.inflated_bytes = 0

    def decode(
        self,
        signal: OtlpSignal,
        body: bytes,
        encoding: Encoding = Encoding.IDENTITY,
        max_bytes: int = MAX_BYTES,
    ) -> Columns:
        """As `Decoder.decode`."""
        inflated = inflate(body, encoding, max_bytes)
        self.inflated_bytes = len(inflated)
        return self._reference.decode(signal, inflated)


def _chosen() -> str:
    if os.environ.get("TAILRACE_DECODER") == "reference":
        return "reference"
    try:
        from pipeline.decode import native_decoder  # noqa: F401, PLC0415  # optional at install
    except ImportError:
        return "reference"
    return "native"


DECODER: Final[str] = _chosen()
"""Which implementation `new_decoder` gives unless told: "native" or "reference"."""


def new_decoder(name: str = DECODER) -> Decoder:
    """A decoder with empty caches, to be used by one thread at a time.

    "native" raises ImportError where the extension was not built.
    """
    if name == "native":
        from pipeline.decode.native_decoder import NativeDecoder  # noqa: PLC0415  # optional

        return NativeDecoder()
    return InflatingDecoder()


def decode(signal: OtlpSignal, body: bytes) -> Columns:
    """One request of any kind."""
    return new_decoder().decode(signal, body)


def decode_spans(body: bytes) -> SpanColumns:
    """An ExportTraceServiceRequest."""
    columns = decode(OtlpSignal.TRACES, body)
    assert isinstance(columns, SpanColumns)
    return columns


def decode_points(body: bytes) -> PointColumns:
    """An ExportMetricsServiceRequest."""
    columns = decode(OtlpSignal.METRICS, body)
    assert isinstance(columns, PointColumns)
    return columns


def decode_logs(body: bytes) -> LogColumns:
    """An ExportLogsServiceRequest."""
    columns = decode(OtlpSignal.LOGS, body)
    assert isinstance(columns, LogColumns)
    return columns


def decode_profiles(body: bytes) -> ProfileColumns:
    """An ExportProfilesServiceRequest."""
    columns = decode(OtlpSignal.PROFILES, body)
    assert isinstance(columns, ProfileColumns)
    return columns
