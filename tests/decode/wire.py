"""OTLP requests straight on the wire, made from the official descriptors.

Every field of every message is sent now and then, so a field that a newer proto brings is too;
with the honest values that matter to decoding, and with every disorder that protobuf allows.
"""

import random
import struct
from collections.abc import Callable, Iterator
from typing import Any, Final

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.collector.profiles.v1development.profiles_service_pb2 import (
    ExportProfilesServiceRequest,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from pipeline.keys import LOG_KEYS, POINT_KEYS, RESOURCE_KEYS, SPAN_KEYS
from pipeline.model import OtlpSignal

REQUESTS: Final[dict[OtlpSignal, Any]] = {
    OtlpSignal.TRACES: ExportTraceServiceRequest,
    OtlpSignal.METRICS: ExportMetricsServiceRequest,
    OtlpSignal.LOGS: ExportLogsServiceRequest,
    OtlpSignal.PROFILES: ExportProfilesServiceRequest,
}

VARINT, FIXED64, LENGTH, GROUP, END_GROUP, FIXED32 = range(6)
NOW_NS: Final = 1_700_000_000_000_000_000

# encoding


def varint(value: int, pad: int = 0) -> bytes:
    """`value` modulo 2**64, longer than needed by `pad` bytes."""
    value &= 2**64 - 1
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return padded(bytes(encoded), pad)


def padded(encoded: bytes, pad: int) -> bytes:
    """A varint of the same value, longer by `pad` bytes, at most the ten that are allowed."""
    pad = min(pad, 10 - len(encoded))
    if pad <= 0:
        return encoded
    return encoded[:-1] + bytes((encoded[-1] | 0x80,)) + b"\x80" * (pad - 1) + b"\x00"


def tag(number: int, wire: int, pad: int = 0) -> bytes:
    """What precedes a field's payload."""
    return varint(number << 3 | wire, pad)


def length(number: int, payload: bytes, pad: int = 0) -> bytes:
    """A field with a length."""
    return tag(number, LENGTH) + varint(len(payload), pad) + payload


def fixed64(number: int, value: int) -> bytes:
    """A fixed64 or sfixed64 field."""
    return tag(number, FIXED64) + struct.pack("<Q", value & (2**64 - 1))


def double(number: int, value: float) -> bytes:
    """A double field."""
    return tag(number, FIXED64) + struct.pack("<d", value)


def number(field_number: int, value: int, pad: int = 0) -> bytes:
    """A varint field."""
    return tag(field_number, VARINT) + varint(value, pad)


def zigzag(value: int) -> int:
    """How sint32 writes a number."""
    return ((value << 1) ^ (value >> 31)) & (2**32 - 1)


def group(field_number: int, payload: bytes = b"", end: int | None = None) -> bytes:
    """A group; `end` is the number at its end if it is not its own."""
    closing = field_number if end is None else end
    return tag(field_number, GROUP) + payload + tag(closing, END_GROUP)


def nested_groups(depth: int, field_number: int = 1500) -> bytes:
    """Groups inside each other."""
    return tag(field_number, GROUP) * depth + tag(field_number, END_GROUP) * depth


def nested_value(depth: int, opening: int, bottom: bytes = b"\x0a\x01x") -> bytes:
    """An AnyValue of `depth` arrays (5) or key-value lists (6) inside each other."""
    value = bottom
    for _ in range(depth):
        element = value if opening == 5 else length(1, b"k") + length(2, value)
        value = length(opening, length(1, element))
    return value


def pair(key: bytes, value: bytes) -> bytes:
    """A KeyValue; `value` is an encoded AnyValue."""
    return length(1, key) + length(2, value)


def enclosed(body: bytes, *path: int) -> bytes:
    """`body` inside fields of these numbers, the outermost first."""
    for step in reversed(path):
        body = length(step, body)
    return body


# values

TEXTS: Final = (
    b"", b"a", b"200", b"-", b" 7 ", b"1.5e3", b"+.5", b"-0", b"nan", b"inf", b"0x10", b"1_0",
    b"1e999", b"-1e-999", b"00012", b"1.", b"1e5", b"9007199254740993", b"0.1", b"1" * 40,
    b"1" * 41, b"\t1", b"caf\xe9", b"\xff\xfe", b"\xed\xa0\x80", b"\xf0\x9f\x98", b"\xc0\x80",
    b"\xf4\x90\x80\x80", "Z\u00fcrich \U0001f600".encode(), b"x" * 600, b"nul\x00in it",
)  # fmt: skip
VALID_TEXTS: Final = tuple(
    text for text in TEXTS if text == text.decode("utf-8", "replace").encode()
)
INTEGERS: Final = (0, 1, -1, 127, 128, 200, 8000, 2**31 - 1, -(2**31), 2**32, 2**53, 2**53 + 1,
                   -(2**53) - 1, 2**63 - 1, -(2**63))  # fmt: skip
DOUBLES: Final = (
    0.0, -0.0, 1.0, -1.5, 200.0, 1e15, 1e16, 9007199254740991.0, 9007199254740992.0, 1.5e16, 1e22,
    1e-4, 1e-5, 1.234e-7, 0.1, 1e300, 5e-324, -2.2250738585072014e-308, 123456789.125,
    float("inf"), float("-inf"), float("nan"),
)  # fmt: skip
TIMES: Final = (0, 1, NOW_NS, NOW_NS + 5, 2**63 - 1, 2**63, 2**64 - 1)
KEYS: Final = tuple(
    tuple(key.name.encode() for key in keys)
    for keys in (RESOURCE_KEYS, SPAN_KEYS, POINT_KEYS, LOG_KEYS)
)

_FIXED: Final = {
    FieldDescriptor.TYPE_DOUBLE: (FIXED64, "<d"),
    FieldDescriptor.TYPE_FLOAT: (FIXED32, "<f"),
    FieldDescriptor.TYPE_FIXED64: (FIXED64, "<Q"),
    FieldDescriptor.TYPE_SFIXED64: (FIXED64, "<q"),
    FieldDescriptor.TYPE_FIXED32: (FIXED32, "<I"),
    FieldDescriptor.TYPE_SFIXED32: (FIXED32, "<i"),
}
_TEXT_TYPES: Final = {FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES}
_ZIGZAG: Final = {FieldDescriptor.TYPE_SINT32, FieldDescriptor.TYPE_SINT64}


def messages(root: Descriptor) -> dict[str, Descriptor]:
    """Every message type reachable from `root`, by its full name."""
    found: dict[str, Descriptor] = {}
    waiting = [root]
    while waiting:
        message = waiting.pop()
        if message.full_name not in found:
            found[message.full_name] = message
            waiting += [f.message_type for f in message.fields if f.message_type is not None]
    return found


def paths(root: Descriptor) -> Iterator[tuple[FieldDescriptor, ...]]:
    """For each field of each message reachable from `root`, the shortest way to it."""
    ways: dict[str, tuple[FieldDescriptor, ...]] = {root.full_name: ()}
    waiting = [root]
    for message in waiting:
        for item in message.fields:
            way = (*ways[message.full_name], item)
            yield way
            inner = item.message_type
            if inner is not None and inner.full_name not in ways:
                ways[inner.full_name] = way
                waiting.append(inner)


def encodings(item: FieldDescriptor) -> Iterator[bytes]:
    """A field of no message type with every value that may matter, sent in every way."""
    if item.type in _TEXT_TYPES:
        sizes = (0, 1, 4, 7, 8, 9, 15, 16, 17)
        for text in (*TEXTS, *(b"i" * size for size in sizes), bytes(8), bytes(16)):
            yield length(item.number, text)
        return
    for value in _numbers(item):
        wire, payload = _payload(item, value)
        yield tag(item.number, wire) + payload
        if item.is_repeated:
            yield length(item.number, payload * 3) + tag(item.number, wire) + payload


def _numbers(item: FieldDescriptor) -> tuple[Any, ...]:
    if item.type in {FieldDescriptor.TYPE_DOUBLE, FieldDescriptor.TYPE_FLOAT}:
        return DOUBLES
    return tuple({*INTEGERS, *TIMES, 2, 3, 4, 5, 6, 255, 256, 0x3FF, 0x400, 2**32 - 1})


def _payload(item: FieldDescriptor, value: Any) -> tuple[int, bytes]:
    if item.type in _FIXED:
        wire, form = _FIXED[item.type]
        if form[1] in "df":
            return wire, struct.pack(form, value)
        size = struct.calcsize(form)
        return wire, (int(value) & (2 ** (8 * size) - 1)).to_bytes(size, "little")
    if item.type in _ZIGZAG:
        return VARINT, varint(zigzag(int(value)))
    return VARINT, varint(int(value))


class Emitter:
    """Writes random messages of any type; `emitted` collects the full names of the fields sent.

    `disorder` is the chance of each untidiness: an unknown field, a group, a wrong wire type, a
    singular field twice, a varint longer than needed.
    """

    def __init__(
        self,
        rnd: random.Random,
        disorder: float = 0.06,
        fields: int = 400,
        texts: tuple[bytes, ...] = TEXTS,
    ) -> None:
        """At most about `fields` fields are sent; strings are taken from `texts`."""
        self._rnd = rnd
        self._texts = texts
        self._disorder = disorder
        self._left = fields
        self._keys = [b"", b"custom.label"]
        for names in KEYS:
            self._keys += rnd.sample(names, 4)
        self.emitted: set[str] = set()

    def request(self, signal: OtlpSignal) -> bytes:
        """The body of an export request."""
        return self.message(REQUESTS[signal].DESCRIPTOR)

    def message(self, descriptor: Descriptor, depth: int = 0) -> bytes:
        """One message of this type; its fields in any order."""
        fixed = self._honest(descriptor)
        chunks: list[bytes] = []
        left_out = self._left_out(descriptor)
        for item in descriptor.fields:
            if item.name in left_out:
                continue
            if item.name in fixed:
                chunks += self._field(item, fixed[item.name], depth)
            elif self._left > 0 and self._rnd.random() < self._chance(item, depth):
                chunks += self._field(item, None, depth)
        chunks += self._disorders(descriptor)
        if self._rnd.random() < 0.7:
            self._rnd.shuffle(chunks)
        return b"".join(chunks)

    def _left_out(self, descriptor: Descriptor) -> set[str]:
        """All members of a oneof but one, mostly; else several, of which the last one counts."""
        names: set[str] = set()
        for oneof in descriptor.oneofs:
            if len(oneof.fields) > 1 and not self._is_untidy():
                chosen = self._rnd.choice(oneof.fields).name
                names |= {item.name for item in oneof.fields} - {chosen}
        return names

    def _chance(self, item: FieldDescriptor, depth: int) -> float:
        if item.containing_oneof is not None and len(item.containing_oneof.fields) > 1:
            return 0.95
        if item.message_type is None:
            return 0.7
        return 0.9 if depth < 5 else 0.4

    def _is_untidy(self) -> bool:
        return self._rnd.random() < self._disorder

    def _pad(self) -> int:
        return self._rnd.choice((1, 2, 4, 8)) if self._is_untidy() else 0

    def _field(self, item: FieldDescriptor, fixed: Any, depth: int) -> list[bytes]:
        self.emitted.add(item.full_name)
        self._left -= 1
        if fixed is not None:
            values = list(fixed) if item.is_repeated else [fixed]
        elif item.is_repeated:
            values = [None] * self._rnd.choice((0, 1, 1, 2, 3, 5) if depth < 5 else (1, 1, 2))
        else:
            values = [None] * (2 if self._is_untidy() else 1)
        if item.is_repeated and item.message_type is None and item.type not in _TEXT_TYPES:
            return self._numbers(item, values)
        return [self._one(item, value, depth) for value in values]

    def _numbers(self, item: FieldDescriptor, values: list[Any]) -> list[bytes]:
        """Repeated numbers: some packed, then the rest one by one."""
        encoded = [_payload(item, self._number(item) if v is None else v) for v in values]
        cut = self._rnd.choice((0, len(encoded), self._rnd.randrange(len(encoded) + 1)))
        packed = b"".join(payload for _, payload in encoded[:cut])
        rest = b"".join(tag(item.number, wire) + payload for wire, payload in encoded[cut:])
        return [length(item.number, packed) + rest]

    def _one(self, item: FieldDescriptor, value: Any, depth: int) -> bytes:
        if item.message_type is not None:
            inner = self._any_value(depth) if item.message_type.name == "AnyValue" else None
            if inner is None:
                inner = self.message(item.message_type, depth + 1)
            return tag(item.number, LENGTH, self._pad_tag()) + varint(
                len(inner), self._pad_length()
            ) + inner  # fmt: skip
        if item.type in _TEXT_TYPES:
            return length(item.number, self._text(item))
        wire, payload = _payload(item, self._number(item) if value is None else value)
        if wire == VARINT:
            payload = padded(payload, self._pad())
        return tag(item.number, wire) + payload

    def _pad_tag(self) -> int:
        return min(self._pad(), 2)

    def _pad_length(self) -> int:
        return min(self._pad(), 2)

    def _text(self, item: FieldDescriptor) -> bytes:
        rnd = self._rnd
        if item.name == "key":
            return rnd.choice(self._keys)
        if item.name.endswith("_id"):
            size = 16 if "trace" in item.name else 8
            return rnd.choice((rnd.randbytes(size), rnd.randbytes(size), bytes(size), b"", b"bad"))
        return rnd.choice(self._texts)

    def _number(self, item: FieldDescriptor) -> Any:
        rnd = self._rnd
        if item.name.endswith("time_unix_nano"):
            return rnd.choice((*TIMES, *[NOW_NS + rnd.randrange(10**9)] * 7))
        if item.name == "aggregation_temporality":
            return rnd.choice((0, 1, 1, 2, 2, 2, 2, 3, -1))
        if item.name == "flags":
            return rnd.choice((0, 0, 0, 1, 0x301, 2**32 - 1))
        if item.type in {FieldDescriptor.TYPE_DOUBLE, FieldDescriptor.TYPE_FLOAT}:
            some = struct.unpack("<d", rnd.randbytes(8))[0]
            return rnd.choice((*DOUBLES, some, some))
        return rnd.choice((*INTEGERS, rnd.randrange(6), rnd.getrandbits(64)))

    def _any_value(self, depth: int) -> bytes | None:
        """Now and then a deep value, or one of a kind that is seldom reached at random."""
        rnd = self._rnd
        if rnd.random() < 0.02:
            return nested_value(rnd.choice((1, 2, 16, 17, 99, 105)), rnd.choice((5, 6)))
        if rnd.random() < 0.5 or depth > 12:
            return length(1, rnd.choice(self._texts))
        return None

    def _honest(self, descriptor: Descriptor) -> dict[str, Any]:
        """Fields that must fit each other for a point to be sound, mostly."""
        rnd = self._rnd
        if rnd.random() < 0.3:
            return {}
        if descriptor.name == "HistogramDataPoint":
            counts = [rnd.choice((0, 1, 7, 300, 2**40)) for _ in range(rnd.choice((0, 1, 2, 5)))]
            bounds = sorted({rnd.choice((0.0, 0.5, rnd.random(), 1e9)) for _ in counts[1:]})
            while len(bounds) < len(counts) - 1:
                bounds.append((bounds[-1] if bounds else 0.0) + 1.0)
            return {"bucket_counts": counts, "explicit_bounds": bounds, "count": sum(counts)}
        if descriptor.name == "Buckets":
            counts = [rnd.randrange(3) for _ in range(rnd.randrange(4))]
            return {"bucket_counts": counts, "offset": rnd.choice((0, -4, 100, 1099, -1200))}
        if descriptor.name == "ExponentialHistogramDataPoint":
            return {"scale": rnd.choice((0, 3, 20, -10)), "zero_count": rnd.randrange(3),
                    "count": rnd.randrange(6)}  # fmt: skip
        return {}

    def _disorders(self, descriptor: Descriptor) -> list[bytes]:
        rnd = self._rnd
        known = rnd.choice([item.number for item in descriptor.fields] or [1])
        makers: tuple[Callable[[], bytes], ...] = (
            lambda: length(999, b"from the future"),
            lambda: number(2000, rnd.getrandbits(64)),
            lambda: fixed64(2**29 - 1, 7),
            lambda: tag(77, FIXED32) + b"abcd",
            lambda: group(1500, length(1, b"x") + nested_groups(rnd.randrange(4))),
            lambda: number(known, rnd.getrandbits(40)),
            lambda: fixed64(known, rnd.getrandbits(64)),
            lambda: tag(known, FIXED32) + b"1234",
            lambda: length(known, rnd.choice((b"", b"\x00", b"\x08\x01", b"\xff"))),
            lambda: group(known, number(1, 1)),
        )
        return [make() for make in makers if rnd.random() < self._disorder / 4]
