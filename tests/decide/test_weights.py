"""How weights move: slow endpoints, noise, slow start, ageing, loss of telemetry."""

from itertools import pairwise

import numpy as np
import pytest

from pipeline.decide.config import DecideConfig, WeightsConfig
from pipeline.decide.faults import Faults
from pipeline.model import PoolConfig, State
from pipeline.signals import SIGNALS
from tests.decide.world import TICK_S, Fleet


def test_equal_endpoints_stay_at_neutral() -> None:
    fleet = Fleet((4,))
    fleet.run(20)
    assert fleet.weights() == [1000] * 4
    assert fleet.states() == [State.HEALTHY] * 4


@pytest.mark.parametrize("size", [2, 3, 4, 16])
def test_a_four_times_slower_endpoint_loses_most_of_its_share_within_3_s(size: int) -> None:
    fleet = Fleet((size,))
    fleet.run(5)
    fleet.latency(0, 4.0)
    fleet.run(3)
    assert fleet.weights()[0] < 100
    assert fleet.weights()[1:] == [1000] * (size - 1), "one endpoint's change moves no other"


def test_it_recovers_smoothly_and_in_full() -> None:
    fleet = Fleet((4,))
    fleet.latency(0, 4.0)
    fleet.run(5)
    fleet.latency(0, 1.0)
    seen = []
    for _ in range(200):
        fleet.tick()
        seen.append(fleet.weights()[0])
    assert seen == sorted(seen), "never down on the way up"
    assert max(after / before for before, after in pairwise(seen)) < 1.12
    assert seen[-1] == 1000


def test_engine_latencies_alone_show_a_slow_endpoint() -> None:
    fleet = Fleet((4,), calls_per_s=0)
    fleet.signal("itl_mean_s", [0.08, 0.02, 0.02, 0.02])
    fleet.run(5)
    assert fleet.weights()[0] < 100
    assert fleet.weights()[1:] == [1000] * 3


def test_a_pool_that_slows_down_as_a_whole_moves_nothing() -> None:
    fleet = Fleet((4,))
    fleet.run(5)
    for slot in range(4):
        fleet.latency(slot, 5.0)
    fleet.run(10)
    assert fleet.weights() == [1000] * 4


def test_longer_requests_are_no_slowness() -> None:
    fleet = Fleet((4,))
    fleet.latency(0, 1.9)
    for each in fleet.observation.windows.values():
        each.prompt_tokens[0] *= 2
        each.output_tokens[0] *= 2
    fleet.run(10)
    assert fleet.weights() == [1000] * 4


def test_noise_on_equal_endpoints_hardly_moves_weights() -> None:
    fleet = Fleet((8,))
    rng = np.random.default_rng(7)
    moved, before = np.zeros(8), np.full(8, 1000.0)
    for _ in range(600):
        for slot in range(8):
            fleet.latency(slot, float(rng.lognormal(0, 0.1)))
        fleet.signal("queue_depth", rng.poisson(2, 8).astype(np.float64))
        fleet.signal("running", rng.poisson(8, 8).astype(np.float64))
        fleet.signal("kv_util", rng.uniform(0.8, 0.97, 8))
        fleet.tick()
        now = np.array(fleet.weights(), np.float64)
        moved, before = moved + np.abs(now - before), now
    assert (before > 850).all()
    assert (before < 1100).all()
    # A tenth of neutral a second at most, with fresh noise ten times a second.
    assert moved.max() < 0.1 * 1000 * 60


def test_failures_cost_weight_before_they_open_a_circuit() -> None:
    fleet = Fleet((4,), calls_per_s=10)
    fleet.failing(1, 0.2)
    fleet.run(5)
    assert fleet.states()[1] is State.DEGRADED
    assert 500 < fleet.weights()[1] < 750


def test_an_endpoint_that_fails_fast_attracts_no_traffic() -> None:
    fleet = Fleet((4,), calls_per_s=10)
    fleet.latency(1, 0.01)
    fleet.run(5)
    assert fleet.weights()[1] == 1000
    fleet.failing(1, 0.25)
    fleet.run(5)
    assert fleet.weights()[1] < 700


