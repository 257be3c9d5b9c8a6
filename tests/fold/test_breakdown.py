import math
from collections import Counter
from typing import Any

import numpy as np
import pytest

from pipeline.fold.breakdown import MAX_WAITING
from pipeline.fold.exemplars import Exemplars
from pipeline.fold.waiting import DURATION, ITL, TTFT
from pipeline.model import Observer, Outcome
from tests.builders import START, requests
from tests.fold.folds import POOLS, Folds, ago, trace

PROXY, ENGINE, CLIENT = Observer.PROXY, Observer.ENGINE, Observer.CLIENT
MIXED = START.plus_s(5)
"""In the middle of a bucket of ten seconds."""


# windows


def test_nothing_folded_is_an_empty_window() -> None:
    folds = Folds()
    assert folds.kinds().kind.shape == (0,)
    assert folds.tenants().tenant.shape == (0,)
    assert folds.fold([]) == {}
    assert folds.kinds().slowest.trace_id.shape == (0, 16)
    assert folds.breakdown.sizes == (0, 0)


def test_a_kind_is_a_row_of_each_pool_and_a_tenant_one_of_all() -> None:
    folds = Folds()
    folds.fold(
        [
            {"slot": 0, "kind": 7, "tenant": 3},
            {"slot": 1, "kind": 7, "tenant": 3},
            {"slot": 2, "kind": 7, "tenant": 4},
            {"slot": 3, "kind": 8, "tenant": 3},
            {"slot": 0},
        ]
    )
    kinds, tenants = folds.kinds(), folds.tenants()
    rows = list(zip(kinds.pool.tolist(), kinds.kind.tolist(), kinds.calls.tolist(), strict=True))
    assert rows == [(-1, 8, 1), (0, 0, 1), (0, 7, 2), (1, 7, 1)]
    assert tenants.tenant.tolist() == [0, 3, 4]
    assert tenants.calls.tolist() == [1, 3, 1]
    assert folds.breakdown.sizes == (3, 2)


def test_a_row_counts_each_kind_of_end_and_what_was_generated() -> None:
    folds = Folds()
    rows: list[dict[str, Any]] = [
        {"outcome": Outcome.OK, "prompt_tokens": 10, "output_tokens": 5},
        {"outcome": Outcome.FAILURE, "weight": 2.5},
        {"outcome": Outcome.OVERLOAD},
        {"outcome": Outcome.NEITHER, "prompt_tokens": 1, "weight": 3.0},
    ]
    folds.fold([{"kind": 7, "tenant": 3, **row} for row in rows])
    for window in (folds.kinds(), folds.tenants()):
        assert window.calls.tolist() == [7.5]
        assert window.failure_calls.tolist() == [7.5]
        assert window.failures.tolist() == [2.5]
        assert window.overloads.tolist() == [1]
        assert window.prompt_tokens.tolist() == [13]
        assert window.output_tokens.tolist() == [5]
        assert window.duration_n.tolist() == [1]


def test_latencies_are_of_what_was_served_within_the_error_of_the_sketch() -> None:
    folds = Folds()
    rng = np.random.default_rng(7)
    duration, ttft = rng.lognormal(1.0, 0.8, 500) + 1.0, rng.uniform(0.01, 0.9, 500)
    rows: list[dict[str, Any]] = [
        {"kind": 7, "duration_s": d, "ttft_s": t, "prompt_tokens": 1, "output_tokens": 101}
        for d, t in zip(duration, ttft, strict=True)
    ]
    refused = {"kind": 7, "duration_s": 0.0001, "outcome": Outcome.FAILURE, "output_tokens": 9}
    folds.fold([*rows, *[refused] * 300])
    window = folds.kinds()
    itl = (duration - ttft) / 100
    for values, median, high in (
        (duration, window.duration_p50_s, window.duration_p99_s),
        (ttft, window.ttft_p50_s, window.ttft_p99_s),
        (itl, window.itl_p50_s, window.itl_p99_s),
    ):
        assert median[0] == pytest.approx(np.quantile(values, 0.5, method="lower"), rel=0.05)
        assert high[0] == pytest.approx(np.quantile(values, 0.99, method="lower"), rel=0.05)
    assert window.duration_n[0] == window.ttft_n[0] == window.itl_n[0] == 500
    assert folds.tenants().duration_p50_s[0] == window.duration_p50_s[0]
    for timed, values in ((DURATION, duration), (TTFT, ttft), (ITL, itl)):
        exported = window.latency.exponential(timed)
        assert exported.count.tolist() == [500]
        assert exported.sum[0] == pytest.approx(values.sum(), abs=500 * 0.5e-6)


