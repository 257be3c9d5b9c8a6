"""Single JSON values -> protobuf wire bytes, one encoder a field of the schema.

The JSON types are those that msgspec checks before; ranges, hex, base64 and numbers in strings are
checked here. `Misfit` says what is wrong, for the caller to say where.
"""

import base64
import binascii
import math
import re
import struct
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final, NamedTuple, TypeAlias

from google.protobuf.descriptor import FieldDescriptor

Value: TypeAlias = Any
"""bool, int, float or str, as the field's JSON type allows."""

Scalar: TypeAlias = Callable[[Value], bytes]
"""A value -> its wire bytes, without a tag; `Misfit` when it cannot be."""

VARINT: Final = 0
FIXED64: Final = 1
LENGTH_DELIMITED: Final = 2
FIXED32: Final = 5

HEX_IDS: Final = frozenset({"trace_id", "span_id", "parent_span_id", "profile_id"})

_DECIMAL: Final = re.compile(r"-?[0-9]{1,20}", re.ASCII)
_NUMBER: Final = re.compile(r"-?[0-9]{1,400}(\.[0-9]{1,400})?([eE][+-]?[0-9]{1,5})?", re.ASCII)
_NOT_FINITE: Final = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_URL_SAFE: Final = str.maketrans("-_", "+/")


class Misfit(Exception):
    """A value that does not fit its field; `path` to it grows from the inside out."""

    def __init__(self, why: str, path: str = "") -> None:
        """`path` is in JSON terms, such as `[3].kind`."""
        super().__init__(why)
        self.why = why
        self.path = path


class Kind(NamedTuple):
    """How one protobuf type is written in JSON and on the wire."""

    json_type: Any
    """The type that msgspec checks; a number may come as a string."""
    wire_type: int
    encode: Scalar


def kind(field: FieldDescriptor) -> Kind:
    """The kind of a field that is no message. `bytes` fields are hex where they are ids."""
    if field.type == FieldDescriptor.TYPE_BYTES and field.name in HEX_IDS:
        return Kind(str, LENGTH_DELIMITED, _hex)
    return _KINDS[field.type]


def varint(value: int) -> bytes:
    r"""A varint of 0 <= value < 2^64.

    >>> varint(300)
    b'\xac\x02'
    """
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def delimited(tag: bytes, payload: bytes) -> bytes:
    """A length-delimited field."""
    return tag + varint(len(payload)) + payload


def _integer(low: int, high: int, value: Value) -> int:
    if isinstance(value, str):
        if not _DECIMAL.fullmatch(value):
            raise Misfit("not a decimal integer")
        value = int(value)
    elif isinstance(value, float):
        if not value.is_integer():
            raise Misfit("not an integer")
        value = int(value)
    if not low <= value <= high:
        raise Misfit(f"not in {low} .. {high}")
    found: int = value
    return found


def _varint_of(low: int, high: int, value: Value) -> bytes:
    return varint(_integer(low, high, value) & 0xFFFF_FFFF_FFFF_FFFF)


def _zigzag(value: Value) -> bytes:
    number = _integer(-(2**31), 2**31 - 1, value)
    return varint(number << 1 if number >= 0 else (-number << 1) - 1)


def _packed_as(layout: str, low: int, high: int, value: Value) -> bytes:
    return struct.pack(layout, _integer(low, high, value))


def _double(value: Value) -> bytes:
    if isinstance(value, str):
        if value in _NOT_FINITE:
            return struct.pack("<d", _NOT_FINITE[value])
        if not _NUMBER.fullmatch(value):
            raise Misfit("not a number, NaN, Infinity or -Infinity")
        value = float(value)
    if math.isinf(value):
        raise Misfit("too large for a double")
    return struct.pack("<d", value)


def _bool(value: Value) -> bytes:
    return b"\x01" if value else b"\x00"


def _text(value: Value) -> bytes:
    raw: bytes = value.encode()
    return varint(len(raw)) + raw


def _hex(value: Value) -> bytes:
    """Any length: whether it is an id is for the decoder to judge, and to count."""
    try:
        raw = binascii.unhexlify(value)
    except ValueError:
        raise Misfit("not hexadecimal") from None
    return varint(len(raw)) + raw


def _base64(value: Value) -> bytes:
    """Standard or URL-safe, padded or not."""
    text = value.translate(_URL_SAFE).rstrip("=")
    try:
        raw = base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
    except ValueError:
        raise Misfit("not base64") from None
    return varint(len(raw)) + raw


_INTEGER: Final = int | float | str
_INT32: Final = (-(2**31), 2**31 - 1)
_INT64: Final = (-(2**63), 2**63 - 1)
_UINT32: Final = (0, 2**32 - 1)
_UINT64: Final = (0, 2**64 - 1)

_KINDS: Final[Mapping[int, Kind]] = {
    FieldDescriptor.TYPE_DOUBLE: Kind(float | str, FIXED64, _double),
    FieldDescriptor.TYPE_INT64: Kind(_INTEGER, VARINT, partial(_varint_of, *_INT64)),
    FieldDescriptor.TYPE_UINT64: Kind(_INTEGER, VARINT, partial(_varint_of, *_UINT64)),
    FieldDescriptor.TYPE_INT32: Kind(_INTEGER, VARINT, partial(_varint_of, *_INT32)),
    FieldDescriptor.TYPE_FIXED64: Kind(_INTEGER, FIXED64, partial(_packed_as, "<Q", *_UINT64)),
    FieldDescriptor.TYPE_FIXED32: Kind(_INTEGER, FIXED32, partial(_packed_as, "<I", *_UINT32)),
    FieldDescriptor.TYPE_BOOL: Kind(bool, VARINT, _bool),
    FieldDescriptor.TYPE_STRING: Kind(str, LENGTH_DELIMITED, _text),
    FieldDescriptor.TYPE_BYTES: Kind(str, LENGTH_DELIMITED, _base64),
    FieldDescriptor.TYPE_UINT32: Kind(_INTEGER, VARINT, partial(_varint_of, *_UINT32)),
    FieldDescriptor.TYPE_ENUM: Kind(int, VARINT, partial(_varint_of, *_INT32)),
    FieldDescriptor.TYPE_SFIXED64: Kind(_INTEGER, FIXED64, partial(_packed_as, "<q", *_INT64)),
    FieldDescriptor.TYPE_SINT32: Kind(_INTEGER, VARINT, _zigzag),
}
