"""Data points of real pages and of hand-made ones, through the real identity."""

from collections.abc import Mapping, Sequence

import numpy as np
import pytest

from pipeline.clock import HandClock
from pipeline.decode.columns import decode_points
from pipeline.model import Canonical, Rights, Role, SampleRows, Sender
from pipeline.normalise.identity import Identity, IdentityConfig
from pipeline.normalise.metrics import PointNormaliser
from pipeline.signals import COMPONENTS
from tests.exposition import Family, Sample, request

TRUSTED = Sender("10.0.0.9", Rights.METRICS | Rights.IDENTITY)
TARGET = {"service.name": "vllm", "service.instance.id": "10.1.2.3:8000"}
TARGET |= {"server.address": "10.1.2.3", "server.port": "8000"}


def family(
    name: str, value: float, kind: str = "gauge", help_text: str = "", **labels: str
) -> Family:
    return Family(name, kind, help_text, [Sample(name, labels, value)])


class Stage:
    """The normaliser beside a real identity; each call is one batch of one resource."""

    def __init__(self) -> None:
        self.clock = HandClock()
        self.identity = Identity(IdentityConfig(), ())
        self.normaliser = PointNormaliser()

    def take(
        self,
        *families: Family,
        resource: Mapping[str, str] | None = None,
        sender: Sender = TRUSTED,
    ) -> Canonical:
        now = self.clock.advance(1.0)
        body = request(families, TARGET if resource is None else resource, now.wall_ns)
        return self.normaliser.normalise_points(decode_points(body), self.identity, sender, now)


def values(canonical: Canonical) -> dict[str, float]:
    """Component -> value, of samples whose components differ."""
    samples = canonical.samples
    assert samples is not None
    return {
        COMPONENTS[c].name: v
        for c, v in zip(samples.component.tolist(), samples.value.tolist(), strict=True)
    }


def samples(canonical: Canonical) -> SampleRows:
    assert canonical.samples is not None
    return canonical.samples


def dcgm(name: str, value: float, **labels: str) -> Family:
    pod = {"pod": "vllm-0", "namespace": "llm", "UUID": "GPU-1", "Hostname": "n1"}
    return family(f"DCGM_FI_{name}", value, **(pod | labels))


POD = {"k8s.pod.name": "vllm-0", "k8s.namespace.name": "llm", "k8s.pod.uid": "u-1"}
EXPORTER = {
    "service.name": "dcgm",
    "service.instance.id": "10.9.9.9:9400",
    "k8s.pod.name": "dcgm-exporter-x",
    "k8s.namespace.name": "gpu-operator",
}


def test_an_engine_target_becomes_an_endpoint_with_its_engine_and_model() -> None:
    stage = Stage()
    stage.take(family("vllm:num_requests_running", 3, model_name="llama", engine="0"))
    directory = stage.identity.directory()
    (slot,) = directory.slots()
    assert (directory.engine[slot], directory.models[slot]) == ("vllm", ("llama",))
    assert directory.address[slot] == "10.1.2.3:8000"


def test_every_point_is_a_sample_or_counted() -> None:
    canonical = Stage().take(
        family("vllm:num_requests_running", 3),
        family("vllm:num_requests_swapped", 3),
        family("vllm:brand_new_thing", 3),
        family("vllm:prompt_tokens_created", 1.7e9),
        family("python_gc", 3),
        family("vllm:num_requests_waiting", -1.0),
    )
    assert samples(canonical).n == 1
    assert canonical.dropped == {
        "unused_metric": 1,
        "unknown_metric": 1,
        "foreign_metric": 2,
        "bad_value": 1,
    }


