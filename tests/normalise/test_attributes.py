from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.clock import NS_PER_S
from pipeline.decode.columns import decode_spans
from pipeline.model import (
    Canonical,
    Member,
    Observer,
    Outcome,
    PoolConfig,
    RequestRows,
    Rights,
    Sender,
)
from pipeline.normalise.attributes import normalise_logs, normalise_spans
from pipeline.normalise.identity import Identity, IdentityConfig
from pipeline.normalise.sampling import sampling_weight
from tests.builders import COLLECTOR, START, TRUSTED, logs, resources, span_groups, spans

CAPTURES = Path(__file__).parents[2] / ".." / "shared" / "data" / "captures" / "vllm-0.32"
ENDPOINT = {"server.address": "10.0.0.7", "server.port": 8000}


def known(*addresses: str) -> Identity:
    """Static members m0, m1, .. at the addresses, in slots 0, 1, .."""
    members = tuple(Member(address=a, id=f"m{i}") for i, a in enumerate(addresses))
    return Identity(IdentityConfig(), (PoolConfig(name="p", membership="static", members=members),))


def run(rows: Sequence[Mapping[str, Any]], sender: Sender = COLLECTOR) -> Canonical:
    return normalise_spans(
        spans({"service.name": "client"}, rows), known("10.0.0.7:8000"), sender, START
    )


def only(result: Canonical) -> RequestRows:
    assert result.requests is not None
    assert result.requests.n == 1, result.dropped
    return result.requests


def outcome_of(**attributes: Any) -> tuple[Outcome, bool]:
    rows = only(run([{**ENDPOINT, **attributes}]))
    return Outcome(rows.outcome[0]), bool(rows.refused[0])


def assert_same(left: RequestRows, right: RequestRows) -> None:
    for field in fields(RequestRows):
        if field.name != "n":
            np.testing.assert_array_equal(
                getattr(left, field.name), getattr(right, field.name), err_msg=field.name
            )


# which spans are requests


def test_an_empty_batch_gives_no_rows_and_no_counts() -> None:
    result = run([])
    assert result.requests is not None
    assert result.requests.n == 0
    assert result.dropped == {}


def test_a_client_span_towards_a_known_endpoint_is_a_request() -> None:
    rows = only(run([{**ENDPOINT, "http.response.status_code": 200}]))
    assert rows.slot.tolist() == [0]
    assert rows.observer.tolist() == [Observer.CLIENT]
    assert rows.duration_s.tolist() == [1.0]
    assert rows.end_ns.tolist() == [START.wall_ns]


def test_a_client_span_towards_anybody_else_is_counted_as_unjoined() -> None:
    result = run([{"server.address": "10.0.0.8", "server.port": 8000}, {"server.address": "pg"}])
    assert result.dropped == {"unjoined": 2}


def test_a_span_that_calls_nobody_is_not_a_request() -> None:
    result = run([{"kind": 1}, {"kind": 3, "db.system": "redis"}, {"kind": 2, "http.route": "/x"}])
    assert result.dropped == {"not_request": 3}


def test_our_own_spans_are_dropped() -> None:
    own = normalise_spans(
        spans({"tailrace.self": "true"}, [ENDPOINT]), known("10.0.0.7:8000"), COLLECTOR, START
    )
    assert own.dropped == {"self": 1}
    assert run([{**ENDPOINT, "tailrace.self": True}]).dropped == {"self": 1}


@pytest.mark.parametrize(
    "probe",
    [
        {"url.path": "/health"},
        {"http.target": "/healthz?verbose=1"},
        {"url.full": "http://10.0.0.7:8000/metrics"},
        {"url.path": "/v1/models", "user_agent.original": "kube-probe/1.31"},
        {"url.path": "/", "http.user_agent": "GoogleHC/1.0"},
    ],
)
def test_health_checks_are_counted_as_probes(probe: dict[str, Any]) -> None:
    assert run([{**ENDPOINT, **probe}]).dropped == {"probe": 1}


