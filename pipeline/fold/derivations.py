"""How every signal is made from components: one row a signal, alternatives in order of preference.

Enters: `Folded`, the components of every endpoint at one tick. Leaves: the signal's column and
which alternative it came from. Ratios divide only after summing; a zero denominator is absent.
"""

from collections.abc import Callable
from typing import Final, NamedTuple

import numpy as np

from pipeline.model import Bools, Floats
from pipeline.signals import COMPONENT_INDEX


class Folded(NamedTuple):
    """Components by endpoint: float64[len(COMPONENTS), n slots], NaN = absent."""

    level: Floats
    """Gauges, combined as the component says; increases over the window of counters and of the
    sums of histograms."""
    total: Floats
    """The same, summed over groups (GPUs, ranks) whatever the component says."""
    rate: Floats
    """Counters per second; of histograms, the samples in the window that came with a sum."""
    p50: Floats
    p99: Floats
    over50: Bools
    """The median lies above the top bound."""
    over99: Bools
    fullest: Floats
    """Used memory, by its component: the share of the fullest GPU."""


Formula = Callable[[Folded, tuple[int, ...], tuple[int, ...]], Floats]


class Way(NamedTuple):
    """One way to get a signal: a formula over components `first` and `second`."""

    source: str
    """Provenance, as people read it."""
    formula: Formula
    first: tuple[int, ...]
    second: tuple[int, ...] = ()

    @property
    def inputs(self) -> tuple[int, ...]:
        """All its components."""
        return self.first + self.second

    @property
    def is_quantile(self) -> bool:
        """Whether it reads a histogram's buckets."""
        return self.formula in (_p50, _p99)


def quantile_of(folded: Folded, way: Way) -> Bools | None:
    """bool[n]: where the quantile that `way` reads is censored; None = it reads no quantile."""
    over = folded.over50 if way.formula is _p50 else folded.over99
    return over[way.first[0]] if way.is_quantile else None


def _sum(rows: Floats) -> Floats:
    """Sum of the rows that are there; NaN where none is."""
    present = ~np.isnan(rows)
    total: Floats = np.where(present, rows, 0.0).sum(axis=0)
    return np.where(present.any(axis=0), total, np.nan)


def _row(matrix: Floats, first: tuple[int, ...]) -> Floats:
    row: Floats = matrix[first[0]]
    return row


def _divide(numerator: Floats, denominator: Floats) -> Floats:
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(denominator > 0.0, numerator / denominator, np.nan)


def _level(folded: Folded, first: tuple[int, ...], _: tuple[int, ...]) -> Floats:
    return _row(folded.level, first)


def _rate(folded: Folded, first: tuple[int, ...], beside: tuple[int, ...]) -> Floats:
    """Sum of rates; 0 where none of them exists yet, beside counters of the same engine."""
    rates = _sum(folded.rate[list(first)])
    if not beside:
        return rates
    alive = ~np.isnan(_sum(folded.rate[list(beside)]))
    return np.where(np.isnan(rates) & alive, 0.0, rates)


def _share(folded: Folded, part: tuple[int, ...], rest: tuple[int, ...]) -> Floats:
    """Increase of `part` over that of `part` and `rest`."""
    share = _sum(folded.level[list(part)])
    return _divide(share, _sum(folded.level[[*part, *rest]]))


def _per(folded: Folded, first: tuple[int, ...], second: tuple[int, ...]) -> Floats:
    return _divide(_sum(folded.level[list(first)]), _sum(folded.level[list(second)]))


def _mean(folded: Folded, first: tuple[int, ...], _: tuple[int, ...]) -> Floats:
    return _divide(_row(folded.level, first), _row(folded.rate, first))


def _p50(folded: Folded, first: tuple[int, ...], _: tuple[int, ...]) -> Floats:
    return _row(folded.p50, first)


def _p99(folded: Folded, first: tuple[int, ...], _: tuple[int, ...]) -> Floats:
    return _row(folded.p99, first)


def _level_share(folded: Folded, part: tuple[int, ...], rest: tuple[int, ...]) -> Floats:
    """Levels of `part` over those of `part` and `rest`; absent unless all are there."""
    return _divide(folded.total[list(part)].sum(axis=0), folded.total[[*part, *rest]].sum(axis=0))


def _level_per(folded: Folded, first: tuple[int, ...], second: tuple[int, ...]) -> Floats:
    return _divide(folded.level[first[0]], folded.level[second[0]])


