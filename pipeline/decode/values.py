"""One attribute value: coercion to the kind its key declares, and its canonical encoding.

The canonical encoding enters the series key, so it is exact and independent of how the sender laid
out the message. `u32` is little-endian:

    pair  = u32(len(key)) key tag payload
    tags  = n (no value) | s bytes | b one byte 0/1 | i int64 LE | d float64 LE (any NaN: the quiet
            one) | y bytes | a elements | k elements; elements = (u32(len) bytes as sent)*
"""

import math
import re
import struct
from typing import Any, Final

from pipeline.decode import pruned

_DECIMAL: Final = re.compile(rb"[+-]?[0-9]{1,40}(\.[0-9]{0,40})?([eE][+-]?[0-9]{1,3})?")
_NOTHING: Final = frozenset({b"", b"-"})
"""Text that stands for "no number": Envoy's access logs write a dash."""

_EXACT_INTEGERS: Final = 2.0**53
_QUIET_NAN: Final = struct.pack("<Q", 0x7FF8000000000000)
_LENGTH: Final = struct.Struct("<I")


class NotCoercibleError(ValueError):
    """A value that does not fit the kind of its key."""


def to_text(value: Any, inside_array: bool = False) -> bytes | None:
    """An AnyValue as text; an array gives its first element. None = no value was given.

    Integers and whole doubles are decimal, other doubles the shortest form that reads back, bools
    `true` and `false`. Raises `NotCoercibleError` for bytes, key-value lists, nested arrays, NaN.
    """
    match value.WhichOneof("value"):
        case "string_value":
            text: bytes = value.string_value
            return text
        case "int_value":
            return b"%d" % value.int_value
        case "bool_value":
            return b"true" if value.bool_value else b"false"
        case "double_value" if not math.isnan(value.double_value):
            number = value.double_value
            whole = number.is_integer() and abs(number) < _EXACT_INTEGERS
            return b"%d" % int(number) if whole else repr(number).encode()
        case "array_value" if not inside_array:
            elements = value.array_value.values
            return to_text(pruned.AnyValue.FromString(elements[0]), True) if elements else None
        case None:
            return None
    raise NotCoercibleError


def to_number(value: Any) -> float | None:
    """An AnyValue as float64: int, double, bool (0, 1) or decimal text. None = no value was given.

    Raises `NotCoercibleError` for anything else.
    """
    match value.WhichOneof("value"):
        case "int_value":
            return float(value.int_value)
        case "double_value":
            number: float = value.double_value
            return number
        case "bool_value":
            return float(value.bool_value)
        case "string_value":
            text = value.string_value.strip(b" ")
            if text in _NOTHING:
                return None
            if _DECIMAL.fullmatch(text):
                return float(text)
        case None:
            return None
    raise NotCoercibleError


def canonical(key: bytes, value: Any) -> bytes:
    """The canonical encoding of one attribute (see the module's docstring)."""
    return _LENGTH.pack(len(key)) + key + _payload(value)


def _payload(value: Any) -> bytes:
    payload = b"n"
    match value.WhichOneof("value"):
        case "string_value":
            payload = b"s" + value.string_value
        case "bool_value":
            payload = b"b\x01" if value.bool_value else b"b\x00"
        case "int_value":
            payload = b"i" + struct.pack("<q", value.int_value)
        case "double_value":
            number = value.double_value
            payload = b"d" + (_QUIET_NAN if math.isnan(number) else struct.pack("<d", number))
        case "bytes_value":
            payload = b"y" + value.bytes_value
        case "array_value":
            payload = b"a" + _elements(value.array_value.values)
        case "kvlist_value":
            payload = b"k" + _elements(value.kvlist_value.values)
    return payload


def _elements(values: Any) -> bytes:
    return b"".join(_LENGTH.pack(len(element)) + element for element in values)
