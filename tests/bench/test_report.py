"""What the command line means, and what a person is shown."""

import io
import json
from typing import Any

import pytest

from pipeline.bench import report
from pipeline.bench.ingest import Plan as IngestPlan
from pipeline.bench.ingest import available, cells, estimate_s
from pipeline.errors import ConfigError

DEFAULTS: dict[str, Any] = {
    "quick": False,
    "peers": False,
    "rounds": 5,
    "seconds": 10.0,
    "warm_s": 3.0,
    "batches": "10,100,1000,8192",
    "compressions": "none,gzip",
    "signals": "spans,points",
    "levels": "A,B",
    "connections": 1,
    "in_flight": 16,
}
ROW = {
    "engine": "rotel",
    "variant": "no batching",
    "signal": "spans",
    "level": "A",
    "batch": 1000,
    "compression": "none",
    "transport": "grpc",
    "items_per_core_s": 123_456,
    "spread": 0.1,
    "rss_mb": 50.0,
    "ack_p99_ms": 9.5,
}


def test_the_defaults_are_the_whole_matrix() -> None:
    plan = report.plan(**DEFAULTS)
    assert plan.batches == (10, 100, 1000, 8192)
    assert plan.compressions == ("none", "gzip")
    assert plan.rounds == 5
    engines, skipped = available(plan)
    assert {engine.name for engine in engines} == {"tailrace"}
    assert not skipped
    assert sum(1 for _ in cells(plan, engines)) == 2 * 4 * 2 * 2


def test_quick_is_one_short_round_at_one_size() -> None:
    plan = report.plan(**{**DEFAULTS, "quick": True})
    assert (plan.rounds, plan.batches) == (1, (1000,))
    assert plan.seconds < 5
    assert report.plan(**{**DEFAULTS, "quick": True, "batches": "10"}).batches == (10,)


def test_more_rounds_take_longer() -> None:
    engines, _ = available(IngestPlan())
    assert estimate_s(IngestPlan(rounds=4), engines) > estimate_s(IngestPlan(rounds=2), engines)


@pytest.mark.parametrize(
    ("option", "value", "named"),
    [
        ("batches", "10,many", "--batches"),
        ("batches", "0", "--batches"),
        ("compressions", "zstd", "--compression"),
        ("signals", "logs", "--signals"),
        ("levels", "", "--levels"),
    ],
)
def test_an_option_that_means_nothing_is_named(option: str, value: str, named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        report.plan(**{**DEFAULTS, option: value})


@pytest.mark.parametrize("text", ["", "0", "-1", "soon", "inf"])
def test_seconds_must_be_positive_numbers(text: str) -> None:
    with pytest.raises(ConfigError, match="--scrape"):
        report.seconds("--scrape", text)
    assert report.seconds("--scrape", "15, 1") == [15.0, 1.0]


def _document() -> dict[str, Any]:
    return {
        "machine": {"cpu": "some cpu"},
        "method": {"spans": "what they are", "levels": {"rotel A": "otlp -> blackhole"}},
        "rows": [ROW, {**ROW, "items_per_core_s": None, "why": "it lost 7 spans"}],
        "ratios": [
            {key: ROW[key] for key in ("signal", "level", "batch", "compression", "variant")}
            | {"peer": "rotel", "ratio": 3.5}
        ],
        "skipped": [{"engine": "otelcol", "why": "not built"}],
    }


def test_a_person_is_told_figures_reasons_and_what_was_measured(
    capsys: pytest.CaptureFixture[str],
) -> None:
    report.ingest(_document(), as_json=False)
    shown = capsys.readouterr().out
    for text in ("123,456", "3.50", "it lost 7 spans", "not built", "some cpu", "blackhole"):
        assert text in shown


def test_a_program_is_given_one_line_of_json(capsys: pytest.CaptureFixture[str]) -> None:
    report.ingest(_document(), as_json=True)
    out = capsys.readouterr().out
    assert out.count("\n") == 1
    assert json.loads(out) == _document()


def test_figures_are_shown_in_a_column_each_or_as_lines(
    capsys: pytest.CaptureFixture[str],
) -> None:
    rows: list[dict[str, Any]] = [
        {"cores": 0.5, "age": None, "machine": {"cpu": "x"}},
        {"cores": 1234.0, "age": 2},
    ]
    report.figures("Fleet", rows, as_json=True)
    assert [json.loads(line) for line in io.StringIO(capsys.readouterr().out)] == rows
    report.figures("Fleet", [rows[0], {**rows[1], "machine": {}}], as_json=False)
    shown = capsys.readouterr().out
    assert "1,234" in shown
    assert "cpu x" in shown
