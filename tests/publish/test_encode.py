"""Hand-laid bytes against the protobuf library, rounding against decimal text."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline import model
from pipeline.publish.encode import (
    OBSERVERS,
    Heads,
    event_record,
    full_records,
    pool_record,
    round_significant,
    routing_records,
    tombstone_record,
)
from pipeline.publish.records import canonical
from pipeline.signals import SIGNALS
from pipeline.wire import decisions_pb2 as wire
from tests.publish.fleet import Row, decisions, snapshot


@given(st.floats(allow_nan=True, allow_infinity=True))
def test_rounding_keeps_four_significant_digits(value: float) -> None:
    rounded = float(round_significant(np.array([value]))[0])
    if math.isnan(value):
        assert math.isnan(rounded)
    elif abs(value) >= 1e290:
        assert rounded == value
    elif abs(value) < 1e-290:
        assert rounded == 0.0
    else:
        assert rounded == pytest.approx(value, rel=5.001e-4)
        assert rounded == pytest.approx(float(f"{rounded:.4g}"), rel=1e-12)


@given(st.floats(min_value=-1e9, max_value=1e9))
def test_rounding_twice_changes_nothing(value: float) -> None:
    once = round_significant(np.array([value]))
    assert round_significant(once).tolist() == once.tolist()


def test_rounding_of_no_values_is_no_values() -> None:
    assert round_significant(np.zeros((0, 5))).shape == (0, 5)


def test_a_routing_record_holds_what_routing_needs_and_nothing_else() -> None:
    row = Row("a", weight=731, state=model.State.DEGRADED, admission=0.5, zone="z", rule="r")
    (record,) = routing_records(snapshot([row], epoch=1), np.array([0]))
    expected = wire.Endpoint(
        id="a",
        pool="llama",
        address="10.0.0.1:8000",
        zone="z",
        weight=731,
        state=wire.STATE_DEGRADED,
        admission=0.5,
    )
    assert wire.Snapshot.FromString(record) == wire.Snapshot(endpoints=[expected])


figures = st.floats(min_value=-1e6, max_value=1e6)
reasons = st.lists(
    st.tuples(st.integers(-1, len(SIGNALS) - 1), figures, figures, figures, st.integers(-1, 3)),
    min_size=model.MAX_REASONS,
    max_size=model.MAX_REASONS,
)


@given(reasons)
def test_a_full_record_parses_to_the_message_that_the_library_would_build(
    drawn: list[tuple[int, float, float, float, int]],
) -> None:
    base = snapshot(
        [Row("a", confidence=0.987, score=0.123456, rule="held", models=("m", "n"))], epoch=1
    )
    signal, value, peer, points, observer = (
        np.array([column]) for column in zip(*drawn, strict=True)
    )
    shot = replace(
        base,
        reason_signal=signal.astype(np.int32),
        reason_value=value,
        reason_peer=peer,
        reason_points=points,
        reason_observer=observer.astype(np.int32),
    )
    expected = wire.Endpoint(
        id="a",
        pool="llama",
        address="10.0.0.1:8000",
        weight=1000,
        state=wire.STATE_HEALTHY,
        admission=1.0,
        node="node-a",
        engine="vllm",
        role="both",
        models=["m", "n"],
        confidence=0.99,
        rule="held",
        decided_weight=1000,
        decided_state=wire.STATE_HEALTHY,
        score=0.1235,
        reasons=[
            wire.Reason(
                signal=SIGNALS[s],
                value=float(round_significant(np.array([v]))[0]),
                peer_median=float(round_significant(np.array([p]))[0]),
                points=float(round_significant(np.array([q]))[0]),
                observer=OBSERVERS[o] if o >= 0 else "",
            )
            for s, v, p, q, o in drawn
            if s >= 0
        ],
    )
    (record,) = full_records(shot, np.array([0]))
    assert wire.Snapshot.FromString(record) == wire.Snapshot(endpoints=[expected])


@pytest.mark.parametrize("length", [0, 1, 60, 127, 128, 16_383, 20_000])
def test_a_record_of_any_length_carries_its_length(length: int) -> None:
    row = Row("a", rule="r" * length)
    (record,) = full_records(snapshot([row], epoch=1), np.array([0]))
    assert wire.Snapshot.FromString(record).endpoints[0].rule == row.rule


def test_a_non_member_is_told_as_unmatched_with_the_reason() -> None:
    shot = snapshot([Row("a", member=False), Row("b", member=False, pool="")], epoch=1)
    parsed = wire.Snapshot.FromString(b"".join(full_records(shot, np.array([0, 1]))))
    assert [(each.id, each.why) for each in parsed.unmatched] == [
        ("a", "no member of pool llama"),
        ("b", "in no pool"),
    ]
    assert not parsed.endpoints


def test_records_of_other_kinds_parse_as_what_they_are() -> None:
    (pool,) = decisions(["llama"], note="calm")
    event = model.Event(7, "state", "a", "llama", "opened")
    data = pool_record(pool) + event_record(event) + tombstone_record("gone", 5)
    assert wire.Snapshot.FromString(data) == wire.Snapshot(
        pools=[wire.Pool(name="llama", authority=wire.AUTHORITY_ACT, note="calm")],
        events=[
            wire.Event(time_unix_ns=7, kind="state", endpoint="a", pool="llama", text="opened")
        ],
        removed=[wire.Tombstone(id="gone", epoch=5)],
    )


def test_wire_numbers_are_those_of_the_model() -> None:
    assert {state.name: int(state) for state in model.State} == {
        name.removeprefix("STATE_"): number for name, number in wire.State.items()
    }
    assert {each.name: int(each) for each in model.Authority} == {
        name.removeprefix("AUTHORITY_"): number for name, number in wire.Authority.items()
    }


def test_canonical_bytes_depend_on_the_snapshot_alone_and_on_all_of_it() -> None:
    rows = [Row("b"), None, Row("a", member=False)]
    base = snapshot(rows, epoch=1)
    assert canonical(base) == canonical(snapshot(rows, epoch=1))
    parsed = wire.Snapshot.FromString(canonical(base))
    assert [each.id for each in parsed.endpoints] == ["b"]
    assert [each.id for each in parsed.unmatched] == ["a"]
    others = [
        snapshot(rows, epoch=2),
        snapshot(rows, epoch=1, time_s=1.0),
        snapshot([replace(rows[0] or Row(""), queue=1.0), *rows[1:]], epoch=1),
        snapshot(rows, epoch=1, pools=decisions(["llama"], note="x")),
        snapshot(rows, epoch=1, events=[model.Event(1, "k", "", "", "t")]),
    ]
    assert len({canonical(base), *map(canonical, others)}) == 1 + len(others)


def test_records_with_remembered_heads_are_those_without() -> None:
    """Whatever changes from one snapshot to the next, the directory included."""
    heads = Heads()
    row = Row("a", rule="held")
    for changed in (
        row,
        row,
        replace(row, weight=0, admission=0.0),
        replace(row, state=model.State.OPEN),
        replace(row, confidence=0.5),
        replace(row, rule="r"),
        replace(row, score=0.0),
        replace(row, score=math.nan),
        replace(row, queue=3.0),
        replace(row, zone="z"),
        replace(row, member=False),
    ):
        shot = snapshot([changed, Row("b")], epoch=1)
        slots = np.array([0, 1])
        assert full_records(shot, slots, heads) == full_records(shot, slots)
        kept = replace(shot, rule=("another", ""))
        assert full_records(kept, slots, heads) == full_records(kept, slots)
