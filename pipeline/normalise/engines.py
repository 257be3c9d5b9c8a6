"""Every metric name of every engine, old and new, as rows of one table: name -> component.

A row says what the name means whatever data type it arrives with. Names are matched once per
distinct name of a batch: the separator after the prefix may be `:` `_` or `.`, `_total` may be
missing, and so may a trimmed unit suffix; between rows of one trimmed name the data type decides.
"""

from collections.abc import Iterable, Mapping
from enum import IntEnum
from types import MappingProxyType
from typing import Final, NamedTuple

from pipeline.model import PointKind
from pipeline.signals import COMPONENT_INDEX


class Kind(IntEnum):
    """What a metric is, whatever type its sender gave it."""

    GAUGE = 0
    COUNTER = 1
    HISTOGRAM = 2
    INFO = 3
    """The labels are the value: the product of `product`."""


ACCEPTED: Final[Mapping[Kind, frozenset[PointKind]]] = MappingProxyType(
    {
        Kind.GAUGE: frozenset({PointKind.GAUGE, PointKind.SUM}),
        Kind.COUNTER: frozenset({PointKind.SUM, PointKind.GAUGE}),  # untyped arrives as Gauge
        Kind.HISTOGRAM: frozenset(
            {PointKind.HISTOGRAM, PointKind.EXPONENTIAL_HISTOGRAM, PointKind.SUMMARY}
        ),
        Kind.INFO: frozenset({PointKind.GAUGE, PointKind.SUM}),
    }
)

ANY: Final = "*"
"""In `Rule.parts`: every other value of the label, its absence too."""


class Rule(NamedTuple):
    """One metric name of one engine."""

    engine: str
    name: str
    """Without the prefix, as the engine writes it."""
    kind: Kind
    component: str
    """"" = known, but nothing is read from it."""
    unit: str
    """Of the values, as the name implies."""
    label: str = ""
    parts: Mapping[str, str] = MappingProxyType({})
    """Value of `label` -> component instead of `component`; "" leaves the point out."""
    product: tuple[str, ...] = ()
    """INFO: labels whose values are multiplied."""
    code: str = ""
    """Label whose number goes along as `SampleRows.count`."""
    help_unit: bool = False
    """The help text may state another unit."""
    hint: str = ""
    """Told from a row of the same trimmed name and type by this word in the help text."""


PREFIXES: Final[tuple[tuple[str, str], ...]] = (
    ("vllm", "vllm"),
    ("sglang", "sglang"),
    ("trtllm", "trtllm"),
    ("llamacpp", "llamacpp"),
    ("tailrace", "agent"),
    ("gen_ai_server", "genai"),
    ("DCGM_FI", "dcgm"),
    ("DCGM_EXP", "dcgm_exp"),
    ("nv", "triton"),
)
"""(prefix, engine); after the prefix comes one of `:` `_` `.`."""

ENGINES: Final = ("triton", "vllm", "sglang", "trtllm", "llamacpp")
"""Whose metrics make a scrape target an endpoint. Triton first: its vLLM backend adds `vllm:` names
to the same page, whose port is Triton's."""


def _plain(engine: str, kind: Kind, rows: str) -> tuple[Rule, ...]:
    """Rows of the form `name component unit`; a component `-` is known but unused."""
    fields = (line.split() for line in rows.strip().splitlines())
    return tuple(
        Rule(engine, name, kind, "" if component == "-" else component, unit)
        for name, component, unit in fields
    )


def _unused(engine: str, kind: Kind, names: str) -> tuple[Rule, ...]:
    return tuple(Rule(engine, name, kind, "", "1") for name in names.split())


_ENDED: Final = MappingProxyType(
    {"abort": "ended_abort", "cancelled": "ended_abort", "error": "ended_error", ANY: "ended_ok"}
)

