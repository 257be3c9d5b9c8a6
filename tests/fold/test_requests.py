from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.clock import NS_PER_S, Instant
from pipeline.fold.requests import RequestConfig, RequestFold
from pipeline.model import Directory, Observer, Outcome, RequestWindow
from tests.builders import START, requests

PROXY, ENGINE, CLIENT, AGENT = Observer.PROXY, Observer.ENGINE, Observer.CLIENT, Observer.AGENT


def fold_of(n_slots: int = 8) -> RequestFold:
    fold = RequestFold(RequestConfig())
    fold.resize(n_slots)
    return fold


def ago(seconds: float, now: Instant = START) -> int:
    return now.wall_ns - round(seconds * NS_PER_S)


def directory(pool: Sequence[int]) -> Directory:
    n = len(pool)
    blank = ("",) * n
    return Directory(
        version=1,
        id=tuple(str(i) for i in range(n)),
        address=blank,
        node=blank,
        engine=blank,
        zone=blank,
        models=((),) * n,
        pools=("a", "b"),
        pool=np.array(pool, np.int32),
        role=np.zeros(n, np.uint8),
        known=np.ones(n, np.bool_),
        member=np.ones(n, np.bool_),
        draining=np.zeros(n, np.bool_),
    )


def assert_same_window(left: RequestWindow, right: RequestWindow) -> None:
    for field in fields(RequestWindow):
        np.testing.assert_array_equal(
            getattr(left, field.name), getattr(right, field.name), err_msg=field.name
        )


# windows


def test_before_anything_is_heard_counts_are_zero_and_quantiles_unknown() -> None:
    window = fold_of().window(10, START)
    assert window.calls.tolist() == [0.0] * 8
    assert np.isnan(window.ttft_p50_s).all()
    assert window.calls_observer.tolist() == [-1] * 8


def test_no_slots_is_an_empty_window() -> None:
    fold = RequestFold(RequestConfig())
    assert fold.window(10, START).calls.shape == (0,)
    assert fold.heard_age_s(START).shape == (0,)
    assert fold.token_length_deviation(directory([]), START).shape == (0,)


def test_a_window_counts_each_kind_of_end() -> None:
    fold = fold_of()
    rows: list[dict[str, Any]] = [
        {"outcome": Outcome.OK, "prompt_tokens": 10, "output_tokens": 5},
        {"outcome": Outcome.FAILURE, "refused": True},
        {"outcome": Outcome.FAILURE},
        {"outcome": Outcome.OVERLOAD},
        {"outcome": Outcome.NEITHER},
    ]
    assert fold.fold(requests(rows), START) == {}
    window = fold.window(10, START)
    assert window.calls[0] == 5
    assert window.failure_calls[0] == 5
    assert window.failures[0] == 2
    assert window.overloads[0] == 1
    assert window.refused[0] == 1
    assert window.prompt_tokens[0] == 10
    assert window.output_tokens[0] == 5
    assert window.calls[1] == 0


@pytest.mark.parametrize("outcome", [Outcome.FAILURE, Outcome.OVERLOAD, Outcome.NEITHER])
def test_durations_are_those_of_requests_that_were_served(outcome: Outcome) -> None:
    fold = fold_of()
    served = {"duration_s": 1.0, "end_ns": ago(1)}
    fold.fold(requests([served, {**served, "duration_s": 0.001, "outcome": outcome}]), START)
    window = fold.window(10, START)
    assert window.calls[0] == 2
    assert window.duration_n[0] == 1
    assert window.duration_p50_s[0] == pytest.approx(1.0, rel=0.06)


def test_the_open_bucket_counts_and_a_bucket_leaves_when_it_is_too_old() -> None:
    fold = fold_of()
    fold.fold(requests([{"end_ns": ago(0)}, {"end_ns": ago(9)}, {"end_ns": ago(10)}]), START)
    assert fold.window(10, START).calls[0] == 2
    assert fold.window(11, START).calls[0] == 3
    assert fold.window(10, START.plus_s(1)).calls[0] == 1
    assert fold.window(10, START.plus_s(10)).calls[0] == 0
    assert fold.window(120, START.plus_s(109)).calls[0] == 3


