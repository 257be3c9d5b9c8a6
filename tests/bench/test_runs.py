"""Every benchmark once, as small as it can be: that they run and keep their books."""

from typing import Any

import pytest

from pipeline.bench import fleet, ingest, overload

COLUMNS = {
    *("engine", "signal", "level", "batch", "compression"),
    *("items_per_core_s", "rss_mb", "ack_p99_ms"),
}


def _told() -> tuple[list[str], Any]:
    lines: list[str] = []
    return lines, lines.append


@pytest.mark.timeout(300)  # starts several services, on a machine that may be busy
@pytest.mark.parametrize(
    ("signal", "compression", "levels"), [("spans", "none", "AB"), ("points", "gzip", "B")]
)
def test_ingest_measures_a_service_and_finds_everything_that_was_acknowledged(
    signal: Any, compression: Any, levels: Any
) -> None:
    """Scenario: one short round, over gRPC and in a process.

    Guarantees: every row has its figures, so that nothing was lost, refused or left out.
    """
    lines, tell = _told()
    plan = ingest.Plan(
        signals=(signal,),
        batches=(100,),
        compressions=(compression,),
        levels=tuple(levels),
        rounds=1,
        seconds=0.5,
        warm_s=0.2,
        most_batches=30,
    )
    document = ingest.run(plan, tell)
    assert len(document["rows"]) == len(levels) + 2
    for row in document["rows"]:
        assert row.keys() >= COLUMNS
        assert row["items_per_core_s"], row.get("why")
        assert row["rss_mb"] > 20
        if row["transport"] == "grpc":
            assert row["ack_p99_ms"] > 0
            is_smaller = row["sent_item_bytes"] < row["item_bytes"] / 2
            assert is_smaller == (row["compression"] == "gzip")
    assert document["machine"]["decoder"] in ("native", "reference")
    assert document["ratios"] == []
    assert "minutes" in lines[0]


@pytest.mark.timeout(300)
def test_overload_loses_nothing_and_every_refusal_may_be_retried() -> None:
    _, tell = _told()
    plan = overload.Plan(seconds=1.0, max_s=1.0, calm_s=1.0, batch=100, batches=16)
    figures = overload.run(plan, tell)
    assert figures["lost"] == 0
    assert figures["non_retryable_refusals"] == 0
    assert figures["acked"] > 0
    assert figures["offered_x"] > 0
    assert 20 < figures["rss_max_mb"] < 512
    assert figures["folded"] + figures["rejected"] + figures["left_out"] >= figures["acked_in_all"]
    assert "recover_s" in figures


@pytest.mark.timeout(300)
def test_the_fleet_reports_and_decisions_follow() -> None:
    _, tell = _told()
    figures = fleet.run(1.0, 2.0, tell, endpoints=12, settle_s=1.0)
    assert figures["endpoints"] == 12
    assert figures["failed_requests"] == 0
    assert figures["spans_per_s"] > 0
    assert figures["points_per_s"] > 0
    assert figures["cores"] > 0
    assert figures["batches_acked"] >= figures["batches_aged"]