def test_the_time_between_tokens_needs_two_tokens_and_a_start_before_the_end() -> None:
    folds = Folds()
    known = {"kind": 7, "duration_s": 3.0, "ttft_s": 1.0, "prompt_tokens": 1, "output_tokens": 5}
    lacks: list[dict[str, Any]] = [
        {**known, "output_tokens": 1},
        {**known, "output_tokens": np.nan},
        {**known, "ttft_s": np.nan},
        {**known, "ttft_s": 3.5},
        {**known, "duration_s": np.nan},
        {**known, "outcome": Outcome.FAILURE},
    ]
    folds.fold([known, *lacks])
    window = folds.kinds()
    assert window.itl_n.tolist() == [1]
    assert window.itl_p50_s[0] == pytest.approx(0.5, rel=0.05)


def test_a_sampled_request_is_as_many_in_the_sketch_as_in_the_counts() -> None:
    folds = Folds()
    fast = {"kind": 7, "tenant": 3, "duration_s": 0.1, "weight": 100.0}
    slow = {"kind": 7, "tenant": 3, "duration_s": 10.0}  # kept because it was slow
    folds.fold([fast, *[slow] * 10])
    for window in (folds.kinds(), folds.tenants()):
        assert window.calls.tolist() == [110]
        assert window.duration_n.tolist() == [110]
        assert window.duration_p50_s[0] == pytest.approx(0.1, rel=0.05)
        assert window.latency.exponential(DURATION).sum[0] == pytest.approx(110.0)


def test_a_window_has_whole_buckets_and_says_how_much_time_they_cover() -> None:
    folds = Folds()
    rows = [{"kind": 1 + i, "end_ns": ago(s, MIXED)} for i, s in enumerate((0, 5, 6, 15, 16))]
    folds.fold(rows, MIXED)
    assert folds.kinds(MIXED, 10).kind.tolist() == [1, 2]
    assert folds.kinds(MIXED, 10).seconds == 5.0
    assert folds.kinds(MIXED, 11).kind.tolist() == [1, 2, 3, 4]
    assert folds.kinds(MIXED, 20).seconds == 15.0
    assert folds.tenants(MIXED.plus_s(4.5), 20).seconds == 19.5
    assert folds.kinds(MIXED.plus_s(5), 20).kind.tolist() == [1, 2]
    assert folds.kinds(MIXED.plus_s(15), 20).kind.tolist() == []
    assert folds.kinds(MIXED.plus_s(94), 120).kind.tolist() == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("seconds", [0, 121])
def test_windows_that_are_not_kept_are_refused(seconds: int) -> None:
    with pytest.raises(ValueError, match="there are 1 to 120"):
        Folds().kinds(START, seconds)


def test_what_waited_through_a_standstill_counts_where_it_belongs() -> None:
    folds = Folds()
    folds.fold([{"kind": 7, "end_ns": ago(119)}, {"kind": 8}])
    later = START.plus_s(10)
    assert folds.kinds(later, 120).kind.tolist() == [8]
    folds.fold([{"kind": 9, "end_ns": ago(0, later)}], later)
    much_later = START.plus_s(1000)
    assert folds.kinds(much_later, 120).kind.tolist() == []
    assert folds.reasons == {}


def test_late_and_future_rows_are_left_out_and_counted_once() -> None:
    folds = Folds()
    folds.fold([{}])
    now = START.plus_s(1)
    rows = [{"kind": 7, "end_ns": ago(s, now)} for s in (0, 125, -60)]
    assert folds.fold(rows, now) == {"late": 1, "future": 1}
    assert folds.kinds(now).calls.tolist() == [1, 1]


# bounds


def test_kinds_beyond_the_bound_count_in_their_pools_rest() -> None:
    folds = Folds(max_kinds=2)
    folds.fold([{"slot": 0, "kind": 7}, {"slot": 2, "kind": 7}])
    folds.kinds()
    folds.fold([{"slot": slot, "kind": kind} for slot in (0, 2) for kind in (7, 8, 9)])
    window = folds.kinds()
    rows = list(zip(window.pool.tolist(), window.kind.tolist(), window.calls.tolist(), strict=True))
    assert rows == [(0, 0, 2), (0, 7, 2), (1, 0, 2), (1, 7, 2)]
    assert folds.fold([]) == {"kind_overflow": 4}
    assert folds.fold([]) == {}


