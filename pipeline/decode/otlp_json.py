"""OTLP/JSON -> the same request as protobuf, by OTLP's own rules on top of proto3's JSON mapping.

Ids are hex, enums integers, keys lowerCamelCase only, unknown fields ignored; everything else is
the JSON mapping: 64-bit integers as number or decimal string, NaN as a string, null = absent.
Source: OTLP specification 1.11, "JSON Protobuf Encoding". Objects are opened one at a time, so that
only the request's bytes, the answer's bytes and one item are in memory.
"""

import re
from collections.abc import Callable, Mapping
from functools import cache, partial
from types import GenericAlias
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from opentelemetry.proto.collector.logs.v1 import logs_service_pb2
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2
from opentelemetry.proto.collector.profiles.v1development import profiles_service_pb2
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2

from pipeline.decode.json_values import (
    LENGTH_DELIMITED,
    Misfit,
    Scalar,
    Value,
    delimited,
    kind,
    varint,
)
from pipeline.decode.sizes import too_many
from pipeline.errors import Rejected
from pipeline.model import OtlpSignal

MAX_ELEMENTS: Final = 1 << 20
"""Commas in a request (about 16 MiB of usual OTLP/JSON): an element is two bytes of JSON and 64 in
memory, so bytes alone bound nothing."""

MAX_DEPTH: Final = 64
"""Messages inside messages; what is further in is left out. Decoders stop, and count, at less."""

_MAX_PATH_CHARS: Final = 256

_REQUESTS: Final[Mapping[OtlpSignal, Descriptor]] = {
    OtlpSignal.TRACES: trace_service_pb2.ExportTraceServiceRequest.DESCRIPTOR,
    OtlpSignal.METRICS: metrics_service_pb2.ExportMetricsServiceRequest.DESCRIPTOR,
    OtlpSignal.LOGS: logs_service_pb2.ExportLogsServiceRequest.DESCRIPTOR,
    OtlpSignal.PROFILES: profiles_service_pb2.ExportProfilesServiceRequest.DESCRIPTOR,
}

_ESCAPES: Final = re.compile(
    rb"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"  # a surrogate pair
    rb"|\\u[dD][89a-fA-F][0-9a-fA-F]{2}"  # half of one
    rb"|\\.",
    re.DOTALL,
)

_NULL: Final = b"null"
_HALF_PAIR_BYTES: Final = len(rb"\ud800")

_Encode: TypeAlias = Callable[[Value, int], bytes]
"""(value, how many messages it is in) -> the field on the wire, tag included; may be empty."""


class _Field(NamedTuple):
    """One field of a message, and the oneof that it is a member of ("" = none)."""

    attribute: str
    json_name: str
    oneof: str
    encode: _Encode


class _Plan(NamedTuple):
    """How an object becomes a message: the parser of its fields, then the fields in order."""

    parse: Callable[[msgspec.Raw | bytes], Any]
    fields: tuple[_Field, ...]


def to_protobuf(signal: OtlpSignal, body: bytes) -> bytes:
    """The serialised Export*ServiceRequest that the JSON `body` stands for; empty stays empty.

    `Rejected("malformed")` for broken JSON and for values of the wrong kind, naming their JSON
    path; `Rejected("too_many_items")` beyond MAX_ELEMENTS. Invalid UTF-8 and halves of surrogate
    pairs become U+FFFD. Of a key that comes twice, the last value holds.
    """
    if not body:
        return b""
    if body.count(b",") > MAX_ELEMENTS:
        raise too_many("JSON elements", MAX_ELEMENTS)
    try:
        return _convert(signal, body)
    except msgspec.DecodeError:
        repaired = _repaired(body)
    try:
        return _convert(signal, repaired)
    except msgspec.DecodeError as error:
        raise Rejected("malformed", f"not JSON: {error}") from None


def _convert(signal: OtlpSignal, body: bytes) -> bytes:
    try:
        return _message(_plan(_REQUESTS[signal]), body, 0)
    except Misfit as error:
        path = f"${error.path}"[:_MAX_PATH_CHARS]
        raise Rejected("malformed", f"{path}: {error.why}") from None
    except RecursionError:
        raise Rejected("malformed", "the JSON is nested too deep") from None


def _repaired(body: bytes) -> bytes:
    """`body` with U+FFFD for bytes that are not UTF-8 and for half surrogate pairs."""

    def whole(escape: re.Match[bytes]) -> bytes:
        is_half = len(escape[0]) == _HALF_PAIR_BYTES
        return rb"\ufffd" if is_half else escape[0]

    return _ESCAPES.sub(whole, body.decode("utf-8", "replace").encode())


