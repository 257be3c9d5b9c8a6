"""Attribute values and histograms: both decoders coerce, hash, replace and refuse alike."""

import math
import random
import struct
from typing import Final

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipeline.model import OtlpSignal
from tests.decode import wire
from tests.decode.same import Agreement
from tests.decode.sound import NOW, PATHS, SOUND, any_values, holding, pairs

many = settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


TEXT_PLACE: Final = "span text"
NUMBER_PLACE: Final = "span number"
SERIES_PLACE: Final = "unknown of a sum"


@pytest.mark.parametrize("place", list(PATHS))
def test_attributes_of_every_kind_decode_alike_in_every_place(place: str, agree: Agreement) -> None:
    attributes = pairs(PATHS[place][2].encode())
    agree.all(PATHS[place][0], (holding(place, attribute) for attribute in attributes))


@pytest.mark.parametrize("place", list(PATHS))
def test_of_equal_keys_the_same_one_wins(place: str, agree: Agreement) -> None:
    key = PATHS[place][2].encode()
    rnd = random.Random(place)
    values = list(any_values())
    bodies = []
    for _ in range(300):
        chosen = [wire.pair(key, value) for value in rnd.sample(values, 3)]
        chosen.append(wire.pair(b"other", rnd.choice(values)))
        rnd.shuffle(chosen)
        bodies.append(holding(place, *chosen))
    agree.all(PATHS[place][0], bodies)


def _each(agree: Agreement, value: bytes) -> None:
    places = (TEXT_PLACE, NUMBER_PLACE, SERIES_PLACE)
    text, number, label = (holding(p, wire.pair(PATHS[p][2].encode(), value)) for p in places)
    agree.all(OtlpSignal.TRACES, (text, number))
    agree(OtlpSignal.METRICS, label)


@many
@given(st.floats())
def test_any_double_has_the_same_text_number_and_series(agree: Agreement, value: float) -> None:
    _each(agree, wire.double(4, value))


@many
@given(st.integers(-(2**63), 2**63 - 1))
def test_any_integer_has_the_same_text_number_and_series(agree: Agreement, value: int) -> None:
    _each(agree, wire.number(3, value))


def test_doubles_near_every_power_of_ten_have_the_same_text(agree: Agreement) -> None:
    powers = [float(f"1e{exponent}") for exponent in range(-330, 310)]
    doubles = [
        near
        for power in powers
        for near in (power, math.nextafter(power, math.inf), -math.nextafter(power, 0.0))
    ]
    key = PATHS[TEXT_PLACE][2].encode()
    agree.all(
        OtlpSignal.TRACES,
        (holding(TEXT_PLACE, wire.pair(key, wire.double(4, value))) for value in doubles),
    )


@many
@given(st.from_regex(r"[ ]{0,2}[+-]?[0-9]{0,42}(\.[0-9]{0,42})?([eE][+-]?[0-9]{0,4})?[ \n]{0,2}"))
def test_any_decimal_text_is_the_same_number(agree: Agreement, text: str) -> None:
    _each(agree, wire.length(1, text.encode()))


BROKEN: Final = st.text(
    st.characters(min_codepoint=0x80, exclude_categories=["Cs"]), max_size=8
).map(lambda text: text.encode()[1:-1])


@many
@given(st.binary(max_size=24) | st.text(max_size=12).map(str.encode) | BROKEN)
def test_any_bytes_are_replaced_and_counted_alike(agree: Agreement, text: bytes) -> None:
    _each(agree, wire.length(1, text))
    agree(OtlpSignal.TRACES, wire.enclosed(wire.length(5, text) + wire.length(3, text), 1, 2, 2))
    agree(OtlpSignal.METRICS, wire.enclosed(
        wire.length(1, text) + wire.length(3, text) + wire.enclosed(SOUND["NumberDataPoint"], 5, 1),
        1, 2, 2))  # fmt: skip


# histograms

COUNTS: Final = st.lists(
    st.sampled_from([0, 1, 2, 300, 2**52, 2**53, 2**63, 2**64 - 1]), max_size=6
)
BOUNDS: Final = st.lists(st.floats(), max_size=6)


def packed64(values: list[int]) -> bytes:
    return struct.pack(f"<{len(values)}Q", *values)


@many
@given(COUNTS, BOUNDS, st.booleans(), st.integers(-1, 1), st.sampled_from([None, 0.0, -1.5]))
def test_histograms_sound_or_not_decode_alike(
    agree: Agreement, counts: list[int], bounds: list[float], fit: bool, off: int,
    total: float | None,
) -> None:  # fmt: skip
    if fit:
        finite = sorted({bound for bound in bounds if math.isfinite(bound)})
        bounds = finite[: max(0, len(counts) - 1)]
        counts = counts[: len(bounds) + 1]
    point = NOW + wire.fixed64(4, sum(counts) + off * (not fit))
    point += wire.length(6, packed64(counts))
    point += b"".join(wire.double(7, bound) for bound in bounds)
    if total is not None:
        point += wire.double(5, total)
    data = wire.number(2, 2) + wire.length(1, point) + wire.length(1, SOUND["HistogramDataPoint"])
    agree(OtlpSignal.METRICS, wire.enclosed(data, 1, 2, 2, 9))


@many
@given(
    st.sampled_from([-(2**31), -11, -10, -1, 0, 3, 20, 21, 2**31 - 1]),
    st.sampled_from([-(2**31), -1101, -1100, -4, 0, 1, 2, 1100, 1101, 2**31 - 1])
    | st.integers(-(2**31), 2**31 - 1),
    COUNTS, COUNTS, st.integers(0, 3), st.integers(-1, 1),
)  # fmt: skip
def test_exponential_histograms_sound_or_not_decode_alike(
    agree: Agreement, scale: int, offset: int, positive: list[int], negative: list[int],
    zeros: int, off: int,
) -> None:  # fmt: skip
    point = NOW + wire.fixed64(4, sum(positive) + sum(negative) + zeros + off)
    point += wire.number(6, wire.zigzag(scale)) + wire.fixed64(7, zeros)
    for field_number, counts in ((8, positive), (9, negative)):
        buckets = wire.number(1, wire.zigzag(offset))
        buckets += wire.length(2, b"".join(wire.varint(count) for count in counts))
        point += wire.length(field_number, buckets)
    data = wire.number(2, 1) + wire.length(1, point)
    agree(OtlpSignal.METRICS, wire.enclosed(data, 1, 2, 2, 10))


@pytest.mark.parametrize("size", [159, 160, 161, 1023, 1024, 1025])
def test_histograms_as_large_as_allowed_and_larger_decode_alike(
    size: int, agree: Agreement
) -> None:
    explicit = NOW + wire.fixed64(4, size) + wire.length(6, packed64([1] * size))
    explicit += b"".join(wire.double(7, float(i)) for i in range(size - 1))
    agree(
        OtlpSignal.METRICS, wire.enclosed(wire.number(2, 2) + wire.length(1, explicit), 1, 2, 2, 9)
    )
    for field_number in (8, 9):
        point = (
            NOW + wire.fixed64(4, size) + wire.length(field_number, wire.length(2, b"\x01" * size))
        )
        data = wire.number(2, 2) + wire.length(1, point)
        agree(OtlpSignal.METRICS, wire.enclosed(data, 1, 2, 2, 10))