def test_seconds_says_how_much_time_the_buckets_cover() -> None:
    fold = fold_of()
    assert fold.window(10, START).seconds == 9.0
    assert fold.window(10, START.plus_s(0.25)).seconds == 9.25


def test_late_rows_inside_the_ring_are_added_and_older_ones_counted() -> None:
    fold = fold_of()
    dropped = fold.fold(requests([{"end_ns": ago(119)}, {"end_ns": ago(120)}]), START)
    assert dropped == {"late": 1}
    assert fold.window(120, START).calls[0] == 1


def test_a_sampled_row_stands_for_several_requests() -> None:
    fold = fold_of()
    fold.fold(requests([{"weight": 4.0, "prompt_tokens": 10, "output_tokens": 1}]), START)
    window = fold.window(10, START)
    assert window.calls[0] == 4
    assert window.prompt_tokens[0] == 40
    assert window.duration_n[0] == 1


def test_a_slot_that_was_forgotten_starts_empty_for_its_next_owner() -> None:
    fold = fold_of()
    row = {"ttft_s": 0.1, "prompt_tokens": 9, "output_tokens": 9}
    fold.fold(requests([{"slot": 1, **row}, {"slot": 2, **row}]), START)
    fold.window(10, START)
    fold.forget(np.array([1], np.int32))
    window = fold.window(10, START)
    assert window.calls[:3].tolist() == [0, 0, 1]
    assert window.calls_observer[:3].tolist() == [-1, -1, CLIENT]
    assert fold.heard_age_s(START)[1] == np.inf
    fold.fold(requests([{"slot": 1, **row}]), START)
    assert fold.window(10, START).calls[:3].tolist() == [0, 1, 1]


def test_growing_keeps_what_there_is() -> None:
    fold = fold_of(8)
    fold.fold(requests([{"slot": i, "ttft_s": 0.1 * (i + 1)} for i in range(8)]), START)
    before = fold.window(10, START)
    fold.resize(64)
    fold.fold(requests([{"slot": i, "ttft_s": 1.0} for i in range(8, 64)]), START)
    after = fold.window(10, START)
    assert after.calls.tolist() == [1.0] * 64
    np.testing.assert_array_equal(after.ttft_p50_s[:8], before.ttft_p50_s)


# clocks


def test_a_row_far_in_the_future_is_counted_and_moves_nothing() -> None:
    fold = fold_of()
    assert fold.fold(requests([{}]), START) == {}
    later = START.plus_s(1)
    assert fold.fold(requests([{"end_ns": ago(-60, later)}]), later) == {"future": 1}
    again = START.plus_s(2)
    assert fold.fold(requests([{"end_ns": ago(0, again)}]), again) == {}
    assert fold.window(10, again).calls[0] == 2


def test_a_source_whose_clock_is_ahead_is_corrected_once_it_is_known() -> None:
    fold = fold_of()
    assert fold.fold(requests([{"end_ns": ago(-30)}]), START) == {"future": 1}
    later = START.plus_s(5)
    rows = [{"end_ns": ago(-30, later)}, {"end_ns": ago(-28, later)}]
    assert fold.fold(requests(rows), later) == {}
    assert fold.window(1, later).calls[0] == 1
    assert fold.window(3, later).calls[0] == 2


def test_a_source_whose_clock_is_behind_is_corrected_once_it_is_known() -> None:
    fold = fold_of()
    assert fold.fold(requests([{"end_ns": ago(500)}]), START) == {"late": 1}
    later = START.plus_s(5)
    assert fold.fold(requests([{"end_ns": ago(500, later)}]), later) == {}
    assert fold.window(1, later).calls[0] == 1


def test_one_sources_clock_says_nothing_about_anothers() -> None:
    fold = fold_of()
    fold.fold(requests([{"end_ns": ago(-30), "source": 7}, {"source": 8}]), START)
    later = START.plus_s(5)
    rows = [{"end_ns": ago(-30, later), "source": 7}, {"end_ns": ago(-30, later), "source": 8}]
    assert fold.fold(requests(rows), later) == {"future": 1}


