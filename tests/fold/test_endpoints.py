"""Rules of resets, ranks, freshness and derivations on hand-made samples.

Times are seconds of event time; arrival follows event time unless a test says otherwise.
"""

import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.clock import NS_PER_S, Instant
from pipeline.fold.derivations import DERIVATIONS
from pipeline.fold.endpoints import EndpointFold, FoldConfig
from pipeline.model import Directory, SampleRows
from pipeline.signals import SIGNAL_INDEX, SIGNALS
from tests.samples import Explicit, Exponential, Point, rows

N = 4
NAN = float("nan")


def at(seconds: float) -> Instant:
    """The clocks when an event of `seconds` has just happened."""
    return Instant(round(seconds * NS_PER_S), round(seconds * NS_PER_S))


def directory(n: int = N) -> Directory:
    return Directory(
        version=1,
        id=tuple(f"e{i}" for i in range(n)),
        address=("",) * n,
        node=("",) * n,
        engine=("",) * n,
        zone=("",) * n,
        models=((),) * n,
        pools=(),
        pool=np.full(n, -1, np.int32),
        role=np.zeros(n, np.uint8),
        known=np.ones(n, np.bool_),
        member=np.ones(n, np.bool_),
        draining=np.zeros(n, np.bool_),
    )


class Fleet:
    """A fold, what it dropped so far, and the newest event time it was given."""

    def __init__(self, config: FoldConfig | None = None) -> None:
        self.fold = EndpointFold(config or FoldConfig())
        self.fold.resize(N)
        self.dropped: Counter[str] = Counter()
        self.now = at(0)

    def take(self, *points: Point, now_s: float | None = None) -> "Fleet":
        """Fold points as one batch, on arrival at the newest of their times."""
        self.now = at(max(p.time_s for p in points) if now_s is None else now_s)
        self.dropped.update(self.fold.fold(rows(points), self.now))
        return self

    def value(self, signal: str, slot: int = 0, now_s: float | None = None) -> float:
        now = self.now if now_s is None else at(now_s)
        return float(self.fold.signals(now, directory()).value[SIGNAL_INDEX[signal], slot])

    def age_s(self, signal: str, now_s: float, slot: int = 0) -> float:
        matrix = self.fold.signals(at(now_s), directory())
        return float(matrix.age_s[SIGNAL_INDEX[signal], slot])


def counter(values: Sequence[tuple[float, float]], **fields: float) -> Fleet:
    """A fleet that got one counter point a batch: (time, value) pairs."""
    fleet = Fleet()
    for time_s, value in values:
        start_s = fields.get("start_s", 0.0)
        fleet.take(Point("output_tokens", value, time_s, start_s))
    return fleet


# counters


def test_the_first_point_of_a_counter_adds_nothing() -> None:
    assert np.isnan(counter([(10, 1e9)]).value("output_tokens_per_s"))


def test_a_rate_is_the_increase_over_the_time_between_two_points() -> None:
    assert counter([(10, 100), (20, 150)]).value("output_tokens_per_s") == 5.0  # 50 / 10 s


def test_a_rate_fades_over_the_larger_of_five_seconds_and_two_intervals() -> None:
    # Intervals of 10 s: time constant 20 s, so the older rate has weight exp(-10 / 20) = 0.60653.
    # (5 * 0.60653 + 9) / 1.60653 = 7.48985
    fleet = counter([(10, 100), (20, 150), (30, 240)])
    assert fleet.value("output_tokens_per_s") == pytest.approx(7.48985, rel=1e-5)


def test_a_rate_holds_between_samples() -> None:
    fleet = counter([(10, 100), (20, 150)])
    assert fleet.value("output_tokens_per_s", now_s=29) == 5.0


def test_a_value_that_fell_is_a_reset_and_counts_from_zero() -> None:
    # +100 in 10 s, then a restart and 30 since: time constant 20 s, weight 0.60653 again.
    # (10 * 0.60653 + 3) / 1.60653 = 5.64279
    fleet = counter([(10, 0), (20, 100), (30, 30)])
    assert fleet.value("output_tokens_per_s") == pytest.approx(5.64279, rel=1e-5)


def test_a_new_start_before_the_point_counts_the_whole_value_although_it_did_not_fall() -> None:
    fleet = Fleet()
    fleet.take(Point("output_tokens", 100, 10, start_s=1))
    fleet.take(Point("output_tokens", 150, 20, start_s=12))
    assert fleet.value("output_tokens_per_s") == 15.0  # 150 / 10 s, not 50 / 10 s


def test_a_new_start_equal_to_the_time_is_unknown_and_adds_nothing() -> None:
    fleet = Fleet()
    fleet.take(Point("output_tokens", 100, 10, start_s=1))
    fleet.take(Point("output_tokens", 900, 20, start_s=20))
    assert np.isnan(fleet.value("output_tokens_per_s"))
    fleet.take(Point("output_tokens", 930, 30, start_s=20))
    assert fleet.value("output_tokens_per_s") == 3.0  # 30 / 10 s


def test_a_start_that_appears_later_is_no_reset() -> None:
    fleet = Fleet()
    fleet.take(Point("output_tokens", 100, 10))
    fleet.take(Point("output_tokens", 150, 20, start_s=1))
    assert fleet.value("output_tokens_per_s") == 5.0  # 50 / 10 s


def test_a_series_that_starts_while_its_source_is_watched_counts_from_its_start() -> None:
    # The first abort of an engine's life: the counter did not exist before.
    fleet = Fleet()
    fleet.take(Point("ended_ok", 50, 10, start_s=1))
    fleet.take(Point("ended_ok", 50, 20, start_s=1), Point("ended_abort", 2, 20, start_s=15))
    assert fleet.value("errors_per_s") == pytest.approx(0.4)  # 2 in the 5 s since its start


