"""The bench of the detectors: every one is in it, and together they are the sum."""

import json

import pytest
from typer.testing import CliRunner

from pipeline.__main__ import app
from pipeline.bench.detect import TOGETHER
from pipeline.detect import DETECTORS


def test_every_detector_has_a_row_and_together_they_cost_what_they_cost() -> None:
    done = CliRunner().invoke(app, ["bench", "detect", "--json", "--quick", "--series", "200"])
    assert done.exit_code == 0, done.output
    rows = {row["detector"]: row for row in json.loads(done.stdout)["rows"]}
    assert set(rows) == {*DETECTORS, "mahalanobis", TOGETHER}
    each = [rows[name] for name in DETECTORS]
    assert rows[TOGETHER]["bytes_per_series"] == pytest.approx(
        sum(row["bytes_per_series"] for row in each), abs=len(each)
    )
    assert rows[TOGETHER]["us_per_update"] == pytest.approx(
        sum(row["us_per_update"] for row in each), rel=0.2
    )


def test_the_table_is_for_people() -> None:
    done = CliRunner().invoke(app, ["bench", "detect", "--quick", "--series", "100"])
    assert done.exit_code == 0, done.output
    assert "peaks_over_threshold" in done.stdout


def test_a_list_that_is_none_is_named() -> None:
    done = CliRunner().invoke(app, ["bench", "detect", "--series", "many"])
    assert done.exit_code != 0
    assert "--series" in str(done.exception)