def test_one_bad_row_does_not_spoil_a_sources_offset() -> None:
    fold = fold_of()
    assert fold.fold(requests([{"end_ns": ago(-3600)}, {}]), START) == {"future": 1}
    later = START.plus_s(1)
    assert fold.fold(requests([{"end_ns": ago(0, later)}]), later) == {}


def test_a_source_whose_clock_was_set_forward_is_learned_anew_within_a_minute() -> None:
    fold = fold_of()
    fold.fold(requests([{}]), START)
    counted = []
    for step in range(1, 60):
        now = START.plus_s(step)
        dropped = fold.fold(requests([{"end_ns": ago(-100, now)}]), now)
        counted.append(dropped.get("future", 0))
    assert sum(counted) < 40
    assert counted[-10:] == [0] * 10


def test_a_step_of_our_own_wall_clock_loses_no_window() -> None:
    fold = fold_of()
    fold.fold(requests([{}, {}]), START)
    stepped = Instant(START.mono_ns + NS_PER_S, START.wall_ns + 3600 * NS_PER_S)
    assert fold.fold(requests([{"end_ns": stepped.wall_ns}]), stepped) == {}
    assert fold.window(10, stepped).calls[0] == 3
    back = Instant(START.mono_ns + 2 * NS_PER_S, START.wall_ns)
    assert fold.fold(requests([{"end_ns": back.wall_ns}]), back) == {}
    assert fold.window(10, back).calls[0] == 4


def test_ordinary_delivery_delay_is_not_taken_for_a_clock_error() -> None:
    fold = fold_of()
    for step in range(5):
        now = START.plus_s(step)
        fold.fold(requests([{"end_ns": ago(4, now)}]), now)
    assert fold.window(4, START.plus_s(4)).calls[0] == 0
    assert fold.window(5, START.plus_s(4)).calls[0] == 1


# observers


def test_a_request_seen_by_client_and_proxy_is_kept_for_each_and_counted_once() -> None:
    fold = fold_of()
    fold.fold(requests([{"observer": CLIENT}, {"observer": PROXY}]), START)
    window = fold.window(10, START)
    assert window.calls[0] == 1
    assert window.failure_calls[0] == 1
    assert window.calls_observer[0] == PROXY


def test_each_signal_reads_the_observer_that_knows_it_best() -> None:
    fold = fold_of()
    rows: list[dict[str, Any]] = [
        {"observer": ENGINE, "ttft_s": 1.0, "prompt_tokens": 10, "output_tokens": 1},
        {"observer": PROXY, "outcome": Outcome.FAILURE},
        {"observer": CLIENT, "ttft_s": 3.0, "prompt_tokens": 99, "output_tokens": 9},
    ]
    fold.fold(requests(rows), START)
    window = fold.window(10, START)
    assert window.calls_observer[0] == ENGINE
    assert window.failures_observer[0] == PROXY
    assert window.failures[0] == 1
    assert window.ttft_observer[0] == CLIENT
    assert window.ttft_p50_s[0] == pytest.approx(3.0, rel=0.055)
    assert window.prompt_tokens[0] == 10


def test_an_agents_rows_are_preferred_for_time_to_first_token() -> None:
    fold = fold_of()
    rows = [{"observer": o, "ttft_s": 1.0 + o} for o in Observer]
    fold.fold(requests(rows), START)
    assert fold.window(10, START).ttft_observer[0] == AGENT


def test_a_better_observer_takes_over_only_after_a_minute() -> None:
    fold = fold_of()
    seen = []
    for step in range(0, 130, 5):
        now = START.plus_s(step)
        rows = [{"observer": CLIENT, "end_ns": now.wall_ns}]
        if step >= 20:
            rows.append({"observer": ENGINE, "end_ns": now.wall_ns})
        fold.fold(requests(rows), now)
        seen.append((step, int(fold.window(10, now).calls_observer[0])))
    assert {o for step, o in seen if step < 80} == {CLIENT}
    assert {o for step, o in seen if step >= 80} == {ENGINE}


def test_a_silent_observer_is_left_only_after_a_minute() -> None:
    fold = fold_of()
    fold.fold(requests([{"observer": ENGINE}]), START)
    fold.window(10, START)
    for step, expected in ((30, ENGINE), (60, ENGINE), (61, CLIENT)):
        now = START.plus_s(step)
        fold.fold(requests([{"observer": CLIENT, "end_ns": now.wall_ns}]), now)
        assert fold.window(10, now).calls_observer[0] == expected


