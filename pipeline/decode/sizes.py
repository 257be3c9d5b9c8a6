"""How many items a request holds, counted before any of them is parsed.

An empty span is two bytes on the wire and hundreds in memory, so bytes alone bound nothing. Layers
are opened one after the other, with everything inside still opaque.
"""

from collections.abc import Mapping
from typing import Any, Final

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

from pipeline.errors import Rejected
from pipeline.model import OtlpSignal

MAX_ITEMS: Final = 262_144
"""Spans, data points, log records or profiles of a request; also of its metrics, scopes, ..."""

MAX_ATTRIBUTES: Final = 4_194_304
"""Attributes of all items of a request."""

_ITEM_TAGS: Final = (b"\x0a", b"\x8a", b"\x12", b"\x92")
"""First bytes of fields 1 and 2 with a length, as short and as overlong varints."""

_DATA: Final = (5, 7, 9, 10, 11)
"""Where a Metric has its Gauge, Sum, Histogram, ExponentialHistogram or Summary."""

_PATH: Final = ((1,), (2,), (2,))
"""Field numbers from a request to resources, scopes, items."""

_PATHS: Final[Mapping[OtlpSignal, tuple[tuple[int, ...], ...]]] = {
    OtlpSignal.TRACES: _PATH,
    OtlpSignal.METRICS: (*_PATH, _DATA, (1,)),
    OtlpSignal.LOGS: _PATH,
    OtlpSignal.PROFILES: _PATH,
}


def _layer() -> Any:
    """A message class whose fields are repeated bytes: `f<number>`."""
    file = descriptor_pb2.FileDescriptorProto(name="tailrace/layer.proto", syntax="proto2")
    message = file.message_type.add(name="Layer")
    for number in sorted({number for path in _PATHS.values() for step in path for number in step}):
        message.field.add(
            name=f"f{number}",
            number=number,
            type=descriptor_pb2.FieldDescriptorProto.TYPE_BYTES,
            label=descriptor_pb2.FieldDescriptorProto.LABEL_REPEATED,
        )
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("Layer"))


_LAYER: Final = _layer()


def check_items(signal: OtlpSignal, body: bytes) -> None:
    """`Rejected("too_many_items")` for a request with more than MAX_ITEMS of anything."""
    if sum(map(body.count, _ITEM_TAGS)) <= MAX_ITEMS:
        return  # every item needs a tag of its own, so an honest request ends here
    layer = [body]
    try:
        for step in _PATHS[signal]:
            layer = _open(layer, step)
    except DecodeError:
        return  # the real parse says so


def too_many(what: str, most: int) -> Rejected:
    """The refusal of a request that is too large in number, whatever its bytes."""
    return Rejected("too_many_items", f"more than {most} {what} in one request")


def _open(layer: list[bytes], numbers: tuple[int, ...]) -> list[bytes]:
    inner: list[bytes] = []
    for raw in layer:
        message = _LAYER.FromString(raw)
        for number in numbers:
            found = getattr(message, f"f{number}")
            if len(inner) + len(found) > MAX_ITEMS:
                raise too_many("items", MAX_ITEMS)
            inner.extend(found)
    return inner