_VLLM: Final = (
    *_plain(
        "vllm",
        Kind.GAUGE,
        """
        num_requests_running running requests
        num_requests_waiting queue requests
        kv_cache_usage_perc kv_util ratio
        gpu_cache_usage_perc kv_util_old ratio
        gpu_prefix_cache_hit_rate hit_rate ratio
        """,
    ),
    # One series per state: `awake` is 1 while the engine is NOT asleep.
    Rule(
        *("vllm", "engine_sleep_state", Kind.GAUGE, "engine_sleep", "0/1"),
        label="sleep_state",
        parts={"awake": "engine_awake", ANY: "engine_sleep"},
    ),
    Rule(
        *("vllm", "cache_config_info", Kind.INFO, "kv_tokens", "tokens"),
        product=("block_size", "num_gpu_blocks"),
    ),
    *_plain(
        "vllm",
        Kind.COUNTER,
        """
        prefix_cache_queries_total prefix_queries tokens
        prefix_cache_hits_total prefix_hits tokens
        gpu_prefix_cache_queries_total prefix_queries_old tokens
        gpu_prefix_cache_hits_total prefix_hits_old tokens
        prompt_tokens_total prompt_tokens tokens
        generation_tokens_total output_tokens tokens
        num_preemptions_total preemptions 1
        admission_rejections_total request_errors requests
        """,
    ),
    Rule(
        *("vllm", "prompt_tokens_by_source_total", Kind.COUNTER, "", "tokens"),
        label="source",
        parts={
            "local_cache_hit": "prompt_hit",
            "external_kv_transfer": "prompt_hit",
            ANY: "prompt_miss",
        },
    ),
    Rule(
        *("vllm", "request_success_total", Kind.COUNTER, "", "requests"),
        label="finished_reason",
        parts=_ENDED,
    ),
    *_plain(
        "vllm",
        Kind.HISTOGRAM,
        """
        time_to_first_token_seconds ttft s
        inter_token_latency_seconds itl s
        time_per_output_token_seconds itl_old s
        e2e_request_latency_seconds e2e s
        request_queue_time_seconds queue_wait s
        time_in_queue_requests queue_wait_old s
        request_prefill_time_seconds prefill s
        request_decode_time_seconds decode s
        request_prompt_tokens tokens_in tokens
        request_generation_tokens tokens_out tokens
        """,
    ),
    *_unused(
        "vllm",
        Kind.GAUGE,
        """num_requests_waiting_by_reason num_requests_swapped cpu_cache_usage_perc
        cpu_prefix_cache_hit_rate avg_prompt_throughput_toks_per_s
        avg_generation_throughput_toks_per_s spec_decode_draft_acceptance_rate lora_requests_info
        """,
    ),
    *_unused(
        "vllm",
        Kind.COUNTER,
        """external_prefix_cache_queries_total external_prefix_cache_hits_total
        mm_cache_queries_total mm_cache_hits_total prompt_tokens_cached_total
        prompt_tokens_cached_by_source_total corrupted_requests_total
        spec_decode_num_drafts_total spec_decode_num_draft_tokens_total
        spec_decode_num_accepted_tokens_total spec_decode_num_accepted_tokens_per_pos_total
        estimated_flops_per_gpu_total estimated_read_bytes_per_gpu_total
        estimated_write_bytes_per_gpu_total""",
    ),
    *_unused(
        "vllm",
        Kind.HISTOGRAM,
        """request_time_per_output_token_seconds request_inference_time_seconds
        kv_block_lifetime_seconds kv_block_idle_before_evict_seconds kv_block_reuse_gap_seconds
        request_max_num_generation_tokens request_params_max_tokens request_params_n
        request_prefill_kv_computed_tokens request_num_preemptions iteration_tokens_total
        model_forward_time_milliseconds model_execute_time_milliseconds""",
    ),
)

