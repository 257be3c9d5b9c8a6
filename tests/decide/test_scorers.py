"""The contract that every scorer keeps, then each scorer's own arithmetic."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.decide.authority import PoolConfigs
from pipeline.decide.groups import Groups
from pipeline.decide.latency import ROWS, Slowness
from pipeline.decide.scorers import Context, Scored, expected_wait, hardware
from pipeline.decide.scoring import SCORERS, Judge, Scorer, explain, observers_of
from pipeline.model import Floats, Observer, PoolConfig, ProfileName
from pipeline.signals import SIGNAL_INDEX, SIGNALS
from tests.decide.world import directory, window

NAMES = sorted(SCORERS)
ALL = [SCORERS[name] for name in NAMES]


def context(n: int = 4, sizes: tuple[int, ...] = (4,)) -> Context:
    nothing = np.full((len(ROWS), n), np.nan)
    return Context(
        groups=Groups.of_directory(directory(sizes)),
        capacity=np.ones(n),
        share=np.full(n, 1 / n),
        window=None,
        failures=np.zeros(n),
        failure_calls=np.zeros(n),
        slowness=Slowness(np.ones(n), np.full(n, -1), nothing, nothing),
        faults=np.zeros(n),
        latency_exponent=2.0,
    )


def matrix(n: int = 4, **signals: list[float]) -> Floats:
    values = np.full((len(SIGNALS), n), np.nan)
    for name, row in signals.items():
        values[SIGNAL_INDEX[name]] = row
    return values


@st.composite
def worlds(draw: st.DrawFn) -> tuple[Floats, Context]:
    """Signals with gaps, windows, latency excesses and faults of two pools."""
    sizes = draw(st.sampled_from([(4,), (1, 3), (2, 2), (3, 5)]))
    base = context(n := sum(sizes), sizes)
    seed = draw(st.integers(0, 2**32 - 1))
    rng = np.random.default_rng(seed)
    signals = rng.exponential(1.0, (len(SIGNALS), n)) * rng.choice([0.01, 1, 1000])
    signals[rng.random(signals.shape) < draw(st.sampled_from([0.0, 0.5, 0.9, 1.0]))] = np.nan
    made = window(n, 10, rng.integers(0, 40, n).astype(np.float64))
    made.failures[:] = np.floor(made.failure_calls * rng.random(n))
    row = rng.integers(-1, len(ROWS), n)
    excess = np.where(row >= 0, 1 + rng.exponential(2, n), 1.0)
    values = rng.random((len(ROWS), n))
    return signals, replace(
        base,
        window=made if draw(st.booleans()) else None,
        failures=made.failures,
        failure_calls=made.failure_calls,
        slowness=Slowness(excess, row, values, values),
        faults=rng.choice([0.0, 3.0], n),
    )


@pytest.mark.parametrize("scorer", ALL, ids=NAMES)
class TestContract:
    @given(world=worlds())
    @settings(max_examples=60, deadline=None)
    def test_scores_are_between_0_and_1_and_the_best_of_a_group_has_1(
        self, scorer: Scorer, world: tuple[Floats, Context]
    ) -> None:
        scored = scorer(*world)
        known = scored.score[~np.isnan(scored.score)]
        assert ((known > 0) & (known <= 1)).all()
        best = world[1].groups.greatest(scored.score)
        np.testing.assert_array_equal(best[~np.isnan(best)], 1.0)

    @given(world=worlds())
    @settings(max_examples=60, deadline=None)
    def test_one_plus_all_points_is_the_score(
        self, scorer: Scorer, world: tuple[Floats, Context]
    ) -> None:
        scored = scorer(*world)
        known = ~np.isnan(scored.score)
        recombined = 1 + scored.points.sum(axis=0)
        np.testing.assert_allclose(recombined[known], scored.score[known], atol=1e-9)
        assert (scored.points[:, ~known] == 0).all()

    @given(world=worlds())
    @settings(max_examples=20, deadline=None)
    def test_equal_inputs_give_equal_bytes_and_are_not_changed(
        self, scorer: Scorer, world: tuple[Floats, Context]
    ) -> None:
        before = world[0].copy()
        first, second = scorer(*world), scorer(*world)
        for name in Scored._fields:
            assert getattr(first, name).tobytes() == getattr(second, name).tobytes()
        np.testing.assert_array_equal(before, world[0])

    def test_an_endpoint_that_nothing_is_known_of_has_no_score(self, scorer: Scorer) -> None:
        scored = scorer(matrix(), context())
        assert np.isnan(scored.score).all()
        assert (scored.coverage == 0).all()

    def test_no_endpoints_is_an_empty_answer(self, scorer: Scorer) -> None:
        where = directory((1,))
        where.known[:] = False
        empty = replace(context(1, (1,)), groups=Groups.of_directory(where))
        assert np.isnan(scorer(matrix(1), empty).score).all()

    @given(world=worlds())
    @settings(max_examples=20, deadline=None)
    def test_one_pool_does_not_move_the_scores_of_another(
        self, scorer: Scorer, world: tuple[Floats, Context]
    ) -> None:
        signals, where = world
        first = where.groups.of == 0
        changed = signals.copy()
        changed[:, ~first] *= 3
        before, after = scorer(signals, where), scorer(changed, where)
        np.testing.assert_array_equal(before.score[first], after.score[first])


@pytest.mark.parametrize(
    ("block", "hit", "deviation", "cost"),
    [
        (0.0, 1.0, 0.0, 0.3 / 1.01),  # idle GPU, warm cache
        (1.0, 1.0, 0.0, 0.4 + 0.3 / 1.01),  # always waiting for the GPU
        (0.0, 0.0, 0.0, 0.3 / 0.06),  # a cold cache costs as a ratio of 0.05, not of 0
        (0.0, 0.04, 0.0, 0.3 / 0.06),  # below the floor: the floor
        (0.0, 1.0, 512.0, 0.3 / 1.01),  # lengths within 512 tokens cost nothing
        (0.0, 1.0, 1536.0, 0.3 / 1.01 + 0.3),  # 1024 tokens beyond cost 0.3
        (0.5, 0.5, 1024.0, 0.2 + 0.3 / 0.51 + 0.15),  # all three
    ],
)
def test_hardware_cost_follows_its_formula(
    block: float, hit: float, deviation: float, cost: float
) -> None:
    signals = matrix(
        cuda_stream_block_ratio=[block] * 4,
        prefix_hit_ratio=[hit] * 4,
        token_length_deviation=[deviation] * 4,
    )
    np.testing.assert_allclose(hardware.score(signals, context()).cost, cost)


def test_hardware_score_is_the_cheapest_cost_over_ones_own() -> None:
    signals = matrix(
        cuda_stream_block_ratio=[0.0, 0.5, 1.0, 0.0],
        prefix_hit_ratio=[1.0] * 4,
        token_length_deviation=[0.0] * 4,
    )
    least = 0.3 / 1.01
    expected = [1.0, least / (least + 0.2), least / (least + 0.4), 1.0]
    np.testing.assert_allclose(hardware.score(signals, context()).score, expected)


def test_hardware_takes_the_pools_median_for_a_missing_input_and_says_so() -> None:
    signals = matrix(
        cuda_stream_block_ratio=[0.1, 0.2, 0.3, np.nan],
        prefix_hit_ratio=[0.5] * 4,
        token_length_deviation=[0.0] * 4,
    )
    scored = hardware.score(signals, context())
    np.testing.assert_allclose(scored.score[3], scored.score[1])
    np.testing.assert_allclose(scored.coverage, [1, 1, 1, 2 / 3])


@pytest.mark.parametrize(
    ("request_class", "hit", "most", "factor"),
    [
        ("read-heavy", 0.8, 0.8, 1.8),  # the best cache of the pool: all of the class factor
        ("read-heavy", 0.0, 0.8, 1.26),  # no hits: seven tenths of it
        ("write-burst", 0.4, 0.8, 0.6 * 0.85),
        ("other", 0.8, 0.8, 1.0),
        ("other", np.nan, 0.8, 0.7),  # an unknown ratio counts as none
        ("other", 0.0, 0.0, 0.7),  # nobody hits: no division by it
    ],
)
def test_class_factor(
    request_class: hardware.RequestClass, hit: float, most: float, factor: float
) -> None:
    got = hardware.class_factor(request_class, np.array([hit]), most)
    np.testing.assert_allclose(got, [factor])


def test_equal_endpoints_have_equal_scores_whatever_their_load() -> None:
    signals = matrix(queue_depth=[50.0] * 4, running=[30.0] * 4, kv_util=[0.97] * 4)
    np.testing.assert_array_equal(expected_wait.score(signals, context()).score, 1.0)


def test_load_that_the_weights_explain_costs_nothing() -> None:
    share = np.array([0.4, 0.2, 0.2, 0.2])
    signals = matrix(queue_depth=[0.0] * 4, running=[40.0, 20.0, 20.0, 20.0])
    scored = expected_wait.score(signals, replace(context(), share=share))
    np.testing.assert_array_equal(scored.score, 1.0)


def test_load_that_nothing_explains_takes_at_most_half_of_a_weight() -> None:
    signals = matrix(queue_depth=[500.0, 0, 0, 0], running=[20.0] * 4, kv_util=[1.0, 0.1, 0.1, 0.1])
    scored = expected_wait.score(signals, context())
    np.testing.assert_allclose(scored.score, [0.5, 1, 1, 1])


def test_requests_that_a_proxy_has_in_flight_explain_load() -> None:
    made = window(4, 10, np.array([200.0, 20.0, 20.0, 20.0]))
    signals = matrix(queue_depth=[0.0] * 4, running=[20.0, 2.0, 2.0, 2.0])
    explained = expected_wait.score(signals, replace(context(), window=made))
    np.testing.assert_array_equal(explained.score, 1.0)
    made.calls_observer[:] = Observer.ENGINE
    unexplained = expected_wait.score(signals, replace(context(), window=made))
    assert unexplained.score[0] < 1


def test_a_latency_excess_costs_its_square() -> None:
    slow = Slowness(
        np.array([4.0, 1, 1, 1]), np.zeros(4, np.int64), np.ones((5, 4)), np.ones((5, 4))
    )
    scored = expected_wait.score(matrix(), replace(context(), slowness=slow))
    np.testing.assert_allclose(scored.score, [1 / 16, 1, 1, 1])


def test_reasons_name_signal_value_peers_points_and_observer() -> None:
    made = window(4, 10, 20.0)
    made.failures[2] = 12
    where = replace(
        context(), window=made, failures=made.failures, failure_calls=made.failure_calls
    )
    scored = expected_wait.score(matrix(), where)
    reasons = explain(scored, observers_of(scored, where))
    assert reasons.signal[2, 0] == SIGNAL_INDEX["window_failure_ratio"]
    assert reasons.value[2, 0] == pytest.approx(0.5)
    assert reasons.peer[2, 0] == 0
    assert reasons.points[2, 0] == pytest.approx(-0.75)
    assert reasons.observer[2, 0] == Observer.PROXY
    assert (reasons.signal[0] == -1).all()
    assert (reasons.signal[2, 1:] == -1).all()


@pytest.mark.parametrize("profiles", [("hardware",), ("hardware", "expected-wait")])
def test_a_judge_that_remembers_judges_as_one_that_does_not(
    profiles: tuple[ProfileName, ...],
) -> None:
    """Endpoint after endpoint moves; scores and reasons are those of a judge without a past."""
    rng = np.random.default_rng(1)
    pools = PoolConfigs(
        tuple(PoolConfig(name=f"pool-{i}", profile=name) for i, name in enumerate(profiles))
    )
    where = directory((4, 4))
    signals = rng.random((len(SIGNALS), where.n))
    made = window(where.n, 10, 20.0)
    base = replace(context(where.n, (4, 4)), groups=Groups.of_directory(where))
    judge = Judge()
    for step in range(30):
        if step % 3:
            signals[rng.integers(len(SIGNALS)), rng.integers(8)] = rng.choice([np.nan, 5.0])
            made.calls_observer[rng.integers(8)] = rng.integers(-1, 4)
            made.failures[rng.integers(8)] = rng.integers(9)
        failures, calls = made.failures.copy(), made.failure_calls.copy()
        now = replace(base, window=made, failures=failures, failure_calls=calls)
        found, expected = (each(signals, now, where, pools) for each in (judge, Judge()))
        for mine, other in zip(found[:3] + found[3], expected[:3] + expected[3], strict=True):
            np.testing.assert_array_equal(mine, other)