def test_a_series_older_than_our_first_sight_of_its_source_adds_nothing_at_first() -> None:
    assert np.isnan(counter([(1000, 1e9)], start_s=1).value("output_tokens_per_s"))


def test_a_duplicate_point_is_counted_and_changes_nothing() -> None:
    fleet = counter([(10, 100), (20, 150), (20, 150)])
    assert fleet.value("output_tokens_per_s") == 5.0
    assert fleet.dropped == {"duplicate": 1}


def test_a_point_out_of_order_is_counted_and_is_no_reset() -> None:
    fleet = counter([(10, 100), (20, 150), (15, 120)])
    assert fleet.value("output_tokens_per_s") == 5.0
    assert fleet.dropped == {"out_of_order": 1}


def test_a_gap_is_averaged_over_and_weighs_no_more_than_the_window() -> None:
    # 10 s intervals, then none for 100 s with 600 more. The interval learned is 10 + 0.2 * (40 -
    # 10) = 16 s (a gap counts at most four intervals), the time constant 32 s.
    # old weight: 32 * (1 - exp(-10 / 20)) is not it: it was 20 * (1 - 0.60653) = 7.8694 s; it fades
    # by exp(-100 / 32) = 0.043937 to 0.34576 s; the gap has 32 * (1 - 0.043937) = 30.594 s.
    # (5 * 0.34576 + 6 * 30.594) / 30.940 = 5.98882
    fleet = counter([(10, 100), (20, 150), (120, 750)])
    assert fleet.value("output_tokens_per_s") == pytest.approx(5.98882, rel=1e-5)


def test_deltas_are_added_and_the_first_counts_from_its_start() -> None:
    fleet = Fleet()
    fleet.take(Point("output_tokens", 40, 10, start_s=2, delta=True))
    assert fleet.value("output_tokens_per_s") == 5.0  # 40 / 8 s
    fleet.take(Point("output_tokens", 40, 18, start_s=10, delta=True))
    assert fleet.value("output_tokens_per_s") == pytest.approx(5.0)


def test_a_delta_that_begins_before_the_last_one_ended_is_of_a_second_writer_and_dropped() -> None:
    fleet = Fleet()
    fleet.take(Point("output_tokens", 40, 10, start_s=2, delta=True))
    fleet.take(Point("output_tokens", 400, 18, start_s=5, delta=True))
    assert fleet.value("output_tokens_per_s") == 5.0
    assert fleet.dropped == {"overlap": 1}


def test_the_end_of_a_series_is_absence_and_never_zero() -> None:
    fleet = Fleet()
    fleet.take(Point("queue", 7, 10), Point("output_tokens", 1, 10))
    fleet.take(Point("queue", 7, 20), Point("output_tokens", 2, 20))
    fleet.take(Point("queue", time_s=30, ended=True), Point("output_tokens", time_s=30, ended=True))
    assert np.isnan(fleet.value("queue_depth"))
    assert np.isnan(fleet.value("output_tokens_per_s"))


def test_a_series_that_comes_back_starts_afresh_without_a_reset() -> None:
    fleet = counter([(10, 100), (20, 150)])
    fleet.take(Point("output_tokens", time_s=30, ended=True))
    fleet.take(Point("output_tokens", 900, 60))
    assert np.isnan(fleet.value("output_tokens_per_s"))
    fleet.take(Point("output_tokens", 920, 70))
    assert fleet.value("output_tokens_per_s") == 2.0  # 20 / 10 s


def test_a_series_that_comes_back_with_its_old_start_is_not_counted_twice() -> None:
    fleet = Fleet()
    fleet.take(Point("queue", 0, 5))
    fleet.take(Point("output_tokens", 100, 10, start_s=8))
    fleet.take(Point("output_tokens", time_s=30, ended=True))
    fleet.take(Point("output_tokens", 900, 60, start_s=8))
    assert np.isnan(fleet.value("output_tokens_per_s"))


# ratios


def two(points: dict[str, tuple[float, float]]) -> Fleet:
    """Counters (or gauges) at 10 s and 20 s."""
    fleet = Fleet()
    for k, time_s in enumerate((10, 20)):
        fleet.take(*(Point(name, pair[k], time_s) for name, pair in points.items()))
    return fleet


@pytest.mark.parametrize(
    ("points", "ratio"),
    [
        # Equal traffic in every engine's own words: 1,000 prompt tokens, 250 of them cached.
        ({"prompt_hit": (0, 250), "prompt_miss": (0, 750)}, 0.25),
        ({"prefix_hits": (0, 250), "prefix_queries": (0, 1000)}, 0.25),
        ({"prefix_hits_old": (0, 250), "prefix_queries_old": (0, 1000)}, 0.25),
        ({"cached_tokens": (0, 250), "prompt_tokens": (0, 1000)}, 0.25),
        ({"cached_beside": (0, 250), "prompt_tokens": (0, 750)}, 0.25),
        ({"blocks_reused": (0, 16), "blocks_missed": (0, 48)}, 0.25),  # 16 of 64 blocks
        ({"hit_rate": (0.1, 0.25)}, 0.25),
        # The prompt tokens by source win over the queries, which retries inflate.
        (
            {"prompt_hit": (0, 1), "prompt_miss": (0, 3)}
            | {"prefix_hits": (0, 9), "prefix_queries": (0, 10)},
            0.25,
        ),
        # No traffic is absent: neither 0 nor 1.
        ({"prompt_hit": (9, 9), "prompt_miss": (9, 9)}, NAN),
        ({"prefix_hits": (9, 9), "prefix_queries": (9, 9)}, NAN),
        # More hits than queries (a race in the engine) is clamped.
        ({"prefix_hits": (0, 12), "prefix_queries": (0, 10)}, 1.0),
    ],
)
def test_prefix_hit_ratio(points: dict[str, tuple[float, float]], ratio: float) -> None:
    assert two(points).value("prefix_hit_ratio") == pytest.approx(ratio, nan_ok=True)


