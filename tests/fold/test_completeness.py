import numpy as np

from pipeline.fold.completeness import PATIENCE_INTERVALS, completeness


def test_each_endpoint_is_judged_by_its_own_interval() -> None:
    interval_s = np.array([1.0, 1.0, 60.0, 60.0])
    age_s = PATIENCE_INTERVALS * interval_s + [0.0, 0.1, 0.0, 0.1]
    pool = np.zeros(4, np.int32)
    assert completeness(age_s, interval_s, pool, 1).tolist() == [0.5]


def test_a_pool_whose_every_endpoint_is_silent_is_not_complete_and_one_without_any_is_unknown() -> (
    None
):
    share = completeness(np.full(2, np.inf), np.ones(2), np.array([1, 1], np.int32), 3)
    assert share[1] == 0.0
    assert np.isnan(share[[0, 2]]).all()


def test_endpoints_without_an_interval_or_a_pool_are_not_expected() -> None:
    interval_s, pool = np.array([np.nan, 1.0, 1.0]), np.array([0, -1, 0], np.int32)
    assert completeness(np.array([9.0, 9.0, 1.0]), interval_s, pool, 1).tolist() == [1.0]
    assert completeness(np.zeros(0), np.zeros(0), np.zeros(0, np.int32), 0).shape == (0,)
