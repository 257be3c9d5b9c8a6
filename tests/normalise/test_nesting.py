"""Trees of spans: which rows are one request, against a walk by hand."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.model import Canonical, Observer
from pipeline.normalise.attributes import normalise_spans
from tests.builders import COLLECTOR, START, spans
from tests.normalise.test_attributes import known

CALL: dict[str, Any] = {"server.address": "10.0.0.7", "server.port": 8000}
UP: dict[str, Any] = {"component": "proxy", "upstream_host": "10.0.0.7:8000"}


def span(name: str, parent: str = "", **attributes: Any) -> dict[str, Any]:
    pad = name.encode().ljust(8, b"-")
    above = parent.encode().ljust(8, b"-") if parent else b""
    return {"span_id": pad, "parent_span_id": above, **attributes}


def run(rows: Sequence[Mapping[str, Any]]) -> Canonical:
    return normalise_spans(spans({}, rows), known("10.0.0.7:8000"), COLLECTOR, START)


def count(rows: Sequence[Mapping[str, Any]]) -> int:
    found = run(rows).requests
    assert found is not None
    return found.n


def test_the_outer_call_takes_over_what_only_the_inner_one_knows() -> None:
    outer = span("sdk", **CALL, **{"gen_ai.operation.name": "chat", "gen_ai.request.model": "m"})
    inner = span("http", "sdk", **CALL, **{"url.path": "/v1/chat", "http.request.method": "POST",
                 "gen_ai.usage.input_tokens": 9, "gen_ai.request.model": "other",
                 "http.request.body.size": 40})  # fmt: skip
    found = run([inner, outer])
    assert found.dropped == {"nested": 1}
    assert found.requests is not None
    assert found.traits is not None
    assert found.requests.prompt_tokens.tolist() == [9.0]
    words = {}
    for name in ("path", "method", "model", "operation"):
        column = getattr(found.traits, name)
        words[name] = found.traits.strings.text(int(column[0]))
    assert words == {"path": "/v1/chat", "method": "POST", "model": "m", "operation": "chat"}
    assert found.traits.body_bytes is not None
    assert found.traits.body_bytes.tolist() == [40.0]


def test_sdk_wrapper_http_client_and_sidecar_are_one_request() -> None:
    rows = [
        span("sdk", **CALL, **{"gen_ai.operation.name": "chat"}),
        span("wrap", "sdk", kind=1),
        span("http", "wrap", **CALL),
        span("mesh", "http", **CALL),
    ]
    for rotation in range(4):
        assert count(rows[rotation:] + rows[:rotation]) == 1


def test_a_proxys_retries_count_each_and_their_downstream_span_does_not() -> None:
    down = span("down", kind=2, **UP, **{"http.route": "/v1/x"})
    attempts = [span(f"up{i}", "down", **UP) for i in range(3)]
    found = run([down, *attempts])
    assert found.requests is not None
    assert found.requests.n == 3
    assert found.traits is not None
    assert found.traits.route is not None
    assert (found.traits.route >= 0).all()


def test_a_gateways_attempt_and_the_sidecar_that_it_reaches_are_one_request() -> None:
    rows = [
        span("gdown", kind=2, **UP),
        span("gup", "gdown", **UP),
        span("sdown", "gup", kind=2, **UP),
        span("sup", "sdown", **UP),
    ]
    found = run(rows)
    assert found.requests is not None
    assert found.requests.observer.tolist() == [Observer.PROXY]
    assert found.dropped == {"nested": 3}


def test_calls_beside_each_other_and_of_other_observers_are_left_alone() -> None:
    rows = [
        span("app", kind=1),
        span("a", "app", **CALL),
        span("b", "app", **CALL),
        span("up", "a", **UP),
        span("engine", "up", kind=2, **CALL, **{"gen_ai.usage.prompt_tokens": 1}),
    ]
    assert count(rows) == 4


@pytest.mark.parametrize("length", [1, 2, 3, 9])
def test_spans_that_are_their_own_ancestors_all_count(length: int) -> None:
    names = [f"s{i}" for i in range(length)]
    rows = [span(name, names[i - 1], **CALL) for i, name in enumerate(names)]
    assert count(rows) >= 1
    assert count(rows[:1]) == 1


@given(st.lists(st.tuples(st.integers(-1, 12), st.booleans()), min_size=1, max_size=13))
def test_one_call_is_left_of_every_chain(tree: list[tuple[int, bool]]) -> None:
    """Client spans and spans that are none, each below one that came before it or below nobody."""
    rows, parents = [], []
    for i, (parent, is_call) in enumerate(tree):
        above = parent if parent < i else -1
        parents.append(above)
        rows.append(span(f"s{i}", f"s{above}" if above >= 0 else "", **(CALL if is_call else {})))
    expected = 0
    for i, (_, is_call) in enumerate(tree):
        at, is_inner = parents[i], False
        for _ in range(4):
            is_inner |= at >= 0 and tree[at][1]
            at = parents[at] if at >= 0 else -1
        expected += is_call and not is_inner
    assert count(rows) == expected
    order = np.random.default_rng(len(tree)).permutation(len(rows))
    assert count([rows[i] for i in order]) == expected
