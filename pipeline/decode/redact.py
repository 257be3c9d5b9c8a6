"""Request bodies as the journal may keep them: without prompt text, decoding to the same columns.

Of spans and logs only known attributes stay; events, links, status messages and log bodies that are
not key-value lists go, and so do the queries of URLs. Metrics keep all labels, since they make the
series. A body that is not OTLP becomes empty, as nothing of it was decoded.
"""

from collections.abc import Iterable
from typing import Any, Final

from google.protobuf.message import DecodeError

from pipeline.decode import pruned
from pipeline.keys import LOG_KEYS, RESOURCE_KEYS, SPAN_KEYS, Key
from pipeline.model import OtlpSignal


def _names(keys: Iterable[Key]) -> frozenset[bytes]:
    return frozenset(key.name.encode() for key in keys)


_RESOURCE: Final = _names(RESOURCE_KEYS)
_SPAN: Final = _names(SPAN_KEYS)
_LOG: Final = _names(LOG_KEYS)
_URLS: Final = frozenset({b"url.full", b"http.url", b"http.target", b"url.path", b"path"})
"""Keys whose value may carry a query, which nothing downstream reads."""


def redact(signal: OtlpSignal, body: bytes) -> bytes:
    """`body` of a request of `signal` with everything removed that decoding does not read."""
    try:
        return _REDACTORS[signal](body)
    except DecodeError:
        return b""


def _spans(body: bytes) -> bytes:
    request = pruned.TraceRequest.FromString(body)
    for group in request.resource_spans:
        _keep(group.resource, _RESOURCE)
        for scope in group.scope_spans:
            scope.scope.ClearField("attributes")
            for span in scope.spans:
                _keep(span, _SPAN)
    return _bytes(request)


def _metrics(body: bytes) -> bytes:
    return _bytes(pruned.MetricsRequest.FromString(body))


def _logs(body: bytes) -> bytes:
    request = pruned.LogsRequest.FromString(body)
    for group in request.resource_logs:
        _keep(group.resource, _RESOURCE)
        for scope in group.scope_logs:
            scope.scope.ClearField("attributes")
            for record in scope.log_records:
                _keep(record, _LOG)
                if record.body.WhichOneof("value") != "kvlist_value":
                    record.ClearField("body")
                else:
                    _keep_values(record.body.kvlist_value, _LOG)
    return _bytes(request)


def _profiles(_: bytes) -> bytes:
    """Profiles are only counted, and a flame graph may name anything: none of it is kept."""
    return b""


_REDACTORS: Final = {
    OtlpSignal.TRACES: _spans,
    OtlpSignal.METRICS: _metrics,
    OtlpSignal.LOGS: _logs,
    OtlpSignal.PROFILES: _profiles,
}


def _keep(message: Any, names: frozenset[bytes]) -> None:
    message.attributes[:] = _kept(message.attributes, names)


def _keep_values(message: Any, names: frozenset[bytes]) -> None:
    message.values[:] = _kept(message.values, names)


def _kept(raws: Iterable[bytes], names: frozenset[bytes]) -> list[bytes]:
    kept = (_kept_pair(raw, names) for raw in raws)
    return [raw for raw in kept if raw is not None]


def _kept_pair(raw: bytes, names: frozenset[bytes]) -> bytes | None:
    try:
        pair = pruned.KeyValue.FromString(raw)
    except DecodeError:
        return None
    if pair.key not in names:
        return None
    text = pair.value.string_value
    if pair.key in _URLS and b"?" in text:
        pair.value.string_value = text.partition(b"?")[0]
        return _bytes(pair)
    return raw


def _bytes(message: Any) -> bytes:
    message.DiscardUnknownFields()
    data: bytes = message.SerializePartialToString()
    return data
