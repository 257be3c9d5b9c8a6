"""The native decoder gives what the reference decoder gives, for whatever can be said in OTLP."""

import random
from collections.abc import Iterator
from itertools import islice
from typing import Any, Final

import pytest
from google.protobuf.message import DecodeError

from pipeline.model import OtlpSignal
from tests.decode import oracle, wire
from tests.decode.same import Agreement, assert_same_columns, shown
from tests.decode.sound import SOUND, enclosed

SIGNALS: Final = list(OtlpSignal)
SEEDS: Final = 200

# generated requests


def generated(signal: OtlpSignal, n: int, **options: Any) -> Iterator[bytes]:
    """n bodies, the same ones each time."""
    for seed in range(n):
        rnd = random.Random(f"{signal}-{seed}")
        yield wire.Emitter(rnd, fields=rnd.choice((40, 150, 600)), **options).request(signal)


@pytest.mark.parametrize("signal", SIGNALS)
@pytest.mark.parametrize("disorder", [0.0, 0.03, 0.3])
def test_generated_requests_decode_alike(
    signal: OtlpSignal, disorder: float, agree: Agreement
) -> None:
    accepted = sum(
        not isinstance(agree(signal, body), str)
        for body in generated(signal, SEEDS, disorder=disorder)
    )
    assert accepted > SEEDS / 10


@pytest.mark.parametrize("signal", SIGNALS)
def test_the_generator_sends_every_public_field(signal: OtlpSignal) -> None:
    root = wire.REQUESTS[signal].DESCRIPTOR
    sent: set[str] = set()
    for seed in range(SEEDS):
        emitter = wire.Emitter(random.Random(f"{signal}-{seed}"))
        emitter.request(signal)
        sent |= emitter.emitted
    messages = wire.messages(root).values()
    assert sent == {item.full_name for message in messages for item in message.fields}


ORACLES: Final[dict[OtlpSignal, tuple[Any, Any]]] = {
    OtlpSignal.TRACES: (oracle.span_rows, oracle.expected_spans),
    OtlpSignal.METRICS: (oracle.point_rows, oracle.expected_points),
    OtlpSignal.LOGS: (oracle.log_rows, oracle.expected_logs),
}


@pytest.mark.parametrize("signal", list(ORACLES))
def test_generated_requests_are_what_the_official_classes_say(
    signal: OtlpSignal, agree: Agreement
) -> None:
    rows, expected = ORACLES[signal]
    compared = 0
    for body in generated(signal, SEEDS, disorder=0.0, texts=wire.VALID_TEXTS):
        columns = agree(signal, body)
        try:
            request = wire.REQUESTS[signal].FromString(body)
        except DecodeError:  # nested too deep for it, or an attribute that is no message
            continue
        compared += 1
        assert rows(columns) == expected(request), shown(body)
    assert compared > SEEDS / 2


# every field, in a message that is sound without it


@pytest.mark.parametrize("signal", SIGNALS)
def test_every_public_field_decodes_alike_with_every_value(
    signal: OtlpSignal, agree: Agreement
) -> None:
    for way in wire.paths(wire.REQUESTS[signal].DESCRIPTOR):
        item = way[-1]
        if item.message_type is None:
            values = list(wire.encodings(item))
        else:
            inner = SOUND.get(item.message_type.name, b"")
            once, empty = wire.length(item.number, inner), wire.length(item.number, b"")
            values = [once, empty, once * 2, once + empty, empty + once]
        for before in (True, False):
            agree.all(signal, (enclosed(value, way, before) for value in values))


# one decoder after many requests


@pytest.mark.parametrize("signal", SIGNALS)
def test_what_was_decoded_before_changes_nothing(signal: OtlpSignal, agree: Agreement) -> None:
    warm = agree
    for body in islice(generated(signal, SEEDS), 60):
        first = warm(signal, body)
        cold = Agreement()(signal, body)
        again = warm(signal, body)
        assert_same_columns(first, cold)
        assert_same_columns(first, again)
