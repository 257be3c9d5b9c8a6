"""State across a restart: the first snapshot equals the last, then trust is earned again."""

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from pipeline.clock import HandClock
from pipeline.errors import Rejected
from pipeline.model import Override, State
from tests.decide.world import Fleet


def seasoned(n: int = 6) -> Fleet:
    """A fleet with a slow, an open and an overridden endpoint."""
    fleet = Fleet((n,), calls_per_s=10)
    fleet.signal("queue_depth", 0.0)
    fleet.latency(0, 4.0)
    fleet.run(5)
    fleet.kill(1)
    fleet.decider.overrides.set(
        Override(scope="endpoint", target="ep-2", action="pin", value=123, reason="drill")
    )
    fleet.run(2)
    return fleet


def restarted(fleet: Fleet, *, after_s: float = 5.0) -> Fleet:
    """Another process with the same endpoints, none heard yet, and the exported state."""
    other = Fleet((fleet.used,), calls_per_s=0)
    wall = fleet.clock.now().plus_s(after_s)
    other.clock = HandClock(wall._replace(mono_ns=77))
    other.epoch = fleet.epoch
    other.observation.heard_age_s[:] = np.inf
    other.observation.signals.age_s[:] = np.inf
    other.observation.up_samples[:] = 0
    state = json.loads(json.dumps(fleet.decider.export_state()))
    other.decider.restore(state, other.directory)
    return other


@pytest.mark.parametrize(
    "damage",
    [
        lambda state: state.update(rules=""),
        lambda state: state["rules"].__setitem__(0, 0),
        lambda state: state["columns"]["latency"]["row"].__setitem__(0, 2**64 - 1),
        lambda state: state["columns"]["faults"]["until_ns"].__setitem__(0, float("nan")),
        lambda state: state["columns"]["weights"]["level"].__setitem__(0, float("inf")),
        lambda state: state["columns"]["weights"]["level"].__setitem__(0, 1e308),
        lambda state: state["columns"]["weights"].update(level="high"),
        lambda state: state["authority"].update({"a pool": -1}),
        lambda state: state.pop("elapsed_ns"),
    ],
)
def test_state_that_cannot_be_meant_is_refused_at_once_and_never_at_a_tick(
    damage: Callable[[dict[str, Any]], None],
) -> None:
    state = json.loads(json.dumps(seasoned().decider.export_state()))
    damage(state)
    fresh = Fleet((6,), calls_per_s=0)
    with pytest.raises((Rejected, LookupError, OverflowError, TypeError, ValueError)):
        fresh.decider.restore(state, fresh.directory)


def test_an_absurd_running_time_is_bounded() -> None:
    state = json.loads(json.dumps(seasoned().decider.export_state()))
    fresh = Fleet((6,), calls_per_s=0)
    fresh.decider.restore(state | {"elapsed_ns": 2**63}, fresh.directory)
    assert fresh.tick().weight[:6].any()


def hear(fleet: Fleet, *slots: int) -> None:
    fleet.observation.heard_age_s[list(slots)] = 0.1
    fleet.observation.up_samples[list(slots)] = 1
    fleet.observation.signals.value[0, list(slots)] = 1.0
    fleet.observation.signals.age_s[0, list(slots)] = 0.1


def test_the_first_snapshot_after_a_restart_equals_the_last_one() -> None:
    fleet = seasoned()
    last = fleet.tick()
    assert fleet.weights()[:3] == [72, 0, 123]
    other = restarted(fleet)
    first = other.tick()
    np.testing.assert_array_equal(first.weight[:6], last.weight[:6])
    np.testing.assert_array_equal(first.state[:6], last.state[:6])
    np.testing.assert_array_equal(first.decided_weight[:6], last.decided_weight[:6])
    np.testing.assert_array_equal(first.decided_state[:6], last.decided_state[:6])
    assert first.rule[:6] == last.rule[:6]
    np.testing.assert_allclose(first.confidence[3:6], last.confidence[3:6] / 2)
    assert first.pools[0].frozen
    assert "restarted" in first.pools[0].note


