"""The series key: as documented, order-independent, and different when anything differs."""

import random
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.metrics.v1.metrics_pb2 import AGGREGATION_TEMPORALITY_CUMULATIVE

from tests.decode import oracle, otlp
from tests.decode.decoding import Decoding
from tests.decode.otlp import NOW_NS, put

VALUES = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False),
    st.text(max_size=8), st.binary(max_size=8),
)  # fmt: skip
PAIRS = st.lists(st.tuples(st.sampled_from(["model_name", "engine", "x", ""]), VALUES), max_size=6)


def request_of(resource: Any = (), scope: Any = (), point: Any = ()) -> ExportMetricsServiceRequest:
    request = ExportMetricsServiceRequest()
    group = request.resource_metrics.add()
    holder = group.scope_metrics.add()
    holder.scope.name, holder.scope.version = "s", "1"
    made = holder.metrics.add(name="m", unit="1")
    made.sum.aggregation_temporality = AGGREGATION_TEMPORALITY_CUMULATIVE
    made.sum.data_points.add(time_unix_nano=NOW_NS, as_int=1)
    targets: tuple[Any, ...] = (group.resource, holder.scope, made.sum.data_points[0])
    for target, pairs in zip(targets, (resource, scope, point), strict=True):
        for key, value in pairs:
            put(target.attributes, key, value)
    return request


def key_of(decoding: Decoding, request: ExportMetricsServiceRequest) -> tuple[int, int]:
    (low, high), = decoding.points(request.SerializeToString()).series.tolist()  # fmt: skip
    return low, high


@settings(max_examples=100, deadline=None)
@given(PAIRS, PAIRS, PAIRS)
def test_the_key_is_the_documented_one(
    decoding: Decoding, resource: Any, scope: Any, point: Any
) -> None:
    request = request_of(resource, scope, point)
    expected = [oracle.series_key(g, h, m, p) for g, h, m, _, p in oracle.walk_points(request)]
    assert [key_of(decoding, request)] == expected


@settings(max_examples=50, deadline=None)
@given(st.integers(min_value=0, max_value=2**32).map(random.Random))
def test_the_key_does_not_depend_on_the_order_or_the_encoding(
    decoding: Decoding, rnd: random.Random
) -> None:
    pairs = [(f"k{i}", rnd.choice(("a", 1, 2.5, True, b"y"))) for i in range(5)]
    request = request_of(pairs, pairs, pairs)
    rnd.shuffle(pairs)
    shuffled = request_of(pairs, pairs, pairs)
    body = otlp.disordered(shuffled, rnd)
    assert key_of(decoding, request) == tuple(decoding.points(body).series[0].tolist())


class Parts(NamedTuple):
    """What a request is made of."""

    group: Any
    holder: Any
    metric: Any

    def put(self, place: str, value: Any) -> None:
        """One more attribute `b`."""
        owners = {
            "resource": self.group.resource,
            "scope": self.holder.scope,
            "point": self.metric.sum.data_points[0],
        }
        put(owners[place].attributes, "b", value)

    def swap(self) -> None:
        """The resource's value goes to the point, and the other way round."""
        self.group.resource.attributes[0].value.string_value = "3"
        self.metric.sum.data_points[0].attributes[0].value.string_value = "1"


def edited(change: Callable[[Parts], None]) -> ExportMetricsServiceRequest:
    request = request_of([("a", "1")], [("a", "2")], [("a", "3")])
    group = request.resource_metrics[0]
    holder = group.scope_metrics[0]
    change(Parts(group, holder, holder.metrics[0]))
    return request


CHANGES: dict[str, Callable[[Parts], None]] = {
    "nothing": lambda _: None,
    "name": lambda parts: setattr(parts.metric, "name", "n"),
    "unit": lambda parts: setattr(parts.metric, "unit", "s"),
    "monotonic": lambda parts: setattr(parts.metric.sum, "is_monotonic", True),
    "temporality": lambda parts: setattr(parts.metric.sum, "aggregation_temporality", 1),
    "scope name": lambda parts: setattr(parts.holder.scope, "name", "t"),
    "scope version": lambda parts: setattr(parts.holder.scope, "version", "2"),
    "scope attribute": lambda parts: parts.put("scope", "1"),
    "resource attribute": lambda parts: parts.put("resource", "1"),
    "point attribute": lambda parts: parts.put("point", "1"),
    "its type": lambda parts: parts.put("point", 1),
    "attributes that change places": Parts.swap,
}


def test_whatever_differs_makes_another_series(decoding: Decoding) -> None:
    keys = {name: key_of(decoding, edited(change)) for name, change in CHANGES.items()}
    assert len(set(keys.values())) == len(CHANGES)


@pytest.mark.parametrize("what", ["description", "value", "time", "duplicate"])
def test_what_is_no_identity_does_not_change_the_key(decoding: Decoding, what: str) -> None:
    def change(parts: Parts) -> None:
        point = parts.metric.sum.data_points[0]
        if what == "description":
            parts.metric.description = "words"
        elif what == "value":
            point.as_int = 99
        elif what == "time":
            point.time_unix_nano = NOW_NS + 1
        else:
            put(point.attributes, "a", "a later value of the same key")

    assert key_of(decoding, edited(change)) == key_of(decoding, edited(CHANGES["nothing"]))