_SGLANG: Final = (
    *_plain(
        "sglang",
        Kind.GAUGE,
        """
        num_running_reqs running requests
        num_queue_reqs queue requests
        num_grammar_queue_reqs queue requests
        num_prefill_prealloc_queue_reqs queue requests
        num_prefill_inflight_queue_reqs queue requests
        num_decode_prealloc_queue_reqs queue requests
        num_decode_transfer_queue_reqs queue requests
        num_paused_reqs paused requests
        token_usage kv_util ratio
        swa_token_usage kv_util ratio
        mamba_usage kv_util ratio
        max_total_num_tokens kv_tokens tokens
        cache_hit_rate hit_rate ratio
        gen_throughput output_rate tokens/s
        """,
    ),
    Rule(
        *("sglang", "cache_config_info", Kind.INFO, "kv_page_tokens", "tokens"),
        product=("page_size", "num_pages"),
    ),
    *_plain(
        "sglang",
        Kind.COUNTER,
        """
        prompt_tokens_total prompt_tokens tokens
        generation_tokens_total output_tokens tokens
        cached_tokens_total cached_tokens tokens
        num_requests_total requests requests
        num_aborted_requests_total request_errors requests
        num_bootstrap_failed_reqs_total request_errors requests
        num_transfer_failed_reqs_total request_errors requests
        num_retracted_requests_total preemptions 1
        """,
    ),
    Rule(
        *("sglang", "realtime_tokens_total", Kind.COUNTER, "", "tokens"),
        label="mode",
        parts={"prefill_compute": "realtime_prefill", "decode": "realtime_decode"},
    ),
    *_plain(
        "sglang",
        Kind.HISTOGRAM,
        """
        time_to_first_token_seconds ttft s
        inter_token_latency_seconds itl s
        time_per_output_token_seconds itl_old s
        e2e_request_latency_seconds e2e s
        queue_time_seconds queue_wait s
        prompt_tokens_histogram tokens_in tokens
        generation_tokens_histogram tokens_out tokens
        """,
    ),
    Rule(
        *("sglang", "per_stage_req_latency_seconds", Kind.HISTOGRAM, "", "s"),
        label="stage",
        parts={
            "prefill": "prefill",
            "prefill_forward": "prefill",
            "decode": "decode",
            "decode_forward": "decode",
        },
    ),
    *_unused(
        "sglang",
        Kind.GAUGE,
        """num_used_tokens pending_prealloc_token_usage utilization num_retracted_reqs
        max_running_requests_under_SLO kv_transfer_speed_gb_s kv_transfer_latency_ms
        kv_transfer_bootstrap_ms kv_transfer_alloc_ms kv_transfer_total_mb spec_accept_length
        spec_accept_rate engine_startup_time engine_load_weights_time new_token_ratio is_cuda_graph
        lora_pool_slots_used lora_pool_slots_total lora_pool_utilization
        hicache_host_total_tokens""",
    ),
    *_unused("sglang", Kind.COUNTER, "num_so_requests_total gpu_execution_seconds_total"),
    *_unused("sglang", Kind.HISTOGRAM, "num_retractions"),
)

_TRITON: Final = (
    *_plain(
        "triton",
        Kind.COUNTER,
        """
        inference_request_success requests requests
        inference_request_failure request_errors requests
        inference_request_duration_us request_time us
        inference_queue_duration_us queue_time us
        inference_compute_input_duration_us input_time us
        energy_consumption gpu_energy J
        """,
    ),
    *_plain(
        "triton",
        Kind.GAUGE,
        """
        inference_pending_request_count queue_pending requests
        gpu_utilization nv_gpu_busy ratio
        gpu_memory_used_bytes nv_mem_used By
        gpu_memory_total_bytes nv_mem_total By
        gpu_power_usage nv_gpu_power W
        cpu_utilization nv_cpu_busy ratio
        """,
    ),
    Rule(
        *("triton", "trt_llm_request_metrics", Kind.GAUGE, "", "requests"),
        label="request_type",
        parts={"waiting": "queue", "scheduled": "running"},
    ),
    Rule(
        *("triton", "trt_llm_kv_cache_block_metrics", Kind.GAUGE, "", "blocks"),
        label="kv_cache_block_type",
        parts={
            "fraction": "kv_util",
            "tokens_per": "kv_block_tokens",
            "used": "kv_blocks_used",
            "max": "kv_blocks_max",
        },
    ),
    *_plain("triton", Kind.HISTOGRAM, "inference_first_response_histogram_ms ttft ms"),
    # Summaries: sum and count only.
    *_plain(
        "triton",
        Kind.HISTOGRAM,
        """
        inference_request_summary_us e2e us
        inference_queue_summary_us queue_wait us
        inference_compute_input_summary_us - us
        inference_compute_infer_summary_us - us
        inference_compute_output_summary_us - us
        """,
    ),
    *_unused(
        "triton",
        Kind.COUNTER,
        """inference_count inference_exec_count inference_compute_infer_duration_us
        inference_compute_output_duration_us cache_num_hits_per_model cache_num_misses_per_model
        cache_hit_duration_per_model cache_miss_duration_per_model""",
    ),
    *_unused(
        "triton",
        Kind.GAUGE,
        """gpu_power_limit cpu_memory_total_bytes cpu_memory_used_bytes
        pinned_memory_pool_total_bytes pinned_memory_pool_used_bytes trt_llm_runtime_memory_metrics
        trt_llm_inflight_batcher_metrics trt_llm_general_metrics""",
    ),
)

