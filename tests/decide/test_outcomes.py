"""Outcomes against a plain list of requests."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from pipeline.decide.outcomes import Outcomes
from pipeline.model import SignalMatrix
from pipeline.signals import SIGNALS
from tests.decide.world import window

WINDOW = 10
NOTHING = SignalMatrix(
    np.full((len(SIGNALS), 1), np.nan),
    np.full((len(SIGNALS), 1), np.inf),
    np.full((len(SIGNALS), 1), np.nan),
)

seconds = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=1, max_size=40)


def counts(history: list[tuple[int, int]], since: int) -> tuple[int, int]:
    """(calls, failures) of the last seconds of `history`, none before second `since`."""
    part = history[max(len(history) - WINDOW, since) :]
    return sum(good + bad for good, bad in part), sum(bad for _, bad in part)


@given(history=seconds, closed=st.integers(0, 39))
def test_nothing_from_before_the_closing_counts_and_all_of_a_later_window_does(
    history: list[tuple[int, int]], closed: int
) -> None:
    outcomes = Outcomes()
    outcomes.resize(1)
    settled = 0
    for second in range(len(history)):
        made = window(1, WINDOW)
        made.failure_calls[0], made.failures[0] = counts(history[: second + 1], 0)
        outcome = outcomes.update(made, NOTHING, 1.0)
        calls, failures = counts(history[: second + 1], settled)
        assert outcome.calls[0] <= calls
        assert outcome.failures[0] <= failures
        if second >= settled + WINDOW - 1 or not settled:
            assert (outcome.calls[0], outcome.failures[0]) == (calls, failures)
        good, bad = history[second]
        assert outcome.new_calls[0] <= good + bad
        assert outcome.new_failures[0] <= bad
        if second == closed:
            outcomes.settle(np.array([0]))
            settled = second + 1


def test_no_window_is_no_outcome() -> None:
    outcomes = Outcomes()
    outcomes.resize(1)
    outcome = outcomes.update(None, NOTHING, 0.1)
    assert (outcome.calls[0], outcome.failures[0], outcome.new_calls[0]) == (0, 0, 0)
    assert outcome.progress_age_s[0] == np.inf
