"""Canonical signals (the only names for them) and the components they are derived from.

A component is one number or histogram that an engine, DCGM or the agent reports; the normaliser
maps every engine's names to components, the fold derives signals from them.
"""

from enum import IntEnum, StrEnum
from typing import Final, NamedTuple


class Direction(StrEnum):
    """What a larger value means for the endpoint that shows it."""

    LOWER_IS_BETTER = "lower_is_better"
    HIGHER_IS_BETTER = "higher_is_better"
    NEUTRAL = "neutral"


class SignalSpec(NamedTuple):
    """A canonical signal: its name, unit and direction."""

    name: str
    unit: str
    direction: Direction


_LOW, _HIGH, _NONE = (
    Direction.LOWER_IS_BETTER,
    Direction.HIGHER_IS_BETTER,
    Direction.NEUTRAL,
)

SIGNAL_SPECS: Final[tuple[SignalSpec, ...]] = (
    # serving
    SignalSpec("engine_up", "0/1", _HIGH),
    SignalSpec("queue_depth", "requests", _LOW),
    SignalSpec("running", "requests", _NONE),
    SignalSpec("kv_util", "ratio", _LOW),
    SignalSpec("kv_capacity_tokens", "tokens", _NONE),
    SignalSpec("prefix_hit_ratio", "ratio", _HIGH),
    SignalSpec("ttft_p50_s", "s", _LOW),
    SignalSpec("ttft_p99_s", "s", _LOW),
    SignalSpec("ttft_mean_s", "s", _LOW),
    SignalSpec("itl_p50_s", "s", _LOW),
    SignalSpec("itl_mean_s", "s", _LOW),
    SignalSpec("e2e_p50_s", "s", _LOW),
    SignalSpec("e2e_p99_s", "s", _LOW),
    SignalSpec("e2e_mean_s", "s", _LOW),
    SignalSpec("queue_wait_mean_s", "s", _LOW),
    SignalSpec("prefill_mean_s", "s", _LOW),
    SignalSpec("decode_mean_s", "s", _LOW),
    SignalSpec("prefill_token_s", "s/token", _LOW),
    SignalSpec("prompt_tokens_per_s", "tokens/s", _NONE),
    SignalSpec("output_tokens_per_s", "tokens/s", _NONE),
    SignalSpec("requests_per_s", "1/s", _NONE),
    SignalSpec("preemptions_per_s", "1/s", _LOW),
    SignalSpec("errors_per_s", "1/s", _LOW),
    SignalSpec("request_tokens_in", "tokens", _NONE),
    SignalSpec("request_tokens_out", "tokens", _NONE),
    SignalSpec("engine_sleep", "0/1", _LOW),
    # GPU, node and agent
    SignalSpec("gpu_sm_active_ratio", "ratio", _NONE),
    SignalSpec("gpu_tensor_active_ratio", "ratio", _NONE),
    SignalSpec("fp16_ratio", "ratio", _NONE),
    SignalSpec("mem_bandwidth_ratio", "ratio", _NONE),
    SignalSpec("gpu_mem_used_ratio", "ratio", _NONE),
    SignalSpec("gpu_mem_fragmentation_ratio", "ratio", _LOW),
    SignalSpec("cuda_stream_block_ratio", "ratio", _LOW),
    SignalSpec("kernel_launch_interval_s", "s", _LOW),
    SignalSpec("cpu_busy_ratio", "ratio", _NONE),
    SignalSpec("cpu_preprocess_s", "s", _LOW),
    SignalSpec("token_length_deviation", "tokens", _LOW),
    SignalSpec("gpu_temp_c", "deg C", _LOW),
    SignalSpec("gpu_mem_temp_c", "deg C", _LOW),
    SignalSpec("gpu_power_w", "W", _NONE),
    SignalSpec("gpu_throttle_ratio", "ratio", _LOW),
    SignalSpec("gpu_xid_last", "code", _NONE),
    SignalSpec("gpu_row_remap_failure", "0/1", _LOW),
    SignalSpec("gpu_ecc_events_per_s", "1/s", _LOW),
    SignalSpec("pcie_replay_per_s", "1/s", _LOW),
    SignalSpec("nvlink_errors_per_s", "1/s", _LOW),
    # from request windows
    SignalSpec("window_ttft_p50_s", "s", _LOW),
    SignalSpec("window_duration_p50_s", "s", _LOW),
    SignalSpec("window_calls_per_s", "1/s", _NONE),
    SignalSpec("window_failure_ratio", "ratio", _LOW),
)
"""Every canonical signal; of what engines report as a histogram, the statistics that are read."""