def test_a_completion_is_no_probe_whatever_its_query_says() -> None:
    only(run([{**ENDPOINT, "url.full": "http://10.0.0.7:8000/v1/completions?next=/health"}]))


def test_a_sender_without_the_right_is_told_once_and_counted_each_time() -> None:
    identity = known("10.0.0.7:8000")
    stranger = Sender("10.1.1.1", Rights.METRICS)
    columns = spans({}, [ENDPOINT, ENDPOINT])
    first = normalise_spans(columns, identity, stranger, START)
    second = normalise_spans(columns, identity, stranger, START)
    assert first.dropped == second.dropped == {"sender_rights": 2}
    assert [len(first.notes), len(second.notes)] == [1, 0]
    assert "10.1.1.1" in first.notes[0]


def test_an_sdk_call_and_the_http_call_inside_it_count_once() -> None:
    outer = {
        **ENDPOINT,
        "span_id": b"outer---",
        "gen_ai.operation.name": "chat",
        "gen_ai.usage.input_tokens": 5,
    }
    inner = {**ENDPOINT, "span_id": b"inner---", "parent_span_id": b"outer---"}
    result = run([{**inner, "http.response.status_code": 200}, outer])
    assert result.dropped == {"nested": 1}
    assert only(result).prompt_tokens.tolist() == [5.0]


def test_the_inner_call_counts_when_the_outer_one_names_no_known_endpoint() -> None:
    outer = {"span_id": b"outer---", "gen_ai.operation.name": "chat"}
    inner = {**ENDPOINT, "span_id": b"inner---", "parent_span_id": b"outer---"}
    result = run([inner, outer])
    assert result.dropped == {"unjoined": 1}
    only(result)


# joining


@pytest.mark.parametrize(
    "named",
    [
        {"server.address": "10.0.0.7", "server.port": 8000},
        {"server.address": "10.0.0.7", "server.port": "8000"},
        {"server.address": "10.0.0.7:8000"},
        {"net.peer.name": "10.0.0.7", "net.peer.port": 8000},
        {"http.host": "10.0.0.7:8000"},
        {"server.address": "llm.svc", "server.port": 80, "network.peer.address": "10.0.0.7",
         "network.peer.port": 8000},
        {"server.address": "llm.svc", "net.sock.peer.addr": "10.0.0.7", "net.sock.peer.port": 8000},
        {"net.peer.ip": "10.0.0.7", "net.peer.port": 8000},
        {"url.full": "http://10.0.0.7:8000/v1/completions"},
        {"http.url": "http://10.0.0.7:8000/v1/completions"},
        {"server.address": "10.0.0.7"},
    ],
)  # fmt: skip
def test_every_way_to_name_the_called_endpoint_joins(named: dict[str, Any]) -> None:
    assert only(run([named])).slot.tolist() == [0]


def test_ipv6_endpoints_join_with_and_without_brackets() -> None:
    identity = known("[2001:db8::1]:8000")
    columns = spans(
        {},
        [
            {"server.address": "2001:db8::1", "server.port": 8000},
            {"server.address": "[2001:db8::1]", "server.port": 8000},
            {"url.full": "http://[2001:db8::1]:8000/v1/completions"},
        ],
    )
    result = normalise_spans(columns, identity, COLLECTOR, START)
    assert result.requests is not None
    assert result.requests.slot.tolist() == [0, 0, 0]


def test_an_explicit_endpoint_joins_only_from_an_allowed_sender() -> None:
    span = {"tailrace.endpoint": "m0", "gen_ai.operation.name": "chat"}
    assert only(run([span], TRUSTED)).slot.tolist() == [0]
    refused = run([span], COLLECTOR)
    assert refused.dropped == {"identity_refused": 1, "unjoined": 1}
    assert len(refused.notes) == 1