def test_a_ratio_divides_after_summing_over_ranks() -> None:
    # 90 of 100 on one rank, 0 of 900 on the other: 0.09, where the mean of ratios would be 0.45.
    fleet = Fleet()
    for time_s, share in ((10, 0), (20, 1)):
        fleet.take(
            Point("prefix_hits", 90 * share, time_s, group=1),
            Point("prefix_queries", 100 * share, time_s, group=1),
            Point("prefix_hits", 0, time_s, group=2),
            Point("prefix_queries", 900 * share, time_s, group=2),
        )
    assert fleet.value("prefix_hit_ratio") == pytest.approx(0.09)


@pytest.mark.parametrize(
    ("signal", "points", "value"),
    [
        ("queue_depth", {"queue": (1, 5), "queue_pending": (9, 9)}, 5),
        ("queue_depth", {"queue_pending": (1, 3)}, 3),
        ("kv_util", {"kv_util": (0.1, 0.2), "kv_util_old": (0.9, 0.9)}, 0.2),  # new name wins
        ("kv_util", {"kv_util_old": (0.1, 0.9)}, 0.9),
        ("kv_util", {"kv_blocks_used": (0, 30), "kv_blocks_max": (40, 40)}, 0.75),
        ("kv_capacity_tokens", {"kv_tokens": (8, 16)}, 16),
        ("kv_capacity_tokens", {"kv_page_tokens": (8, 16)}, 16),
        ("kv_capacity_tokens", {"kv_blocks_max": (40, 40), "kv_block_tokens": (32, 32)}, 1280),
        # SGLang: what grows as it happens wins over what grows when requests end.
        ("output_tokens_per_s", {"realtime_decode": (0, 10), "output_tokens": (0, 500)}, 1.0),
        ("output_tokens_per_s", {"output_rate": (7, 8), "output_tokens": (0, 500)}, 8),
        ("prompt_tokens_per_s", {"realtime_prefill": (0, 20), "prompt_tokens": (0, 500)}, 2.0),
        ("requests_per_s", {"requests": (0, 30)}, 3.0),
        (
            "requests_per_s",
            {"ended_ok": (0, 30), "ended_abort": (0, 5), "ended_error": (0, 5)},
            4.0,
        ),
        (
            "errors_per_s",
            {"ended_abort": (0, 1), "ended_error": (0, 2), "request_errors": (0, 3)},
            0.6,
        ),
        ("errors_per_s", {"ended_ok": (0, 30)}, 0.0),  # none yet beside a live sibling
        ("errors_per_s", {"queue": (0, 0)}, NAN),
        ("preemptions_per_s", {"preemptions": (0, 5)}, 0.5),
        ("itl_mean_s", {"output_time": (0, 2), "output_tokens": (0, 50)}, 0.04),
        ("e2e_mean_s", {"request_time": (0, 8), "requests": (0, 4)}, 2.0),
        ("queue_wait_mean_s", {"queue_time": (0, 2), "requests": (0, 4)}, 0.5),
        ("prefill_token_s", {"prompt_time": (0, 3), "prompt_tokens": (0, 600)}, 0.005),
        ("cpu_preprocess_s", {"input_time": (0, 1), "requests": (0, 4)}, 0.25),
        ("engine_sleep", {"engine_awake": (1, 1), "engine_sleep": (0, 0)}, 0),
        ("engine_sleep", {"engine_awake": (1, 0), "engine_sleep": (0, 1)}, 1),
        ("engine_sleep", {"paused": (0, 3)}, 1),
        ("gpu_sm_active_ratio", {"sm_active": (0, 0.3), "gr_active": (0, 0.9)}, 0.3),
        ("gpu_sm_active_ratio", {"gpu_busy": (0, 0.9)}, 0.9),
        ("mem_bandwidth_ratio", {"mem_copy": (0, 0.4)}, 0.4),
        (
            "fp16_ratio",  # (0.3 + 0.1) / (0.3 + 0.1 + 0.1 + 0.0)
            {"tensor_active": (0, 0.3), "pipe_fp16": (0, 0.1)}
            | {"pipe_fp32": (0, 0.1), "pipe_fp64": (0, 0.0)},
            0.8,
        ),
        (
            "fp16_ratio",
            {"tensor_active": (0, 0), "pipe_fp16": (0, 0)}
            | {"pipe_fp32": (0, 0), "pipe_fp64": (0, 0)},
            NAN,
        ),
        ("fp16_ratio", {"tensor_active": (0, 0.3), "pipe_fp16": (0, 0.1)}, NAN),
        # 60 of 60 + 30 + 10; without the reserved part, of 60 + 30
        (
            "gpu_mem_used_ratio",
            {"fb_used": (1, 60), "fb_free": (1, 30), "fb_reserved": (1, 10)},
            0.6,
        ),
        ("gpu_mem_used_ratio", {"fb_used": (1, 60), "fb_free": (1, 30)}, 2 / 3),
        ("gpu_mem_used_ratio", {"nv_mem_used": (1, 60), "nv_mem_total": (1, 80)}, 0.75),
        ("gpu_power_w", {"gpu_energy": (0, 3000)}, 300.0),  # J in 10 s
        ("gpu_power_w", {"gpu_power": (0, 250), "gpu_energy": (0, 3000)}, 250),
        ("gpu_throttle_ratio", {"violation": (0, 2)}, 0.2),
        ("gpu_throttle_ratio", {"violation": (0, 2000)}, 1.0),  # wrong unit: throttled, no more
        ("gpu_row_remap_failure", {"row_remap_failure": (0, 1)}, 1),
        ("gpu_ecc_events_per_s", {"remapped_rows": (0, 1), "ecc_aggregate": (0, 9)}, 0.1),
        ("gpu_ecc_events_per_s", {"ecc_aggregate": (0, 9)}, 0.9),
        ("pcie_replay_per_s", {"pcie_replay": (0, 5)}, 0.5),
        ("nvlink_errors_per_s", {"nvlink_errors": (0, 5)}, 0.5),
        ("cpu_busy_ratio", {"nv_cpu_busy": (0, 0.5)}, 0.5),
        ("engine_up", {"up": (1, 0)}, 0),
    ],
)
def test_derivations(signal: str, points: dict[str, tuple[float, float]], value: float) -> None:
    assert two(points).value(signal) == pytest.approx(value, nan_ok=True)


