import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.clock import NS_PER_S, Instant
from pipeline.fold.exemplars import Exemplars
from pipeline.fold.kinds import KindWindow
from pipeline.fold.waiting import DURATION
from pipeline.model import Observer, Outcome, RequestWindow
from tests.builders import START
from tests.fold.folds import POOLS, Folds, ago, assert_same, trace

LATENCY = st.one_of(st.just(np.nan), st.floats(0.0, 700.0))
TOKENS: st.SearchStrategy[dict[str, int]] = st.one_of(
    st.just({}),
    st.fixed_dictionaries(
        {name: st.integers(0, 10_000) for name in ("prompt_tokens", "output_tokens")}
    ),
)
REST = st.fixed_dictionaries(
    {
        "slot": st.integers(0, 3),
        "observer": st.sampled_from(list(Observer)),
        "outcome": st.sampled_from(list(Outcome)),
        "end_ns": st.integers(-15, 130).map(ago),
        "duration_s": LATENCY,
        "ttft_s": LATENCY,
        "kind": st.integers(1, 5),
        "tenant": st.integers(1, 5),
        "trace_id": st.integers(0, 3).map(trace),
        "source": st.integers(1, 3),
    }
)
WEIGHTS = st.sampled_from([1.0, 2.0, 10 / 3])
Row = dict[str, Any]
Stream = list[tuple[float, list[Row]]]


def stream_of(
    weights: st.SearchStrategy[float], keys: st.SearchStrategy[dict[str, int]]
) -> st.SearchStrategy[Stream]:
    row = st.tuples(REST, TOKENS, weights, keys).map(
        lambda parts: {**parts[0], **parts[1], "weight": parts[2], **parts[3]}
    )
    return st.lists(st.tuples(st.floats(0.0, 8.0), st.lists(row, max_size=12)), max_size=6)


TOLD: st.SearchStrategy[dict[str, int]] = st.just({})
SOME_TOLD: st.SearchStrategy[dict[str, int]] = st.sampled_from([{}, {"kind": 0}, {"tenant": 0}])


def play(stream: Stream, cut: int, folds: Folds | None = None) -> tuple[Folds, Instant]:
    """Every instant's rows, folded in pieces of `cut`; the fold and the last instant."""
    folds = folds or Folds(max_kinds=3, max_tenants=2)
    now = START
    for wait_s, rows in stream:
        now = now.plus_s(wait_s)
        for low in range(0, max(len(rows), 1), cut):
            folds.fold(rows[low : low + cut], now)
    return folds, now


