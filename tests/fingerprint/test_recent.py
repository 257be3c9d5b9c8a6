"""One request, one count an observer: however it was seen, cut into batches and ordered."""

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.config import parse
from pipeline.fingerprint.recent import _Tally
from pipeline.journal import Members
from pipeline.loop import Loop
from pipeline.model import LogColumns, Member, Observer, SpanColumns
from tests.builders import COLLECTOR, START, logs, span_groups, spans
from tests.hand_fleet import HandFleet, static_pool

ADDRESSES = ["10.0.0.7:8000", "10.0.0.8:8000"]
ENDPOINT = {"server.address": "10.0.0.7", "server.port": 8000}
APPLICATION, PROXY = {"service.name": "app"}, {"service.name": "envoy"}
ENGINE = {
    "server.address": "10.0.0.7",
    "server.port": "8000",
    "service.instance.id": "10.0.0.7:8000",
}
TRACE = bytes(range(16))


class Seen(NamedTuple):
    """One observation of a request."""

    resource: Mapping[str, Any]
    row: Mapping[str, Any]
    is_log: bool = False


def span_id(name: str) -> bytes:
    return name.encode().ljust(8, b"-")


def request(trace: bytes = TRACE, tag: str = "") -> list[Seen]:
    """What is told of one request: by SDK, HTTP client, proxy, engine, and an access log."""
    common: dict[str, Any] = {"trace_id": trace}
    return [
        Seen(APPLICATION, {**common, **ENDPOINT, "span_id": span_id("sdk" + tag),
                           "gen_ai.operation.name": "chat", "gen_ai.usage.input_tokens": 7}),
        Seen(APPLICATION, {**common, **ENDPOINT, "span_id": span_id("http" + tag),
                           "parent_span_id": span_id("sdk" + tag), "url.path": "/v1/chat"}),
        Seen(PROXY, {**common, "component": "proxy", "upstream_host": "10.0.0.7:8000",
                     "span_id": span_id("up" + tag), "parent_span_id": span_id("http" + tag)}),
        Seen(ENGINE, {**common, "kind": 2, "name": "llm_request", "span_id": span_id("eng" + tag),
                      "parent_span_id": span_id("up" + tag), "gen_ai.usage.prompt_tokens": 7,
                      "gen_ai.usage.completion_tokens": 3}),
        Seen(PROXY, {"upstream_host": "10.0.0.7:8000", "response_code": 200, "duration": 900,
                     "upstream_first_byte_ms": 250, "trace": trace}, is_log=True),
    ]  # fmt: skip


def columns(seen: Sequence[Seen]) -> list[SpanColumns | LogColumns]:
    """A batch of the spans and one of the records."""
    found: list[SpanColumns | LogColumns] = []
    grouped = [(each.resource, [each.row]) for each in seen if not each.is_log]
    if grouped:
        found.append(span_groups(*grouped))
    records = [each for each in seen if each.is_log]
    if records:
        rows = [{k: v for k, v in each.row.items() if k != "trace"} for each in records]
        made = logs(PROXY, rows)
        for i, each in enumerate(records):
            made.trace_id[i] = np.frombuffer(each.row.get("trace", bytes(16)), np.uint8)
        found.append(made)
    return found


class Counting:
    """A loop whose fold is looked into."""

    def __init__(self) -> None:
        self.dropped: Counter[str] = Counter()
        self.loop = Loop(parse(static_pool(ADDRESSES), "test"), self._count)
        self.loop.apply(Members("chat", tuple(Member(address=each) for each in ADDRESSES)))
        self.observers: Counter[Observer] = Counter()
        self.ttft = 0

    def _count(self, stage: str, reason: str, count: int) -> None:
        self.dropped[f"{stage}/{reason}"] += count

    def send(self, seen: Sequence[Seen]) -> None:
        for each in columns(seen):
            work = self.loop.begin(each, COLLECTOR, START)
            for part in work.parts:
                self._look(part)
            self.loop.fold_all(work)

    def _look(self, part: Any) -> None:
        for observer, weight in zip(part.observer.tolist(), part.weight.tolist(), strict=True):
            self.observers[Observer(observer)] += weight
        self.ttft += int(np.count_nonzero(~np.isnan(part.ttft_s)))

    @property
    def calls(self) -> float:
        return float(self.loop.request_fold.window(10, START).calls.sum())