# life and refusals


def test_being_served_is_a_sign_of_life_and_being_refused_is_none() -> None:
    fold = fold_of()
    rows: list[dict[str, Any]] = [
        {"slot": 0, "end_ns": ago(3)},
        {"slot": 1, "outcome": Outcome.FAILURE, "refused": True},
        {"slot": 2, "outcome": Outcome.OVERLOAD},
    ]
    fold.fold(requests(rows), START)
    assert fold.heard_age_s(START)[:4].tolist() == [3.0, np.inf, 0.0, np.inf]
    assert fold.heard_age_s(START.plus_s(2))[0] == 5.0


def test_recent_refusals_are_those_of_whoever_saw_most() -> None:
    fold = fold_of()
    refused = {"outcome": Outcome.FAILURE, "refused": True}
    rows = [
        {**refused, "observer": PROXY},
        {**refused, "observer": CLIENT},
        {**refused, "observer": CLIENT, "end_ns": ago(2)},
        {**refused, "observer": CLIENT, "end_ns": ago(3)},
    ]
    fold.fold(requests(rows), START)
    assert fold.refused_recent(START)[0] == 2
    assert fold.refused_recent(START.plus_s(1))[0] == 1


# token lengths


def test_token_length_deviation_is_the_mean_above_the_pools_median() -> None:
    fold = fold_of()
    rng = np.random.default_rng(1)
    lengths = [rng.integers(100, 200 * (slot + 1), 50) for slot in range(3)]
    rows = [
        {"slot": slot, "prompt_tokens": int(tokens) - 10, "output_tokens": 10}
        for slot, column in enumerate(lengths)
        for tokens in column
    ]
    rows += [{"slot": 3, "prompt_tokens": 5, "output_tokens": 5}] * 2  # another pool
    rows += [{"slot": 4, "prompt_tokens": 5, "output_tokens": 5}]  # too few
    fold.fold(requests(rows), START)
    pools = directory([0, 0, 0, 1, 1, 0, -1, -1])
    deviation = fold.token_length_deviation(pools, START)
    median = np.quantile(np.concatenate(lengths), 0.5, method="lower")
    for slot in range(3):
        expected = max(lengths[slot].mean() - median, 0.0)
        assert deviation[slot] == pytest.approx(expected, abs=0.026 * median)
    assert deviation[2] > 0
    assert deviation[3] == pytest.approx(0.0, abs=0.3)
    assert np.isnan(deviation[4:]).all()


def test_token_lengths_are_forgotten_after_the_window() -> None:
    fold = fold_of()
    fold.fold(requests([{"prompt_tokens": 5, "output_tokens": 5}] * 5), START)
    pools = directory([0] * 8)
    assert not np.isnan(fold.token_length_deviation(pools, START)[0])
    assert np.isnan(fold.token_length_deviation(pools, START.plus_s(70))[0])


def test_token_lengths_of_requests_that_come_two_minutes_late_are_not_taken_for_new_ones() -> None:
    fold, pools = fold_of(), directory([0] * 8)
    now = Instant(START.mono_ns, 1_700_000_005 * NS_PER_S)
    assert np.isnan(fold.token_length_deviation(pools, now)[0])
    row = {"prompt_tokens": 5, "output_tokens": 5, "end_ns": ago(119, now)}
    assert fold.fold(requests([row] * 3), now) == {}
    assert np.isnan(fold.token_length_deviation(pools, now)[0])
    assert np.isnan(fold.token_length_deviation(pools, now.plus_s(70))[0])


# any split, and brute force