def test_engine_spans_join_through_their_resource() -> None:
    identity = Identity(IdentityConfig())
    target = {"k8s.pod.name": "vllm-0", "k8s.namespace.name": "chat", "server.address": "10.0.0.7",
              "server.port": "8000", "service.instance.id": "10.0.0.7:8000"}  # fmt: skip
    scraped = resources(target)
    identity.scraped(scraped.resources, scraped.strings, ["vllm"], ["m"], COLLECTOR, START)
    random_id = "b72cb100-e48a-4760-81d0-5f054c3ddd80"
    request = {"kind": 2, "name": "llm_request"}
    pod = {"k8s.pod.name": "vllm-0", "k8s.namespace.name": "chat", "service.instance.id": random_id}
    first = normalise_spans(spans(pod, [request]), identity, COLLECTOR, START)
    assert only(first).observer.tolist() == [Observer.ENGINE]
    later = spans({"service.instance.id": random_id}, [request])
    assert only(normalise_spans(later, identity, COLLECTOR, START)).slot.tolist() == [0]
    assert identity.directory().id[0] == "chat/vllm-0"


def test_a_caller_teaches_the_serving_port_of_an_engine_scraped_elsewhere() -> None:
    identity = Identity(IdentityConfig())
    target = resources({"server.address": "10.0.0.7", "server.port": "8002"})
    identity.scraped(target.resources, target.strings, ["triton"], ["m"], COLLECTOR, START)
    assert identity.directory().address[0] == ""
    call = {"server.address": "10.0.0.7", "server.port": 8000}
    failed = spans({}, [{**call, "http.response.status_code": 503}])
    only(normalise_spans(failed, identity, COLLECTOR, START))
    assert identity.directory().address[0] == ""
    only(normalise_spans(spans({}, [call]), identity, COLLECTOR, START))
    assert identity.directory().address[0] == "10.0.0.7:8000"


def test_a_hundred_thousand_unknown_hosts_are_counted_and_leave_nothing_behind() -> None:
    identity = known("10.0.0.7:8000")
    rows = [{"server.address": f"host-{i}", "server.port": 80} for i in range(100_000)]
    result = normalise_spans(spans({}, [*rows, ENDPOINT]), identity, COLLECTOR, START)
    assert result.dropped == {"unjoined": 100_000}
    assert only(result).slot.tolist() == [0]
    assert identity.directory().n == 8
    assert len(identity.export_state().endpoints) == 1


# naming generations

NEW = {
    "server.address": "10.0.0.7",
    "server.port": 8000,
    "http.response.status_code": 200,
    "url.path": "/v1/completions",
    "gen_ai.provider.name": "vllm",
    "gen_ai.usage.input_tokens": 100,
    "gen_ai.usage.output_tokens": 20,
    "user_agent.original": "curl",
}
OLD = {
    "net.peer.name": "10.0.0.7",
    "net.peer.port": 8000,
    "http.status_code": 200,
    "http.target": "/v1/completions?x=1",
    "gen_ai.system": "vllm",
    "gen_ai.usage.prompt_tokens": 100,
    "gen_ai.usage.completion_tokens": 20,
    "http.user_agent": "curl",
}


def test_old_new_and_both_conventions_give_identical_rows() -> None:
    new, old, both = (only(run([row])) for row in (NEW, OLD, {**OLD, **NEW}))
    assert_same(new, old)
    assert_same(new, both)
    assert new.prompt_tokens.tolist() == [100.0]


def test_of_two_generations_the_new_value_is_taken_and_never_added() -> None:
    rows = only(run([{**OLD, **NEW, "gen_ai.usage.prompt_tokens": 7, "http.status_code": 500}]))
    assert rows.prompt_tokens.tolist() == [100.0]
    assert rows.outcome.tolist() == [Outcome.OK]


# values


def test_time_to_first_token_comes_from_client_and_engine_attributes() -> None:
    client = only(run([{**ENDPOINT, "gen_ai.response.time_to_first_chunk": 0.25}]))
    assert client.ttft_s.tolist() == [0.25]