def test_every_signal_but_those_of_request_windows_has_a_derivation() -> None:
    others = {s for s in SIGNALS if s.startswith("window_")}
    others |= {"token_length_deviation", "gpu_xid_last"}  # of requests; a memory of its own
    assert set(DERIVATIONS) == set(SIGNALS) - others


def test_the_source_of_a_value_is_kept() -> None:
    fleet = two({"kv_util_old": (0.1, 0.9)})
    fleet.value("kv_util")
    assert fleet.fold.source_of("kv_util", 0) == "KV usage, old name"
    assert fleet.fold.source_of("kv_util", 1) == ""


# ranks and GPUs


@pytest.mark.parametrize(
    ("component", "signal", "expected"),
    [
        # (group, shard) values 3, 5 | 4, 4: tensor-parallel ranks repeat, data-parallel ranks add
        ("queue", "queue_depth", 9),  # max(3, 5) + max(4, 4)
        ("running", "running", 9),
        ("kv_util", "kv_util", 1.0),  # the fullest, clamped from 5
        ("kv_tokens", "kv_capacity_tokens", 9),
        ("gpu_temp", "gpu_temp_c", 5),
        ("gpu_power", "gpu_power_w", 9),
        ("row_remap_failure", "gpu_row_remap_failure", 1),
    ],
)
def test_ranks(component: str, signal: str, expected: float) -> None:
    fleet = Fleet()
    fleet.take(
        Point(component, 3, 10, group=1, shard=1),
        Point(component, 5, 10, group=1, shard=2),
        Point(component, 4, 10, group=2, shard=1),
        Point(component, 4, 10, group=2, shard=2),
    )
    assert fleet.value(signal) == expected


def test_series_of_one_rank_that_differ_in_a_label_add_up() -> None:
    fleet = Fleet()
    fleet.take(Point("queue", 3, 10, series=1), Point("queue", 5, 10, series=2))
    assert fleet.value("queue_depth") == 8


def test_memory_of_an_endpoint_is_that_of_its_fullest_gpu() -> None:
    fleet = Fleet()
    fleet.take(
        *(Point("fb_used", used, 10, group=g) for g, used in enumerate((10, 90, 20), 1)),
        *(Point("fb_free", 100 - used, 10, group=g) for g, used in enumerate((10, 90, 20), 1)),
    )
    assert fleet.value("gpu_mem_used_ratio") == pytest.approx(0.9)


def test_throttling_of_eight_gpus_is_that_of_the_worst() -> None:
    fleet = Fleet()
    for time_s, share in ((10, 0.0), (20, 1.0)):
        fleet.take(*(Point("violation", g * share, time_s, group=g) for g in range(1, 9)))
    assert fleet.value("gpu_throttle_ratio") == pytest.approx(0.8)  # 8 s in 10 s


def test_a_series_that_moves_to_another_endpoint_counts_there_only() -> None:
    fleet = Fleet()
    fleet.take(Point("gpu_temp", 50, 10, slot=0))
    moved = rows([Point("gpu_temp", 60, 20, slot=0)])
    fleet.fold.fold(replace(moved, slot=np.array([2], np.int32)), at(20))
    assert np.isnan(fleet.value("gpu_temp_c", 0))
    assert fleet.value("gpu_temp_c", 2) == 60


# histograms

BOUNDS = (1.0, 2.0, 4.0)


def histograms(*pairs: tuple[float, Explicit | Exponential], **fields: float) -> Fleet:
    fleet = Fleet()
    for time_s, histogram in pairs:
        fleet.take(
            Point("ttft", time_s=time_s, histogram=histogram, scale=fields.get("scale", 1.0))
        )
    return fleet


def test_quantiles_and_means_are_of_the_increase() -> None:
    # Increase 0, 10, 10, 0: the median is at the border of 2; p99 is 2 + 2 * (19.8 - 10) / 10.
    fleet = histograms(
        (10, Explicit(BOUNDS, (5, 0, 0, 5), 100)), (20, Explicit(BOUNDS, (5, 10, 10, 5), 145))
    )
    assert fleet.value("ttft_p50_s") == pytest.approx(2.0)
    assert fleet.value("ttft_p99_s") == pytest.approx(3.96)
    assert fleet.value("ttft_mean_s") == pytest.approx(2.25)  # 45 / 20


