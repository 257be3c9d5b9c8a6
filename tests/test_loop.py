"""The whole decision path on a hand-moved clock: membership, rights, silence, restarts."""

import msgspec
import pytest

from pipeline.journal import Members, Operation
from pipeline.loop import UnusableState
from pipeline.model import OtlpSignal, Override, Rights, Sender, State
from pipeline.publish.records import canonical
from tests.builders import span_request
from tests.hand_fleet import HandFleet, published, static_pool

ADDRESSES = [f"10.0.0.{i}:8000" for i in range(1, 5)]
OVERRIDE = Operation(set=Override(scope="pool", target="m", action="cap", value=900, owner="ops"))
APPLICATION = Sender("10.7.7.7", Rights.METRICS)


def equal(snapshot_weights: dict[str, tuple[int, int]]) -> bool:
    weights = [weight for weight, _ in snapshot_weights.values()]
    return max(weights) <= 1.15 * min(weights)


def test_a_healthy_fleet_of_equals_has_equal_weights() -> None:
    fleet = HandFleet(ADDRESSES)
    found = published(fleet.run(30.0))
    assert sorted(found) == ADDRESSES
    assert {state for _, state in found.values()} == {State.HEALTHY}
    assert equal(found)


def test_a_dead_endpoint_is_out_within_two_scrapes_and_back_after_it_serves() -> None:
    fleet = HandFleet(ADDRESSES)
    fleet.run(20.0)
    fleet.down = {ADDRESSES[2]}
    found = published(fleet.run(2.0))
    assert found[ADDRESSES[2]] == (0, State.OPEN)
    assert all(found[each][1] == State.HEALTHY for each in ADDRESSES if each != ADDRESSES[2])
    fleet.down = set()
    found = published(fleet.run(30.0))
    assert found[ADDRESSES[2]][1] == State.HEALTHY


def test_a_slow_endpoint_loses_most_of_its_share_within_seconds() -> None:
    fleet = HandFleet(ADDRESSES)
    before = published(fleet.run(20.0))[ADDRESSES[0]][0]
    fleet.latency_s[ADDRESSES[0]] = 0.8
    after = published(fleet.run(6.0))[ADDRESSES[0]][0]
    assert after < before / 2


def test_an_application_moves_neither_membership_nor_weights() -> None:
    """An invented address, a claim on another pool, errors told of a rival: one note, no effect."""
    quiet, lied_to = HandFleet(ADDRESSES), HandFleet(ADDRESSES)
    expected = quiet.run(20.0)
    lied_to.run(20.0)
    notes: list[str] = []
    for _ in range(50):
        expected = quiet.run(0.1)
        lie = span_request(
            (
                {"service.name": "app", "tailrace.endpoint": "mine", "tailrace.pool": "chat"},
                [
                    {
                        "kind": 3,
                        "server.address": "10.0.0.1",
                        "server.port": 8000,
                        "tailrace.address": "10.6.6.6:1",
                        "gen_ai.operation.name": "chat",
                        "error.type": "ConnectionRefusedError",
                        "status": 2,
                        "start_ns": lied_to.clock.now().wall_ns - 1,
                        "end_ns": lied_to.clock.now().wall_ns,
                    }
                ]
                * 20,
            )
        )
        lied_to.send(OtlpSignal.TRACES, lie.SerializeToString(), APPLICATION)
        got = lied_to.run(0.1)
        notes += [event.text for event in got.events if event.kind == "note"]
        assert published(got) == published(expected)
        assert got.directory.id == expected.directory.id
    assert lied_to.dropped["normalise/sender_rights"] == 50 * 20
    assert len(notes) == len(set(notes)) == 1
    assert APPLICATION.peer in notes[0]


def test_ten_minutes_of_silence_keep_members_and_freeze_weights() -> None:
    fleet = HandFleet(ADDRESSES)
    fleet.latency_s[ADDRESSES[0]] = 0.4
    before = published(fleet.run(60.0))
    fleet.silent = True
    fleet.run(15.0)
    frozen = fleet.run(0.1)
    assert frozen.pools[0].frozen
    held = published(frozen)
    for _ in range(60):
        assert published(fleet.run(10.0, tick_s=2.0)) == held
    assert {name: state for name, (_, state) in held.items()} == {
        name: state for name, (_, state) in before.items()
    }
    for name in ADDRESSES:
        assert abs(held[name][0] - before[name][0]) <= 0.2 * before[name][0]


def test_the_first_snapshot_after_a_restart_equals_the_last_and_nothing_jumps() -> None:
    fleet = HandFleet(ADDRESSES)
    fleet.latency_s[ADDRESSES[1]] = 0.5
    last = fleet.run(60.0)
    state = fleet.loop.export_state()
    fleet.loop = fleet.new_loop()
    fleet.loop.restore(state)
    first = fleet.loop.tick(fleet.clock.advance(2.0))
    assert first.epoch > last.epoch
    assert published(first) == published(last)
    assert (first.confidence[first.target] < 1.0).all()
    previous = published(first)
    for _ in range(300):
        now = published(fleet.run(0.1))
        for name, (weight, state_now) in now.items():
            assert state_now in (State.HEALTHY, State.DEGRADED)
            assert abs(weight - previous[name][0]) <= 0.3 * previous[name][0]
        previous = now