def _product(folded: Folded, first: tuple[int, ...], _: tuple[int, ...]) -> Floats:
    return _row(folded.level, first) * _row(folded.level, first[1:])


def _is_any(folded: Folded, first: tuple[int, ...], _: tuple[int, ...]) -> Floats:
    level = folded.level[first[0]]
    return np.where(np.isnan(level), np.nan, (level > 0.0).astype(np.float64))


def _is_none(folded: Folded, first: tuple[int, ...], _: tuple[int, ...]) -> Floats:
    level = folded.level[first[0]]
    return np.where(np.isnan(level), np.nan, (level == 0.0).astype(np.float64))


def _fullest(folded: Folded, first: tuple[int, ...], _: tuple[int, ...]) -> Floats:
    return _row(folded.fullest, first)


def _throttle(folded: Folded, first: tuple[int, ...], _: tuple[int, ...]) -> Floats:
    """Seconds throttled per second; above one the unit is wrong, and only "throttled" is known."""
    return np.minimum(_row(folded.rate, first), 1.0)


def _way(source: str, formula: Formula, first: str, second: str = "") -> Way:
    def indexes(names: str) -> tuple[int, ...]:
        return tuple(COMPONENT_INDEX[name] for name in names.split())

    return Way(source, formula, indexes(first), indexes(second))


_LIVE: Final = "prompt_tokens output_tokens requests ended_ok"
"""Counters that an engine has from its start: beside them a missing counter means zero."""