def test_nothing_moves_and_nothing_opens_before_anything_is_heard() -> None:
    fleet = seasoned()
    fleet.tick()
    other = restarted(fleet)
    for _ in range(300):
        other.tick(1.0)
        assert other.weights() == fleet.weights()
        assert other.states() == fleet.states()


def test_the_pool_stays_frozen_until_four_fifths_are_heard() -> None:
    fleet = seasoned()
    fleet.tick()
    other = restarted(fleet)
    other.tick()
    hear(other, 0, 2, 3, 4)
    assert other.tick().pools[0].frozen
    hear(other, 5)
    assert not other.tick().pools[0].frozen


def test_or_until_three_intervals_have_passed() -> None:
    fleet = seasoned()
    fleet.tick()
    other = restarted(fleet)
    other.tick()
    hear(other, 3)
    assert other.run(2.5).pools[0].frozen
    assert not other.run(15).pools[0].frozen


def test_an_endpoint_moves_only_after_three_of_its_own_intervals() -> None:
    fleet = seasoned()
    fleet.tick()
    other = restarted(fleet)
    hear(other, *range(6))
    other.observation.signals.interval_s[:] = 4.0
    for seconds, each in other.observation.windows.items():
        each.ttft_n[:] = each.duration_n[:] = 10 * seconds
        each.ttft_p50_s[:], each.duration_p50_s[:] = 0.1, 1.0
    for _ in range(110):
        other.tick()
        assert other.weights()[0] == fleet.weights()[0]
    other.run(10)
    assert other.weights()[0] > 200


def test_hard_evidence_opens_during_the_hold() -> None:
    fleet = seasoned()
    fleet.tick()
    other = restarted(fleet)
    other.tick()
    hear(other, *range(6))
    other.kill(4)
    other.tick()
    assert other.states()[4] is State.OPEN
    assert other.weights()[4] == 0


def test_circuits_older_than_ten_minutes_are_dropped_and_learned_rates_are_not() -> None:
    fleet = seasoned()
    fleet.signal("running", 8.0)
    fleet.signal("itl_mean_s", [0.01] + [0.02] * 5)
    fleet.run(60)
    other = restarted(fleet, after_s=700.0)
    snapshot = other.tick()
    assert snapshot.decided_state[1] == State.UNKNOWN
    assert other.weights()[1] > 0
    assert other.states()[2] is State.HEALTHY
    rates = other.decider.export_state()["columns"]["capacity"]["decode_rate"]
    assert rates[0] > 1.5 * rates[2]


def test_endpoints_that_appear_later_get_their_state_then() -> None:
    fleet = seasoned()
    fleet.tick()
    other = restarted(fleet)
    known = other.directory.known.copy()
    late = known.copy()
    late[[0, 1]] = False
    other.change_directory(known=late)
    other.tick()
    other.change_directory(known=known)
    other.tick()
    assert other.weights() == fleet.weights()
    assert other.states() == fleet.states()


def test_back_off_continues_where_it_was() -> None:
    fleet = seasoned()
    retry = fleet.decider.export_state()["columns"]["circuits"]["retry_ns"][1]
    other = restarted(fleet, after_s=1.0)
    other.tick()
    state = other.decider.export_state()
    assert state["columns"]["circuits"]["retry_ns"][1] == retry
    assert state["elapsed_ns"] - fleet.decider.export_state()["elapsed_ns"] == pytest.approx(
        1.1e9, abs=2e8
    )


def test_state_of_another_version_or_shape_is_refused() -> None:
    fleet = seasoned()
    state = fleet.decider.export_state()
    with pytest.raises(Rejected, match="version"):
        Fleet((6,)).decider.restore({**state, "version": 99}, fleet.directory)
    with pytest.raises(Rejected, match="for each endpoint"):
        Fleet((6,)).decider.restore({**state, "ids": ["ep-0"]}, fleet.directory)


def test_state_without_endpoints_restores_to_a_fresh_start() -> None:
    fleet = Fleet((3,))
    fleet.decider.restore(Fleet((3,)).decider.export_state(), fleet.directory)
    fleet.run(1)
    assert fleet.weights() == [1000] * 3
    assert fleet.snapshot is not None
    assert not fleet.snapshot.pools[0].frozen