def test_a_member_that_its_list_drains_gets_nothing_new_until_the_list_takes_it_back() -> None:
    fleet = HandFleet(ADDRESSES)
    before = published(fleet.run(20.0))
    listed = fleet.config.pools[0].members
    drained = (msgspec.structs.replace(listed[0], draining=True), *listed[1:])
    fleet.loop.apply(Members("chat", drained))
    found = published(fleet.run(1.0))
    assert found[ADDRESSES[0]] == (0, State.DRAINING)
    assert {found[name] for name in ADDRESSES[1:]} == {before[name] for name in ADDRESSES[1:]}
    fleet.loop.apply(Members("chat", listed))
    assert published(fleet.run(20.0))[ADDRESSES[0]][1] == State.HEALTHY


def test_authority_observe_tells_receivers_nothing_and_people_everything() -> None:
    fleet = HandFleet(ADDRESSES, static_pool(ADDRESSES, authority="observe"))
    fleet.run(20.0)
    fleet.down = {ADDRESSES[2]}
    snapshot = fleet.run(3.0)
    assert set(published(snapshot).values()) == {(1000, State.HEALTHY)}
    slot = snapshot.directory.id.index(ADDRESSES[2])
    assert snapshot.decided_state[slot] == State.OPEN


def test_an_endpoint_outside_the_membership_is_shown_and_never_a_target() -> None:
    fleet = HandFleet(ADDRESSES, static_pool(ADDRESSES[:3]))
    snapshot = fleet.run(10.0)
    assert sorted(published(snapshot)) == ADDRESSES[:3]
    directory = snapshot.directory
    strangers = [directory.id[i] for i in directory.slots() if not directory.member[i]]
    assert strangers == [ADDRESSES[3]]


@pytest.mark.parametrize("rows", [7, 2_000, 100_000])
def test_however_a_batch_is_sliced_the_snapshots_are_the_same_bytes(
    rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = canonical(HandFleet(ADDRESSES).run(12.0))
    monkeypatch.setattr("pipeline.loop.SLICE_ROWS", rows)
    assert canonical(HandFleet(ADDRESSES).run(12.0)) == expected


MISSHAPEN: dict[str, list[object]] = {
    "loop": [{}, {"epoch": None}, {"epoch": float("inf")}, {"epoch": -1}, {"epoch": 1 << 63}, []],
    "identity": [None, {"endpoints": 3}, {"endpoints": [{"slot": 0}]}],
    "fold": [{}, {"sources": None}, {"sources": {"source": b"x", "offset_ns": b"x"}}],
    "overrides": [{}, None, {"overrides": None}],
    "decide": [{}, {"version": 99}, {"version": 1, "ids": ["a"], "columns": {"x": {"y": []}}}],
}


@pytest.mark.parametrize(
    ("stage", "part"), [(stage, part) for stage, parts in MISSHAPEN.items() for part in parts]
)
def test_state_of_another_shape_names_its_stage(stage: str, part: object) -> None:
    fleet = HandFleet(ADDRESSES)
    state = {**fleet.loop.export_state(), stage: part}
    with pytest.raises(UnusableState) as error:
        fleet.new_loop().restore(state)  # type: ignore[arg-type]  # as a file may hold it
    assert error.value.stage == stage


def test_a_loop_that_was_empty_for_a_while_decides_as_one_that_was_asked_rarely() -> None:
    """Ticks without any endpoint leave no trace but the time, and overrides are told of in them."""
    often, rarely = (HandFleet([], "{}") for _ in range(2))
    for fleet, tick_s in ((often, 0.1), (rarely, 10.0)):
        fleet.silent = True
        fleet.run(20.0, tick_s)
        fleet.loop.operate(OVERRIDE, fleet.clock.now())
        snapshot = fleet.loop.tick(fleet.clock.advance(10.0))
        assert [event.kind for event in snapshot.events] == ["override_start"]
        assert not fleet.loop.tick(fleet.clock.advance(0.1)).events
        assert snapshot.epoch < fleet.loop.epoch
    snapshots = []
    for fleet in (often, rarely):
        fleet.silent = False
        fleet.addresses = ADDRESSES
        fleet.tokens = dict.fromkeys(ADDRESSES, 0.0)
        fleet.running = dict.fromkeys(ADDRESSES, 4.0)
        fleet.latency_s = dict.fromkeys(ADDRESSES, 0.2) | {ADDRESSES[0]: 0.9}
        snapshots.append(fleet.run(10.0))
    assert canonical(snapshots[0]) == canonical(snapshots[1])
    assert published(snapshots[0])
