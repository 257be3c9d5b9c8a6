"""What detectors are fed, and how everything else is counted."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.detect.border import MOST_VALUE, Border

Sample = tuple[int, float, float]


def border(n: int = 4) -> Border:
    made = Border()
    made.resize(n)
    return made


def admitted(to: Border, samples: list[Sample]) -> list[list[Sample]]:
    """The rounds, as lists."""
    row = np.array([sample[0] for sample in samples], np.int64)
    time_s = np.array([sample[1] for sample in samples])
    value = np.array([sample[2] for sample in samples])
    return [
        list(
            zip(
                each.samples.row.tolist(),
                each.samples.time_s.tolist(),
                each.samples.value.tolist(),
                strict=True,
            )
        )
        for each in to.admit(row, time_s, value)
    ]


def test_a_sound_round_passes_as_it_is() -> None:
    to = border()
    samples = [(0, 1.0, 5.0), (2, 1.0, 6.0), (3, 1.5, -7.0)]
    assert admitted(to, samples) == [samples]
    assert not to.dropped


@pytest.mark.parametrize(
    ("sample", "reason"),
    [
        ((1, 2.0, np.nan), "not_finite"),
        ((1, 2.0, np.inf), "not_finite"),
        ((1, np.nan, 2.0), "not_finite"),
        ((1, 2.0, -10 * MOST_VALUE), "too_large"),
        ((1, 1.0, 5.0), "repeated"),
        ((1, 1.0, 6.0), "duplicate"),
        ((1, 0.5, 6.0), "backward"),
    ],
)
def test_every_reason_has_its_count(sample: Sample, reason: str) -> None:
    to = border()
    admitted(to, [(1, 1.0, 5.0)])
    assert admitted(to, [sample]) in ([], [[]])
    assert to.dropped == {reason: 1}
    assert admitted(to, [(1, 3.0, 8.0)]) == [[(1, 3.0, 8.0)]]


def test_samples_of_one_series_become_rounds_in_their_order() -> None:
    to = border()
    rounds = admitted(to, [(2, 1.0, 1.0), (0, 1.0, 2.0), (2, 2.0, 3.0), (2, 1.5, 4.0)])
    assert rounds == [[(0, 1.0, 2.0), (2, 1.0, 1.0)], [(2, 2.0, 3.0)], []]
    assert to.dropped == {"backward": 1}


def test_a_clock_that_was_set_back_for_good_is_believed() -> None:
    to = Border(believe_after=3)
    to.resize(1)
    admitted(to, [(0, 100.0, 1.0)])
    assert admitted(to, [(0, 1.0, 1.0)]) == [[]]
    assert admitted(to, [(0, 2.0, 1.0)]) == [[]]
    (last,) = to.admit(np.array([0]), np.array([3.0]), np.array([1.0]))
    assert last.restarted.tolist() == [0]
    assert last.samples.time_s.tolist() == [3.0]
    assert to.dropped == {"backward": 2, "clock_set": 1}
    assert admitted(to, [(0, 4.0, 1.0)]) == [[(0, 4.0, 1.0)]]


def test_some_samples_from_before_are_no_clock_that_was_set() -> None:
    to = Border(believe_after=3)
    to.resize(1)
    for number in range(20):
        admitted(to, [(0, 100.0 + number, 1.0), (0, 1.0, 1.0)])
    assert to.dropped == {"backward": 20}


def test_a_forgotten_row_takes_any_time() -> None:
    to = border()
    admitted(to, [(1, 9.0, 5.0)])
    to.forget(np.array([1]))
    assert admitted(to, [(1, 1.0, 5.0)]) == [[(1, 1.0, 5.0)]]


SAMPLES = st.lists(
    st.tuples(
        st.integers(0, 3),
        st.sampled_from([0.0, 1.0, 2.0, 3.0, 4.0, np.nan]),
        st.sampled_from([0.0, 1.0, np.nan, np.inf, 1e300]),
    ),
    max_size=30,
)


@given(SAMPLES)
def test_what_passes_moves_forward_and_nothing_is_lost_uncounted(samples: list[Sample]) -> None:
    to = border()
    rounds = admitted(to, samples)
    passed = [sample for each in rounds for sample in each]
    assert len(passed) + sum(to.dropped.values()) == len(samples)
    for row in range(4):
        times = [time_s for of, time_s, _ in passed if of == row]
        assert times == sorted(set(times))
    for each in rounds:
        rows = [sample[0] for sample in each]
        assert rows == sorted(set(rows))
    assert all(np.isfinite(sample).all() for sample in passed)


@given(SAMPLES, st.integers(0, 30))
def test_a_restored_border_goes_on_alike(samples: list[Sample], cut: int) -> None:
    to, other = border(), Border()
    admitted(to, samples[:cut])
    other.restore(to.export_state())
    assert admitted(to, samples[cut:]) == admitted(other, samples[cut:])


def test_a_state_of_something_else_is_refused() -> None:
    with pytest.raises(ValueError, match="another"):
        border().restore({"format": 1, "facts": ["level"]})
