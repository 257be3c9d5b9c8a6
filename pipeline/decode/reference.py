"""The decoder on protobuf's own parser: OTLP requests -> columns, the rules of hygiene applied.

Items are walked once in Python, everything per attribute, per string and per number is a look-up by
raw bytes or numpy. Equal requests give equal columns, whatever was decoded before.
"""

from typing import Final

import numpy as np

from pipeline.decode import pruned
from pipeline.decode.attributes import AttributeCache, AttributeIds, with_codes
from pipeline.decode.envelope import (
    Envelope,
    ids,
    lay_flat,
    parse,
    raw_attributes,
    small,
    times,
)
from pipeline.decode.points import PointDecoder
from pipeline.decode.strings import Strings, count
from pipeline.keys import LOG_KEYS, RESOURCE_KEYS, SPAN_KEYS
from pipeline.model import (
    Bytes,
    Columns,
    LogColumns,
    OtlpSignal,
    PointColumns,
    ProfileColumns,
    SpanColumns,
)

SPAN_FLAGS: Final = 0x3FF
"""W3C trace flags and the two bits about a remote parent; the rest is reserved."""


class ReferenceDecoder:
    """Holds what it learned of attributes and strings, bounded. Not for two threads at once."""

    def __init__(self) -> None:
        """Start with nothing learned."""
        self._start()

    def _start(self) -> None:
        self._strings = Strings()
        self._resources = AttributeCache(RESOURCE_KEYS, self._strings, hashed=True)
        self._spans = AttributeCache(SPAN_KEYS, self._strings, hashed=False)
        self._logs = AttributeCache(LOG_KEYS, self._strings, hashed=False)
        self._points = PointDecoder(self._strings, self._resources)

    def _trim(self) -> None:
        if self._strings.is_full():
            self._start()
        for cache in (self._resources, self._spans, self._logs, self._points):
            cache.trim()

    def remembered(self) -> int:
        """Strings and attributes kept in the caches."""
        caches = (self._resources, self._spans, self._logs, self._points)
        return len(self._strings) + sum(len(cache) for cache in caches)

    def decode(self, signal: OtlpSignal, body: bytes) -> Columns:
        """One export request; `Rejected("malformed")` only when its framing is broken."""
        match signal:
            case OtlpSignal.TRACES:
                return self.spans(body)
            case OtlpSignal.METRICS:
                return self.points(body)
            case OtlpSignal.LOGS:
                return self.logs(body)
            case OtlpSignal.PROFILES:
                return self.profiles(body)

    def points(self, body: bytes) -> PointColumns:
        """An ExportMetricsServiceRequest."""
        self._trim()
        return self._points.decode(body)

    def spans(self, body: bytes) -> SpanColumns:
        """An ExportTraceServiceRequest."""
        self._trim()
        dropped: dict[str, int] = {}
        request = parse(pruned.TraceRequest, OtlpSignal.TRACES, body)
        envelope = lay_flat(request.resource_spans, "scope_spans", "spans")
        spans = envelope.items
        texts = [
            self._strings.ids([span.name for span in spans], dropped),
            self._strings.ids([span.trace_state for span in spans], dropped),
            self._strings.ids([scope.name for scope in envelope.scopes], dropped),
        ]
        strings, codes, resources, attributes = with_codes(
            self._strings,
            texts,
            self._resource_columns(envelope, dropped),
            self._spans.columns(self._spans.rows(*raw_attributes(spans)), dropped),
        )
        trace_id, bad_trace = _required([span.trace_id for span in spans], 16)
        span_id, bad_span = _required([span.span_id for span in spans], 8)
        parent, bad_parent = _optional([span.parent_span_id for span in spans], 8)
        count(dropped, "invalid_ids", len({*bad_trace, *bad_span, *bad_parent}))
        return SpanColumns(
            n=len(spans),
            strings=strings,
            resources=resources,
            attributes=attributes,
            resource=envelope.resource,
            scope=codes[2][envelope.scope],
            name=codes[0],
            trace_state=codes[1],
            kind=small([span.kind for span in spans]),
            status=small([span.status.code for span in spans]),
            flags=np.array([span.flags for span in spans], np.uint32) & np.uint32(SPAN_FLAGS),
            start_ns=times([span.start_time_unix_nano for span in spans], dropped),
            end_ns=times([span.end_time_unix_nano for span in spans], dropped),
            trace_id=trace_id,
            span_id=span_id,
            parent_span_id=parent,
            dropped=dropped,
        )

    def logs(self, body: bytes) -> LogColumns:
        """An ExportLogsServiceRequest; pairs of a body that is a key-value list are attributes."""
        self._trim()
        dropped: dict[str, int] = {}
        request = parse(pruned.LogsRequest, OtlpSignal.LOGS, body)
        envelope = lay_flat(request.resource_logs, "scope_logs", "log_records")
        records = envelope.items
        # A record's attributes come first, so that they win over the pairs of its body.
        raw, counts = raw_attributes(
            records, lambda record: [*record.attributes, *record.body.kvlist_value.values]
        )
        strings, codes, resources, columns = with_codes(
            self._strings,
            [self._strings.ids([scope.name for scope in envelope.scopes], dropped)],
            self._resource_columns(envelope, dropped),
            self._logs.columns(self._logs.rows(raw, counts), dropped),
        )
        trace_id, bad_trace = _optional([record.trace_id for record in records], 16)
        count(dropped, "invalid_ids", len(bad_trace))
        return LogColumns(
            n=len(records),
            strings=strings,
            resources=resources,
            attributes=columns,
            resource=envelope.resource,
            scope=codes[0][envelope.scope],
            time_ns=times([record.time_unix_nano for record in records], dropped),
            observed_ns=times([record.observed_time_unix_nano for record in records], dropped),
            severity=small([record.severity_number for record in records]),
            trace_id=trace_id,
            dropped=dropped,
        )

    def profiles(self, body: bytes) -> ProfileColumns:
        """An ExportProfilesServiceRequest: its profiles are counted, not looked into."""
        request = parse(pruned.ProfilesRequest, OtlpSignal.PROFILES, body)
        groups = request.resource_profiles
        n = sum(len(scope.profiles) for group in groups for scope in group.scope_profiles)
        return ProfileColumns(n, {})

    def _resource_columns(self, envelope: Envelope, dropped: dict[str, int]) -> AttributeIds:
        rows = self._resources.rows(envelope.resource_raw, envelope.resource_counts)
        return self._resources.columns(rows, dropped)


def _required(raws: list[bytes], size: int) -> tuple[Bytes, list[int]]:
    """uint8[n, size] of ids, and the rows where it is invalid: not `size` bytes, or all zero."""
    found, _ = ids(raws, size)
    return found, np.flatnonzero(~found.any(axis=1)).tolist()


def _optional(raws: list[bytes], size: int) -> tuple[Bytes, list[int]]:
    """uint8[n, size] of ids (zero = none), and the rows where one is given but has another size."""
    found, wrong = ids(raws, size)
    return found, [row for row in wrong.tolist() if raws[row]]