def test_weights_stay_within_their_range_whatever_is_reported() -> None:
    rng = np.random.default_rng(3)
    fleet = Fleet((5, 3, 1), pools=(PoolConfig(name="*", authority="act"),))
    values = fleet.observation.signals.value
    for _ in range(150):
        values[:] = rng.choice([0.0, 1e-9, 1.0, 1e12, np.nan], values.shape)
        fleet.observation.signals.age_s[:] = rng.choice([0.1, 100.0, np.inf], values.shape)
        for each in fleet.observation.windows.values():
            each.duration_p50_s[:] = rng.choice([1e-6, 1.0, 1e6, np.nan], fleet.n)
            each.failures[:] = rng.choice([0.0, 5.0, 20.0], fleet.n)
        snapshot = fleet.tick(float(rng.choice([0.02, 0.1, 5.0])))
        weight, state = snapshot.weight[: fleet.used], snapshot.state[: fleet.used]
        out = (state == State.OPEN) | (state == State.DRAINING)
        assert (weight[~out] >= 1).all()
        assert (weight <= 10_000).all()
        assert np.isfinite(snapshot.confidence).all()
        for pool in range(3):
            assert weight[fleet.directory.pool[: fleet.used] == pool].sum() > 0


def test_an_endpoint_of_which_nothing_is_known_is_neutral() -> None:
    fleet = Fleet((4,), calls_per_s=0)
    snapshot = fleet.run(5)
    assert fleet.weights() == [1000] * 4
    assert np.isnan(snapshot.score[:4]).all()


def test_a_new_endpoint_in_an_old_pool_starts_slowly() -> None:
    fleet = Fleet((3,))
    fleet.directory.known[2] = False
    fleet.run(20)
    known = fleet.directory.known.copy()
    known[2] = True
    fleet.change_directory(known=known)
    fleet.tick()
    assert fleet.weights()[2] <= 120
    fleet.run(5)
    assert 400 < fleet.weights()[2] < 700
    fleet.run(6)
    assert fleet.weights() == [1000] * 3


def test_a_new_pool_starts_at_full_weight() -> None:
    fleet = Fleet((3,))
    fleet.tick()
    assert fleet.weights() == [1000] * 3


def test_silence_fades_then_caps_then_degrades_then_opens() -> None:
    fleet = Fleet((4,))
    fleet.latency(0, 4.0)
    fleet.run(8)
    low = fleet.weights()[0]
    fleet.run(2.5, silent=[0])
    assert fleet.weights()[0] == low, "trusted for three intervals"
    fleet.run(3.4, silent=[0])
    assert 900 < fleet.weights()[0] <= 1000, "then it drifts to neutral"
    fleet.run(3.2, silent=[0])
    assert fleet.states()[0] is State.DEGRADED
    assert fleet.weights()[0] <= 510
    snapshot = fleet.run(4, silent=[0])
    assert fleet.states()[0] is State.OPEN
    assert fleet.weights()[0] == 0
    assert "nothing heard" in snapshot.rule[0]
    assert fleet.weights()[1:] == [1000] * 3


def test_confidence_falls_with_age() -> None:
    fleet = Fleet((4,))
    assert fleet.tick().confidence[0] == pytest.approx(0.75)
    fleet.signal("queue_depth", 1.0)
    assert fleet.tick().confidence[0] == 1.0
    aged = fleet.run(6, silent=[0])
    assert aged.confidence[0] < 0.6
    assert aged.confidence[1] == 1.0


def test_weights_freeze_exactly_when_all_telemetry_of_a_pool_is_lost() -> None:
    fleet = Fleet((4, 2))
    fleet.latency(0, 4.0)
    fleet.observation.heard_age_s[1] = 0.9
    fleet.run(6)
    fleet.signal("queue_depth", 1.0)
    before = fleet.weights()
    states = fleet.states()
    frozen = None
    fleet.no_requests(0, 1, 2, 3)
    for tick in range(700):
        snapshot = fleet.tick(0.1 if tick < 100 else 1.0, silent=[0, 1, 2, 3])
        frozen = frozen or next((e for e in snapshot.events if e.pool == "pool-0"), None)
        assert fleet.weights() == before
        assert fleet.states() == states
    assert frozen is not None
    assert "no telemetry" in frozen.text
    assert snapshot.pools[0].frozen
    assert not snapshot.pools[1].frozen
    assert (snapshot.confidence[:4] < 0.1).all()


