import pytest

from pipeline.model import PointKind
from pipeline.normalise.engines import (
    RULES,
    Kind,
    Rule,
    choose,
    component_of,
    is_companion,
    match,
)
from pipeline.signals import COMPONENTS, ComponentKind

GAUGE, SUM, HISTOGRAM = PointKind.GAUGE, PointKind.SUM, PointKind.HISTOGRAM


def component(name: str, kind: PointKind, help_text: str = "") -> str:
    """The component behind a metric; "" = known but unused, "?" = unknown, "!" = wrong type."""
    found = match(name)
    if not found.rules:
        return "?"
    index = choose(found.rules, kind, help_text)
    return RULES[index].component if index >= 0 else "!"


@pytest.mark.parametrize(
    ("name", "kind", "expected"),
    [
        # one name, every separator that pipelines put after the prefix
        ("vllm:num_requests_running", GAUGE, "running"),
        ("vllm_num_requests_running", GAUGE, "running"),
        ("vllm.num_requests_running", GAUGE, "running"),
        ("trtllm_num_requests_waiting", GAUGE, "queue"),
        ("trtllm:num_requests_waiting", GAUGE, "queue"),  # through Dynamo
        # `_total` or not; a counter that came untyped is still a counter
        ("vllm:generation_tokens_total", SUM, "output_tokens"),
        ("vllm:generation_tokens", SUM, "output_tokens"),
        ("vllm:generation_tokens_total", GAUGE, "output_tokens"),
        ("nv_inference_request_success", SUM, "requests"),
        ("nv_inference_request_success_total", SUM, "requests"),
        # trimmed unit suffixes
        ("vllm:time_to_first_token_seconds", HISTOGRAM, "ttft"),
        ("vllm:time_to_first_token", HISTOGRAM, "ttft"),
        ("llamacpp:prompt_seconds_total", SUM, "prompt_time"),
        ("llamacpp:prompt_seconds", SUM, "prompt_time"),
        ("llamacpp:prompt", SUM, "prompt_time"),
        ("nv_gpu_memory_used_bytes", GAUGE, "nv_mem_used"),
        ("nv_gpu_memory_used", GAUGE, "nv_mem_used"),
        # old names keep a component of their own, so that the new one can win
        ("vllm:gpu_cache_usage_perc", GAUGE, "kv_util_old"),
        ("vllm:kv_cache_usage_perc", GAUGE, "kv_util"),
        ("vllm:time_per_output_token_seconds", HISTOGRAM, "itl_old"),
        ("vllm:time_in_queue_requests", HISTOGRAM, "queue_wait_old"),
        ("sglang:time_per_output_token_seconds", HISTOGRAM, "itl_old"),
        # a per-request mean is not the latency between tokens
        ("vllm:request_time_per_output_token_seconds", HISTOGRAM, ""),
        # a histogram although its name ends in _total
        ("vllm:iteration_tokens_total", HISTOGRAM, ""),
        ("vllm:iteration_tokens_total", SUM, "!"),
        # a breakdown of num_requests_waiting must not be added to it
        ("vllm:num_requests_waiting_by_reason", GAUGE, ""),
        # batches executed, never requests running
        ("nv_inference_exec_count", SUM, ""),
        # a maximum that is declared as a counter
        ("llamacpp:n_tokens_max", SUM, ""),
        # tokens per second, reset by whoever scrapes
        ("llamacpp:prompt_tokens_seconds", GAUGE, ""),
        ("llamacpp:prompt_tokens_total", SUM, "prompt_tokens"),
        # DCGM: the upper-case _TOTAL belongs to the name
        ("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", SUM, "ecc_volatile"),
        ("DCGM_FI_DEV_ECC_DBE_VOL", SUM, "?"),
        ("DCGM_FI_DEV_XID_ERRORS", GAUGE, "xid"),
        ("DCGM_EXP_XID_ERRORS_COUNT", SUM, "xid_count"),  # declared counter, may fall
        # OpenTelemetry GenAI, as sent and as Prometheus names it
        ("gen_ai.server.time_to_first_token", HISTOGRAM, "ttft_genai"),
        ("gen_ai_server_time_to_first_token_seconds", HISTOGRAM, "ttft_genai"),
        ("gen_ai.server.request.duration", HISTOGRAM, "e2e_genai"),
        ("tailrace.cuda_stream_block_ratio", GAUGE, "stream_block"),
        ("up", GAUGE, "up"),
        # a wrong type is not guessed at
        ("vllm:num_requests_running", HISTOGRAM, "!"),
        ("vllm:time_to_first_token_seconds", GAUGE, "!"),
        # names that nobody knows, of a known engine and of none
        ("vllm:brand_new_thing", GAUGE, "?"),
        ("vllm", GAUGE, "?"),
        ("vllmx:num_requests_running", GAUGE, "?"),
        ("python_info", GAUGE, "?"),
    ],
)
def test_names(name: str, kind: PointKind, expected: str) -> None:
    assert component(name, kind) == expected


def test_only_names_of_an_engine_belong_to_one() -> None:
    assert match("vllm:brand_new_thing").engine == "vllm"
    assert match("python_info").engine == ""


def test_two_counters_of_one_trimmed_name_are_told_apart_by_their_help() -> None:
    # trim_metric_suffixes makes one name of tokens_predicted_total and .._seconds_total.
    tokens, seconds = "Number of generation tokens processed.", "Predict process time"
    assert component("llamacpp:tokens_predicted", SUM, tokens) == "output_tokens"
    assert component("llamacpp:tokens_predicted", SUM, seconds) == "output_time"


def test_a_trimmed_gauge_is_not_taken_for_the_counter_of_the_same_trimmed_name() -> None:
    assert component("llamacpp:prompt_tokens", GAUGE) == ""
    assert component("llamacpp:prompt_tokens", SUM) == "prompt_tokens"


def test_creation_times_are_no_unknown_metrics() -> None:
    assert is_companion("vllm:prompt_tokens_created")
    assert not is_companion("vllm:prompt_tokens_total")


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: f"{rule.engine}:{rule.name}")
def test_every_row_leads_to_a_component_of_its_kind(rule: Rule) -> None:
    kinds = {Kind.HISTOGRAM: ComponentKind.HISTOGRAM, Kind.COUNTER: ComponentKind.COUNTER}
    for name in (rule.component, *rule.parts.values()):
        if name:
            expected = kinds.get(rule.kind, ComponentKind.GAUGE)
            assert COMPONENTS[component_of(name)].kind is expected


def test_no_engine_has_two_rows_for_one_full_name() -> None:
    names = [(rule.engine, rule.name) for rule in RULES]
    assert len(names) == len(set(names))
