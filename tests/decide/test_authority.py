"""What each authority lets through to receivers."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.decide.authority import AuthorityGate, PoolConfigs, lower
from pipeline.decide.groups import Groups
from pipeline.model import AuthorityName, PoolConfig, State
from tests.decide.world import Fleet, directory


def fleet_under(authority: AuthorityName, size: int = 6, max_shift: float = 0.2) -> Fleet:
    pool = PoolConfig(name="*", authority=authority, max_shift=max_shift)
    return Fleet((size,), pools=(pool,), calls_per_s=10)


@pytest.mark.parametrize(
    ("authority", "weights", "states"),
    [
        # one endpoint is dead, one is slow
        ("observe", [1000, 1000, 1000, 1000], [State.HEALTHY, State.HEALTHY]),
        ("veto", [0, 1000, 1000, 1000], [State.OPEN, State.HEALTHY]),
        ("weigh", [0, 72, 1000, 1000], [State.OPEN, State.HEALTHY]),
        ("act", [0, 72, 1000, 1000], [State.OPEN, State.DEGRADED]),
    ],
)
def test_what_receivers_are_told(
    authority: AuthorityName, weights: Sequence[int], states: Sequence[State]
) -> None:
    fleet = fleet_under(authority, 4, max_shift=0.5)
    fleet.latency(1, 4.0)
    fleet.run(3)
    fleet.kill(0)
    snapshot = fleet.run(3)
    assert fleet.weights() == list(weights)
    assert fleet.states()[:2] == list(states)
    assert snapshot.decided_weight[:4].tolist() == [0, 72, 1000, 1000]
    assert snapshot.decided_state[:2].tolist() == [State.OPEN, State.DEGRADED]


def test_a_veto_takes_out_at_most_a_third() -> None:
    fleet = fleet_under("veto", 6)
    fleet.run(2)
    for slot in (0, 1, 2, 3):
        fleet.kill(slot)
    fleet.tick()
    assert fleet.weights() == [0, 0, 1000, 1000, 1000, 1000]
    assert fleet.states()[2] is State.HEALTHY


def test_a_veto_leaves_a_pool_of_one_alone() -> None:
    fleet = fleet_under("veto", 1)
    fleet.run(2)
    fleet.kill(0)
    fleet.tick()
    assert fleet.weights() == [1000]


def test_weigh_only_lowers() -> None:
    fleet = fleet_under("weigh", 4)
    fleet.signal("running", [8.0] * 4)
    fleet.signal("itl_mean_s", [0.01, 0.02, 0.02, 0.02])
    fleet.run(200)
    assert fleet.snapshot is not None
    assert fleet.snapshot.decided_weight[0] > 1200
    assert fleet.weights()[0] == 1000


def test_weigh_moves_at_most_its_share_of_the_traffic_in_ten_minutes() -> None:
    fleet = fleet_under("weigh", 4, max_shift=0.1)
    fleet.run(2)
    fleet.latency(0, 4.0)
    fleet.latency(1, 4.0)
    fleet.run(10)
    neutral = np.full(4, 0.25)
    told = np.array(fleet.weights()) / sum(fleet.weights())
    shift = np.maximum(neutral - told, 0).sum()
    assert 0.08 < shift <= 0.1001
    for slot in range(4):
        fleet.latency(slot, 1.0)
    fleet.run(20)
    assert fleet.weights() == [1000] * 4, "back to neutral is always allowed"
    fleet.latency(2, 4.0)
    fleet.run(10)
    assert min(fleet.weights()) > 950, "the budget of these ten minutes is spent"
    for _ in range(125):
        fleet.tick(5.0)
    assert fleet.weights()[2] < 700, "the next ten minutes have their own"


def test_a_trial_after_a_veto_gets_its_small_share_even_without_budget() -> None:
    fleet = fleet_under("weigh", 4, max_shift=0.01)
    fleet.run(2)
    fleet.kill(0)
    fleet.run(5)
    assert fleet.weights() == [0, 1000, 1000, 1000]
    fleet.observation.refused_recent[0] = fleet.observation.down_samples[0] = 0
    fleet.observation.up_samples[0] = 1
    fleet.run(1)
    assert fleet.weights() == [20, 1000, 1000, 1000]


@given(
    st.lists(st.floats(1, 1000), min_size=2, max_size=20),
    st.floats(0, 1),
    st.integers(0, 2**32 - 1),
)
@settings(deadline=None)
def test_lowering_stays_between_where_it_is_and_where_it_goes_and_within_its_budget(
    weights: list[float], budget: float, seed: int
) -> None:
    before = np.array(weights)
    target = before * np.random.default_rng(seed).uniform(0.01, 1, len(before))
    after, shift = lower(before, target, budget)
    assert (after <= before + 1e-9).all()
    assert (after >= target - 1e-9).all()
    moved = np.maximum(before / before.sum() - after / after.sum(), 0).sum()
    assert moved <= budget + 1e-9
    np.testing.assert_allclose(moved, shift, atol=1e-12)


def test_each_raise_and_fall_of_authority_is_an_event_once() -> None:
    fleet = fleet_under("act", 2)
    texts = [event.text for event in fleet.tick().events if event.kind == "authority"]
    assert texts == ["authority raised from observe to act"]
    assert not [event for event in fleet.tick().events if event.kind == "authority"]
    fleet.decider.set_pools((PoolConfig(name="*", authority="veto"),))
    texts = [event.text for event in fleet.tick().events if event.kind == "authority"]
    assert texts == ["authority lowered from act to veto"]


def test_pools_have_authority_of_their_own_and_the_star_holds_the_rest() -> None:
    pools = (PoolConfig(name="pool-0", authority="act"), PoolConfig(name="*", authority="observe"))
    fleet = Fleet((3, 3), pools=pools)
    for slot in (0, 3):
        fleet.kill(slot)
    snapshot = fleet.run(1)
    assert fleet.weights() == [0, 1000, 1000, 1000, 1000, 1000]
    assert [pool.authority.name for pool in snapshot.pools] == ["ACT", "OBSERVE"]


def test_draining_members_come_before_open_ones_under_the_cap() -> None:
    gate = AuthorityGate(PoolConfigs((PoolConfig(name="*", authority="veto"),)), 1 / 3)
    where = directory((3,))
    gate.resize(where.n)
    weight = np.array([0.0, 0.0, 1000.0, 0.0])
    state = np.array([State.OPEN, State.DRAINING, State.HEALTHY, State.UNKNOWN], np.uint8)
    told = gate.tell(weight, state, where, Groups.of_directory(where), 0)
    assert told.weight[:3].tolist() == [1000, 0, 1000]