def counted(*batches: Sequence[Seen]) -> Counting:
    counting = Counting()
    for each in batches:
        counting.send(each)
    return counting


ONE_EACH = {Observer.CLIENT: 1, Observer.PROXY: 1, Observer.ENGINE: 1}


@given(st.permutations(range(5)), st.lists(st.integers(0, 5), max_size=4))
def test_a_request_seen_by_four_spans_and_an_access_log_counts_one(
    order: list[int], cuts: list[int]
) -> None:
    """Scenario: five observations, in any order, cut into batches anyhow.

    Guarantees: one call in all, one for each observer, and the time to the first token is known.
    """
    seen = [request()[i] for i in order]
    edges = sorted({0, 5, *cuts})
    counting = counted(*(seen[a:b] for a, b in pairwise(edges)))
    assert counting.observers == ONE_EACH
    assert counting.calls == 1.0
    assert counting.ttft == 1


@given(st.integers(1, 4), st.integers(0, 4), st.randoms(use_true_random=False))
def test_of_spans_and_records_of_one_trace_as_many_count_as_the_more_there_are(
    n_spans: int, n_logs: int, random: Any
) -> None:
    """A trace may hold many requests: an agent's loop, retries; records may be fewer than spans."""
    proxy, log = request()[2], request()[4]
    seen = [Seen(PROXY, {**proxy.row, "span_id": span_id(f"u{i}"), "parent_span_id": b""})
            for i in range(n_spans)] + [log] * n_logs  # fmt: skip
    random.shuffle(seen)
    counting = counted(*([each] for each in seen))
    assert counting.observers[Observer.PROXY] == max(n_spans, n_logs)
    assert counted(seen).observers[Observer.PROXY] == max(n_spans, n_logs)


def test_records_and_spans_without_a_trace_or_request_id_all_count() -> None:
    proxy, log = request()[2], request()[4]
    bare = Seen(PROXY, {**log.row, "trace": bytes(16)}, is_log=True)
    assert counted([proxy], [bare, bare]).observers[Observer.PROXY] == 3


def test_a_request_id_joins_what_has_no_trace_and_what_two_proxies_tell() -> None:
    proxy, log = request()[2], request()[4]
    tagged = Seen(PROXY, {**proxy.row, "guid:x-request-id": "r1"})
    record = {**log.row, "trace": bytes(16), "x_request_id": "r1"}
    counting = counted([tagged], [Seen(PROXY, record, is_log=True)])
    assert counting.observers[Observer.PROXY] == 1
    sidecar = Seen({"service.name": "sidecar"},
                   {**tagged.row, "span_id": span_id("side"), "parent_span_id": b""})  # fmt: skip
    assert counted([tagged], [sidecar]).observers[Observer.PROXY] == 1
    other = Seen(PROXY, {**tagged.row, "guid:x-request-id": "r2", "span_id": span_id("up2"),
                         "parent_span_id": b""})  # fmt: skip
    assert counted([tagged], [other]).observers[Observer.PROXY] == 2


def test_equal_requests_of_other_traces_and_endpoints_all_count() -> None:
    first = request()
    second = request(trace=bytes(range(1, 17)), tag="2")
    counting = counted(first[:3], second[:3], first[4:], second[4:])
    assert counting.observers == {Observer.CLIENT: 2, Observer.PROXY: 2}
    elsewhere = {**first[1].row, "server.address": "10.0.0.8"}
    both = counted([first[1]], [Seen(APPLICATION, {**elsewhere, "span_id": span_id("sdk")})])
    assert both.observers[Observer.CLIENT] == 2


def test_a_batch_that_comes_again_counts_again() -> None:
    """Delivery is at least once, and nothing remembers whole batches."""
    sdk = request()[0]
    assert counted([sdk], [sdk]).observers[Observer.CLIENT] == 2