def test_a_histogram_without_traffic_is_absent() -> None:
    same = Explicit(BOUNDS, (5, 5, 5, 5), 40)
    fleet = histograms((10, same), (20, same))
    assert np.isnan(fleet.value("ttft_p50_s"))
    assert np.isnan(fleet.value("ttft_mean_s"))


def test_a_quantile_in_the_overflow_bucket_is_the_top_bound_and_flagged() -> None:
    fleet = histograms(
        (10, Explicit(BOUNDS, (0, 0, 0, 0), 0)), (20, Explicit(BOUNDS, (9, 0, 0, 1), 99))
    )
    assert fleet.value("ttft_p99_s") == 4.0
    assert fleet.fold.censored[SIGNAL_INDEX["ttft_p99_s"], 0]
    assert not fleet.fold.censored[SIGNAL_INDEX["ttft_p50_s"], 0]


def test_new_bounds_are_a_reset_and_nothing_is_subtracted_across_them() -> None:
    fleet = histograms(
        (10, Explicit(BOUNDS, (0, 0, 0, 0), 0)),
        (20, Explicit(BOUNDS, (10, 0, 0, 0), 5)),
        (30, Explicit((8.0, 16.0), (10, 90, 0), 1000)),
    )
    assert np.isnan(fleet.value("ttft_p50_s"))
    fleet.take(Point("ttft", time_s=40, histogram=Explicit((8.0, 16.0), (10, 100, 0), 1120)))
    assert fleet.value("ttft_p50_s") == pytest.approx(12.0)  # 8 + 8 * 5 / 10
    assert fleet.value("ttft_mean_s") == pytest.approx(12.0)  # 120 / 10


def test_a_bucket_that_fell_is_a_reset_although_the_count_did_not() -> None:
    # The restarted engine overtook its old count: 10 of 10 are new, not -10, +10.
    fleet = histograms(
        (10, Explicit(BOUNDS, (10, 0, 0, 0), 5)), (20, Explicit(BOUNDS, (0, 0, 10, 0), 30))
    )
    assert fleet.value("ttft_p50_s") == pytest.approx(3.0)  # 2 + 2 * 5 / 10
    assert fleet.value("ttft_mean_s") == pytest.approx(3.0)  # 30 / 10


def test_without_a_sum_there_are_quantiles_but_no_mean() -> None:
    fleet = histograms((10, Explicit(BOUNDS, (0, 0, 0, 0))), (20, Explicit(BOUNDS, (0, 10, 0, 0))))
    assert fleet.value("ttft_p50_s") == pytest.approx(1.5)
    assert np.isnan(fleet.value("ttft_mean_s"))


def test_milliseconds_scale_bounds_and_sums() -> None:
    fleet = histograms(
        (10, Explicit((100.0, 200.0), (0, 0, 0), 0)),
        (20, Explicit((100.0, 200.0), (0, 10, 0), 1500)),
        scale=1e-3,
    )
    assert fleet.value("ttft_p50_s") == pytest.approx(0.15)  # 100 + 100 * 5 / 10 ms
    assert fleet.value("ttft_mean_s") == pytest.approx(0.15)  # 1500 ms / 10


def test_ranks_of_equal_bounds_are_merged_before_quantiles_are_taken() -> None:
    fleet = Fleet()
    for time_s, share in ((10, 0), (20, 1)):
        one = Explicit(BOUNDS, (9 * share, 0, 0, 0), 4 * share)
        other = Explicit(BOUNDS, (0, 0, share, 0), 3 * share)
        fleet.take(
            Point("ttft", time_s=time_s, group=1, histogram=one),
            Point("ttft", time_s=time_s, group=2, histogram=other),
        )
    # 9 at most 1 s, 1 in (2, 4]: p50 = 5 / 9, p99 = 2 + 2 * (9.9 - 9) / 1
    assert fleet.value("ttft_p50_s") == pytest.approx(5 / 9)
    assert fleet.value("ttft_p99_s") == pytest.approx(3.8)
    assert fleet.value("ttft_mean_s") == pytest.approx(0.7)  # 7 / 10


def test_ranks_of_different_bounds_are_not_merged_and_the_busier_one_is_read() -> None:
    fleet = Fleet()
    for time_s, share in ((10, 0), (20, 1)):
        fleet.take(
            Point("ttft", time_s=time_s, group=1, histogram=Explicit((1.0,), (0, 3 * share))),
            Point("ttft", time_s=time_s, group=2, histogram=Explicit((6.0,), (9 * share, 0))),
        )
    assert fleet.value("ttft_p50_s") == pytest.approx(3.0)  # 6 * 4.5 / 9


@pytest.mark.parametrize("scale", [0, 2, 5])
def test_an_exponential_histogram_gives_quantiles_within_its_bucket(scale: int) -> None:
    # 100 samples around 3 s: index i holds (base^i, base^(i + 1)], base = 2^(2^-scale).
    index = int(np.floor(np.log2(3.0) * 2**scale))
    fleet = histograms(
        (10, Exponential(scale, index, (0,), sum=0)),
        (20, Exponential(scale, index, (100,), sum=300)),
    )
    # Our buckets are 2^(1/4) wide; a coarse one of theirs may be off by half its width more.
    width = 2 ** max(0.25, 2.0**-scale)
    assert 3.0 / width <= fleet.value("ttft_p50_s") <= 3.0 * width
    assert fleet.value("ttft_mean_s") == pytest.approx(3.0)


