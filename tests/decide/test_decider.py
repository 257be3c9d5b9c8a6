"""The stage as a whole: determinism, slots, pools, events, and what a snapshot holds."""

from dataclasses import fields, replace

import numpy as np
import pytest

from pipeline.decide.config import DecideConfig
from pipeline.decide.journal import MAX_EVENTS
from pipeline.model import MAX_REASONS, Directory, PoolConfig, Snapshot, State
from pipeline.signals import SIGNAL_INDEX
from tests.decide.world import Fleet, directory


def packed(snapshot: Snapshot) -> bytes:
    """Every column and text of a snapshot as bytes."""
    parts = []
    for field in fields(snapshot):
        value = getattr(snapshot, field.name)
        if isinstance(value, np.ndarray):
            parts.append(value.tobytes())
        elif not isinstance(value, Directory):
            parts.append(repr(value).encode())
    return b"|".join(parts)


def turbulent() -> bytes:
    """Two pools through noise, deaths, silence and a new directory."""
    rng = np.random.default_rng(11)
    fleet = Fleet((7, 4), calls_per_s=10)
    packs = []
    for tick in range(120):
        for slot in range(11):
            fleet.latency(slot, float(rng.lognormal(0, 0.4)))
        fleet.signal("queue_depth", rng.poisson(4, 11).astype(np.float64))
        fleet.signal("running", rng.poisson(8, 11).astype(np.float64))
        fleet.signal("itl_mean_s", rng.uniform(0.01, 0.03, 11))
        if tick == 40:
            fleet.kill(2)
        if tick == 60:
            fleet.change_directory()
        packs.append(packed(fleet.tick(silent=[5] if tick > 70 else [])))
    return b"".join(packs)


def test_equal_inputs_give_equal_bytes() -> None:
    assert turbulent() == turbulent()


def test_snapshot_columns_have_the_directorys_length_and_no_gaps_where_used() -> None:
    fleet = Fleet((5, 1))
    snapshot = fleet.run(1)
    n = fleet.n
    assert snapshot.weight.shape == snapshot.state.shape == snapshot.score.shape == (n,)
    assert snapshot.weight.dtype == np.uint32
    assert snapshot.state.dtype == np.uint8
    assert snapshot.reason_signal.shape == snapshot.reason_points.shape == (n, MAX_REASONS)
    assert len(snapshot.rule) == n
    assert [pool.name for pool in snapshot.pools] == ["pool-0", "pool-1"]
    assert snapshot.target.tolist() == [True] * 6 + [False] * 2
    assert (snapshot.weight[6:] == 0).all()
    assert (snapshot.state[6:] == State.UNKNOWN).all()


def test_a_snapshot_is_not_changed_by_later_ticks() -> None:
    fleet = Fleet((4,))
    first = fleet.run(1)
    before = packed(first)
    fleet.kill(0)
    fleet.latency(1, 9.0)
    fleet.run(5)
    assert packed(first) == before


def test_reasons_explain_a_low_weight() -> None:
    fleet = Fleet((4,))
    fleet.latency(0, 4.0)
    snapshot = fleet.run(5)
    assert snapshot.reason_signal[0, 0] == SIGNAL_INDEX["window_ttft_p50_s"]
    assert snapshot.reason_value[0, 0] == pytest.approx(0.4)
    assert snapshot.reason_peer[0, 0] == pytest.approx(0.1)
    assert 1 + snapshot.reason_points[0].sum() == pytest.approx(snapshot.score[0])


def test_each_pool_is_scored_by_its_own_profile() -> None:
    pools = (
        PoolConfig(name="pool-0", authority="act", profile="hardware"),
        PoolConfig(name="*", authority="act"),
    )
    fleet = Fleet((3, 3), pools=pools)
    fleet.signal("cuda_stream_block_ratio", [1.0, 0.0, 0.0] * 2)
    fleet.signal("prefix_hit_ratio", 1.0)
    snapshot = fleet.run(5)
    assert snapshot.score[0] == pytest.approx((0.3 / 1.01) / (0.4 + 0.3 / 1.01))
    assert snapshot.reason_signal[0, 0] == SIGNAL_INDEX["cuda_stream_block_ratio"]
    assert fleet.weights()[0] == pytest.approx(1000 * snapshot.score[0], rel=0.06)
    assert fleet.weights()[1:] == [1000] * 5