def test_an_sdk_span_that_comes_after_its_http_call_still_tells_latency_and_lengths() -> None:
    sdk, http = request()[:2]
    timed = Seen(APPLICATION, {**sdk.row, "gen_ai.response.time_to_first_chunk": 0.25})
    counting = counted([http], [timed])
    assert counting.observers[Observer.CLIENT] == 1
    assert counting.ttft == 1
    assert counting.dropped == {}
    nothing_new = counted([http], [Seen(APPLICATION, {**sdk.row, "gen_ai.usage.input_tokens": ""})])
    assert nothing_new.dropped["fingerprint/duplicate"] == 1


def test_a_sidecars_span_inside_the_applications_is_the_same_request() -> None:
    outer = Seen(APPLICATION, {**ENDPOINT, "span_id": span_id("app"), "trace_id": TRACE})
    inner = Seen({"service.name": "linkerd"}, {**ENDPOINT, "span_id": span_id("mesh"),
                 "parent_span_id": span_id("app"), "trace_id": TRACE})  # fmt: skip
    for batches in ([[outer, inner]], [[inner, outer]], [[outer], [inner]], [[inner], [outer]]):
        assert counted(*batches).observers == {Observer.CLIENT: 1}


def test_what_is_between_two_spans_of_a_request_hides_neither() -> None:
    outer = {**ENDPOINT, "span_id": span_id("app")}
    between = {"kind": 1, "span_id": span_id("mid"), "parent_span_id": span_id("app")}
    inner = {**ENDPOINT, "span_id": span_id("in"), "parent_span_id": span_id("mid")}
    counting = Counting()
    work = counting.loop.begin(spans(APPLICATION, [outer, between, inner]), COLLECTOR, START)
    assert work.rows == 1


def test_fleets_with_and_without_access_logs_have_equal_totals() -> None:
    """Scenario: 200 requests through a proxy, whose records come a batch later, or not at all."""
    fleet = HandFleet(ADDRESSES)
    both, spans_only = Counting(), Counting()
    for i in range(50):
        seen = [request(bytes([i + 1, n]) * 8, f"{i}-{n}") for n in range(4)]
        for counting in (both, spans_only):
            counting.send([each for one in seen for each in one if not each.is_log])
        both.send([each for one in seen for each in one if each.is_log])
    assert both.calls == spans_only.calls == 200.0
    assert both.observers == spans_only.observers
    assert fleet.dropped == {}


BATCHES = st.lists(
    st.tuples(st.sampled_from([2, 3]), st.lists(st.integers(0, 5), max_size=8)), max_size=8
)


@given(BATCHES)
def test_a_tally_is_that_of_a_loop(batches: list[tuple[int, list[int]]]) -> None:
    tally, told = _Tally(), Counter[tuple[int, int]]()
    for reporter, keys in batches:
        expected = []
        for key in keys:
            told[reporter, key] += 1
            expected.append(key > 0 and told[reporter, key] <= told[5 - reporter, key])
        reporters = np.full(len(keys), reporter, np.uint64)
        assert tally.take(np.array(keys, np.uint64), reporters).tolist() == expected


def test_reporters_of_one_batch_are_told_apart() -> None:
    keys = np.array([7, 7, 8, 7, 9], np.uint64)
    reporters = np.array([2, 2, 2, 3, 3], np.uint64)
    assert _Tally().take(keys, reporters).tolist() == [False, False, False, True, False]


def test_many_keys_at_once_are_all_remembered() -> None:
    tally = _Tally()
    drawn = np.random.default_rng(4).integers(1, 2**63, 20_000).astype(np.uint64)
    for keys in drawn.reshape(20, -1):
        assert not tally.take(keys, np.full(len(keys), 2, np.uint64)).any()
    again = [tally.take(keys, np.full(len(keys), 3, np.uint64)) for keys in drawn.reshape(20, -1)]
    assert np.mean(again) > 0.98


@pytest.mark.parametrize("n", [0, 1])
def test_small_batches_are_no_special_case(n: int) -> None:
    assert counted(request()[:n]).calls == float(n)