DERIVATIONS: Final[dict[str, tuple[Way, ...]]] = {
    "engine_up": (_way("up", _level, "up"),),
    "queue_depth": (
        _way("waiting requests", _level, "queue"),
        _way("pending requests", _level, "queue_pending"),
    ),
    "running": (_way("running requests", _level, "running"),),
    "kv_util": (
        _way("KV usage", _level, "kv_util"),
        _way("KV usage, old name", _level, "kv_util_old"),
        _way("used over all KV blocks", _level_per, "kv_blocks_used", "kv_blocks_max"),
    ),
    "kv_capacity_tokens": (
        _way("KV tokens", _level, "kv_tokens"),
        _way("KV pages", _level, "kv_page_tokens"),
        _way("KV blocks", _product, "kv_blocks_max kv_block_tokens"),
    ),
    "prefix_hit_ratio": (
        _way("prompt tokens by source", _share, "prompt_hit", "prompt_miss"),
        _way("prefix cache queries", _per, "prefix_hits", "prefix_queries"),
        _way("prefix cache queries, old names", _per, "prefix_hits_old", "prefix_queries_old"),
        _way("cached tokens", _per, "cached_tokens", "prompt_tokens"),
        _way("cached beside computed tokens", _share, "cached_beside", "prompt_tokens"),
        _way("reused blocks", _share, "blocks_reused", "blocks_missed"),
        _way("the engine's own ratio", _level, "hit_rate"),
    ),
    "ttft_p50_s": (
        _way("histogram", _p50, "ttft"),
        _way("GenAI histogram", _p50, "ttft_genai"),
    ),
    "ttft_p99_s": (
        _way("histogram", _p99, "ttft"),
        _way("GenAI histogram", _p99, "ttft_genai"),
    ),
    "ttft_mean_s": (
        _way("histogram", _mean, "ttft"),
        _way("GenAI histogram", _mean, "ttft_genai"),
    ),
    "itl_p50_s": (
        _way("histogram", _p50, "itl"),
        _way("histogram, old name", _p50, "itl_old"),
        _way("GenAI histogram", _p50, "itl_genai"),
    ),
    "itl_mean_s": (
        _way("histogram", _mean, "itl"),
        _way("histogram, old name", _mean, "itl_old"),
        _way("seconds per predicted token", _per, "output_time", "output_tokens"),
        _way("GenAI histogram", _mean, "itl_genai"),
    ),
    "e2e_p50_s": (_way("histogram", _p50, "e2e"), _way("GenAI histogram", _p50, "e2e_genai")),
    "e2e_p99_s": (_way("histogram", _p99, "e2e"), _way("GenAI histogram", _p99, "e2e_genai")),
    "e2e_mean_s": (
        _way("histogram", _mean, "e2e"),
        _way("request time over requests", _per, "request_time", "requests"),
        _way("GenAI histogram", _mean, "e2e_genai"),
    ),
    "queue_wait_mean_s": (
        _way("histogram", _mean, "queue_wait"),
        _way("histogram, old name", _mean, "queue_wait_old"),
        _way("queue time over requests", _per, "queue_time", "requests"),
    ),
    "prefill_mean_s": (_way("histogram", _mean, "prefill"),),
    "decode_mean_s": (_way("histogram", _mean, "decode"),),
    "prefill_token_s": (
        _way("prompt time over prompt tokens", _per, "prompt_time", "prompt_tokens"),
        _way("prefill time over computed tokens", _per, "prefill", "prompt_miss"),
    ),
    "prompt_tokens_per_s": (
        _way("computed as it happens", _rate, "realtime_prefill"),
        _way("prompt tokens", _rate, "prompt_tokens"),
    ),
    "output_tokens_per_s": (
        _way("decoded as it happens", _rate, "realtime_decode"),
        _way("the engine's own rate", _level, "output_rate"),
        _way("output tokens", _rate, "output_tokens"),
    ),
    "requests_per_s": (
        _way("requests", _rate, "requests"),
        _way("requests by how they ended", _rate, "ended_ok ended_abort ended_error"),
    ),
    "preemptions_per_s": (_way("preemptions", _rate, "preemptions"),),
    "errors_per_s": (
        _way("failed and refused", _rate, "ended_abort ended_error request_errors", _LIVE),
    ),
    "request_tokens_in": (_way("histogram", _mean, "tokens_in"),),
    "request_tokens_out": (_way("histogram", _mean, "tokens_out"),),
    "engine_sleep": (
        _way("not awake", _is_none, "engine_awake"),
        _way("sleep state", _is_any, "engine_sleep"),
        _way("paused requests", _is_any, "paused"),
    ),
    "gpu_sm_active_ratio": (
        _way("SM active", _level, "sm_active"),
        _way("engine active", _level, "gr_active"),
        _way("GPU utilisation: a kernel was resident", _level, "gpu_busy"),
        _way("Triton's GPU utilisation: a kernel was resident", _level, "nv_gpu_busy"),
    ),
    "gpu_tensor_active_ratio": (_way("tensor pipes", _level, "tensor_active"),),
    "fp16_ratio": (_way("pipes", _level_share, "tensor_active pipe_fp16", "pipe_fp32 pipe_fp64"),),
    "mem_bandwidth_ratio": (
        _way("DRAM active", _level, "dram_active"),
        _way("memory copies (coarse)", _level, "mem_copy"),
    ),
    "gpu_mem_used_ratio": (
        _way("frame buffer", _fullest, "fb_used"),
        _way("Triton's GPU memory", _fullest, "nv_mem_used"),
    ),
    "gpu_mem_fragmentation_ratio": (_way("agent", _level, "mem_fragmentation"),),
    "cuda_stream_block_ratio": (_way("agent", _level, "stream_block"),),
    "kernel_launch_interval_s": (_way("agent", _level, "launch_interval"),),
    "cpu_busy_ratio": (
        _way("agent", _level, "cpu_busy"),
        _way("Triton's host CPU", _level, "nv_cpu_busy"),
    ),
    "cpu_preprocess_s": (
        _way("agent", _mean, "preprocess"),
        _way("input copy over requests", _per, "input_time", "requests"),
    ),
    "gpu_temp_c": (_way("DCGM", _level, "gpu_temp"),),
    "gpu_mem_temp_c": (_way("DCGM", _level, "gpu_mem_temp"),),
    "gpu_power_w": (
        _way("DCGM", _level, "gpu_power"),
        _way("Triton", _level, "nv_gpu_power"),
        _way("energy", _rate, "gpu_energy"),
    ),
    "gpu_throttle_ratio": (_way("violations", _throttle, "violation"),),
    "gpu_row_remap_failure": (_way("DCGM", _is_any, "row_remap_failure"),),
    "gpu_ecc_events_per_s": (
        _way("remapped rows and volatile errors", _rate, "remapped_rows ecc_volatile"),
        _way("aggregate errors", _rate, "ecc_aggregate"),
    ),
    "pcie_replay_per_s": (_way("DCGM", _rate, "pcie_replay"),),
    "nvlink_errors_per_s": (_way("DCGM", _rate, "nvlink_errors"),),
}
"""Signal -> ways, the first that yields a number wins. `gpu_xid_last` has a memory of its own."""