def test_when_telemetry_returns_nobody_is_blamed_for_the_time_without() -> None:
    fleet = Fleet((4,))
    fleet.run(5)
    fleet.run(120, silent=[0, 1, 2, 3])
    fleet.observation.heard_age_s[1] = 0.1
    fleet.run(1, silent=[0, 2, 3])
    assert fleet.states() == [State.HEALTHY] * 4
    assert fleet.weights() == [1000] * 4
    fleet.observation.heard_age_s[:4] = 0.1
    snapshot = fleet.tick()
    assert fleet.states() == [State.HEALTHY] * 4
    assert not snapshot.pools[0].frozen


def test_an_endpoint_without_requests_is_not_silent_while_its_scrapes_come() -> None:
    fleet = Fleet((3,))
    fleet.observation.report_interval_s[:] = 0.05
    fleet.observation.signals.interval_s[:] = 15.0
    fleet.run(3)
    for _ in range(3):
        fleet.observation.heard_age_s[0] = 0.1
        for _ in range(150):
            fleet.tick(silent=[0])
            assert fleet.states()[0] is State.HEALTHY
            assert fleet.weights()[0] == 1000


def test_pauses_between_requests_become_usual_where_nothing_else_reports() -> None:
    fleet = Fleet((3,))
    fleet.observation.signals.age_s[:] = np.inf
    fleet.observation.report_interval_s[:] = 0.05
    fleet.run(3)
    fleet.run(14, silent=[0])
    fleet.observation.heard_age_s[0] = 0.1
    fleet.run(1)
    fleet.run(40, silent=[0])
    assert fleet.states()[0] is State.HEALTHY


def test_data_that_catches_up_moves_no_decision() -> None:
    fleet = Fleet((4,), calls_per_s=10)
    fleet.run(5)
    fleet.observation.catching_up[0] = True
    fleet.latency(0, 4.0)
    fleet.failing(0, 0.9)
    fleet.run(10)
    assert fleet.weights() == [1000] * 4
    assert fleet.states() == [State.HEALTHY] * 4


def test_a_clock_that_jumps_either_way_moves_no_weight() -> None:
    fleet = Fleet((4,))
    fleet.latency(0, 2.0)
    fleet.run(10)
    before = fleet.weights()
    fleet.tick(-3600.0)
    assert fleet.weights() == before
    fleet.tick(7200.0)
    assert fleet.weights() == before
    fleet.run(5)
    assert fleet.weights() == before


def test_slow_start_of_zero_seconds_is_full_weight_at_once() -> None:
    config = DecideConfig(weights=WeightsConfig(slow_start_s=0.0))
    fleet = Fleet((3,), config=config)
    fleet.directory.known[2] = False
    fleet.run(20)
    known = fleet.directory.known.copy()
    known[2] = True
    fleet.change_directory(known=known)
    fleet.tick()
    assert fleet.weights() == [1000] * 3


def test_a_gpu_fault_counts_when_the_code_changes_and_not_when_it_stays() -> None:
    fleet = Fleet((4,))
    fleet.signal("gpu_xid_last", [79.0, 0.0, 0.0, 0.0])
    fleet.run(5)
    assert fleet.weights() == [1000] * 4, "the first code seen is where it starts from"
    fleet.signal("gpu_xid_last", [79.0, 79.0, 31.0, 7.0])
    fleet.run(5)
    lost, application, unknown = fleet.weights()[1:]
    assert fleet.weights()[0] == 1000
    assert lost < 300
    assert application == 1000
    assert 450 < unknown < 550


def test_a_gpu_fault_is_forgotten_after_its_time() -> None:
    faults = Faults(DecideConfig().faults)
    faults.resize(1)
    row = np.full((len(SIGNALS), 1), 0.0)
    faults.update(row, 0)
    row[:] = 79.0
    assert faults.update(row, 10**9)[0] == 3.0
    assert faults.update(row, 600 * 10**9)[0] == 3.0
    assert faults.update(row, 601 * 10**9)[0] == 0.0


def test_ticks_that_come_early_do_not_hurry_the_weights() -> None:
    slow, fast = Fleet((4,)), Fleet((4,))
    for fleet in (slow, fast):
        fleet.run(2)
        fleet.latency(0, 4.0)
    for _ in range(10):
        slow.tick(TICK_S)
        for _ in range(5):
            fast.tick(TICK_S / 5)
    assert abs(slow.weights()[0] - fast.weights()[0]) < 60
