"""When a service has recovered, and what counts as lost."""

import pytest

from pipeline.bench.overload import calm_p99_ms, recovered_s

CALM = [(i / 10, 2.0, True) for i in range(40)]


def _with(*changes: tuple[float, float, bool]) -> list[tuple[float, float, bool]]:
    changed = {change[0]: change for change in changes}
    return [changed.get(each[0], each) for each in CALM]


def test_a_service_that_is_well_at_once_has_recovered_at_once() -> None:
    assert recovered_s(CALM, 2.0) == 0.0


def test_a_refusal_after_the_overload_delays_recovery() -> None:
    assert recovered_s(_with((1.2, 2.0, False)), 2.0) == 1.5


def test_a_slow_answer_delays_recovery() -> None:
    assert recovered_s(_with((0.7, 4.1, True)), 2.0) == 1.0
    assert recovered_s(_with((0.7, 4.0, True)), 2.0) == 0.0


def test_a_hiccup_long_after_recovery_does_not_undo_it() -> None:
    assert recovered_s(_with((0.2, 9.0, True), (3.9, 9.0, True)), 2.0) == 0.5


def test_a_service_that_stays_slow_has_not_recovered() -> None:
    assert recovered_s([(at, 9.0, True) for at, _, _ in CALM], 2.0) is None
    assert recovered_s([], 2.0) is None


def test_refused_requests_have_no_latency() -> None:
    assert calm_p99_ms([(0.0, 3.0, True), (0.1, 900.0, False)]) == pytest.approx(3.0)