def test_a_sender_without_the_right_counts_for_nothing() -> None:
    canonical = Stage().take(
        family("vllm:num_requests_running", 3), sender=Sender("10.0.0.9", Rights.REQUESTS)
    )
    assert canonical.samples is None
    assert canonical.dropped == {"sender_rights": 1}


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -1.0])
def test_a_gauge_that_is_no_level_is_dropped_and_counted(bad: float) -> None:
    canonical = Stage().take(
        family("vllm:kv_cache_usage_perc", bad), family("vllm:num_requests_running", 1)
    )
    assert values(canonical) == {"running": 1.0}
    assert canonical.dropped == {"bad_value": 1}


@pytest.mark.parametrize(
    ("metric", "value", "component", "expected"),
    [
        # DCGM: *_UTIL is percent, PROF_* is a ratio; told by the name, whatever the magnitude
        ("DEV_GPU_UTIL", 1.0, "gpu_busy", 0.01),
        ("DEV_MEM_COPY_UTIL", 50.0, "mem_copy", 0.5),
        ("PROF_SM_ACTIVE", 1.0, "sm_active", 1.0),
        ("PROF_GR_ENGINE_ACTIVE", 0.5, "gr_active", 0.5),
        ("PROF_PIPE_TENSOR_ACTIVE", 0.5, "tensor_active", 0.5),
        ("PROF_DRAM_ACTIVE", 0.5, "dram_active", 0.5),
        ("PROF_PIPE_FP16_ACTIVE", 0.5, "pipe_fp16", 0.5),
        ("DEV_FB_USED", 2.0, "fb_used", 2097152.0),  # MiB
        ("DEV_GPU_TEMP", 61.0, "gpu_temp", 61.0),
        ("DEV_POWER_USAGE", 300.5, "gpu_power", 300.5),
        ("DEV_ROW_REMAP_FAILURE", 1.0, "row_remap_failure", 1.0),
        ("DEV_TOTAL_ENERGY_CONSUMPTION", 5000.0, "gpu_energy", 5.0),  # mJ
    ],
)
def test_dcgm_units(metric: str, value: float, component: str, expected: float) -> None:
    stage = Stage()
    stage.take(family("vllm:num_requests_running", 1), resource=TARGET | POD)
    canonical = stage.take(dcgm(metric, value), resource=EXPORTER)
    assert values(canonical) == {component: pytest.approx(expected)}


@pytest.mark.parametrize(
    ("help_text", "expected"),
    [
        ("Throttling duration due to thermal constraints (in us).", 2e-3),
        ("Throttling duration due to thermal constraints (in ns).", 2e-6),
        ("", 2e-6),  # nanoseconds unless stated
    ],
)
def test_the_unit_of_violations_is_read_from_the_help_text(help_text: str, expected: float) -> None:
    stage = Stage()
    stage.take(family("vllm:num_requests_running", 1), resource=TARGET | POD)
    name = "DCGM_FI_DEV_THERMAL_VIOLATION"
    throttled = family(name, 2000.0, "counter", help_text, pod="vllm-0", namespace="llm")
    assert values(stage.take(throttled, resource=EXPORTER)) == {
        "violation": pytest.approx(expected)
    }


@pytest.mark.parametrize(
    ("labels", "found"),
    [
        ({"pod": "vllm-0", "namespace": "llm"}, True),
        ({"pod_name": "vllm-0", "pod_namespace": "llm"}, True),
        # scrape relabelling put the exporter's own pod there and moved DCGM's
        (
            {"pod": "dcgm-exporter-x", "namespace": "gpu-operator"}
            | {"exported_pod": "vllm-0", "exported_namespace": "llm"},
            True,
        ),
        ({"Hostname": "n1"}, True),  # the only endpoint of its node
        ({"hostname": "n1"}, True),
        ({"hostname": "n2"}, False),
        ({"pod": "other", "namespace": "llm"}, False),
    ],
)
def test_a_dcgm_point_belongs_to_the_pod_it_names(labels: dict[str, str], found: bool) -> None:
    stage = Stage()
    stage.take(
        family("vllm:num_requests_running", 1), resource=TARGET | POD | {"k8s.node.name": "n1"}
    )
    temperature = family("DCGM_FI_DEV_GPU_TEMP", 50, UUID="GPU-1", **labels)
    canonical = stage.take(temperature, resource=EXPORTER)
    assert (canonical.samples is not None and canonical.samples.n == 1) is found
    assert canonical.dropped == ({} if found else {"no_endpoint": 1})