def test_tenants_beyond_the_bound_count_together() -> None:
    folds = Folds(max_tenants=1)
    folds.fold([{"tenant": 5}])
    folds.tenants()
    folds.fold([{"tenant": tenant, "slot": tenant % 4} for tenant in (5, 6, 7)])
    window = folds.tenants()
    assert window.tenant.tolist() == [0, 5]
    assert window.calls.tolist() == [2, 2]
    assert folds.fold([]) == {"tenant_overflow": 2}


def test_a_kind_that_is_gone_for_ten_minutes_makes_room() -> None:
    folds = Folds(max_kinds=1)
    folds.fold([{"kind": 7, "trace_id": trace(1)}])
    folds.kinds()
    for step, expected in ((590, [0]), (1211, [8])):
        now = START.plus_s(step)
        folds.fold([{"kind": 8, "end_ns": now.wall_ns}], now)
        window = folds.kinds(now)
        assert window.kind.tolist() == expected
        assert window.calls.tolist() == [1]
        assert not window.slowest.trace_id.any()
    assert folds.breakdown.sizes == (1, 0)


def test_a_kind_that_comes_all_the_time_is_not_forgotten() -> None:
    folds = Folds(max_kinds=1)
    for step in range(0, 2000, 100):
        now = START.plus_s(step)
        folds.fold([{"kind": 7, "end_ns": now.wall_ns}], now)
        folds.kinds(now)
    folds.fold([{"kind": 8, "end_ns": now.wall_ns}], now)
    assert folds.kinds(now).kind.tolist() == [0, 7]


def test_timings_that_find_their_bucket_full_are_counted() -> None:
    folds, times, room = Folds(), 60, 2**32 - 1
    row = {"kind": 7, "tenant": 3, "duration_s": 1.0, "weight": 1e4}
    now = START.plus_s(9)  # over ten seconds: the request fold's buckets have room
    rows = requests([{**row, "end_ns": ago(i % 10, now)} for i in range(MAX_WAITING)])
    reasons: Counter[str] = Counter()
    for _ in range(times):
        reasons.update(folds.breakdown.fold(rows, POOLS, now))
    all_of_them = times * MAX_WAITING * 10_000
    assert reasons == {"sketch_full": 2 * (all_of_them - room)}  # by kind, and by tenant
    assert folds.kinds(now).calls.tolist() == [all_of_them]
    assert folds.kinds(now).duration_n.tolist() == [room]


def test_memory_is_what_the_bounds_say() -> None:
    folds = Folds()
    for low in range(0, 6000, 1000):
        rows = [{"slot": i % 3, "kind": i + 1, "tenant": i + 1} for i in range(low, low + 1000)]
        folds.fold(rows)
        folds.kinds()
    assert folds.breakdown.sizes == (1024, 4096)
    assert folds.breakdown.nbytes < 120 * 2**20  # a quarter of it room to grow
    before = folds.breakdown.nbytes
    later = START.plus_s(700)
    rows = [{"kind": i, "tenant": i, "end_ns": later.wall_ns} for i in range(10_000, 11_000)]
    folds.fold(rows, later)
    assert folds.kinds(later).calls.sum() == 1000
    assert folds.breakdown.nbytes == before


# observers


def test_a_request_that_client_and_proxy_report_counts_once() -> None:
    folds = Folds()
    folds.fold([{"kind": 7, "observer": CLIENT}, {"kind": 7, "observer": PROXY}])
    assert folds.kinds().calls.tolist() == [1]
    assert folds.tenants().calls.tolist() == [1]


def test_each_figure_is_from_the_observer_that_knows_it_best() -> None:
    folds = Folds()
    rows: list[dict[str, Any]] = [
        {"observer": ENGINE, "ttft_s": 1.0, "prompt_tokens": 10, "output_tokens": 2},
        {"observer": PROXY, "outcome": Outcome.FAILURE},
        {"observer": CLIENT, "ttft_s": 3.0, "duration_s": 9.0, "prompt_tokens": 99},
    ]
    folds.fold([{"kind": 7, **row} for row in rows])
    window = folds.kinds()
    assert window.calls.tolist() == [1]
    assert window.duration_p50_s[0] == pytest.approx(1.0, rel=0.05)
    assert window.failures.tolist() == window.failure_calls.tolist() == [1]
    assert window.prompt_tokens.tolist() == [10]
    assert window.ttft_p50_s[0] == pytest.approx(3.0, rel=0.05)
    assert window.itl_n.tolist() == [1]


