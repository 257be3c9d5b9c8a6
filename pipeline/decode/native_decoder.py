"""The decoder in Rust: OTLP requests -> columns, equal to those of the reference decoder.

One pass over the bytes without the GIL; gzip is inflated there too. What runs here, with the GIL,
is per column, never per item. Importing fails where the extension was not built.
"""

from collections.abc import Iterable
from typing import Final

from pipeline.decode import _native
from pipeline.decode.inflate import inflate
from pipeline.errors import Rejected
from pipeline.keys import LOG_KEYS, POINT_KEYS, RESOURCE_KEYS, SPAN_KEYS, Key, KeyKind
from pipeline.model import (
    Attributes,
    Columns,
    Dictionary,
    Encoding,
    HistogramTable,
    LogColumns,
    MetricTable,
    OtlpSignal,
    PointColumns,
    ProfileColumns,
    SpanColumns,
)

MAX_BYTES: Final = 64 << 20
"""What a request may become when inflated, unless the caller says otherwise."""

_GZIP: Final = Encoding.GZIP


class NativeDecoder:
    """Keeps memory from request to request but no meaning. Not for two threads at once."""

    def __init__(self) -> None:
        """Nothing is learned, now or later."""
        lists = (RESOURCE_KEYS, SPAN_KEYS, POINT_KEYS, LOG_KEYS)
        self._native = _native.Decoder(*map(_kinds, lists))

    @property
    def inflated_bytes(self) -> int:
        """Bytes of the last request that could be inflated, after that."""
        return self._native.inflated_bytes

    def decode(
        self,
        signal: OtlpSignal,
        body: bytes,
        encoding: Encoding = Encoding.IDENTITY,
        max_bytes: int = MAX_BYTES,
    ) -> Columns:
        """One export request, inflated to at most `max_bytes`.

        `Rejected` only as a whole: "malformed", "too_many_items", "too_large", "corrupt_encoding".
        """
        match signal:
            case OtlpSignal.TRACES:
                return self.spans(body, encoding, max_bytes)
            case OtlpSignal.METRICS:
                return self.points(body, encoding, max_bytes)
            case OtlpSignal.LOGS:
                return self.logs(body, encoding, max_bytes)
            case OtlpSignal.PROFILES:
                return self.profiles(body, encoding, max_bytes)

    def spans(
        self, body: bytes, encoding: Encoding = Encoding.IDENTITY, max_bytes: int = MAX_BYTES
    ) -> SpanColumns:
        """An ExportTraceServiceRequest."""
        body, is_gzip = _prepared(body, encoding, max_bytes)
        try:
            found = self._native.spans(body, is_gzip, max_bytes)
        except _native.Refused as refused:
            raise _rejected(refused, OtlpSignal.TRACES, max_bytes) from None
        return SpanColumns(
            n=found["n"],
            strings=Dictionary(*found["strings"]),
            resources=_attributes(found["resources"]),
            attributes=_attributes(found["attributes"]),
            resource=found["resource"],
            scope=found["scope"],
            name=found["name"],
            trace_state=found["trace_state"],
            kind=found["kind"],
            status=found["status"],
            flags=found["flags"],
            start_ns=found["start_ns"],
            end_ns=found["end_ns"],
            trace_id=found["trace_id"],
            span_id=found["span_id"],
            parent_span_id=found["parent_span_id"],
            dropped=found["dropped"],
        )

    def points(
        self, body: bytes, encoding: Encoding = Encoding.IDENTITY, max_bytes: int = MAX_BYTES
    ) -> PointColumns:
        """An ExportMetricsServiceRequest."""
        body, is_gzip = _prepared(body, encoding, max_bytes)
        try:
            found = self._native.points(body, is_gzip, max_bytes)
        except _native.Refused as refused:
            raise _rejected(refused, OtlpSignal.METRICS, max_bytes) from None
        return PointColumns(
            n=found["n"],
            strings=Dictionary(*found["strings"]),
            resources=_attributes(found["resources"]),
            attributes=_attributes(found["attributes"]),
            metrics=MetricTable(**found["metrics"]),
            histograms=HistogramTable(**found["histograms"]),
            resource=found["resource"],
            scope=found["scope"],
            metric=found["metric"],
            series=found["series"],
            start_ns=found["start_ns"],
            time_ns=found["time_ns"],
            value=found["value"],
            count=found["count"],
            flags=found["flags"],
            histogram=found["histogram"],
            dropped=found["dropped"],
            rejected=found["rejected"],
        )

    def logs(
        self, body: bytes, encoding: Encoding = Encoding.IDENTITY, max_bytes: int = MAX_BYTES
    ) -> LogColumns:
        """An ExportLogsServiceRequest; pairs of a body that is a key-value list are attributes."""
        body, is_gzip = _prepared(body, encoding, max_bytes)
        try:
            found = self._native.logs(body, is_gzip, max_bytes)
        except _native.Refused as refused:
            raise _rejected(refused, OtlpSignal.LOGS, max_bytes) from None
        return LogColumns(
            n=found["n"],
            strings=Dictionary(*found["strings"]),
            resources=_attributes(found["resources"]),
            attributes=_attributes(found["attributes"]),
            resource=found["resource"],
            scope=found["scope"],
            time_ns=found["time_ns"],
            observed_ns=found["observed_ns"],
            severity=found["severity"],
            trace_id=found["trace_id"],
            dropped=found["dropped"],
        )

    def profiles(
        self, body: bytes, encoding: Encoding = Encoding.IDENTITY, max_bytes: int = MAX_BYTES
    ) -> ProfileColumns:
        """An ExportProfilesServiceRequest: its profiles are counted, not looked into."""
        body, is_gzip = _prepared(body, encoding, max_bytes)
        try:
            return ProfileColumns(self._native.profiles(body, is_gzip, max_bytes), {})
        except _native.Refused as refused:
            raise _rejected(refused, OtlpSignal.PROFILES, max_bytes) from None


def _kinds(keys: Iterable[Key]) -> list[tuple[str, bool]]:
    return [(key.name, key.kind is KeyKind.NUMBER) for key in keys]


def _prepared(body: bytes, encoding: Encoding, max_bytes: int) -> tuple[bytes, bool]:
    """The body as the extension takes it, and whether that is gzip."""
    if encoding is _GZIP:
        return body, True
    return inflate(body, encoding, max_bytes), False


def _attributes(known: "_native.Known") -> Attributes:
    n, text_keys, text, number_keys, numbers = known
    return Attributes(
        n,
        dict(zip(text_keys, text, strict=True)),
        dict(zip(number_keys, numbers, strict=True)),
    )


def _rejected(refused: _native.Refused, signal: OtlpSignal, max_bytes: int) -> Rejected:
    reason, description = refused.args
    match reason:
        case "malformed":
            description = f"not a valid OTLP {signal} request"
        case "too_large":
            description = f"the request inflates to more than {max_bytes} bytes"
        case "corrupt_encoding":
            description = f"the request is not valid {_GZIP}"
    return Rejected(reason, description)