def test_bad_times_and_values_cost_only_themselves() -> None:
    end = START.wall_ns
    result = run(
        [
            {**ENDPOINT, "start_ns": end + 5, "end_ns": end},
            {**ENDPOINT, "start_ns": 0, "end_ns": end},
            {**ENDPOINT, "start_ns": 1, "end_ns": 0},
            {**ENDPOINT, "gen_ai.usage.input_tokens": -4},
            {**ENDPOINT, "gen_ai.response.time_to_first_chunk": float("inf")},
        ]
    )
    assert result.dropped == {"end_before_start": 1, "no_time": 2, "bad_value": 2}
    rows = result.requests
    assert rows is not None
    np.testing.assert_array_equal(rows.duration_s, [0.0, np.nan, np.nan, 1.0, 1.0])
    assert rows.end_ns[2] == START.wall_ns
    assert np.isnan(rows.prompt_tokens).all()
    assert np.isnan(rows.ttft_s).all()


@pytest.mark.parametrize(
    ("trace_state", "weight"),
    [
        ("", 1.0),
        ("ot=th:0", 1.0),
        ("ot=th:8", 2.0),
        ("ot=th:c", 4.0),
        ("congo=t61,ot=rv:abc;th:e", 8.0),
        ("ot=th:ffffffffffffff", 10_000.0),  # one in 2^56 is the sender's word
        ("ot=th:zz", 1.0),
        ("ot=th:", 1.0),
        ("ot=th:000000000000001", 1.0),  # 15 digits
        ("other=th:8", 1.0),
    ],
)
def test_sampling_thresholds_give_weights(trace_state: str, weight: float) -> None:
    assert sampling_weight(trace_state) == weight
    assert only(run([{**ENDPOINT, "trace_state": trace_state}])).weight.tolist() == [weight]


# outcomes


@pytest.mark.parametrize(
    ("attributes", "outcome", "refused"),
    [
        ({}, Outcome.OK, False),
        ({"http.response.status_code": 200}, Outcome.OK, False),
        ({"http.response.status_code": "503"}, Outcome.FAILURE, False),
        ({"http.response.status_code": 503, "retry_after": 2}, Outcome.OVERLOAD, False),
        ({"http.response.status_code": 429}, Outcome.OVERLOAD, False),
        ({"http.response.status_code": 429, "error.type": "429", "status": 2}, Outcome.OVERLOAD,
         False),
        ({"http.response.status_code": 499}, Outcome.NEITHER, False),
        ({"http.response.status_code": 404}, Outcome.NEITHER, False),
        ({"http.response.status_code": 500}, Outcome.FAILURE, False),
        ({"status": 2}, Outcome.FAILURE, False),
        ({"error.type": "timeout", "status": 2}, Outcome.FAILURE, False),
        ({"error.type": "ConnectionRefusedError", "status": 2}, Outcome.FAILURE, True),
        ({"error.type": "httpx.ConnectError", "status": 2}, Outcome.FAILURE, True),
        ({"error.type": "ECONNREFUSED"}, Outcome.FAILURE, True),
        ({"error.type": "connection_refused"}, Outcome.FAILURE, True),
        ({"exception.type": "ConnectionRefusedError"}, Outcome.FAILURE, True),
        ({"error.type": "ConnectTimeout"}, Outcome.FAILURE, False),
        ({"error.type": "asyncio.CancelledError", "status": 2}, Outcome.NEITHER, False),
        ({"http.response.status_code": 200, "error.type": "RemoteProtocolError"}, Outcome.FAILURE,
         False),  # a broken stream
        ({"http.response.status_code": 200, "error.type": "CancelledError"}, Outcome.NEITHER,
         False),
        ({"error.type": "openai.RateLimitError", "status": 2}, Outcome.OVERLOAD, False),
        ({"error.type": "openai.BadRequestError", "status": 2}, Outcome.NEITHER, False),
        ({"error.type": "404", "status": 2}, Outcome.NEITHER, False),
        ({"error.type": "503", "status": 2}, Outcome.FAILURE, False),
        ({"rpc.grpc.status_code": 0}, Outcome.OK, False),
        ({"rpc.grpc.status_code": 8, "status": 2}, Outcome.OVERLOAD, False),
        ({"rpc.grpc.status_code": 14, "status": 2}, Outcome.FAILURE, False),
        ({"rpc.grpc.status_code": 1, "status": 2}, Outcome.NEITHER, False),
        ({"rpc.grpc.status_code": 3, "status": 2}, Outcome.NEITHER, False),
    ],
)  # fmt: skip
def test_outcomes_of_client_spans(
    attributes: dict[str, Any], outcome: Outcome, refused: bool
) -> None:
    assert outcome_of(**attributes) == (outcome, refused)


