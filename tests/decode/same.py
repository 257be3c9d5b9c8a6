"""Two decoders on the same bytes: the same refusal, or the same columns to the last bit."""

from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np

from pipeline.decode.columns import Decoder, new_decoder
from pipeline.errors import Rejected
from pipeline.model import Columns, OtlpSignal


def assert_same_columns(a: Any, b: Any, where: str = "") -> None:
    """Every field of both dataclasses is equal: types, dtypes, shapes, bits (any NaN is NaN).

    Mappings of columns have equal keys in equal order, counts have equal keys in any.
    """
    assert type(a) is type(b), f"{where}: {type(a).__name__} and {type(b).__name__}"
    if is_dataclass(a):
        for item in fields(a):
            left, right = getattr(a, item.name), getattr(b, item.name)
            assert_same_columns(left, right, f"{where}.{item.name}")
    elif isinstance(a, np.ndarray):
        _assert_same_array(a, b, where)
    elif isinstance(a, Mapping) and a and all(isinstance(v, np.ndarray) for v in a.values()):
        assert list(a) == list(b), f"{where}: {list(a)} and {list(b)}"
        for key, value in a.items():
            assert_same_columns(value, b[key], f"{where}[{key}]")
    elif isinstance(a, tuple):
        assert len(a) == len(b), f"{where}: {len(a)} and {len(b)} items"
        for i, (left, right) in enumerate(zip(a, b, strict=True)):
            assert_same_columns(left, right, f"{where}[{i}]")
    else:
        assert a == b, f"{where}: {a!r} and {b!r}"


def _assert_same_array(a: Any, b: Any, where: str) -> None:
    assert (a.dtype, a.shape) == (b.dtype, b.shape), (
        f"{where}: {a.dtype}{a.shape} and {b.dtype}{b.shape}"
    )
    if a.tobytes() == b.tobytes():
        return
    same = a == b
    if a.dtype == np.float64:
        left, right = np.ascontiguousarray(a), np.ascontiguousarray(b)
        same = left.view(np.uint64) == right.view(np.uint64)
        same |= np.isnan(left) & np.isnan(right)
    wrong = np.argwhere(~same)
    assert not len(wrong), (
        f"{where}: {len(wrong)} differ, first at {wrong[0].tolist()}: "
        f"{a[tuple(wrong[0])]!r} and {b[tuple(wrong[0])]!r}"
    )


def outcome(decoder: Decoder, signal: OtlpSignal, body: bytes) -> Columns | str:
    """The columns of a request, or the reason why it is refused."""
    try:
        return decoder.decode(signal, body)
    except Rejected as error:
        return error.reason


class Agreement:
    """Both decoders, asked the same; what they learn from one request they keep for the next."""

    def __init__(self) -> None:
        """Start with nothing learned."""
        self._reference, self._native = new_decoder("reference"), new_decoder("native")

    def __call__(self, signal: OtlpSignal, body: bytes) -> Columns | str:
        """Both give the same outcome, which is returned."""
        left = outcome(self._reference, signal, body)
        right = outcome(self._native, signal, body)
        told = f"{signal}, reference and native, {shown(body)}: "
        if isinstance(left, str) or isinstance(right, str):
            assert left == right, told + f"{_brief(left)} and {_brief(right)}"
        else:
            assert_same_columns(left, right, told)
        return left

    def all(self, signal: OtlpSignal, bodies: Iterable[bytes]) -> Columns | str:
        """As for each of the bodies, sent as one request; a difference is told of one alone."""
        parts = list(bodies)
        try:
            return self(signal, b"".join(parts))
        except AssertionError:
            for part in parts:
                self(signal, part)
            raise


def shown(body: bytes) -> str:
    """A body in hex, to be pasted into a test of its own."""
    return body.hex() if len(body) < 3000 else f"{body[:500].hex()}... ({len(body)} bytes)"


def _brief(result: Columns | str) -> str:
    return result if isinstance(result, str) else f"{type(result).__name__} of {result.n}"