def test_an_exporter_never_becomes_an_endpoint() -> None:
    stage = Stage()
    canonical = stage.take(dcgm("DEV_GPU_TEMP", 50), family("up", 1), resource=EXPORTER)
    assert canonical.dropped == {"no_endpoint": 2}
    assert not stage.identity.directory().known.any()


@pytest.mark.parametrize("label", ["UUID", "uuid", "gpu_uuid"])
def test_gpus_are_told_apart_by_every_name_of_their_uuid(label: str) -> None:
    stage = Stage()
    stage.take(family("vllm:num_requests_running", 1), resource=TARGET | POD)
    gpus = [
        Sample("DCGM_FI_DEV_GPU_TEMP", {"pod": "vllm-0", "namespace": "llm", label: gpu}, 50)
        for gpu in ("GPU-1", "GPU-2", "GPU-1")
    ]
    canonical = stage.take(Family("DCGM_FI_DEV_GPU_TEMP", "gauge", "", gpus), resource=EXPORTER)
    one, two, again = samples(canonical).group.tolist()
    assert one == again != two


def test_slices_of_one_gpu_are_told_apart() -> None:
    stage = Stage()
    stage.take(family("vllm:num_requests_running", 1), resource=TARGET | POD)
    pod = {"pod": "vllm-0", "namespace": "llm", "UUID": "GPU-1"}
    slices = [Sample("DCGM_FI_DEV_GPU_TEMP", pod | {"GPU_I_ID": i}, 50) for i in ("1", "2")]
    canonical = stage.take(Family("DCGM_FI_DEV_GPU_TEMP", "gauge", "", slices), resource=EXPORTER)
    assert len(set(samples(canonical).group.tolist())) == 2


def test_up_of_a_known_engine_counts_although_its_page_is_gone() -> None:
    stage = Stage()
    stage.take(family("vllm:num_requests_running", 1, model_name="llama"), family("up", 1))
    canonical = stage.take(family("up", 0), family("scrape_duration_seconds", 0))
    assert values(canonical) == {"up": 0.0}
    assert canonical.dropped == {"foreign_metric": 1}


def test_up_of_anything_else_is_counted_and_makes_no_endpoint() -> None:
    stage = Stage()
    canonical = stage.take(family("up", 1), family("node_load1", 1))
    assert canonical.dropped == {"no_endpoint": 1, "foreign_metric": 1}
    assert not stage.identity.directory().known.any()


def test_the_memory_of_targets_is_bounded() -> None:
    stage = Stage()
    stage.normaliser = PointNormaliser(max_targets=2)
    running = family("vllm:num_requests_running", 1)
    for host in ("10.0.0.1", "10.0.0.2", "10.0.0.3"):
        target = {"service.name": "vllm", "service.instance.id": f"{host}:8000"}
        stage.take(running, resource=target | {"server.address": host, "server.port": "8000"})
    assert stage.normaliser._reporters.n_targets == 2


def test_names_beyond_the_bound_are_matched_all_the_same() -> None:
    stage = Stage()
    stage.normaliser = PointNormaliser(max_names=3)
    for k in range(10):
        stage.take(family(f"vllm:new_{k}", 1), family("vllm:num_requests_running", 1))
    assert len(stage.normaliser._labels) <= 3
    assert values(stage.take(family("vllm:num_requests_running", 7))) == {"running": 7.0}