# proxies


def test_a_proxys_upstream_span_is_the_request_and_its_downstream_span_is_not() -> None:
    result = run(
        [
            {"kind": 2, "component": "proxy", "peer.address": "1.2.3.4", "http.status_code": "200"},
            {"kind": 3, "component": "proxy", "peer.address": "10.0.0.7:8000",
             "http.status_code": "200", "upstream_cluster": "llm"},
        ]
    )  # fmt: skip
    assert result.dropped == {"not_request": 1}
    assert only(result).observer.tolist() == [Observer.PROXY]


def test_a_downstream_span_that_names_its_upstream_counts_unless_the_attempts_are_there() -> None:
    down = {"kind": 2, "component": "proxy", "upstream_host": "10.0.0.7:8000", "span_id": b"d" * 8}
    up = {"kind": 3, "component": "proxy", "upstream_host": "10.0.0.7:8000",
          "span_id": b"u" * 8, "parent_span_id": b"d" * 8}  # fmt: skip
    assert only(run([down])).slot.tolist() == [0]
    both = run([down, up])
    assert both.dropped == {"nested": 1}
    only(both)


LOG = {"upstream_host": "10.0.0.7:8000", "response_code": 200, "duration": 1500,
       "response_flags": "-"}  # fmt: skip


def run_logs(rows: Sequence[Mapping[str, Any]]) -> Canonical:
    return normalise_logs(
        logs({"log_name": "otel_envoy"}, rows), known("10.0.0.7:8000"), COLLECTOR, START
    )


def test_an_access_log_record_ends_its_duration_after_its_time() -> None:
    rows = only(run_logs([{**LOG, "upstream_first_byte_ms": 250, "time_ns": START.wall_ns}]))
    assert rows.observer.tolist() == [Observer.PROXY]
    assert rows.end_ns.tolist() == [START.wall_ns + 1_500_000_000]
    assert rows.duration_s.tolist() == [1.5]
    assert rows.ttft_s.tolist() == [0.25]


def test_an_access_log_in_the_body_gives_the_same_row_as_in_attributes() -> None:
    assert_same(only(run_logs([LOG])), only(run_logs([{"body": LOG}])))