def test_a_change_of_scale_is_no_reset() -> None:
    fleet = histograms(
        (10, Exponential(3, 12, (50,), sum=150)),
        (20, Exponential(2, 6, (50, 10), sum=190)),  # the same 50 in coarser buckets, and 10 new
    )
    assert fleet.value("ttft_mean_s") == pytest.approx(4.0)  # 40 / 10


def test_zeros_of_an_exponential_histogram_are_samples() -> None:
    fleet = histograms(
        (10, Exponential(0, 0, (0,), sum=0)),
        (20, Exponential(0, 0, (1,), zero_count=9, sum=2)),
    )
    assert fleet.value("ttft_p50_s") < 1e-5
    assert fleet.value("ttft_mean_s") == pytest.approx(0.2)  # 2 / 10


def test_a_summary_gives_a_mean_alone() -> None:
    fleet = Fleet()
    fleet.take(Point("e2e", 10.0, 10, count=5))
    fleet.take(Point("e2e", 16.0, 20, count=8))
    assert fleet.value("e2e_mean_s") == pytest.approx(2.0)  # 6 / 3
    assert np.isnan(fleet.value("e2e_p50_s"))


# up, freshness, clocks


def test_runs_of_up_are_counted_per_endpoint() -> None:
    fleet = Fleet()
    for k, up in enumerate((1, 1, 0, 0, 0)):
        fleet.take(Point("up", up, 10 + k))
    assert (fleet.fold.down_samples[0], fleet.fold.up_samples[0]) == (3, 0)
    fleet.take(Point("up", 1, 20))
    assert (fleet.fold.down_samples[0], fleet.fold.up_samples[0]) == (0, 1)


def test_only_a_batch_with_up_zero_is_a_reason_to_decide_early() -> None:
    fleet = Fleet()
    assert fleet.fold.saw_down(rows([Point("up", 0.0), Point("queue", 1.0)]))
    assert not fleet.fold.saw_down(rows([Point("up", 1.0), Point("queue", 0.0)]))
    assert not fleet.fold.saw_down(rows([Point("up", 0.0, ended=True)]))


def test_up_zero_is_no_sign_of_life() -> None:
    fleet = Fleet()
    fleet.take(Point("up", 1, 10))
    fleet.take(Point("up", 0, 25))
    assert fleet.fold.heard_age_s(at(30))[0] == 20.0
    assert fleet.fold.heard_age_s(at(30))[1] == np.inf


def test_age_counts_from_arrival_and_absent_signals_have_none() -> None:
    fleet = Fleet().take(Point("queue", 1, 10))
    assert fleet.age_s("queue_depth", 13) == 3.0
    assert fleet.age_s("running", 13) == np.inf


def test_intervals_are_observed_per_signal() -> None:
    # DCGM every 30 s beside an engine every second.
    fleet = Fleet()
    for second in range(61):
        fleet.take(Point("queue", 1, 100 + second))
        if second % 30 == 0:
            fleet.take(Point("gpu_temp", 50, 100 + second))
    matrix = fleet.fold.signals(fleet.now, directory())
    assert matrix.interval_s[SIGNAL_INDEX["queue_depth"], 0] == pytest.approx(1.0)
    assert matrix.interval_s[SIGNAL_INDEX["gpu_temp_c"], 0] == pytest.approx(30.0)
    assert fleet.fold.report_interval_s()[0] == pytest.approx(1.0)
    assert np.isnan(fleet.fold.report_interval_s()[1])


def test_a_constant_clock_error_of_a_source_does_not_age_its_samples() -> None:
    fleet = Fleet()
    for second in range(5):
        fleet.take(Point("queue", 1, 100 + second), now_s=700 + second)
    assert fleet.age_s("queue_depth", 705) == 1.0


def test_a_sample_that_arrives_later_than_its_source_usually_does_is_as_old_as_it_is_late() -> None:
    fleet = Fleet()
    fleet.take(Point("queue", 1, 100), now_s=101)
    fleet.take(Point("queue", 2, 110), now_s=131)  # 21 s late, 1 s of it usual
    assert fleet.age_s("queue_depth", 131) == 20.0


def test_a_source_ahead_of_us_is_believed_but_a_jump_ahead_is_counted_and_left_out() -> None:
    fleet = Fleet()
    fleet.take(Point("queue", 1, 160), now_s=100)
    fleet.take(Point("queue", 2, 161), now_s=101)
    fleet.take(Point("queue", 9, 999), now_s=102)
    assert fleet.value("queue_depth") == 2
    assert fleet.dropped == {"future": 1}
    fleet.take(Point("queue", 3, 163), now_s=103)
    assert fleet.value("queue_depth") == 3


def test_a_clock_that_was_set_ahead_is_believed_after_ten_seconds() -> None:
    fleet = Fleet()
    fleet.take(Point("queue", 1, 100), now_s=100)
    for second in range(1, 13):
        fleet.take(Point("queue", 2, 1000 + second), now_s=100 + second)
    assert fleet.dropped == {"future": 10}
    assert fleet.value("queue_depth") == 2


def test_a_source_that_replays_its_queue_is_catching_up_until_it_has_caught_up() -> None:
    fleet = Fleet()
    seen = []
    for second in range(60):  # ten seconds of data a second, until it is at the present
        event_s = min(1000 + 10 * second, 1300 + second)
        fleet.take(Point("queue", 1, event_s), now_s=1300 + second)
        seen.append(bool(fleet.fold.catching_up(fleet.now)[0]))
    assert all(seen[1:33])  # it meets the present in second 33
    assert not any(seen[40:])