def test_a_reused_slot_starts_without_the_old_endpoints_past() -> None:
    fleet = Fleet((4,))
    fleet.run(12)
    fleet.kill(1)
    fleet.run(2)
    fleet.observation.down_samples[1] = fleet.observation.refused_recent[1] = 0
    ids = tuple("ep-new" if name == "ep-1" else name for name in fleet.directory.id)
    fleet.change_directory(id=ids)
    snapshot = fleet.tick()
    assert fleet.states()[1] is State.HEALTHY
    assert snapshot.rule[1] == ""
    assert 0 < fleet.weights()[1] <= 120, "slow start: the pool is old"


def test_a_growing_directory_keeps_what_was_decided() -> None:
    fleet = Fleet((3,))
    fleet.latency(0, 4.0)
    fleet.run(12)
    low = fleet.weights()[0]
    larger = Fleet((9,))
    larger.decider, larger.clock, larger.epoch = fleet.decider, fleet.clock, fleet.epoch
    larger.directory = replace(directory((9,)), version=2)
    larger.observation = replace(larger.observation, directory=larger.directory)
    larger.latency(0, 4.0)
    larger.tick()
    assert larger.weights()[:3] == [low, 1000, 1000]
    assert all(weight <= 120 for weight in larger.weights()[3:])


def test_forgotten_slots_are_unknown_again() -> None:
    fleet = Fleet((4,))
    fleet.kill(0)
    fleet.run(1)
    fleet.decider.forget(np.array([0]))
    state = fleet.decider.export_state()["columns"]["circuits"]["state"]
    assert state == [State.UNKNOWN] + [State.HEALTHY] * 3


def test_endpoints_without_pool_or_address_or_membership_are_no_targets() -> None:
    fleet = Fleet((4,))
    where = fleet.directory
    where.pool[0] = -1
    where.member[1] = False
    fleet.directory = replace(where, address=("a:1", "b:1", "", "d:1"))
    fleet.observation = replace(fleet.observation, directory=fleet.directory)
    snapshot = fleet.run(1)
    assert snapshot.target.tolist() == [False, False, False, True]
    assert snapshot.weight.tolist() == [1000] * 4


def test_an_empty_fleet_is_an_empty_snapshot() -> None:
    fleet = Fleet((1,))
    fleet.directory.known[:] = False
    fleet.directory.pool[:] = -1
    snapshot = fleet.run(1)
    assert not snapshot.target.any()
    assert (snapshot.weight == 0).all()
    assert snapshot.events == ()


@pytest.mark.parametrize("size", [1, 2, 3])
def test_small_pools_work_like_large_ones(size: int) -> None:
    fleet = Fleet((size,), calls_per_s=10)
    fleet.run(2)
    assert fleet.weights() == [1000] * size
    fleet.failing(0, 0.9)
    fleet.run(1)
    state = fleet.states()[0]
    assert state is (State.DEGRADED if size == 1 else State.OPEN)
    assert fleet.weights()[1:] == [1000] * (size - 1)


def test_events_name_time_endpoint_and_pool_and_come_once() -> None:
    fleet = Fleet((3, 2))
    fleet.run(1)
    fleet.kill(4)
    snapshot = fleet.tick()
    (event,) = snapshot.events
    assert event.time_ns == fleet.clock.now().wall_ns
    assert (event.kind, event.endpoint, event.pool) == ("state", "ep-4", "pool-1")
    assert event.text == "opened: 4 connections refused within 3 s, none accepted"
    assert fleet.tick().events == ()


def test_a_tick_has_a_bounded_number_of_events_and_counts_the_rest() -> None:
    fleet = Fleet((1500,))
    fleet.tick()
    fleet.tick()
    fleet.observation.down_samples[:] = 2
    snapshot = fleet.tick()
    assert len(snapshot.events) == MAX_EVENTS + 1
    assert snapshot.events[-1].text == "501 more events in this tick were left out"


def test_one_pool_does_not_move_another() -> None:
    calm, wild = Fleet((3, 3)), Fleet((3, 3))
    rng = np.random.default_rng(2)
    for tick in range(100):
        for slot in (3, 4, 5):
            wild.latency(slot, float(rng.lognormal(0, 1)))
        if tick == 50:
            wild.kill(4)
        calm.tick()
        wild.tick()
        assert calm.weights()[:3] == wild.weights()[:3]


def test_an_empty_configuration_is_the_default_and_observes() -> None:
    fleet = Fleet((3,), config=DecideConfig(), pools=())
    fleet.kill(0)
    snapshot = fleet.run(2)
    assert fleet.weights() == [1000] * 3
    assert fleet.states() == [State.HEALTHY] * 3
    assert snapshot.decided_state[0] == State.OPEN
