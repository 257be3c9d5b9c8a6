"""Request bodies as the journal may keep them: without prompt text, decoding to the same columns.

Of spans and logs only known attributes stay; events, links, status messages and log bodies that are
not key-value lists go. Metrics keep all labels, since they make the series. A body that is not OTLP
becomes empty, as nothing of it was decoded.
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
    kept = [raw for raw in message.attributes if _is_known(raw, names)]
    if len(kept) != len(message.attributes):
        message.attributes[:] = kept


def _keep_values(message: Any, names: frozenset[bytes]) -> None:
    kept = [raw for raw in message.values if _is_known(raw, names)]
    message.values[:] = kept


def _is_known(raw: bytes, names: frozenset[bytes]) -> bool:
    try:
        return pruned.KeyValue.FromString(raw).key in names
    except DecodeError:
        return False


def _bytes(message: Any) -> bytes:
    message.DiscardUnknownFields()
    data: bytes = message.SerializePartialToString()
    return data