def test_how_a_request_ended_decides_what_it_counts_as() -> None:
    reasons = ("stop", "length", "abort", "error", "repetition")
    name = "vllm:request_success_total"
    ends = [Sample(name, {"finished_reason": r}, k) for k, r in enumerate(reasons)]
    found = samples(Stage().take(Family(name, "counter", "", ends)))
    assert [COMPONENTS[c].name for c in found.component] == [
        *("ended_ok", "ended_ok", "ended_abort", "ended_error", "ended_ok")
    ]


def test_awake_is_the_opposite_of_asleep() -> None:
    name = "vllm:engine_sleep_state"
    states = [
        Sample(name, {"sleep_state": state}, value)
        for state, value in (("awake", 1), ("weights_offloaded", 0), ("discard_all", 0))
    ]
    found = samples(Stage().take(Family(name, "gauge", "", states)))
    assert [COMPONENTS[c].name for c in found.component] == [
        *("engine_awake", "engine_sleep", "engine_sleep")
    ]


def test_other_parts_of_a_breakdown_are_left_out_and_counted() -> None:
    name = "nv_trt_llm_request_metrics"
    parts = [
        Sample(name, {"request_type": t, "model": "m"}, v)
        for t, v in (("waiting", 2), ("scheduled", 3), ("active", 9), ("max", 64))
    ]
    canonical = Stage().take(Family(name, "gauge", "", parts))
    assert values(canonical) == {"queue": 2.0, "running": 3.0}
    assert canonical.dropped == {"unused_metric": 2}


def test_capacity_is_the_product_of_two_labels() -> None:
    canonical = Stage().take(
        family("vllm:cache_config_info", 1.0, block_size="16", num_gpu_blocks="1000")
    )
    assert values(canonical) == {"kv_tokens": 16000.0}


@pytest.mark.parametrize(
    "labels", [{"block_size": "16"}, {"block_size": "16", "num_gpu_blocks": "None"}]
)
def test_a_missing_or_broken_label_is_counted(labels: dict[str, str]) -> None:
    canonical = Stage().take(family("vllm:cache_config_info", 1.0, **labels))
    assert canonical.dropped == {"bad_label": 1}


def test_a_restart_with_another_number_of_blocks_replaces_the_capacity() -> None:
    stage = Stage()
    series = [
        samples(
            stage.take(
                family(
                    *("vllm:cache_config_info", 1.0),
                    block_size="16",
                    num_gpu_blocks=blocks,
                    engine="0",
                )
            )
        ).series.tolist()
        for blocks in ("1000", "1200")
    ]
    assert series[0] == series[1]


def test_data_ranks_differ_in_group_and_tensor_ranks_in_shard() -> None:
    name = "sglang:num_running_reqs"
    ranks = [
        Sample(name, {"dp_rank": dp, "tp_rank": tp}, 1)
        for dp, tp in (("0", "0"), ("0", "1"), ("1", "2"))
    ]
    found = samples(Stage().take(Family(name, "gauge", "", ranks)))
    a, b, c = found.group.tolist()
    assert a == b != c
    assert len(set(found.shard.tolist())) == 3


def test_series_per_priority_are_not_added_to_their_total() -> None:
    name = "sglang:num_queue_reqs"
    queue = [
        Sample(name, {}, 5),
        Sample(name, {"priority": "0"}, 2),
        Sample(name, {"priority": "1"}, 3),
    ]
    canonical = Stage().take(Family(name, "gauge", "", queue))
    assert values(canonical) == {"queue": 5.0}
    assert canonical.dropped == {"part_of_total": 2}
    alone = Stage().take(Family(name, "gauge", "", queue[1:]))
    assert samples(alone).n == 2


@pytest.mark.parametrize(
    ("engine_type", "role"),
    [("unified", Role.BOTH), ("prefill", Role.PREFILL), ("decode", Role.DECODE)],
)
def test_sglang_says_its_role(engine_type: str, role: Role) -> None:
    stage = Stage()
    stage.take(family("sglang:num_running_reqs", 1, engine_type=engine_type))
    directory = stage.identity.directory()
    assert directory.role[directory.slots()].tolist() == [role]