@pytest.mark.parametrize(
    ("record", "outcome", "refused"),
    [
        ({}, Outcome.OK, False),
        ({"response_code": 503, "response_flags": "UF"}, Outcome.FAILURE, True),
        ({"response_code": 503, "response_flags": "UF,URX"}, Outcome.FAILURE, True),
        (
            {"response_code": 503, "response_flags": "UpstreamConnectionFailure"},
            Outcome.FAILURE,
            True,
        ),
        ({"response_code": 503, "response_flags": "UO"}, Outcome.OVERLOAD, False),
        ({"response_code": 504, "response_flags": "UT"}, Outcome.FAILURE, False),
        ({"response_code": 503, "response_flags": "URX"}, Outcome.FAILURE, False),
        ({"response_code": 200, "response_flags": "UC"}, Outcome.FAILURE, False),
        ({"response_code": 503, "response_flags": "LR"}, Outcome.FAILURE, False),
        ({"response_code": 0, "response_flags": "DC"}, Outcome.NEITHER, False),
        ({"response_code": 200, "response_flags": "DC"}, Outcome.NEITHER, False),
        ({"response_code": 0, "response_flags": "-"}, Outcome.NEITHER, False),
        ({"response_code": 429}, Outcome.OVERLOAD, False),
        ({"response_code": 503, "retry_after": 1}, Outcome.OVERLOAD, False),
        ({"response_code": 503}, Outcome.FAILURE, False),
        ({"response_code": 400}, Outcome.NEITHER, False),
    ],
)
def test_outcomes_of_access_logs(record: dict[str, Any], outcome: Outcome, refused: bool) -> None:
    rows = only(run_logs([{**LOG, **record}]))
    assert (Outcome(rows.outcome[0]), bool(rows.refused[0])) == (outcome, refused)


def test_records_without_an_upstream_are_unjoined_and_other_logs_no_requests() -> None:
    result = run_logs(
        [
            {"upstream_host": "-", "response_code": 503, "response_flags": "UH"},
            {"response_code": 404, "response_flags": "NR"},
            {"body": "engine started"},
            {**LOG, "path": "/healthz"},
        ]
    )
    assert result.dropped == {"unjoined": 2, "not_request": 1, "probe": 1}


# the captured engine


@pytest.fixture
def captures() -> Path:
    if not CAPTURES.is_dir():
        pytest.skip("needs the vLLM captures: shared/data/captures/vllm-0.32")
    return CAPTURES


def test_start_up_spans_of_a_real_vllm_are_no_requests(captures: Path) -> None:
    for name, n in (("traces-1", 6), ("traces-2", 2), ("traces-3", 3)):
        columns = decode_spans((captures / f"{name}.binpb").read_bytes())
        result = normalise_spans(columns, Identity(IdentityConfig()), COLLECTOR, START)
        assert result.dropped == {"not_request": n}


def test_request_spans_of_a_real_vllm_need_an_alias_and_then_give_every_value(
    captures: Path,
) -> None:
    columns = decode_spans((captures / "traces-4.binpb").read_bytes())
    identity = Identity(IdentityConfig())
    assert normalise_spans(columns, identity, COLLECTOR, START).dropped == {"unjoined": 33}
    target = resources(
        {
            "server.address": "10.0.0.7",
            "server.port": "8000",
            "service.instance.id": "8077a2b5-71a4-4143-ac89-ba42dedc29bb",
        }
    )
    identity.scraped(target.resources, target.strings, ["vllm"], ["./tiny"], COLLECTOR, START)
    rows = normalise_spans(columns, identity, COLLECTOR, START).requests
    assert rows is not None
    assert rows.n == 33
    assert set(rows.observer.tolist()) == {Observer.ENGINE}
    assert set(rows.outcome.tolist()) == {Outcome.OK}
    assert rows.prompt_tokens[:3].tolist() == [29, 29, 57]
    assert rows.output_tokens[:3].tolist() == [4, 16, 4]
    assert rows.ttft_s[0] == 0.022096633911132812
    assert rows.duration_s[0] == (1796094784370712512 - 1796094784320717568) / NS_PER_S
    assert set(rows.weight.tolist()) == {1.0}


def test_rows_keep_input_order_across_resources() -> None:
    identity = known("10.0.0.7:8000", "10.0.0.8:8000")
    columns = span_groups(
        ({"service.name": "a"}, [{"server.address": "10.0.0.8"}, ENDPOINT]),
        ({"service.name": "b"}, [{"server.address": "10.0.0.8"}]),
    )
    rows = normalise_spans(columns, identity, COLLECTOR, START).requests
    assert rows is not None
    assert rows.slot.tolist() == [1, 0, 1]
    assert rows.source[0] == rows.source[1] != rows.source[2]
