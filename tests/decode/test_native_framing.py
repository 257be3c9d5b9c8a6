"""Damaged and hostile bytes: both decoders refuse the same requests, and read the others alike."""

import random
from collections.abc import Iterator
from typing import Final

import pytest
from google.protobuf.descriptor import Descriptor

from pipeline.decode.sizes import MAX_ATTRIBUTES, MAX_ITEMS
from pipeline.model import OtlpSignal
from tests.decode import wire
from tests.decode.damage import cuts, flips, lengths, splices
from tests.decode.same import Agreement
from tests.decode.sound import enclosed, way_of

SIGNALS: Final = list(OtlpSignal)


def small(signal: OtlpSignal, seed: int, fields: int = 40) -> bytes:
    """A small body with something in it, the same one each time."""
    for turn in range(seed * 1000, seed * 1000 + 1000):
        emitter = wire.Emitter(random.Random(f"{signal}-{turn}"), disorder=0.02, fields=fields)
        body = emitter.request(signal)
        if 150 < len(body) < 500:
            return body
    raise AssertionError("no such body in a thousand")


def both_ends(agree: Agreement, signal: OtlpSignal, bodies: Iterator[bytes]) -> None:
    """Some of the bodies are refused and some are not, or they test little."""
    refused = [isinstance(agree(signal, body), str) for body in bodies]
    assert 0 < sum(refused) < len(refused)


# oddities of the wire format, inside every message

PADS: Final = range(1, 9)
TEN: Final = b"\xff" * 9 + b"\x7f"
ODDITIES: Final = (
    b"\x00",  # field number 0
    b"\x00\x00",
    b"\x02\x00",
    b"\x07",  # wire types that do not exist, at number 0 and at numbers 1 and 2
    *(wire.tag(field, kind) + b"\x00" for field in (1, 2, 99) for kind in (6, 7)),
    *(wire.tag(field, kind) for field in (1, 2, 3, 99) for kind in range(8)),  # nothing behind it
    *(wire.tag(field, wire.FIXED64) + b"1234567" for field in (1, 3, 99)),  # a byte short
    *(wire.tag(field, wire.FIXED32) + b"123" for field in (1, 16, 99)),
    *(wire.length(field, b"abc")[:-1] for field in (1, 2, 99)),
    *(wire.tag(2000, 0) + b"\x80" * size + b"\x01" for size in (1, 8, 9, 10, 11)),  # long varints
    *(wire.tag(field, 0) + TEN for field in (1, 2, 3, 6, 10, 2000)),
    *(wire.tag(field, 0) + b"\xff" * 10 + b"\x00" for field in (1, 2, 3, 6, 10, 2000)),
    *(wire.padded(wire.tag(field, 0), pad) + b"\x01" for field in (2, 3, 6) for pad in PADS),
    *(wire.padded(wire.tag(field, 2), pad) + b"\x00" for field in (1, 2, 99) for pad in PADS),
    *(wire.tag(field, 2) + wire.padded(b"\x00", pad) for field in (1, 2, 99) for pad in PADS),
    *(wire.tag(field, 2) + wire.varint(size) for field in (1, 2, 99)
      for size in (1, 127, 128, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**63, 2**64 - 1)),
    wire.varint((2**29 - 1) << 3) + b"\x01",  # the largest field number, and past it
    wire.varint(2**29 << 3) + b"\x01",
    wire.varint(2**32 << 3 | 2) + b"\x00",
    wire.group(99),
    wire.group(99, wire.number(1, 1) + wire.length(2, b"x") + wire.fixed64(3, 1)),
    wire.group(99, wire.group(98, wire.group(97))),
    wire.group(99, end=98),
    wire.group(1),
    wire.group(2, wire.length(2, b"\xff")),
    wire.group(99, b"\x00\x00"),
    wire.group(99, wire.length(1, b"abc")[:-1]),
    wire.tag(99, wire.GROUP),
    wire.tag(99, wire.END_GROUP),
    *(wire.nested_groups(depth) for depth in range(88, 104)),
    *(wire.nested_groups(depth, 1) for depth in (90, 101)),
    wire.nested_groups(100_000),
    *(wire.length(field, bytes(size)) for field in (2, 6, 7) for size in (1, 7, 8, 9, 16)),
    *(wire.length(field, b"\x80") for field in range(1, 12)),
)  # fmt: skip


@pytest.mark.parametrize("signal", SIGNALS)
def test_oddities_of_the_wire_format_are_judged_alike_in_every_message(
    signal: OtlpSignal, agree: Agreement
) -> None:
    accepted = refused = 0
    seen: set[str] = set()
    for way in wire.paths(wire.REQUESTS[signal].DESCRIPTOR):
        message: Descriptor | None = way[-1].containing_type
        assert message is not None
        if message.full_name in seen:
            continue
        seen.add(message.full_name)
        for turn, oddity in enumerate(ODDITIES):
            found = agree(signal, enclosed(oddity, way, before=turn % 2 == 0))
            refused += isinstance(found, str)
            accepted += not isinstance(found, str)
    assert accepted and refused


# damage


@pytest.mark.parametrize("signal", SIGNALS)
@pytest.mark.parametrize("seed", range(3))
def test_a_request_cut_at_every_byte(signal: OtlpSignal, seed: int, agree: Agreement) -> None:
    body = small(signal, seed)
    both_ends(agree, signal, (body[:cut] for cut in range(len(body) + 1)))