def test_batches_of_ten_scrapes_are_not_catching_up() -> None:
    fleet = Fleet()
    for flush in range(12):
        batch = [Point("queue", 1, 100 + 10 * flush + k) for k in range(10)]
        fleet.take(*batch, now_s=110 + 10 * flush)
        assert not fleet.fold.catching_up(fleet.now).any()


def test_learned_offsets_survive_a_restart() -> None:
    fleet = Fleet().take(Point("queue", 1, 100), now_s=700)
    after = Fleet()
    after.fold.restore(fleet.fold.export_state())
    after.take(Point("queue", 1, 110), now_s=740)  # 630 s behind our clock, 600 s of it usual
    assert after.age_s("queue_depth", 740) == 30.0


# XID


def test_the_first_xid_is_the_baseline_and_only_a_change_is_news() -> None:
    fleet = Fleet().take(Point("xid", 79, 10))
    assert fleet.value("gpu_xid_last") == 0
    fleet.take(Point("xid", 79, 20))
    assert fleet.value("gpu_xid_last") == 0
    fleet.take(Point("xid", 48, 30))
    assert fleet.value("gpu_xid_last") == 48


def test_an_xid_that_is_cleared_is_no_news() -> None:
    fleet = Fleet().take(Point("xid", 79, 10)).take(Point("xid", 0, 20))
    assert fleet.value("gpu_xid_last") == 0


def test_a_growing_xid_count_brings_its_code() -> None:
    fleet = (
        Fleet().take(Point("xid_count", 1, 10, count=48)).take(Point("xid_count", 2, 20, count=48))
    )
    assert fleet.value("gpu_xid_last") == 48


# bounds


def test_a_full_table_refuses_new_series_and_goes_on_with_the_old() -> None:
    fleet = Fleet(FoldConfig(max_series=2))
    fleet.take(*(Point("queue", 1, 10, slot=s) for s in range(3)))
    fleet.take(*(Point("queue", 2, 20, slot=s) for s in range(3)))
    assert fleet.dropped == {"series_full": 2}
    assert [fleet.value("queue_depth", s) for s in range(2)] == [2, 2]
    assert np.isnan(fleet.value("queue_depth", 2))


def test_idle_series_are_forgotten_and_make_room() -> None:
    fleet = Fleet(FoldConfig(max_series=1, idle_s=60.0))
    fleet.take(Point("queue", 1, 100))
    assert fleet.value("queue_depth", now_s=159) == 1
    assert np.isnan(fleet.value("queue_depth", now_s=171))
    fleet.take(Point("running", 3, 172))
    assert fleet.value("running") == 3


def test_forgotten_endpoints_leave_nothing_behind() -> None:
    fleet = two({"queue": (1, 2), "output_tokens": (0, 10), "up": (0, 0)})
    fleet.take(Point("queue", 5, 20, slot=1))
    fleet.fold.forget(np.array([0], np.int32))
    assert np.isnan(fleet.value("queue_depth"))
    assert fleet.age_s("queue_depth", 30) == np.inf
    assert fleet.fold.heard_age_s(at(30))[0] == np.inf
    assert fleet.fold.down_samples[0] == 0
    assert fleet.value("queue_depth", 1) == 5


def test_growing_keeps_what_is_known() -> None:
    fleet = Fleet().take(Point("queue", 5, 10, slot=1))
    fleet.fold.resize(8)
    matrix = fleet.fold.signals(at(10), directory(8))
    assert matrix.value.shape == (len(SIGNALS), 8)
    assert matrix.value[SIGNAL_INDEX["queue_depth"], 1] == 5


def test_a_slot_beyond_the_size_is_counted() -> None:
    fleet = Fleet().take(Point("queue", 5, 10, slot=N))
    assert fleet.dropped == {"unknown_slot": 1}


def test_an_empty_batch_changes_nothing() -> None:
    assert Fleet().fold.fold(rows([]), at(1)) == {}


def test_churn_of_endpoints_does_not_grow_the_fold() -> None:
    # At most 21 s of four series a second are held, of 1,600 in all.
    fleet = Fleet(FoldConfig(max_series=100, idle_s=10.0))
    for k in range(400):
        fleet.take(*(Point("queue", 1, 100 + k, series=10 * k + i) for i in range(4)))
        fleet.value("queue_depth")
    assert fleet.dropped == {}
    assert len(fleet.fold._units) <= 1024 + 2 * 100


# properties


def scalar(
    component: str,
    value: float,
    time_s: float,
    start_s: float,
    slot: int,
    series: int,
    ended: bool,
    delta: bool,
    source: int,
) -> Point:
    return Point(component, value, time_s, start_s, slot, series, delta, ended, source=source)


def latency(time_s: float, start_s: float, slot: int, histogram: Explicit) -> Point:
    return Point("ttft", NAN, time_s, start_s, slot, histogram=histogram)


points = st.builds(
    scalar,
    component=st.sampled_from(("queue", "output_tokens")),
    value=st.floats(0, 1e6),
    time_s=st.integers(1, 60).map(float),
    start_s=st.sampled_from((0.0, 5.0, 30.0)),
    slot=st.integers(0, 2),
    series=st.integers(0, 2),
    ended=st.booleans(),
    delta=st.booleans(),
    source=st.integers(1, 2),
) | st.builds(
    latency,
    time_s=st.integers(1, 60).map(float),
    start_s=st.sampled_from((0.0, 5.0)),
    slot=st.integers(0, 2),
    histogram=st.builds(
        Explicit,
        bounds=st.sampled_from((BOUNDS, (3.0, 9.0, 27.0))),
        counts=st.tuples(*[st.integers(0, 50)] * 4),
        sum=st.floats(0, 500),
    ),
)