def test_tenants_are_read_from_callers_where_engines_do_not_know_them() -> None:
    folds = Folds()
    seen_twice: list[dict[str, Any]] = [
        {"observer": ENGINE, "kind": 7},
        {"observer": PROXY, "kind": 8, "tenant": 3},
    ]
    folds.fold([{"slot": 0, **row} for row in seen_twice] + [{"slot": 1, "observer": ENGINE}])
    assert folds.kinds().kind.tolist() == [0, 7, 8]
    assert folds.kinds().calls.tolist() == [1, 1, 0]
    tenants = folds.tenants()
    assert tenants.tenant.tolist() == [0, 3]
    assert tenants.calls.tolist() == [1, 1]


def test_a_row_shows_even_if_all_it_has_is_a_time_of_zero() -> None:
    folds = Folds()
    folds.fold([{"observer": PROXY, "kind": 7}, {"observer": CLIENT, "kind": 8, "ttft_s": 0.0}])
    window = folds.kinds()
    assert window.kind.tolist() == [7, 8]
    assert window.calls.tolist() == [1, 0]
    assert window.ttft_n.tolist() == [0, 1]


def test_a_kind_that_only_an_unread_observer_names_takes_no_room() -> None:
    folds = Folds(max_kinds=1)
    folds.fold([{"observer": PROXY, "kind": 8}, {"observer": CLIENT, "kind": 9}])
    assert folds.kinds().kind.tolist() == [8]
    assert folds.fold([]) == {}


# exemplars


def test_each_row_shows_its_slowest_request_and_its_newest_failure() -> None:
    folds = Folds()
    failed = {"outcome": Outcome.FAILURE, "duration_s": 99.0}
    rows: list[dict[str, Any]] = [
        {"trace_id": trace(1), "duration_s": 2.0},
        {"trace_id": trace(2), "duration_s": 5.0, "end_ns": ago(30)},
        {"duration_s": 50.0},
        {"trace_id": trace(3), **failed, "end_ns": ago(2)},
        {"trace_id": trace(4), **failed, "end_ns": ago(3)},
        {**failed},
        {"trace_id": trace(5), "outcome": Outcome.OVERLOAD, "duration_s": 70.0},
    ]
    folds.fold([{"kind": 7, **row} for row in rows] + [{"kind": 8}])
    window = folds.kinds()
    assert exemplars(window.slowest) == [(trace(2), 5.0, ago(30)), (trace(0), None, 0)]
    assert exemplars(window.failed) == [(trace(3), 99.0, ago(2)), (trace(0), None, 0)]
    assert exemplars(folds.kinds(seconds=10).slowest)[0] == (trace(1), 2.0, ago(0))
    assert exemplars(folds.kinds(seconds=10).failed)[0] == (trace(0), None, 0)
    later = START.plus_s(40)
    assert exemplars(folds.kinds(later).slowest)[0] == (trace(1), 2.0, ago(0))


def exemplars(columns: Exemplars) -> list[tuple[bytes, float | None, int]]:
    return [
        (bytes(trace_id), None if math.isnan(duration_s) else duration_s, at_ns)
        for trace_id, duration_s, at_ns in zip(*(c.tolist() for c in columns), strict=True)
    ]


# waiting


def test_requests_are_counted_a_second_later_at_the_latest_while_more_come() -> None:
    folds = Folds(max_kinds=1)
    assert folds.fold([{"kind": 7}, {"kind": 8}]) == {}
    assert folds.fold([], START.plus_s(0.9)) == {}
    assert folds.fold([], START.plus_s(1)) == {"kind_overflow": 1}


def test_only_so_many_requests_wait() -> None:
    folds = Folds(max_kinds=1)
    assert folds.fold([{"kind": kind} for kind in range(1, MAX_WAITING)]) == {}
    assert folds.fold([{"kind": 1}]) == {"kind_overflow": MAX_WAITING - 2}
