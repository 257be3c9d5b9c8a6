"""When something counts as noticed, open or back, and which requests belong to which phase."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.demo.measure import (
    MAX_KEPT,
    MIN_ATTEMPTS,
    RECENT_S,
    Measure,
    Outcome,
    Recent,
    quantile_ms,
)
from pipeline.demo.story import Act, Phase
from pipeline.demo.traffic import Attempt, Job, Request
from pipeline.model import State
from pipeline.pick import Endpoint

TARGET, OTHER = "127.0.0.1:1", "127.0.0.1:2"
JOB = Job("ba be", "blue", stream=False)


def endpoints(weight: int, state: State = State.HEALTHY) -> list[Endpoint]:
    return [
        Endpoint("target", "pool", TARGET, "", weight, state, 1.0),
        Endpoint("other", "pool", OTHER, "", 1000, State.HEALTHY, 1.0),
    ]


def attempt(address: str, duration_s: float = 0.1) -> Attempt:
    return Attempt(address, JOB, 0, 1, duration_s)


@pytest.fixture
def measure() -> Measure:
    """Ten seconds in, all well, the target at weight 1000."""
    measure = Measure(TARGET)
    measure.acted(Act.STEADY, 4.0)
    measure.heard(endpoints(1000), 9.0)
    return measure


def outcome(measure: Measure) -> Outcome:
    return measure.outcome(epochs=400, seconds=40.0, telemetry="scraper")


def test_slow_is_noticed_when_the_weight_first_falls_below_half_of_what_it_was(
    measure: Measure,
) -> None:
    measure.acted(Act.SLOW, 10.0)
    measure.heard(endpoints(500), 11.0)
    assert outcome(measure).slow_noticed_s is None
    measure.heard(endpoints(499), 11.5)
    measure.heard(endpoints(100), 12.0)
    assert measure.phase is Phase.NOTICED
    assert outcome(measure).slow_noticed_s == 1.5


def test_a_fall_before_the_engine_is_slow_is_not_its_noticing(measure: Measure) -> None:
    measure.heard(endpoints(100), 9.5)
    measure.heard(endpoints(900), 9.9)
    measure.acted(Act.SLOW, 10.0)
    measure.heard(endpoints(800), 10.5)
    assert outcome(measure).slow_noticed_s is None


def test_a_killed_engine_counts_from_the_kill_to_the_first_open(measure: Measure) -> None:
    measure.heard(endpoints(0, State.OPEN), 9.5)
    measure.acted(Act.KILL, 20.0)
    measure.heard(endpoints(20, State.DEGRADED), 20.5)
    measure.heard(endpoints(0, State.OPEN), 20.75)
    measure.heard(endpoints(0, State.OPEN), 21.0)
    assert outcome(measure).killed_open_s == 0.75


def test_back_means_healthy_with_half_the_weight_and_only_after_its_circuit_was_open(
    measure: Measure,
) -> None:
    measure.acted(Act.SLOW, 10.0)
    measure.acted(Act.KILL, 20.0)
    measure.acted(Act.RESTART, 24.0)
    measure.heard(endpoints(1000), 24.5)
    assert outcome(measure).recovered_s is None

    measure.acted(Act.KILL, 30.0)
    measure.heard(endpoints(0, State.OPEN), 31.0)
    measure.acted(Act.RESTART, 34.0)
    measure.heard(endpoints(600, State.HALF_OPEN), 35.0)
    measure.heard(endpoints(499), 36.0)
    measure.heard(endpoints(500), 37.0)
    measure.heard(endpoints(900), 38.0)
    assert outcome(measure).recovered_s == 3.0


def test_shares_and_latencies_belong_to_the_phase_in_which_the_request_began(
    measure: Measure,
) -> None:
    for phase, to_target, to_other in ((Phase.BEFORE, 1, 2), (Phase.NOTICED, 1, 9)):
        for address, count in ((TARGET, to_target), (OTHER, to_other)):
            for _ in range(count):
                measure.attempt(phase, attempt(address))
    for phase, duration_s in (
        (Phase.WARM_UP, 9.0),
        (Phase.BEFORE, 0.1),
        (Phase.UNNOTICED, 0.4),
        (Phase.NOTICED, 0.4),
        (Phase.BETWEEN, 9.0),
        (Phase.DOWN, 0.4),
        (Phase.AFTER, 0.2),
    ):
        measure.request(phase, Request(duration_s, failed=False, retried=phase is Phase.DOWN))
    found = outcome(measure)
    assert found.share_of_slow_before == pytest.approx(1 / 3, abs=1e-3)
    assert found.share_of_slow_after == 0.1
    assert (found.p99_ms_before, found.p99_ms_during, found.p99_ms_after) == (100, 400, 200)
    assert (found.requests, found.retried_requests, found.failed_requests) == (7, 1, 0)


def test_updates_are_epochs_a_second(measure: Measure) -> None:
    assert outcome(measure).updates_per_s == 10.0


def test_nothing_measured_is_none_and_every_gap_has_its_sentence() -> None:
    found = Measure(TARGET).outcome(epochs=4, seconds=40.0, telemetry="scraper")
    assert found.share_of_slow_before is None
    assert found.p99_ms_before is None
    assert len(found.shortfalls()) == 5  # endpoints, updates, slow, killed, restarted
    assert all(sentence.endswith(".") for sentence in found.shortfalls())


def test_a_good_show_has_no_shortfall() -> None:
    good = Outcome(3, 400, 10.0, 1.0, 0.33, 0.1, 1.0, 8.0, 999, 2, 0, 80.0, 200.0, 90.0, "scraper")
    assert good.shortfalls() == []
    assert len(good._replace(share_of_slow_after=0.2).shortfalls()) == 1
    assert len(good._replace(killed_open_s=3.1).shortfalls()) == 1
    assert len(good._replace(updates_per_s=4.9).shortfalls()) == 1


def test_durations_are_bounded_and_all_requests_counted(measure: Measure) -> None:
    for _ in range(MAX_KEPT + 5):
        measure.request(Phase.BEFORE, Request(0.1, failed=False, retried=False))
    (row,) = measure.rows()
    assert row.requests == MAX_KEPT + 5
    assert len(measure.phases[Phase.BEFORE].durations_s) == MAX_KEPT


@given(st.lists(st.floats(0.0, 100.0), min_size=1), st.floats(0.0, 1.0))
def test_a_quantile_is_numpys_in_milliseconds(durations_s: list[float], q: float) -> None:
    found = quantile_ms(durations_s, q)
    assert found == pytest.approx(np.quantile(np.array(durations_s), q) * 1000, abs=0.051)


def test_the_live_view_forgets_what_is_older_than_its_window() -> None:
    recent = Recent()
    recent.add(attempt(TARGET, 1.0), 10.0)
    recent.add(attempt(TARGET, 2.0), 11.0)
    recent.add(attempt(OTHER, 3.0), 12.0)
    assert recent.durations_s(12.0) == {TARGET: [1.0, 2.0], OTHER: [3.0]}
    assert recent.durations_s(10.5 + RECENT_S) == {TARGET: [2.0], OTHER: [3.0]}
    assert recent.durations_s(13.0 + RECENT_S) == {}


def test_acts_wait_for_what_is_to_be_seen_before_them(measure: Measure) -> None:
    measure.acted(Act.SLOW, 10.0)
    measure.heard(endpoints(100), 11.0)
    for _ in range(MIN_ATTEMPTS - 1):
        measure.attempt(Phase.NOTICED, attempt(OTHER))
    assert not measure.has_seen(Act.UNSLOW)
    measure.attempt(Phase.NOTICED, attempt(TARGET))
    assert measure.has_seen(Act.UNSLOW)
    measure.heard(endpoints(0, State.OPEN), 12.0)
    assert not measure.has_seen(Act.KILL)
    measure.heard(endpoints(100, State.DEGRADED), 18.0)
    assert measure.has_seen(Act.KILL)
    measure.acted(Act.KILL, 20.0)
    assert not measure.has_seen(Act.RESTART)
    measure.heard(endpoints(0, State.OPEN), 21.0)
    assert measure.has_seen(Act.RESTART)
    measure.acted(Act.RESTART, 24.0)
    assert not measure.has_seen(Act.END)
    measure.heard(endpoints(900), 30.0)
    assert measure.has_seen(Act.END)
    assert measure.has_seen(Act.SLOW)  # builds on nothing
    assert (measure.at_s(Act.RESTART), measure.at_s(Act.END)) == (24.0, None)