def folded(stream: SampleRows, cuts: Sequence[int]) -> EndpointFold:
    """The stream in parts that arrive at one instant."""
    fold = EndpointFold(FoldConfig())
    fold.resize(N)
    borders = [0, *cuts, stream.n]
    for low, high in itertools.pairwise(borders):
        fold.fold(stream.part(low, high), at(60))
    return fold


@given(st.lists(points, max_size=40), st.data())
@settings(deadline=None)
def test_any_split_of_a_stream_folds_to_the_same_state(
    stream: list[Point], data: st.DataObject
) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=6)))
    one, many = folded(rows(stream), ()), folded(rows(stream), cuts)
    for fold in (one, many):
        fold.signals(at(61), directory())
    mine, other = one.signals(at(61), directory()), many.signals(at(61), directory())
    np.testing.assert_array_equal(mine.value, other.value)
    np.testing.assert_array_equal(mine.interval_s, other.interval_s)
    np.testing.assert_array_equal(one.down_samples, many.down_samples)


@given(st.lists(points, max_size=60))
@settings(deadline=None)
def test_rates_and_latencies_are_never_negative(stream: list[Point]) -> None:
    value = folded(rows(stream), ()).signals(at(61), directory()).value
    assert (np.nan_to_num(value) >= 0).all()
    assert not np.isinf(value).any()


@given(st.lists(st.tuples(st.integers(1, 30), st.integers(0, 1000)), min_size=2, max_size=20))
def test_a_counter_of_constant_rate_has_that_rate_whatever_its_intervals(
    steps: list[tuple[int, int]],
) -> None:
    times = np.cumsum([gap for gap, _ in steps]).tolist()
    fleet = counter([(100 + t, 3.0 * t) for t in times])
    assert fleet.value("output_tokens_per_s") == pytest.approx(3.0)


def test_a_clock_that_was_set_back_costs_half_a_minute_and_not_the_hour() -> None:
    """Times an hour behind are out of order until nothing newer came for 30 s; then a new start."""
    fleet = Fleet()
    for second in range(4000, 4010):
        fleet.take(Point("running", 1, second))
    for second in range(4010, 4060):
        fleet.take(Point("running", 2, second - 3600), now_s=second)
    assert fleet.value("running") == 2.0
    assert fleet.dropped == {"out_of_order": 30}


def test_an_older_point_of_a_slow_series_is_no_clock_that_was_set_back() -> None:
    fleet = counter([(1000, 100), (1060, 150), (1120, 200)])
    fleet.take(Point("output_tokens", 120, 1030), now_s=1165)
    assert fleet.dropped == {"out_of_order": 1}


# deriving only what changed

UPDATES = st.lists(
    st.lists(
        st.tuples(
            st.sampled_from(["output_tokens", "running", "kv_util", "up", "ttft", "fb_used"]),
            st.integers(0, N - 1),
            st.integers(0, 1),
            st.integers(0, 50),
        ),
        min_size=1,
        max_size=5,
    ),
    min_size=1,
    max_size=8,
)


def batch(points: list[tuple[str, int, int, int]], time_s: float) -> SampleRows:
    """Gauges and counters of these values, histograms of so many samples in the first bucket."""
    made = []
    for component, slot, group, number in points:
        histogram = Explicit([1.0], [number, 0], 0.5 * number) if component == "ttft" else None
        value = float(number > 0 if component == "up" else number)
        point = Point(component, value, time_s, slot=slot, group=group, histogram=histogram)
        made.append(point)
    return rows(made)


@given(UPDATES, st.integers(0, 8), st.booleans())
@settings(max_examples=80, deadline=None)
def test_a_matrix_asked_for_after_every_batch_is_the_one_that_is_asked_for_once(
    updates: list[list[tuple[str, int, int, int]]], forgotten: int, quantiles: bool
) -> None:
    often, once = EndpointFold(FoldConfig()), EndpointFold(FoldConfig())
    now = at(100)
    for fold in (often, once):
        fold.resize(N)
    for number, points in enumerate(updates):
        now = now.plus_s(2.0)
        for fold in (often, once):
            fold.fold(batch(points, now.mono_ns / NS_PER_S), now)
            if number == forgotten:
                fold.forget(np.array([0], np.int32))
        often.signals(now, directory(), quantiles=quantiles)
    found, expected = (fold.signals(now, directory()) for fold in (often, once))
    for name in ("value", "age_s", "interval_s"):
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name), name)
    np.testing.assert_array_equal(often.report_interval_s(), once.report_interval_s())


def test_without_quantiles_all_other_signals_are_the_same() -> None:
    points = [("ttft", 0, 0, 5), ("running", 1, 0, 3)]
    more = [("ttft", 0, 0, 9), ("running", 1, 0, 4)]
    fleet, bare = Fleet(), Fleet()
    for each in (fleet, bare):
        each.fold.fold(batch(points, 100), at(100))
        each.fold.fold(batch(more, 110), at(110))
    whole = fleet.fold.signals(at(110), directory()).value
    without = bare.fold.signals(at(110), directory(), quantiles=False).value
    row = SIGNAL_INDEX["ttft_p50_s"]
    assert whole[row, 0] == 0.5
    assert np.isnan(without[row]).all()
    kept = [i for i, name in enumerate(SIGNALS) if not name.endswith(("p50_s", "p99_s"))]
    np.testing.assert_array_equal(without[kept], whole[kept])
    np.testing.assert_array_equal(bare.fold.signals(at(110), directory()).value, whole)
