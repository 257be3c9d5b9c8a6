import json
import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.clock import Instant
from pipeline.fingerprint.load import (
    ADVICE,
    MIN_CLASS_SAMPLES,
    MIN_SAMPLES,
    Band,
    LoadFingerprints,
    correlation,
    next_bands,
    normal_cdf,
)
from pipeline.model import Floats, SignalMatrix
from pipeline.signals import SIGNAL_INDEX, SIGNALS
from tests.builders import START
from tests.decide.world import directory

N = 4
FLEET = directory((N,))
INPUTS = ("cpu_busy_ratio", "cuda_stream_block_ratio", "fp16_ratio", "mem_bandwidth_ratio")
Row = Sequence[float] | Floats


def signals(busy: Row, stall: Row, fp16: Row, bandwidth: Row) -> SignalMatrix:
    value = np.full((len(SIGNALS), N), np.nan)
    for name, row in zip(INPUTS, (busy, stall, fp16, bandwidth), strict=True):
        value[SIGNAL_INDEX[name]] = row
    age_s = np.where(np.isnan(value), np.inf, 0.0)
    return SignalMatrix(value, age_s, np.full_like(value, np.nan))


def drawn(seconds: int, seed: int = 1) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    """[seconds, 4, n] samples: noise around one half."""
    return np.random.default_rng(seed).normal(0.5, 0.1, (seconds, 4, N)).clip(0.0, 1.0)


def run(samples: Floats, load: LoadFingerprints | None = None) -> tuple[LoadFingerprints, Instant]:
    if load is None:
        load = LoadFingerprints()
        load.resize(FLEET.n)
    now = START
    for rows in samples:
        now = now.plus_s(1.0)
        load.observe(signals(*rows), FLEET, now)
    return load, now


@given(st.lists(st.floats(-6.0, 6.0), min_size=1, max_size=20))
def test_the_normal_distribution_is_that_of_the_error_function(z: list[float]) -> None:
    expected = [0.5 * math.erfc(-each / math.sqrt(2.0)) for each in z]
    np.testing.assert_allclose(normal_cdf(np.array(z)), expected, atol=1e-7)


def test_the_correlation_is_numpys() -> None:
    x, y = np.random.default_rng(2).random((2, 9, 64))
    is_there = np.arange(64) < np.arange(10, 64, 6)[:, None]
    expected = [np.corrcoef(x[i][is_there[i]], y[i][is_there[i]])[0, 1] for i in range(9)]
    np.testing.assert_allclose(correlation(x, y, is_there), expected, atol=1e-12)


def test_coupling_is_as_defined() -> None:
    """Against the formula, row by row with numpy over the whole run."""
    samples = drawn(100)
    samples[:, 3] = 0.5 * samples[:, 2] + 0.5 * samples[:, 3]
    load, _ = run(samples)
    for slot in range(N):
        total = 0.0
        for weight, signal in ((0.4, 0), (0.3, 1)):
            z = (samples[-1, signal, slot] - samples[:, signal].mean()) / samples[:, signal].std()
            total += weight * 0.5 * math.erfc(-z / math.sqrt(2.0))
        total += 0.3 * np.corrcoef(samples[-64:, 2, slot], samples[-64:, 3, slot])[0, 1]
        assert load.coupling[slot] == pytest.approx(min(max(total, 0.0), 1.0), abs=1e-6)


@pytest.mark.parametrize("missing", range(4))
def test_any_input_absent_is_coupling_absent(missing: int) -> None:
    samples = drawn(80)
    load, now = run(samples)
    assert not np.isnan(load.coupling).any()
    last = samples[-1].copy()
    last[missing, 1] = np.nan
    load.observe(signals(*last), FLEET, now.plus_s(1.0))
    assert np.isnan(load.coupling).tolist() == [False, True, False, False]
    assert load.band[1] == Band.ABSENT


def test_too_few_samples_and_flat_ones_are_absent() -> None:
    load, _ = run(drawn(MIN_SAMPLES - 1))
    assert np.isnan(load.coupling).all()
    few = MIN_CLASS_SAMPLES // N + 1
    load, _ = run(drawn(few))
    assert not np.isnan(load.coupling).any()
    flat = drawn(80)
    flat[:, 2] = 0.5
    load, _ = run(flat)
    assert np.isnan(load.coupling).all()


def test_a_value_seen_again_is_no_second_sample() -> None:
    samples = drawn(80)
    once, now = run(samples)
    twice, _ = run(samples)
    stale = signals(*samples[-1])
    stale.age_s[~np.isnan(stale.value)] = 5.0
    twice.observe(stale, FLEET, now.plus_s(5.0))
    np.testing.assert_array_equal(once.coupling, twice.coupling)


def test_bands_have_advice_and_are_left_only_well_beyond_their_border() -> None:
    band, names = np.zeros(1, np.uint8), []
    for c in (0.2, 0.32, 0.36, 0.28, 0.24, 0.9, 0.66, np.nan, 0.66, 0.64):
        band = next_bands(np.array([c]), band)
        names.append(Band(band[0]).name)
    assert names == ["LOOSE"] * 2 + ["MEDIUM"] * 2 + ["LOOSE"] + ["TIGHT"] * 4 + ["MEDIUM"]
    assert all(ADVICE[each] for each in (Band.LOOSE, Band.MEDIUM, Band.TIGHT))


def test_yesterday_is_forgotten() -> None:
    load, now = run(drawn(80))
    later = now.plus_s(25 * 3600.0)
    load.observe(signals(*drawn(1)[0]), FLEET, later)
    assert np.isnan(load.coupling).all()


def test_a_forgotten_slot_starts_anew_and_others_do_not() -> None:
    samples = drawn(80)
    load, now = run(samples)
    load.forget(np.array([2], np.int32))
    load.observe(signals(*samples[-1]), FLEET, now.plus_s(1.0))
    assert np.isnan(load.coupling).tolist() == [False, False, True, False]


def test_classes_survive_a_restart() -> None:
    load, now = run(drawn(80))
    state = json.loads(json.dumps(load.export_state()))
    other = LoadFingerprints()
    other.restore(state)
    other.resize(FLEET.n)
    assert other.export_state() == state
    for i, rows in enumerate(drawn(MIN_SAMPLES, seed=3)):
        other.observe(signals(*rows), FLEET, now.plus_s(1.0 + i))
    assert not np.isnan(other.coupling).any()
    with pytest.raises(ValueError, match="fit"):
        other.restore({**state, "hours": []})


def test_the_fingerprint_of_a_load_is_its_newest_signals() -> None:
    load, _ = run(drawn(1))
    assert load.fingerprint.shape == (4, N)
    np.testing.assert_array_equal(load.fingerprint[:2], drawn(1)[0, 2:])
    assert np.isnan(load.fingerprint[2:]).all()
