"""The benchmark of the detectors measures what it says it does."""

import pytest

from pipeline.bench import detect
from pipeline.detect import DETECTORS


def test_every_detector_and_all_together_have_a_row_of_each_size() -> None:
    told: list[str] = []
    document = detect.run(
        detect.Plan(sizes=(40, 80), warm_rounds=2, rounds=detect.WHOLE), told.append
    )
    rows = document["rows"]
    names = [*DETECTORS, "mahalanobis", detect.TOGETHER]
    assert [(row["series"], row["detector"]) for row in rows] == [
        (size, name) for size in (40, 80) for name in names
    ]
    assert all(row["us_per_update"] > 0.0 and row["bytes_per_series"] > 0 for row in rows)
    assert told == ["40 series", "80 series"]


def test_all_together_is_the_sum_of_those_that_run_on_every_sample() -> None:
    rows = detect.run(
        detect.Plan(sizes=(400,), warm_rounds=2, rounds=detect.WHOLE), lambda _: None
    )["rows"]
    each = [row["us_per_update"] for row in rows if row["detector"] in DETECTORS]
    assert rows[-1]["us_per_update"] == pytest.approx(sum(each), rel=0.01)
