"""Fingerprints in the loop: real bytes in, kinds and notes out, state across a restart."""

from typing import Any

import numpy as np
import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

from pipeline.config import parse
from pipeline.errors import ConfigError
from pipeline.loop import Loop, UnusableState
from pipeline.model import OtlpSignal
from pipeline.symbols import hash64
from tests.builders import TRUSTED, key_values
from tests.hand_fleet import HandFleet, static_pool

ADDRESSES = [f"10.0.0.{i}:8000" for i in range(1, 5)]
CALL: dict[str, Any] = {
    "http.request.method": "POST",
    "url.path": "/v1/chat/completions",
    "gen_ai.request.model": "llama",
    "tailrace.tenant": "acme",
}


def run(config: str = "") -> HandFleet:
    fleet = HandFleet(ADDRESSES, static_pool(ADDRESSES) + config)
    fleet.send(OtlpSignal.TRACES, fleet.requests(fleet.clock.now(), **CALL))
    return fleet


def names(loop: Loop) -> list[str]:
    return [kind.text for kind in loop.fingerprints.kinds().values()]


def test_requests_have_a_kind_and_a_tenant_that_a_person_can_read() -> None:
    fleet = run()
    assert names(fleet.loop) == ["chat: POST /v1/chat/completions llama <=512 tokens"]
    assert fleet.loop.fingerprints.tenant(hash64(b"acme")) == "acme"
    assert fleet.dropped == {}


def test_settings_reach_the_stage() -> None:
    fleet = run(
        "fingerprint: {class_attributes: [tailrace.tenant], tenant_attributes: [service.name],"
        " length_bounds: [100], max_kinds: 1}\n"
    )
    assert names(fleet.loop) == ["chat: POST /v1/chat/completions llama [acme] >100 tokens"]
    assert fleet.loop.fingerprints.tenant(hash64(b"gateway")) == "gateway"
    fleet.send(OtlpSignal.TRACES, fleet.requests(fleet.clock.now(), **{**CALL, "url.path": "/x"}))
    assert fleet.dropped == {"fingerprint/kind_overflow": 8}
    with pytest.raises(ConfigError, match=r"fingerprint\.tenant_attributes"):
        parse("fingerprint: {tenant_attributes: [prompt]}", "test")


def test_kinds_and_routes_survive_a_restart() -> None:
    fleet = run()
    state = fleet.loop.export_state()
    again = fleet.new_loop()
    again.restore(state)
    assert names(again) == names(fleet.loop)
    assert again.export_state()["fingerprint"] == state["fingerprint"]
    with pytest.raises(UnusableState, match="fingerprint"):
        fleet.new_loop().restore({"fingerprint": {"routes": 1}})
    with pytest.raises(UnusableState, match="load"):
        fleet.new_loop().restore({"load": {}})


def test_what_has_no_requests_for_long_is_forgotten() -> None:
    fleet = run("fingerprint: {forget_after_s: 5}\n")
    fleet.silent = True
    fleet.run(4.0)
    assert names(fleet.loop)
    fleet.run(3.0)
    assert not names(fleet.loop)


def test_without_a_secret_there_are_no_prefix_keys() -> None:
    config = parse(static_pool(ADDRESSES), "test")
    assert Loop(config).fingerprints.prefix is None
    assert Loop(config, secret=bytes(32)).fingerprints.prefix is not None


def test_an_endpoint_whose_cpu_and_gpu_wait_for_each_other_is_told_once() -> None:
    """Scenario: a node agent and DCGM report every second; one endpoint's CPU and stalls are high
    and its memory traffic follows its half-precision work.

    Guarantees: one note for it, with the advice, and none for its peers.
    """
    fleet = HandFleet(ADDRESSES)
    rng = np.random.default_rng(1)
    told = []
    for _ in range(80):
        body = agent_page(fleet, rng)
        fleet.send(OtlpSignal.METRICS, body, TRUSTED)
        snapshot = fleet.run(1.0, tick_s=1.0)
        told += [event.text for event in snapshot.events if "coupling" in event.text]
    assert len(told) == 1
    assert told[0].startswith(f"{ADDRESSES[0]}: ")
    assert "pre-processing" in told[0]


def agent_page(fleet: HandFleet, rng: np.random.Generator) -> bytes:
    request = ExportMetricsServiceRequest()
    now = fleet.clock.now()
    for number, address in enumerate(fleet.addresses):
        group = request.resource_metrics.add()
        group.resource.attributes.extend(
            key_values({"service.name": "agent", "tailrace.endpoint": address})
        )
        metrics = group.scope_metrics.add().metrics
        busy = 0.95 if number == 0 else 0.3
        tensor = float(rng.uniform(0.2, 0.8))
        values = {
            "tailrace.cpu_busy_ratio": busy + rng.uniform(-0.02, 0.02),
            "tailrace.cuda_stream_block_ratio": busy + rng.uniform(-0.02, 0.02),
            "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE": tensor,
            "DCGM_FI_PROF_PIPE_FP16_ACTIVE": 0.0,
            "DCGM_FI_PROF_PIPE_FP32_ACTIVE": 0.5,
            "DCGM_FI_PROF_PIPE_FP64_ACTIVE": 0.0,
            "DCGM_FI_PROF_DRAM_ACTIVE": tensor if number == 0 else rng.uniform(0.2, 0.8),
        }
        for name, value in values.items():
            metric = metrics.add(name=name)
            metric.gauge.data_points.add(as_double=float(value), time_unix_nano=now.wall_ns)
    return request.SerializeToString()
