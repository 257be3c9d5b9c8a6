"""No telemetry is one thing, no traffic another, a source that is gone a third."""

import numpy as np
import pytest

from pipeline.detect.silence import Silence, Silent
from pipeline.model import Floats
from tests.detect.feed import same_state

NAN = float("nan")


def heard_until(silence: Silence, last_s: Floats, interval_s: float = 15.0) -> None:
    """Every series was heard on the beat until `last_s` float64[n]."""
    for now_s in np.arange(0.0, last_s.max() + 1.0, interval_s):
        silence.judge(float(now_s), np.minimum(now_s, last_s), np.full(len(last_s), NAN))


def made(n: int, sources: list[int] | None = None, **settings: float) -> Silence:
    silence = Silence(**settings)  # type: ignore[arg-type]
    silence.resize(n)
    if sources is not None:
        silence.set_sources(np.array(sources, np.int32))
    return silence


def judged(silence: Silence, now_s: float, last_s: Floats, calls: Floats | None = None) -> Silent:
    return silence.judge(now_s, last_s, np.full(len(last_s), NAN) if calls is None else calls)


def test_silent_is_who_was_not_heard_for_three_intervals() -> None:
    silence, last_s = made(2, floor_s=1.0), np.array([300.0, 255.0])
    heard_until(silence, last_s)
    assert judged(silence, 300.0, last_s).is_silent.tolist() == [False, False]
    assert judged(silence, 301.0, last_s).is_silent.tolist() == [False, True]
    assert judged(silence, 346.0, last_s).is_silent.tolist() == [True, True]


def test_a_fast_series_has_the_floor() -> None:
    silence, last_s = made(1, floor_s=30.0), np.array([60.0])
    heard_until(silence, last_s, 1.0)
    assert not judged(silence, 85.0, last_s).is_silent[0]
    assert judged(silence, 91.0, last_s).is_silent[0]


def test_no_calls_with_telemetry_is_no_silence() -> None:
    silence, last_s = made(3), np.array([300.0, 300.0, 0.0])
    heard_until(silence, last_s)
    silent = judged(silence, 300.0, last_s, np.array([0.0, 7.0, 0.0]))
    assert silent.has_no_traffic.tolist() == [True, False, False]
    assert silent.is_silent.tolist() == [False, False, False]
    assert silent.is_known.tolist() == [True, True, False], "heard only once"


def test_who_was_never_heard_is_not_silent_but_unknown() -> None:
    silent = judged(made(2), 1e6, np.array([NAN, NAN]), np.zeros(2))
    assert not silent.is_silent.any()
    assert not silent.is_known.any()
    assert not silent.has_no_traffic.any()
    assert np.isnan(silent.score).all()


def test_a_source_that_is_gone_explains_its_series() -> None:
    last_s = np.array([150.0] * 4 + [300.0, 150.0, 300.0, 300.0])
    silence = made(8, [0, 0, 0, 0, 1, 1, 1, -1])
    heard_until(silence, last_s)
    silent = judged(silence, 300.0, last_s)
    assert silent.silent_sources.tolist() == [0]
    assert silent.is_explained.tolist() == [True] * 4 + [False] * 4
    assert silent.is_silent.tolist() == [True] * 4 + [False, True, False, False]
    np.testing.assert_allclose(silent.completeness, [0.0, 2 / 3])


def test_a_source_of_two_series_explains_nothing() -> None:
    last_s = np.array([150.0, 150.0, 300.0])
    silence = made(3, [0, 0, 1])
    heard_until(silence, last_s)
    silent = judged(silence, 300.0, last_s)
    assert silent.is_silent.tolist() == [True, True, False]
    assert not silent.is_explained.any()


def test_after_a_restart_nothing_is_silent_before_it_was_heard_once() -> None:
    before, last_s = made(2), np.array([300.0, 300.0])
    heard_until(before, last_s)
    after = Silence()
    after.restore(before.export_state())
    silent = judged(after, 5000.0, np.array([NAN, 4995.0]))
    assert silent.is_silent.tolist() == [False, False]
    assert silent.is_known.tolist() == [False, True]


def test_the_score_is_that_of_a_pause_among_random_arrivals() -> None:
    silence, last_s = made(1), np.array([300.0])
    heard_until(silence, last_s)
    silent = judged(silence, 300.0 + 15.0 * 8, last_s)
    assert silent.score[0] == pytest.approx(-8.0 / np.log(10.0))
    assert silent.age_s[0] == 120.0
    assert silent.allowed_s[0] == 45.0


def test_one_outage_does_not_make_a_fast_series_slow() -> None:
    silence = made(1, floor_s=1.0)
    heard_until(silence, np.array([300.0]))
    judged(silence, 9000.0, np.array([9000.0]))
    assert judged(silence, 9100.0, np.array([9000.0])).is_silent[0]


def test_state_is_kept_forgotten_and_checked() -> None:
    silence, last_s = made(3, [0, 1, 1]), np.array([300.0, 300.0, 300.0])
    heard_until(silence, last_s)
    state = silence.export_state()
    other = Silence()
    other.restore(state)
    assert same_state(other.export_state(), state)
    with pytest.raises(ValueError, match="source"):
        other.restore({**state, "source": state["source"][:1]})
    silence.forget(np.array([1]))
    assert judged(silence, 500.0, last_s).is_known.tolist() == [True, False, True]
    silence.resize(2)
    assert silence.nbytes == 3 * (2 * 8 + 4)
    with pytest.raises(ValueError, match="1 sources for 3 series"):
        silence.set_sources(np.zeros(1, np.int32))
