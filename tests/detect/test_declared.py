"""What every detector declares: its rate of false alarms, and how soon a step fires, once."""

import functools

import numpy as np
import pytest

from pipeline.detect import DETECTORS
from pipeline.detect.calibrate import threshold
from pipeline.detect.episodes import Episodes
from pipeline.model import Floats
from tests.detect.feed import GROUP, INTERVAL_S, NAMES, ar1, edges, fed, made, noise

BURN_IN = 1200
MEASURED = 1000
EACH = 16 * GROUP
"""Series of a kind of noise."""
BUDGET = 1e-3
"""Alarms a sample: a budget that can be counted."""


@functools.cache
def _alarm_ratios(name: str) -> tuple[float, float]:
    """Alarms over budget, on independent and on autoregressive noise."""
    rounds = BURN_IN + MEASURED
    values = np.concatenate((noise(rounds, EACH), ar1(rounds, EACH)), axis=1)
    scores = fed(made(name, 2 * EACH), values)
    entry = threshold(BUDGET * 86_400.0 / INTERVAL_S, INTERVAL_S)
    episodes = Episodes(entry=entry, calm_samples=1, cool_down_samples=0, burst=np.inf)
    episodes.resize(2 * EACH)
    fired, _ = edges(episodes, scores[:, BURN_IN:], values[BURN_IN:])
    row = np.array([row for _, row in fired])
    expected = BUDGET * MEASURED * EACH
    return float((row < EACH).sum() / expected), float((row >= EACH).sum() / expected)


@pytest.mark.parametrize("name", NAMES)
def test_the_budget_holds_on_independent_noise(name: str) -> None:
    assert _alarm_ratios(name)[0] <= 2.0


@pytest.mark.parametrize("name", [name for name in NAMES if DETECTORS[name].holds_on_ar1])
def test_the_budget_holds_on_autoregressive_noise(name: str) -> None:
    assert _alarm_ratios(name)[1] <= 2.0


STEP_AT = 1000
STEP_SIGMAS = 20.0
AFTER = 1600
STEPPED = 8
"""Series with a step: one of each group."""


@functools.cache
def _step(name: str, sign: float) -> tuple[Floats, Floats]:
    n = STEPPED * GROUP
    values = 100.0 + noise(STEP_AT + AFTER, n, seed=11)
    values[STEP_AT:, ::GROUP] += sign * STEP_SIGMAS
    return fed(made(name, n), values), values


WITHIN = {name: each.step_samples for name, each in DETECTORS.items() if each.step_samples}


@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize("name", WITHIN)
def test_a_step_fires_in_time_once_and_resolves_once(name: str, sign: float) -> None:
    scores, values = _step(name, sign)
    episodes = Episodes(entry=5.0)
    episodes.resize(values.shape[1])
    fired, resolved = edges(episodes, scores, values)
    stepped = list(range(0, STEPPED * GROUP, GROUP))
    late = [(at - STEP_AT, row) for at, row in fired if at >= STEP_AT]
    assert sorted(row for _, row in late) == stepped
    assert max(delay for delay, _ in late) < WITHIN[name]
    assert sorted(row for at, row in resolved if at >= STEP_AT) == stepped
    assert [at for at, _ in fired if at < STEP_AT] == []


@pytest.mark.parametrize("name", WITHIN)
def test_the_sign_of_a_score_is_the_side_of_the_step(name: str) -> None:
    for sign in (1.0, -1.0):
        scores, _ = _step(name, sign)
        end = STEP_AT + WITHIN[name]
        first = scores[0, STEP_AT:end, ::GROUP]
        strongest = np.take_along_axis(first, np.abs(first).argmax(axis=0)[None], axis=0)
        assert (sign * strongest > 6.0).all()