SIGNALS: Final[tuple[str, ...]] = tuple(spec.name for spec in SIGNAL_SPECS)
SIGNAL_INDEX: Final[dict[str, int]] = {name: i for i, name in enumerate(SIGNALS)}


class ComponentKind(IntEnum):
    """How a component's samples are folded, whatever data type its sender declared."""

    GAUGE = 0
    COUNTER = 1
    HISTOGRAM = 2


class Combine(IntEnum):
    """How several series of one component and one rank are put together."""

    SUM = 0
    MAX = 1


class Component(NamedTuple):
    """One number or histogram behind the signals: its name, kind, unit and way to combine."""

    name: str
    kind: ComponentKind
    unit: str
    combine: Combine = Combine.SUM
    buckets: bool = False
    """A histogram whose quantiles are read, so that its buckets are kept."""


def _gauges(combine: Combine, unit: str, names: str) -> tuple[Component, ...]:
    return tuple(Component(name, ComponentKind.GAUGE, unit, combine) for name in names.split())


def _counters(unit: str, names: str, combine: Combine = Combine.SUM) -> tuple[Component, ...]:
    return tuple(Component(name, ComponentKind.COUNTER, unit, combine) for name in names.split())


def _histograms(unit: str, names: str, *, buckets: bool) -> tuple[Component, ...]:
    kind = ComponentKind.HISTOGRAM
    return tuple(Component(name, kind, unit, buckets=buckets) for name in names.split())


SERVING_COMPONENTS: Final[tuple[Component, ...]] = (
    *_gauges(Combine.MAX, "0/1", "up engine_sleep engine_awake"),
    *_gauges(Combine.SUM, "requests", "queue queue_pending running paused"),
    *_gauges(Combine.MAX, "ratio", "kv_util kv_util_old hit_rate"),
    *_gauges(Combine.SUM, "tokens", "kv_tokens kv_page_tokens"),
    *_gauges(Combine.SUM, "blocks", "kv_blocks_used kv_blocks_max"),
    *_gauges(Combine.MAX, "tokens", "kv_block_tokens"),
    *_gauges(Combine.SUM, "tokens/s", "output_rate"),
    *_counters("tokens", "prompt_tokens prompt_hit prompt_miss prefix_queries prefix_hits"),
    *_counters("tokens", "prefix_queries_old prefix_hits_old cached_tokens cached_beside"),
    *_counters("tokens", "output_tokens realtime_prefill realtime_decode"),
    *_counters("blocks", "blocks_reused blocks_missed"),
    *_counters("requests", "requests ended_ok ended_abort ended_error request_errors"),
    *_counters("1", "preemptions"),
    *_counters("s", "prompt_time output_time request_time queue_time input_time"),
    *_histograms("s", "ttft itl itl_old e2e ttft_genai itl_genai e2e_genai", buckets=True),
    *_histograms("s", "queue_wait queue_wait_old prefill decode preprocess", buckets=False),
    *_histograms("tokens", "tokens_in tokens_out", buckets=False),
)
"""From engines and the agent. Two names of one thing, old and new, are two components, so that the
choice between them holds however a scrape is cut into batches."""

GPU_COMPONENTS: Final[tuple[Component, ...]] = (
    *_gauges(Combine.MAX, "ratio", "sm_active gr_active gpu_busy nv_gpu_busy tensor_active"),
    *_gauges(Combine.MAX, "ratio", "pipe_fp16 pipe_fp32 pipe_fp64 dram_active mem_copy"),
    *_gauges(Combine.SUM, "By", "fb_used fb_free fb_reserved nv_mem_used nv_mem_total"),
    *_gauges(Combine.MAX, "ratio", "mem_fragmentation stream_block cpu_busy nv_cpu_busy"),
    *_gauges(Combine.MAX, "s", "launch_interval"),
    *_gauges(Combine.MAX, "deg C", "gpu_temp gpu_mem_temp"),
    *_gauges(Combine.SUM, "W", "gpu_power nv_gpu_power"),
    *_gauges(Combine.MAX, "code", "xid"),
    *_gauges(Combine.SUM, "1", "xid_count"),
    *_gauges(Combine.MAX, "0/1", "row_remap_failure"),
    *_counters("J", "gpu_energy"),
    *_counters("s", "violation", Combine.MAX),
    *_counters("1", "remapped_rows ecc_volatile ecc_aggregate pcie_replay nvlink_errors"),
)
"""From the DCGM exporter, Triton's GPU series and the node agent."""

COMPONENTS: Final[tuple[Component, ...]] = SERVING_COMPONENTS + GPU_COMPONENTS
"""Every component; `SampleRows.component` indexes it."""

COMPONENT_INDEX: Final[dict[str, int]] = {c.name: i for i, c in enumerate(COMPONENTS)}
