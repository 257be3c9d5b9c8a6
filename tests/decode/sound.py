"""Requests of one sound item around a field or an attribute, so that what it changes shows."""

import struct
from collections.abc import Iterator
from typing import Final

from google.protobuf.descriptor import Descriptor, FieldDescriptor

from pipeline.model import OtlpSignal
from tests.decode import wire

NOW: Final = wire.fixed64(3, wire.NOW_NS)
SOUND: Final = {
    "Span": wire.length(1, b"t" * 16) + wire.length(2, b"s" * 8) + wire.fixed64(7, wire.NOW_NS),
    "Metric": wire.length(1, b"metric"),
    "Sum": wire.number(2, 2),
    "Histogram": wire.number(2, 2),
    "ExponentialHistogram": wire.number(2, 1),
    "NumberDataPoint": NOW + wire.double(4, 1.0),
    "HistogramDataPoint": NOW + wire.fixed64(4, 3) + wire.double(7, 1.0)
    + wire.length(6, struct.pack("<QQ", 1, 2)),
    "ExponentialHistogramDataPoint": NOW + wire.fixed64(4, 3)
    + wire.length(8, wire.length(2, b"\x01\x02")),
    "SummaryDataPoint": NOW + wire.fixed64(4, 3) + wire.double(5, 1.5),
    "KeyValue": wire.length(1, b"server.address"),
}  # fmt: skip


def _sound(message: Descriptor | None) -> bytes:
    return b"" if message is None else SOUND.get(message.name, b"")


def enclosed(inner: bytes, way: tuple[FieldDescriptor, ...], before: bool) -> bytes:
    """`inner` in the message that holds the last field of `way`, with all that makes it sound."""
    for index in reversed(range(len(way))):
        sound = _sound(way[index].containing_type)
        inner = sound + inner if before else inner + sound
        if index:
            inner = wire.length(way[index - 1].number, inner)
    return inner


PATHS: Final = {
    "resource of spans": (OtlpSignal.TRACES, (1, 1, 1), "host.name"),
    "scope of spans": (OtlpSignal.TRACES, (1, 2, 1, 3), "host.name"),
    "span text": (OtlpSignal.TRACES, (1, 2, 2, 9), "http.route"),
    "span number": (OtlpSignal.TRACES, (1, 2, 2, 9), "http.response.status_code"),
    "unknown of a span": (OtlpSignal.TRACES, (1, 2, 2, 9), "custom.label"),
    "event of a span": (OtlpSignal.TRACES, (1, 2, 2, 11, 3), "http.route"),
    "resource of points": (OtlpSignal.METRICS, (1, 1, 1), "service.name"),
    "scope of points": (OtlpSignal.METRICS, (1, 2, 1, 3), "service.name"),
    "gauge": (OtlpSignal.METRICS, (1, 2, 2, 5, 1, 7), "model_name"),
    "unknown of a sum": (OtlpSignal.METRICS, (1, 2, 2, 7, 1, 7), "custom.label"),
    "histogram": (OtlpSignal.METRICS, (1, 2, 2, 9, 1, 9), "model_name"),
    "exponential histogram": (OtlpSignal.METRICS, (1, 2, 2, 10, 1, 1), "model_name"),
    "summary": (OtlpSignal.METRICS, (1, 2, 2, 11, 1, 7), "model_name"),
    "exemplar": (OtlpSignal.METRICS, (1, 2, 2, 5, 1, 5, 7), "model_name"),
    "log text": (OtlpSignal.LOGS, (1, 2, 2, 6), "authority"),
    "log number": (OtlpSignal.LOGS, (1, 2, 2, 6), "duration"),
    "body of a log": (OtlpSignal.LOGS, (1, 2, 2, 5, 6, 1), "authority"),
    "number in the body of a log": (OtlpSignal.LOGS, (1, 2, 2, 5, 6, 1), "duration"),
}  # fmt: skip