ROW = st.fixed_dictionaries(
    {
        "slot": st.integers(0, 3),
        "observer": st.sampled_from(list(Observer)),
        "outcome": st.sampled_from(list(Outcome)),
        "refused": st.booleans(),
        "end_ns": st.integers(-20, 130).map(ago),
        "duration_s": st.one_of(st.just(np.nan), st.floats(0.0, 700.0)),
        "ttft_s": st.one_of(st.just(np.nan), st.floats(0.0, 700.0)),
        "prompt_tokens": st.one_of(st.just(np.nan), st.integers(0, 10_000).map(float)),
        "output_tokens": st.one_of(st.just(np.nan), st.integers(0, 10_000).map(float)),
        "weight": st.sampled_from([1.0, 2.0, 10 / 3]),
        "source": st.integers(1, 3),
    }
)
STREAM = st.lists(st.tuples(st.floats(0.0, 40.0), st.lists(ROW, max_size=12)), max_size=6)


def replay(stream: list[tuple[float, list[dict[str, Any]]]], cut: int) -> tuple[Any, ...]:
    """Every instant's rows, folded in pieces of `cut`; the reasons and the windows at the end."""
    fold, now = fold_of(), START
    reasons: dict[str, int] = {}
    for wait_s, rows in stream:
        now = now.plus_s(wait_s)
        fold.window(10, now)
        for low in range(0, len(rows), cut):
            for reason, n in fold.fold(requests(rows[low : low + cut]), now).items():
                reasons[reason] = reasons.get(reason, 0) + n
    pools = directory([0, 0, 1, 1, -1, -1, -1, -1])
    return (
        reasons,
        fold.window(10, now),
        fold.window(60, now),
        fold.heard_age_s(now),
        fold.refused_recent(now),
        fold.token_length_deviation(pools, now),
    )


@settings(max_examples=60, deadline=None)
@given(STREAM, st.integers(1, 5))
def test_any_cut_of_a_stream_into_batches_folds_to_the_same_state(
    stream: list[tuple[float, list[dict[str, Any]]]], cut: int
) -> None:
    whole, pieces = replay(stream, 1000), replay(stream, cut)
    assert whole[0] == pieces[0]
    assert_same_window(whole[1], pieces[1])
    assert_same_window(whole[2], pieces[2])
    for left, right in zip(whole[3:], pieces[3:], strict=True):
        np.testing.assert_array_equal(left, right)


@given(st.lists(ROW, max_size=12), st.randoms(use_true_random=False))
def test_the_order_of_rows_within_an_instant_does_not_matter(
    rows: list[dict[str, Any]], random: Any
) -> None:
    shuffled = list(rows)
    random.shuffle(shuffled)
    left, right = (replay([(0.0, part), (5.0, part)], 1000) for part in (rows, shuffled))
    assert left[0] == right[0]
    assert_same_window(left[1], right[1])
    for one, other in zip(left[3:], right[3:], strict=True):
        np.testing.assert_array_equal(one, other)


def brute_force(
    arrived: Sequence[Mapping[str, Any]], slot: int, observer: int, seconds: int, now: Instant
) -> list[Mapping[str, Any]]:
    """Rows of one slot and observer that ended in the newest `seconds` whole seconds."""
    open_second = now.wall_ns // NS_PER_S
    return [
        row
        for row in arrived
        if row["slot"] == slot
        and row["observer"] == observer
        and open_second - seconds < row["end_ns"] // NS_PER_S <= open_second
    ]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.integers(0, 30),
            st.lists(st.tuples(ROW, st.floats(0.0, 9.0)), max_size=10),
        ),
        max_size=6,
    ),
    st.sampled_from([1, 10, 60, 120]),
)
def test_windows_equal_a_brute_force_count(
    stream: list[tuple[int, list[tuple[dict[str, Any], float]]]], seconds: int
) -> None:
    fold, now = fold_of(), START
    arrived: list[dict[str, Any]] = []
    for wait_s, drawn in stream:
        now = now.plus_s(wait_s)
        rows = [{**row, "end_ns": ago(delay, now)} for row, delay in drawn]
        assert fold.fold(requests(rows), now) == {}
        arrived += rows
        fold.window(seconds, now)
    window = fold.window(seconds, now)
    for slot in range(4):
        observer = int(window.calls_observer[slot])
        calls = brute_force(arrived, slot, observer, seconds, now)
        fixed = [round(row["weight"] * 1024) / 1024 for row in calls]
        assert window.calls[slot] == sum(fixed)
        watched = brute_force(arrived, slot, int(window.failures_observer[slot]), seconds, now)
        failed = [row["outcome"] == Outcome.FAILURE for row in watched]
        weights = [round(row["weight"] * 1024) / 1024 for row in watched]
        assert window.failures[slot] == sum(w for w, f in zip(weights, failed, strict=True) if f)
        timed = brute_force(arrived, slot, int(window.ttft_observer[slot]), seconds, now)
        ttft = [row["ttft_s"] for row in timed if not np.isnan(row["ttft_s"])]
        assert window.ttft_n[slot] == len(ttft)
        if ttft:
            exact = np.clip(np.quantile(ttft, 0.5, method="lower"), 1e-3, 600.0)
            assert window.ttft_p50_s[slot] == pytest.approx(exact, rel=0.06)