_TRTLLM: Final = (
    *_plain(
        "trtllm",
        Kind.HISTOGRAM,
        """
        e2e_request_latency_seconds e2e s
        time_to_first_token_seconds ttft s
        time_per_output_token_seconds itl s
        request_queue_time_seconds queue_wait s
        request_prefill_time_seconds prefill s
        request_decode_time_seconds decode s
        request_inference_time_seconds - s
        """,
    ),
    Rule(
        *("trtllm", "request_success_total", Kind.COUNTER, "", "requests"),
        label="finished_reason",
        parts=_ENDED,
    ),
    *_plain(
        "trtllm",
        Kind.COUNTER,
        """
        prompt_tokens_total prompt_tokens tokens
        generation_tokens_total output_tokens tokens
        num_requests_completed_total requests requests
        kv_cache_reused_blocks_total blocks_reused blocks
        kv_cache_missed_blocks_total blocks_missed blocks
        """,
    ),
    *_plain(
        "trtllm",
        Kind.GAUGE,
        """
        num_requests_running running requests
        num_requests_waiting queue requests
        kv_cache_utilization kv_util ratio
        kv_cache_hit_rate hit_rate ratio
        kv_cache_max_blocks kv_blocks_max blocks
        kv_cache_used_blocks kv_blocks_used blocks
        kv_cache_tokens_per_block kv_block_tokens tokens
        """,
    ),
    *_unused(
        "trtllm",
        Kind.GAUGE,
        """kv_cache_host_utilization kv_cache_iter_reuse_rate kv_cache_free_blocks
        max_num_active_requests iteration_latency_seconds gpu_memory_usage_bytes
        cpu_memory_usage_bytes pinned_memory_usage_bytes num_context_requests
        num_generation_requests num_paused_requests num_scheduled_requests total_context_tokens""",
    ),
)

_LLAMACPP: Final = (
    Rule("llamacpp", "prompt_tokens_total", Kind.COUNTER, "prompt_tokens", "tokens"),
    # Here `prompt_tokens` are those that had to be computed; the cached ones are counted beside.
    Rule("llamacpp", "prompt_tokens_cached_total", Kind.COUNTER, "cached_beside", "tokens"),
    Rule("llamacpp", "prompt_seconds_total", Kind.COUNTER, "prompt_time", "s"),
    Rule("llamacpp", "tokens_predicted_total", Kind.COUNTER, "output_tokens", "tokens"),
    Rule(
        *("llamacpp", "tokens_predicted_seconds_total", Kind.COUNTER, "output_time", "s"),
        hint="time",
    ),
    Rule("llamacpp", "requests_processing", Kind.GAUGE, "running", "requests"),
    Rule("llamacpp", "requests_deferred", Kind.GAUGE, "queue", "requests"),
    *_unused(
        "llamacpp",
        Kind.COUNTER,
        """n_decode_total spec_decode_num_draft_tokens_total spec_decode_num_accepted_tokens_total
        spec_decode_num_drafts_total""",
    ),
    # Gauges of the time since the last scrape, by whomever; and a maximum declared as a counter.
    *_unused(
        "llamacpp",
        Kind.GAUGE,
        """prompt_tokens_seconds predicted_tokens_seconds n_busy_slots_per_decode n_tokens_max
        kv_cache_usage_ratio kv_cache_tokens""",
    ),
)

