"""Order statistics within groups, against brute force."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.decide.groups import ByRow, Groups
from pipeline.model import Floats
from tests.decide.world import directory

VALUES = st.one_of(st.just(np.nan), st.sampled_from([0.0, 1.0, 2.0]), st.floats(-1e6, 1e6))


@st.composite
def grouped(draw: st.DrawFn) -> tuple[Groups, Floats]:
    sizes = draw(st.lists(st.integers(1, 7), min_size=1, max_size=4))
    where = directory(sizes)
    rows = draw(st.integers(1, 3))
    row = st.lists(VALUES, min_size=where.n, max_size=where.n)
    values = np.array(draw(st.lists(row, min_size=rows, max_size=rows)))
    return Groups.of_directory(where), values


def members(groups: Groups, group: int) -> list[int]:
    return [slot for slot in range(groups.n) if groups.of[slot] == group]


@given(grouped())
@settings(max_examples=60, deadline=None)
def test_medians_equal_numpy_on_the_known_values_of_each_group(case: tuple[Groups, Floats]) -> None:
    groups, values = case
    medians = groups.medians(groups.rank(values))
    for row in range(len(values)):
        for group in range(len(groups)):
            known = [v for v in values[row, members(groups, group)] if not np.isnan(v)]
            expected = np.median(known) if known else np.nan
            np.testing.assert_allclose(medians[row, group], expected)


@given(grouped(), st.integers(0, 4))
@settings(max_examples=60, deadline=None)
def test_peers_are_the_median_of_everyone_else_and_the_best_other_in_small_groups(
    case: tuple[Groups, Floats], small: int
) -> None:
    groups, values = case
    peers = groups.peers(groups.rank(values), small)
    for row in range(len(values)):
        for slot in groups.slots.tolist():
            group = members(groups, int(groups.of[slot]))
            known = sum(not np.isnan(values[row, other]) for other in group)
            others = [
                values[row, other]
                for other in group
                if other != slot and not np.isnan(values[row, other])
            ]
            expected = np.nan
            if others:
                expected = min(others) if known <= small else float(np.median(others))
            np.testing.assert_allclose(peers[row, slot], expected)


@given(grouped())
@settings(max_examples=40, deadline=None)
def test_sums_and_extremes_ignore_what_is_not_known(case: tuple[Groups, Floats]) -> None:
    groups, values = case
    total, least, greatest = (f(values[0]) for f in (groups.total, groups.least, groups.greatest))
    for group in range(len(groups)):
        known = [v for v in values[0, members(groups, group)] if not np.isnan(v)]
        np.testing.assert_allclose(total[group], sum(known), atol=1e-6)
        np.testing.assert_allclose(least[group], min(known) if known else np.nan)
        np.testing.assert_allclose(greatest[group], max(known) if known else np.nan)


def test_members_are_not_compared_with_endpoints_seen_in_telemetry_only() -> None:
    where = directory((4,))
    where.member[3] = False
    groups = Groups.of_directory(where)
    assert len(groups) == 2
    assert groups.of[3] not in groups.of[:3]


def test_a_directory_without_endpoints_has_no_groups() -> None:
    where = directory((2,))
    where.known[:] = False
    groups = Groups.of_directory(where)
    assert len(groups) == 0
    assert np.isnan(groups.spread(groups.median(np.ones(2)))).all()
    assert groups.total(np.ones(2)).shape == (0,)


@given(grouped(), st.data())
@settings(max_examples=60, deadline=None)
def test_a_reduction_that_remembers_rows_gives_what_one_without_memory_gives(
    case: tuple[Groups, Floats], data: st.DataObject
) -> None:
    groups, values = case
    remembering = ByRow(Groups.median_rows)
    for _ in range(4):
        np.testing.assert_array_equal(remembering(groups, values), groups.median_rows(values))
        values = values.copy()
        row = data.draw(st.integers(0, len(values) - 1))
        values[row, data.draw(st.integers(0, groups.n - 1))] = data.draw(VALUES)


def test_a_reduction_forgets_what_was_of_other_groups() -> None:
    values = np.array([[1.0, 2.0, 3.0, 4.0]])
    remembering = ByRow(Groups.median_rows)
    assert remembering(Groups.of_directory(directory((4,))), values).tolist() == [[2.5]]
    assert remembering(Groups.of_directory(directory((2, 2))), values).tolist() == [[1.5, 3.5]]
