"""The arithmetic that turns measurements into the figures of the README."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.bench.figures import is_noisy, loss, per_core, quantile, ratios, spread


def _row(engine: str, figure: float | None, **other: Any) -> dict[str, Any]:
    cell = {"signal": "spans", "level": "A", "batch": 1000, "compression": "none"}
    return {"engine": engine, "transport": "grpc", "items_per_core_s": figure, **cell, **other}


@given(st.lists(st.floats(0, 1e6), min_size=1), st.floats(0.01, 1.0))
def test_a_quantile_is_the_least_value_with_that_share_at_or_below_it(
    values: list[float], q: float
) -> None:
    found = quantile(values, q)
    at_or_below = sum(value <= found for value in values)
    below = sum(value < found for value in values)
    assert found in values
    assert at_or_below >= q * len(values) > below or at_or_below == below + values.count(found)
    assert below < q * len(values) + 1e-9


def test_the_99th_percentile_of_a_hundred_is_the_99th() -> None:
    assert quantile([float(i) for i in range(1, 101)], 0.99) == 99.0


@pytest.mark.parametrize(("ratio", "noisy"), [(0.0, False), (0.02, False), (0.021, True)])
def test_a_measurement_is_discarded_above_two_percent_of_steal(ratio: float, noisy: bool) -> None:
    assert is_noisy(ratio) is noisy


def test_no_cpu_time_gives_no_figure_instead_of_an_infinite_one() -> None:
    assert per_core(1000, 0.0) == 0.0
    assert per_core(1000, 2.0) == 500.0


def test_spread_is_relative_to_the_median_and_zero_for_one_round() -> None:
    assert spread([90.0, 100.0, 120.0]) == pytest.approx(0.3)
    assert spread([5.0]) == spread([]) == 0.0


def test_an_engine_that_counts_less_than_it_acknowledged_lost_data() -> None:
    assert "3 lost" in loss(10, 7)
    assert loss(10, 10) == loss(10, 11) == loss(10, None) == ""


def test_ratios_compare_the_same_cell_only() -> None:
    rows = [
        _row("tailrace", 300.0),
        _row("tailrace", 900.0, level="B"),
        _row("rotel", 100.0, variant="no batching"),
        _row("otelcol", 200.0, level="B"),
        _row("otelcol", 50.0, batch=10),
    ]
    found = {(row["peer"], row["level"]): row["ratio"] for row in ratios(rows)}
    assert found == {("rotel", "A"): 3.0, ("otelcol", "B"): 4.5}
    assert ratios(rows)[0]["variant"] == "no batching"


def test_rows_without_a_figure_and_rows_without_a_transport_are_in_no_ratio() -> None:
    peers = [_row("rotel", None), _row("otelcol", 100.0)]
    assert ratios([_row("tailrace", None), *peers]) == []
    assert ratios([_row("tailrace", 9.0, transport="in-process"), *peers]) == []