_DCGM: Final = (
    *_plain(
        "dcgm",
        Kind.GAUGE,
        """
        PROF_SM_ACTIVE sm_active ratio
        PROF_GR_ENGINE_ACTIVE gr_active ratio
        PROF_PIPE_TENSOR_ACTIVE tensor_active ratio
        PROF_PIPE_FP16_ACTIVE pipe_fp16 ratio
        PROF_PIPE_FP32_ACTIVE pipe_fp32 ratio
        PROF_PIPE_FP64_ACTIVE pipe_fp64 ratio
        PROF_DRAM_ACTIVE dram_active ratio
        DEV_GPU_UTIL gpu_busy percent
        DEV_MEM_COPY_UTIL mem_copy percent
        DEV_FB_USED fb_used MiB
        DEV_FB_FREE fb_free MiB
        DEV_FB_RESERVED fb_reserved MiB
        DEV_GPU_TEMP gpu_temp C
        DEV_MEMORY_TEMP gpu_mem_temp C
        DEV_POWER_USAGE gpu_power W
        DEV_XID_ERRORS xid code
        DEV_ROW_REMAP_FAILURE row_remap_failure 0/1
        """,
    ),
    *_plain(
        "dcgm",
        Kind.COUNTER,
        """
        DEV_TOTAL_ENERGY_CONSUMPTION gpu_energy mJ
        DEV_PCIE_REPLAY_COUNTER pcie_replay 1
        DEV_UNCORRECTABLE_REMAPPED_ROWS remapped_rows 1
        DEV_CORRECTABLE_REMAPPED_ROWS remapped_rows 1
        DEV_ECC_SBE_VOL_TOTAL ecc_volatile 1
        DEV_ECC_DBE_VOL_TOTAL ecc_volatile 1
        DEV_ECC_SBE_AGG_TOTAL ecc_aggregate 1
        DEV_ECC_DBE_AGG_TOTAL ecc_aggregate 1
        DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL nvlink_errors 1
        DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL nvlink_errors 1
        DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL nvlink_errors 1
        DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL nvlink_errors 1
        """,
    ),
    *(
        Rule("dcgm", f"DEV_{why}_VIOLATION", Kind.COUNTER, "violation", "ns", help_unit=True)
        for why in ("POWER", "THERMAL", "SYNC_BOOST", "BOARD_LIMIT", "RELIABILITY")
    ),
    *_unused("dcgm", Kind.COUNTER, "DEV_LOW_UTIL_VIOLATION"),  # says idle, not throttled
    *_unused(
        "dcgm",
        Kind.GAUGE,
        """DEV_SM_CLOCK DEV_MEM_CLOCK DEV_ENC_UTIL DEV_DEC_UTIL DEV_VGPU_LICENSE_STATUS
        PROF_PCIE_TX_BYTES PROF_PCIE_RX_BYTES PROF_SM_OCCUPANCY DEV_NVLINK_BANDWIDTH_TOTAL
        DEV_RETIRED_SBE DEV_RETIRED_DBE DEV_RETIRED_PENDING""",
    ),
    # Declared counters that report their last window and may fall.
    Rule("dcgm_exp", "XID_ERRORS_COUNT", Kind.GAUGE, "xid_count", "1", code="xid"),
    *_unused("dcgm_exp", Kind.GAUGE, "CLOCK_EVENTS_COUNT GPU_HEALTH_STATUS P2P_STATUS"),
)

_GENAI: Final = (
    Rule("genai", "request_duration_seconds", Kind.HISTOGRAM, "e2e_genai", "s"),
    Rule("genai", "time_to_first_token_seconds", Kind.HISTOGRAM, "ttft_genai", "s"),
    Rule("genai", "time_per_output_token_seconds", Kind.HISTOGRAM, "itl_genai", "s"),
)