def test_a_bucket_that_is_full_stays_full_and_counts_what_it_could_not_take() -> None:
    fold = fold_of()
    rows = requests([{"duration_s": 1.0, "end_ns": ago(step % 3)} for step in range(3000)])
    fold.window(10, START)
    dropped = sum(fold.fold(rows, START).get("sketch_full", 0) for _ in range(70))
    assert dropped == 3 * (70_000 - 65_535)
    assert fold.window(10, START).duration_n[0] == 3 * 65_535
    assert fold.window(10, START).calls[0] == 210_000
    assert fold.window(10, START.plus_s(12)).duration_n[0] == 0
    fold.window(60, START.plus_s(59))
    assert fold.window(60, START.plus_s(59)).duration_n[0] == 65_535


def test_sources_beyond_the_bound_are_taken_at_their_word_and_counted() -> None:
    fold = RequestFold(RequestConfig(max_sources=64))
    fold.resize(8)
    rows = [{"source": i, "end_ns": ago(3)} for i in range(1, 101)]
    assert fold.fold(requests(rows), START) == {"source_overflow": 36}
    assert fold.window(10, START).calls[0] == 100
    later = START.plus_s(7300)
    fresh = [{"source": 1000 + i, "end_ns": ago(3, later)} for i in range(64)]
    assert fold.fold(requests(fresh), later) == {}


def test_a_thousand_endpoints_with_two_observers_fit_into_150_megabytes() -> None:
    fold = fold_of(1024)
    both = [
        {"slot": slot, "observer": o, "ttft_s": 1.0, "prompt_tokens": 5, "output_tokens": 5}
        for slot in range(1000)
        for o in (ENGINE, PROXY)
    ]
    fold.fold(requests(both), START)
    fold.window(10, START)
    fold.window(60, START)
    first = fold.nbytes
    assert first < 150 * 2**20  # the running sums of two windows included
    fold.forget(np.arange(1000, dtype=np.int32))
    fold.fold(requests(both), START)
    assert fold.nbytes == first


@given(st.lists(st.tuples(st.sampled_from([0.0, 0.3, 5.0]), st.integers(0, 7)), max_size=10))
def test_a_window_that_is_asked_for_all_the_time_is_the_one_that_is_asked_for_once(
    steps: list[tuple[float, int]],
) -> None:
    often, once = fold_of(), fold_of()
    now = START
    for wait_s, slot in steps:
        now = now.plus_s(wait_s)
        if slot < 4:  # else nothing comes
            for fold in (often, once):
                fold.fold(requests([{"slot": slot, "end_ns": now.wall_ns, "ttft_s": 0.1}]), now)
        often.window(10, now)
    assert_same_window(often.window(10, now), once.window(10, now))


def test_a_window_without_latency_differs_in_nothing_else() -> None:
    fold = fold_of()
    fold.fold(requests([{"slot": 1, "end_ns": ago(1), "ttft_s": 0.1, "duration_s": 1.0}]), START)
    window, without = fold.window(10, START), fold.window(10, START, latency=False)
    timed = {f.name for f in fields(RequestWindow) if f.name.startswith(("ttft_", "duration_"))}
    timed -= {"ttft_observer"}
    assert window.ttft_n[1] == window.duration_n[1] == 1
    assert without.ttft_n.sum() == without.duration_n.sum() == 0
    assert np.isnan(without.ttft_p50_s).all()
    unknown = {name: getattr(without, name) for name in timed}
    assert_same_window(replace(window, **unknown), without)