@pytest.mark.parametrize(
    ("names", "engine"),
    [
        (("nv_inference_request_success", "vllm:num_requests_running"), "triton"),
        (("llamacpp:requests_processing",), "llamacpp"),
        (("trtllm_num_requests_running",), "trtllm"),
    ],
)
def test_the_engine_is_told_by_its_names(names: Sequence[str], engine: str) -> None:
    stage = Stage()
    stage.take(*(family(name, 1) for name in names))
    directory = stage.identity.directory()
    assert [directory.engine[s] for s in directory.slots()] == [engine]


def test_triton_durations_are_scaled_to_seconds() -> None:
    canonical = Stage().take(
        family("nv_inference_request_duration_us", 2_000_000, "counter", model="m"),
        Family(
            "nv_inference_queue_summary_us",
            "summary",
            "",
            [
                Sample("nv_inference_queue_summary_us_sum", {"model": "m"}, 3e6),
                Sample("nv_inference_queue_summary_us_count", {"model": "m"}, 4),
            ],
        ),
    )
    assert values(canonical) == {"request_time": 2.0, "queue_wait": 3.0}
    assert samples(canonical).count.tolist()[1] == 4.0


@pytest.mark.parametrize(
    ("unit", "expected", "counted"),
    [
        ("", 2.0, 0),  # the name says microseconds
        ("us", 2.0, 0),
        ("ms", 2000.0, 1),  # contradicts, and is one of the four that are believed
        ("{request}", 2.0, 0),  # says nothing
        ("By", 2.0, 1),  # another dimension altogether: counted, not believed
    ],
)
def test_a_unit_that_contradicts_the_name_is_counted(
    unit: str, expected: float, counted: int
) -> None:
    name = "nv_inference_request_duration_us"
    canonical = Stage().take(Family(name, "counter", "", [Sample(name, {}, 2e6)], unit))
    assert values(canonical) == {"request_time": expected}
    assert canonical.dropped.get("unit_mismatch", 0) == counted


def test_genai_metrics_of_a_gateway_are_no_endpoint_and_of_a_named_endpoint_are() -> None:
    name = "gen_ai.server.time_to_first_token"
    histogram = Family(
        name,
        "histogram",
        "",
        [
            Sample(f"{name}_bucket", {"le": "1.0"}, 3),
            Sample(f"{name}_bucket", {"le": "+Inf"}, 4),
            Sample(f"{name}_sum", {}, 5.0),
            Sample(f"{name}_count", {}, 4),
        ],
    )
    gateway = Stage().take(histogram, resource={"service.name": "gateway"})
    assert gateway.dropped == {"no_endpoint": 1}
    named = {"service.name": "server", "tailrace.endpoint": "e1", "tailrace.address": "10.0.0.1:80"}
    found = samples(Stage().take(histogram, resource=named))
    assert [COMPONENTS[c].name for c in found.component] == ["ttft_genai"]


def test_the_source_of_a_resource_is_the_same_in_every_batch_and_differs_between_resources() -> (
    None
):
    stage = Stage()
    running = family("vllm:num_requests_running", 1)
    first = samples(stage.take(family("up", 1), running)).source.tolist()
    second = samples(stage.take(running)).source.tolist()
    other = TARGET | {"service.instance.id": "10.1.2.4:8000", "server.address": "10.1.2.4"}
    third = samples(stage.take(running, resource=other)).source.tolist()
    assert set(first) == set(second) != set(third)


def test_an_empty_batch_is_nothing() -> None:
    canonical = Stage().take()
    assert (canonical.samples, canonical.dropped) == (None, {})


def test_values_keep_their_order_and_times() -> None:
    canonical = Stage().take(
        family("vllm:num_requests_waiting", 2), family("vllm:num_requests_running", 1)
    )
    assert samples(canonical).value.tolist() == [2.0, 1.0]
    assert (np.diff(samples(canonical).time_ns) == 0).all()