def any_values() -> Iterator[bytes]:
    """AnyValues of every kind, one by one and several at once."""
    scalars = [
        *(wire.length(1, text) for text in wire.TEXTS),
        *(wire.number(2, flag) for flag in (0, 1, 2, 2**63)),
        *(wire.number(3, value) for value in wire.INTEGERS),
        *(wire.double(4, value) for value in wire.DOUBLES),
        wire.length(7, b""),
        wire.length(7, b"200"),
        wire.number(8, 1),
    ]
    yield b""
    yield from scalars
    for scalar in scalars:  # arrays and lists: empty, one element, two, broken ones
        yield wire.length(5, wire.length(1, scalar))
        yield wire.length(5, wire.length(1, scalar) + wire.length(1, b"\xff"))
        yield wire.length(5, wire.length(1, wire.length(5, wire.length(1, scalar))))
        yield wire.length(6, wire.length(1, wire.pair(b"a", scalar)))
        yield wire.length(1, b"earlier") + scalar
        yield scalar + wire.length(5, b"")
        yield wire.length(5, wire.length(1, b"\x0a\x01z")) + scalar + wire.length(5, b"")
    for broken in (b"", b"\xff", b"\x0a\xff", b"\x0a\x00\x00", wire.length(1, b"\xff" * 3)):
        yield wire.length(5, broken)
        yield wire.length(6, broken)
        yield wire.length(5, wire.length(1, b"\x0a\x01z")) + wire.length(5, broken)
    for depth in (2, 15, 16, 17, 18, 47, 48, 95, 96, 97, 98, 99, 100, 101, 102, 5000):
        yield wire.nested_value(depth, 5)
        yield wire.nested_value(depth, 6)
        yield wire.nested_groups(depth) + wire.length(1, b"below groups")


def pairs(key: bytes) -> Iterator[bytes]:
    """KeyValues of `key`, tidy and untidy."""
    for value in any_values():
        yield wire.pair(key, value)
    good = wire.length(1, b"good")
    yield from (
        b"",
        wire.length(1, key),
        wire.length(2, good),
        wire.length(2, good) + wire.length(1, key),
        wire.length(1, b"host.name") + wire.pair(key, good),
        wire.pair(key, good) + wire.length(2, wire.number(3, 5)),
        wire.pair(key, wire.length(5, wire.length(1, good))) + wire.length(2, wire.length(5, b"")),
        wire.pair(key, good) + wire.number(3, 9),
        wire.pair(key, good) + wire.length(1, key + b"\xff"),
        wire.pair(key + b"\x00", good),
        wire.pair(key + b"\xc3\xa9", good),
        wire.pair(key, good)[:-1],
        wire.pair(key, good) + b"\x0b",
        wire.pair(key, good) + b"\x00\x00",
        wire.number(1, 5) + wire.pair(key, good),
        wire.pair(key, good) + wire.nested_groups(99),
        wire.pair(key, good) + wire.nested_groups(100),
        wire.pair(key, good) + wire.nested_groups(101),
        wire.pair(key, good + wire.nested_groups(99)),
        wire.pair(key, good + wire.nested_groups(98)),
        wire.pair(key, good + b"\x80\x80\x80\x80\x80\x00\x00"),
    )


def way_of(signal: OtlpSignal, path: tuple[int, ...]) -> tuple[FieldDescriptor, ...]:
    """The fields of these numbers, each inside the one before, from the request on."""
    message: Descriptor | None = wire.REQUESTS[signal].DESCRIPTOR
    way = []
    for step in path:
        assert message is not None
        item = message.fields_by_number[step]
        way.append(item)
        message = item.message_type
    return tuple(way)


def holding(place: str, *attributes: bytes) -> bytes:
    """A request of one item with attributes in this place; where they are is a sound message."""
    signal, path, _ = PATHS[place]
    way = way_of(signal, path)
    inner = b"".join(wire.length(path[-1], attribute) for attribute in attributes)
    body = enclosed(inner, way, before=True)
    if place.startswith(("resource", "scope")):  # an item, so that its series shows the attributes
        item = {
            OtlpSignal.TRACES: wire.length(2, SOUND["Span"]),
            OtlpSignal.METRICS: wire.length(2, wire.enclosed(SOUND["NumberDataPoint"], 5, 1)),
        }[signal]
        body += wire.enclosed(item, 1, 2)
        head = way[:2] if place.startswith("scope") else way[:1]
        inner = enclosed(inner, way[len(head) :], before=True)
        scope = inner + item if len(head) == 2 else inner + wire.length(2, item)
        body += wire.enclosed(scope, *(step.number for step in head))
    return body