_AGENT: Final = (
    *_plain(
        "agent",
        Kind.GAUGE,
        """
        cuda_stream_block_ratio stream_block ratio
        kernel_launch_interval_s launch_interval s
        cpu_busy_ratio cpu_busy ratio
        gpu_mem_fragmentation_ratio mem_fragmentation ratio
        """,
    ),
    Rule("agent", "cpu_preprocess_s", Kind.HISTOGRAM, "preprocess", "s"),
)

_TARGET: Final = (Rule("target", "up", Kind.GAUGE, "up", "0/1"),)

RULES: Final[tuple[Rule, ...]] = (
    *_VLLM,
    *_SGLANG,
    *_TRITON,
    *_TRTLLM,
    *_LLAMACPP,
    *_DCGM,
    *_GENAI,
    *_AGENT,
    *_TARGET,
)

_UNIT_SUFFIXES: Final = ("_seconds", "_milliseconds", "_bytes", "_ratio", "_ms", "_us", "_s")


def _aliases(rule: Rule) -> Iterable[str]:
    """The forms of a name, the full one first."""
    bare = rule.name.removesuffix("_total") if rule.engine != "dcgm" else rule.name
    yield rule.name
    if rule.kind is Kind.COUNTER:
        yield bare
        yield f"{bare}_total"
    for suffix in _UNIT_SUFFIXES:
        if bare.endswith(suffix):
            yield bare.removesuffix(suffix)


def _table() -> dict[tuple[str, str], tuple[int, ...]]:
    """(engine, form) -> indexes of `RULES`; rows whose full name it is come alone."""
    found: dict[tuple[str, str], list[tuple[int, int]]] = {}
    for index, rule in enumerate(RULES):
        for rank, form in enumerate(dict.fromkeys(_aliases(rule))):
            found.setdefault((rule.engine, form), []).append((rank, index))
    return {key: tuple(index for _, index in sorted(rows)) for key, rows in found.items()}


_FORMS: Final = MappingProxyType(_table())


class Match(NamedTuple):
    """What a metric's name says before its data type is known."""

    engine: str
    """"" = of no engine that we know."""
    rules: tuple[int, ...]
    """Candidates in `RULES`, best first; empty = an unknown name."""


def split(name: str) -> tuple[str, str]:
    """(engine, rest) of a metric name; ("", name) for foreign names.

    >>> split("vllm:num_requests_running"), split("vllm.num_requests_running")
    (('vllm', 'num_requests_running'), ('vllm', 'num_requests_running'))
    >>> split("gen_ai.server.time_to_first_token"), split("vllmx_running")
    (('genai', 'time_to_first_token'), ('', 'vllmx_running'))
    """
    if name == "up":
        return "target", name
    flat = name.replace(".", "_").replace(":", "_")
    for prefix, engine in PREFIXES:
        if flat.startswith(prefix) and flat[len(prefix) : len(prefix) + 1] == "_":
            return engine, flat[len(prefix) + 1 :]
    return "", name


def match(name: str) -> Match:
    """The rows that `name` may mean."""
    engine, rest = split(name)
    if engine == "agent":
        rest = rest.removeprefix("agent_")
    return Match(engine, _FORMS.get((engine, rest), ()))


def is_companion(name: str) -> bool:
    """Whether `name` is a creation time that some clients export beside each counter."""
    return name.endswith(("_created", ".created"))


def choose(rules: tuple[int, ...], kind: int, description: str) -> int:
    """The row of `rules` that accepts points of PointKind `kind`, -1 if none does.

    Rows that tell themselves apart by a word of the help text are asked first; a counter that came
    as a counter beats one that came untyped.
    """
    fitting = [i for i in rules if kind in ACCEPTED[RULES[i].kind]]
    if len(fitting) < 2:
        return fitting[0] if fitting else -1
    hinted = [i for i in fitting if RULES[i].hint and RULES[i].hint in description.lower()]
    exact = Kind.COUNTER if kind == PointKind.SUM else Kind.GAUGE
    typed = [i for i in fitting if RULES[i].kind is exact]
    return (hinted or typed or fitting)[0]


def component_of(name: str) -> int:
    """Index of a component by name; -1 for ""."""
    return COMPONENT_INDEX[name] if name else -1