def _message(plan: _Plan, raw: msgspec.Raw | bytes, depth: int) -> bytes:
    """The fields of the object `raw` on the wire, without a tag of its own."""
    item = _parsed(plan, raw)
    parts: list[bytes] = []
    oneofs: list[str] = []
    for attribute, json_name, oneof, encode in plan.fields:
        value = getattr(item, attribute)
        if value is None:
            continue
        try:
            encoded = encode(value, depth)
        except Misfit as error:
            error.path = f".{json_name}{error.path}"
            raise
        if oneof and encoded:
            if oneof in oneofs:
                raise Misfit(f"more than one `{oneof}`", f".{json_name}")
            oneofs.append(oneof)
        parts.append(encoded)
    return b"".join(parts)


def _parsed(plan: _Plan, raw: msgspec.Raw | bytes) -> Any:
    try:
        return plan.parse(raw)
    except msgspec.ValidationError as error:
        why, _, path = str(error).partition(" - at `$")
        raise Misfit(why.replace(" | null", ""), path.rstrip("`")) from None


@cache  # an entry for each message type of the schema
def _plan(message: Descriptor) -> _Plan:
    columns = [
        (_attribute(field), _json_type(field), msgspec.field(default=None, name=field.json_name))
        for field in message.fields
    ]
    parser = msgspec.defstruct(message.name, columns, gc=False)
    fields = tuple(
        _Field(_attribute(field), field.json_name, _oneof(field), _encoder(field))
        for field in message.fields
    )
    return _Plan(msgspec.json.Decoder(parser).decode, fields)


def _attribute(field: FieldDescriptor) -> str:
    return f"f{field.number}"


def _oneof(field: FieldDescriptor) -> str:
    """The name of its oneof; one that only marks an optional field is none."""
    oneof = field.containing_oneof
    return "" if oneof is None or len(oneof.fields) == 1 else oneof.name


def _json_type(field: FieldDescriptor) -> Any:
    """What msgspec may find; messages stay raw, and `Raw` takes null too."""
    if field.message_type is not None:
        return list[msgspec.Raw] | None if field.is_repeated else msgspec.Raw
    scalar = kind(field).json_type
    if field.is_repeated:
        scalar = GenericAlias(list, (scalar,))
    return scalar | None


def _encoder(field: FieldDescriptor) -> _Encode:
    if field.message_type is not None:
        tag = varint(field.number << 3 | LENGTH_DELIMITED)
        encode = _messages if field.is_repeated else _one_message
        return partial(encode, tag, field.message_type)
    found = kind(field)
    tag = varint(field.number << 3 | found.wire_type)
    if not field.is_repeated:
        return partial(_one, tag, found.encode)
    if found.wire_type == LENGTH_DELIMITED:
        return partial(_several, tag, found.encode)
    return partial(_packed, varint(field.number << 3 | LENGTH_DELIMITED), found.encode)


def _one(tag: bytes, encode: Scalar, value: Value, _depth: int) -> bytes:
    return tag + encode(value)


def _several(tag: bytes, encode: Scalar, values: list[Value], _depth: int) -> bytes:
    return b"".join([tag + encoded for encoded in _each(encode, values)])


def _packed(tag: bytes, encode: Scalar, values: list[Value], _depth: int) -> bytes:
    return delimited(tag, b"".join(_each(encode, values)))


def _each(encode: Scalar, values: list[Value]) -> list[bytes]:
    encoded: list[bytes] = []
    try:
        for value in values:
            encoded.append(encode(value))  # noqa: PERF401  # its length says which one failed
    except Misfit as error:
        error.path = f"[{len(encoded)}]{error.path}"
        raise
    return encoded


def _one_message(tag: bytes, message: Descriptor, raw: msgspec.Raw, depth: int) -> bytes:
    if memoryview(raw).nbytes == len(_NULL) and bytes(raw) == _NULL:
        return b""
    inner = _message(_plan(message), raw, depth + 1) if depth < MAX_DEPTH else b""
    return delimited(tag, inner)


def _messages(tag: bytes, message: Descriptor, raws: list[msgspec.Raw], depth: int) -> bytes:
    if depth >= MAX_DEPTH:
        return delimited(tag, b"") if raws else b""
    plan = _plan(message)
    encoded: list[bytes] = []
    try:
        for raw in raws:
            encoded.append(delimited(tag, _message(plan, raw, depth + 1)))  # noqa: PERF401  # as above
    except Misfit as error:
        error.path = f"[{len(encoded)}]{error.path}"
        raise
    return b"".join(encoded)
