"""How engines are configured, and how their own counts are read."""

from pathlib import Path

import pytest
import yaml

from pipeline.bench.engines import (
    ENGINES,
    WHAT,
    Engine,
    collector_settings,
    counted,
    decoder_of,
    left_out,
    rotel_command,
    tailrace_settings,
)
from pipeline.bench.jobs import distinct
from pipeline.bench.serving import Page, Sample
from pipeline.config import Senders, parse
from pipeline.model import Client, Rights

OWN_A, OWN_B = (Engine("tailrace", level, ("spans",)) for level in ("A", "B"))
COLLECTOR = Engine("otelcol", "A", ("spans",))


def test_at_level_a_nobody_has_a_right_and_everything_else_is_default() -> None:
    tree = parse(yaml.safe_dump(tailrace_settings("A")), "bench")
    senders = Senders(tree.senders)
    assert senders.of(Client("127.0.0.1")).rights == Rights.NONE
    assert senders.of(Client("::1")).rights == Rights.NONE
    defaults = parse("", "defaults")
    assert (tree.receive, tree.loop, tree.fold) == (defaults.receive, defaults.loop, defaults.fold)


def test_at_level_b_all_endpoints_are_members() -> None:
    tree = parse(yaml.safe_dump(tailrace_settings("B")), "bench")
    assert len(tree.pools[0].members) == 1200
    assert Senders(tree.senders).of(Client("127.0.0.1")).rights == Rights.METRICS | Rights.REQUESTS


def test_the_collector_discards_at_a_and_makes_span_metrics_at_b() -> None:
    pipelines = collector_settings("A", "127.0.0.1:1", "127.0.0.1:2")["service"]["pipelines"]
    assert pipelines["traces"] == {"receivers": ["otlp"], "exporters": ["nop"]}
    tree = collector_settings("B", "127.0.0.1:1", "127.0.0.1:2")
    assert tree["service"]["pipelines"]["traces"]["exporters"] == ["spanmetrics"]
    assert "exponential" in tree["connectors"]["spanmetrics"]["histogram"]


def test_rotel_batches_only_when_told_to() -> None:
    with_, without = (
        rotel_command("127.0.0.1:1", Path("/tmp"), is_batching=is_batching)
        for is_batching in (True, False)
    )
    assert "--disable-batching" in without
    assert "--disable-batching" not in with_


def test_everything_that_is_measured_is_described() -> None:
    assert {(engine.name, engine.level) for engine in ENGINES} == WHAT.keys()


def test_each_engines_own_count_is_read() -> None:
    page = Page(
        [
            Sample("tailrace_acknowledged_items_total", {"signal": "traces"}, 7.0),
            Sample("tailrace_acknowledged_items_total", {"signal": "metrics"}, 9.0),
            Sample("otelcol_receiver_accepted_spans", {"receiver": "otlp"}, 5.0),
            Sample("tailrace_decoder_active", {"decoder": "native"}, 1.0),
        ]
    )
    assert counted(OWN_A, page, "spans") == 7
    assert counted(OWN_A, page, "points") == 9
    assert counted(COLLECTOR, page, "spans") == 5
    assert counted(COLLECTOR, page, "points") == 0
    assert counted(Engine("rotel", "A", ("spans",)), None, "spans") is None
    assert decoder_of(page) == "native"


def test_items_left_out_matter_at_level_b_only() -> None:
    page = Page(
        [
            Sample("tailrace_dropped_total", {"stage": "fold", "reason": "late"}, 3.0),
            Sample("tailrace_dropped_total", {"stage": "fold", "reason": "future"}, 0.0),
        ]
    )
    assert left_out(OWN_B, page) == {"fold late": 3}
    assert left_out(OWN_A, page) == left_out(COLLECTOR, page) == left_out(OWN_B, None) == {}


@pytest.mark.parametrize("batch", [1, 10, 100, 1000])
def test_at_least_a_thousand_batches_are_distinct_up_to_a_thousand_items(batch: int) -> None:
    assert distinct(batch) >= 1000


def test_larger_batches_are_as_many_as_memory_allows() -> None:
    assert distinct(8192) == 128