def end_of_bucket(now: Instant) -> Instant:
    """The last whole second of the bucket of ten seconds: both kinds of bucket then end alike."""
    return now.plus_s(9 - now.wall_ns // NS_PER_S % 10)


COUNTED = (
    "calls",
    "failures",
    "overloads",
    "failure_calls",
    "prompt_tokens",
    "output_tokens",
)
TIMED = ("duration_n", "ttft_n")


def by_pool(window: RequestWindow, column: str) -> dict[int, float]:
    total: dict[int, float] = {}
    for pool, value in zip(POOLS.tolist(), getattr(window, column).tolist(), strict=True):
        if value:
            total[pool] = total.get(pool, 0.0) + value
    return total


def summed(window: KindWindow, column: str) -> dict[int, float]:
    total: dict[int, float] = {}
    for pool, value in zip(window.pool.tolist(), getattr(window, column).tolist(), strict=True):
        if value:
            total[pool] = total.get(pool, 0.0) + value
    return total


@settings(max_examples=80, deadline=None)
@given(stream_of(WEIGHTS, TOLD), st.sampled_from([10, 60, 120]))
def test_rows_sum_to_what_the_request_fold_counted_for_the_same_observers(
    stream: Stream, seconds: int
) -> None:
    folds, now = play(stream, 1000)
    now = end_of_bucket(now)
    kinds, tenants = folds.kinds(now, seconds), folds.tenants(now, seconds)
    endpoints = folds.requests.window(seconds, now)
    assert len(folds.breakdown.kinds(seconds, now).kind) <= 3 + 3
    for column in COUNTED:
        assert summed(kinds, column) == by_pool(endpoints, column), column
        assert getattr(tenants, column).sum() == getattr(endpoints, column).sum(), column


@settings(max_examples=40, deadline=None)
@given(stream_of(st.just(1.0), TOLD))
def test_as_many_requests_are_timed_as_in_the_request_fold(stream: Stream) -> None:
    folds, now = play(stream, 1000)
    now = end_of_bucket(now)
    kinds, endpoints = folds.kinds(now, 120), folds.requests.window(120, now)
    for column in TIMED:
        assert summed(kinds, column) == by_pool(endpoints, column), column
    assert folds.tenants(now, 120).duration_n.sum() == endpoints.duration_n.sum()


@settings(max_examples=60, deadline=None)
@given(stream_of(WEIGHTS, SOME_TOLD), st.integers(1, 5), st.randoms(use_true_random=False))
def test_any_split_and_any_order_within_an_instant_fold_to_the_same_windows(
    stream: Stream, cut: int, random: Any
) -> None:
    shuffled = [(wait_s, random.sample(rows, len(rows))) for wait_s, rows in stream]
    whole, now = play(stream, 1000)
    pieces, _ = play(shuffled, cut)
    for seconds in (10, 120):
        assert_same(whole.kinds(now, seconds), pieces.kinds(now, seconds))
        assert_same(whole.tenants(now, seconds), pieces.tenants(now, seconds))
    for folds in (whole, pieces):
        folds.fold([], now)
    assert whole.reasons == pieces.reasons


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 30), st.lists(st.tuples(REST, st.floats(0, 9)), max_size=10)),
        max_size=6,
    ),
    st.sampled_from([10, 60, 120]),
)
def test_windows_equal_a_brute_force_count(
    stream: list[tuple[int, list[tuple[Row, float]]]], seconds: int
) -> None:
    folds, now = Folds(), START
    arrived: list[Row] = []
    for wait_s, drawn in stream:
        now = now.plus_s(wait_s)
        rows = [
            {**row, "observer": Observer.CLIENT, "end_ns": ago(delay, now)} for row, delay in drawn
        ]
        folds.fold(rows, now)
        arrived += rows
        folds.kinds(now, seconds)
    window = folds.kinds(now, seconds)
    oldest_s = (now.wall_ns // NS_PER_S // 10 - seconds // 10 + 1) * 10
    inside = [row for row in arrived if row["end_ns"] // NS_PER_S >= oldest_s]
    keys = sorted({pool_and_kind(row) for row in inside})
    assert list(zip(window.pool.tolist(), window.kind.tolist(), strict=True)) == keys
    for i, (pool, kind) in enumerate(keys):
        mine = [row for row in inside if pool_and_kind(row) == (pool, kind)]
        assert window.calls[i] == len(mine)
        served = [row for row in mine if row["outcome"] == Outcome.OK]
        durations = [row["duration_s"] for row in served if not np.isnan(row["duration_s"])]
        assert window.duration_n[i] == len(durations)
        if durations:
            exact = max(float(np.quantile(durations, 0.99, method="lower")), 1e-4)
            assert window.duration_p99_s[i] == pytest.approx(exact, rel=0.05)
            total = window.latency.exponential(DURATION).sum[i]
            assert total == pytest.approx(math.fsum(durations), abs=1e-5)
        check_slowest(window.slowest, i, served)
        failed = [
            row["end_ns"] for row in mine if row["outcome"] == Outcome.FAILURE and traced(row)
        ]
        assert window.failed.at_ns[i] == max(failed, default=0)


def pool_and_kind(row: Row) -> tuple[int, int]:
    return int(POOLS[row["slot"]]), int(row["kind"])


def traced(row: Row) -> bool:
    return any(row["trace_id"])


def check_slowest(slowest: Exemplars, i: int, served: list[Row]) -> None:
    candidates = [
        (int(row["duration_s"] * NS_PER_S), row["end_ns"])
        for row in served
        if traced(row) and not np.isnan(row["duration_s"])
    ]
    duration_ns, at_ns = max(candidates, default=(0, 0))
    assert slowest.at_ns[i] == at_ns
    if candidates:
        assert slowest.duration_s[i] == pytest.approx(duration_ns / NS_PER_S, abs=2e-9)


@given(st.lists(st.sampled_from([0.0, 0.4, 3.0, 11.0]), max_size=8))
def test_reading_often_or_once_gives_the_same_window(waits: list[float]) -> None:
    often, once = Folds(), Folds()
    now = START
    for i, wait_s in enumerate(waits):
        now = now.plus_s(wait_s)
        for folds in (often, once):
            folds.fold([{"kind": 1 + i % 3, "tenant": 1, "end_ns": now.wall_ns}], now)
        often.kinds(now)
        often.tenants(now, 10)
    assert_same(often.kinds(now), once.kinds(now))
    assert_same(often.tenants(now), once.tenants(now))