@pytest.mark.parametrize("signal", SIGNALS)
def test_a_message_inside_cut_at_every_byte(signal: OtlpSignal, agree: Agreement) -> None:
    both_ends(agree, signal, cuts(small(signal, 0)))


@pytest.mark.parametrize("signal", SIGNALS)
def test_every_bit_flipped(signal: OtlpSignal, agree: Agreement) -> None:
    both_ends(agree, signal, flips(small(signal, 1)))


@pytest.mark.parametrize("signal", SIGNALS)
def test_every_length_changed(signal: OtlpSignal, agree: Agreement) -> None:
    for seed in range(3):
        both_ends(agree, signal, lengths(small(signal, seed)))


@pytest.mark.parametrize("signal", SIGNALS)
def test_pieces_moved_repeated_and_overwritten(signal: OtlpSignal, agree: Agreement) -> None:
    rnd = random.Random(f"splices of {signal}")
    bodies = [small(signal, seed) for seed in range(4)]
    both_ends(agree, signal, splices(bodies, rnd, 1500))


@pytest.mark.parametrize("signal", SIGNALS)
def test_bytes_at_random(signal: OtlpSignal, agree: Agreement) -> None:
    rnd = random.Random(f"noise for {signal}")
    for _ in range(1500):
        agree(signal, rnd.randbytes(rnd.randrange(40)))
        agree(signal, wire.enclosed(rnd.randbytes(rnd.randrange(12)), 1, 2, 2))


@pytest.mark.parametrize("signal", SIGNALS)
def test_a_request_for_another_signal(signal: OtlpSignal, agree: Agreement) -> None:
    for other in SIGNALS:
        for seed in range(4):
            agree(signal, small(other, seed))


@pytest.mark.parametrize("signal", SIGNALS)
def test_nothing_at_every_level(signal: OtlpSignal, agree: Agreement) -> None:
    for depth in range(6):
        for path in ((1, 2, 2, 5, 1, 7), (1, 1, 1, 2, 6, 1), (1, 2, 1, 3), (1, 2, 2, 9, 1, 6)):
            body = wire.enclosed(b"", *path[:depth])
            agree.all(signal, (body, body * 3))


# numbers of things

METRICS_PATHS: Final = ((1, 2, 2, 5, 1), (1, 2, 2, 9, 1))


def paths_of(signal: OtlpSignal) -> tuple[tuple[int, ...], ...]:
    return METRICS_PATHS if signal is OtlpSignal.METRICS else ((1, 2, 2),)


@pytest.mark.parametrize("signal", SIGNALS)
def test_too_many_items_at_every_level_and_just_as_many_as_allowed(
    signal: OtlpSignal, agree: Agreement
) -> None:
    for path in paths_of(signal):
        for depth in range(1, len(path) + 1):
            if path[depth - 1] in {5, 9}:
                continue  # parts of a metric's one Gauge or Histogram
            item = wire.length(path[depth - 1], b"")
            over = wire.enclosed(item * (MAX_ITEMS + 1), *path[: depth - 1])
            assert agree(signal, over) == "too_many_items"
            assert agree(signal, over + b"\xff") in {"too_many_items", "malformed"}
    most = wire.length(1, b"") * MAX_ITEMS
    assert not isinstance(agree(signal, most), str)
    assert agree(signal, most + wire.length(1, b"")) == "too_many_items"


@pytest.mark.parametrize("split", [1, 2, 1000])
def test_items_are_counted_over_all_scopes_and_resources(split: int, agree: Agreement) -> None:
    spans = wire.length(2, b"") * (MAX_ITEMS // split + 1)
    for body in (
        wire.enclosed(spans, 1, 2) * split,
        wire.length(1, wire.length(2, spans) * split),
    ):
        assert agree(OtlpSignal.TRACES, body) == "too_many_items"


def test_broken_framing_before_or_after_too_many_items(agree: Agreement) -> None:
    item = wire.length(1, b"")
    many = item * (MAX_ITEMS + 1)
    broken = wire.length(1, b"\xff")
    for body in (many + broken, broken + many, many + b"\xff", b"\x0f" + many):
        assert isinstance(agree(OtlpSignal.TRACES, body), str)
        assert isinstance(agree(OtlpSignal.METRICS, body), str)


@pytest.mark.parametrize(
    ("signal", "path"),
    [
        (OtlpSignal.TRACES, (1, 2, 2, 9)),
        (OtlpSignal.TRACES, (1, 1, 1)),
        (OtlpSignal.METRICS, (1, 2, 1, 3)),
        (OtlpSignal.METRICS, (1, 2, 2, 5, 1, 7)),
        (OtlpSignal.LOGS, (1, 2, 2, 5, 6, 1)),
    ],
)
def test_too_many_attributes_in_any_place(
    signal: OtlpSignal, path: tuple[int, ...], agree: Agreement
) -> None:
    many = wire.length(path[-1], b"") * (MAX_ATTRIBUTES + 1)
    body = enclosed(many, way_of(signal, path), before=True)
    assert agree(signal, body) == "too_many_items"


def test_a_merged_message_may_be_sent_in_many_parts(agree: Agreement) -> None:
    """Parts of one message are no items, however many there are."""
    parts = wire.length(1, b"") * (MAX_ITEMS + 10)
    assert not isinstance(agree(OtlpSignal.TRACES, wire.length(1, parts)), str)
    metric = wire.length(5, wire.length(1, b"")) * 2000
    assert not isinstance(agree(OtlpSignal.METRICS, wire.enclosed(metric, 1, 2, 2)), str)
