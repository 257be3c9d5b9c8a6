"""The attribute keys that decoding keeps; everything else is skipped, never materialised.

Data, and the only process-wide vocabulary beside names from configuration.
"""

from enum import StrEnum
from typing import Final, NamedTuple


class KeyKind(StrEnum):
    """How a key's values are kept: as dictionary text or as float64."""

    TEXT = "text"
    NUMBER = "number"


class Key(NamedTuple):
    """One attribute key and the kind its values are coerced to."""

    name: str
    kind: KeyKind


def _keys(kind: KeyKind, names: str) -> tuple[Key, ...]:
    return tuple(Key(name, kind) for name in names.split())


RESOURCE_KEYS: Final = _keys(
    KeyKind.TEXT,
    """
    service.name service.namespace service.instance.id service.version
    deployment.environment.name host.name host.id cloud.availability_zone cloud.region
    k8s.cluster.name k8s.namespace.name k8s.node.name k8s.pod.name k8s.pod.uid k8s.pod.ip
    k8s.container.name topology.kubernetes.io/zone
    server.address server.port net.host.name net.host.port
    tailrace.endpoint tailrace.pool tailrace.address tailrace.role tailrace.self tailrace.agent_id
    vllm.process_id telemetry.sdk.name log_name
    """,
)
"""Kept of resources. `server.port` arrives as text or int and is kept as text there."""

SPAN_KEYS: Final = _keys(
    KeyKind.TEXT,
    """
    tailrace.endpoint tailrace.pool tailrace.self tailrace.agent_id tailrace.tenant
    tailrace.prefix_key tailrace.request_class tailrace.observer tailrace.cache_salt
    tailrace.adapter
    server.address net.peer.name net.host.name http.host network.peer.address net.sock.peer.addr
    net.peer.ip client.address http.client_ip upstream_host upstream_cluster peer.address
    http.request.method http.method http.route url.template url.path http.target url.full http.url
    http.request.method_original user_agent.original user_agent.synthetic.type http.user_agent
    rpc.service rpc.method guid:x-request-id openai.request.service_tier
    gen_ai.openai.request.service_tier
    rpc.system network.protocol.version
    error.type exception.type gen_ai.operation.name gen_ai.provider.name gen_ai.system
    gen_ai.request.model gen_ai.response.model gen_ai.response.id gen_ai.request.id
    gen_ai.conversation.id gen_ai.response.finish_reasons tenant.id enduser.id
    k8s.pod.name k8s.namespace.name component response_flags response_flag
    tailrace.block.stage tailrace.block.reason
    """,
) + _keys(
    KeyKind.NUMBER,
    """
    server.port net.peer.port net.host.port network.peer.port net.sock.peer.port
    http.response.status_code http.status_code status_code rpc.grpc.status_code
    http.request.resend_count http.resend_count http.request.body.size
    http.request_content_length http.response.body.size retry_after
    gen_ai.request.max_tokens gen_ai.request.n gen_ai.request.choice.count gen_ai.request.stream
    gen_ai.usage.input_tokens gen_ai.usage.output_tokens gen_ai.usage.prompt_tokens
    gen_ai.usage.completion_tokens gen_ai.usage.cache_read.input_tokens
    gen_ai.response.time_to_first_chunk gen_ai.latency.time_to_first_token gen_ai.latency.e2e
    gen_ai.latency.time_in_queue gen_ai.latency.time_in_model_prefill
    gen_ai.latency.time_in_model_decode
    """,
)
"""Kept of spans. Numbers may arrive as int, double, bool or decimal text."""

POINT_KEYS: Final = _keys(
    KeyKind.TEXT,
    """
    model_name model version engine engine_type tp_rank pp_rank dp_rank moe_ep_rank priority
    finished_reason reason source mode cache_source stage category sleep_state request_type
    kv_cache_block_type memory_type block_size num_gpu_blocks page_size num_pages
    running_lora_adapters waiting_lora_adapters max_lora
    gpu gpu_uuid UUID uuid device modelName pci_bus_id Hostname hostname GPU_I_ID GPU_I_PROFILE
    namespace pod container pod_namespace pod_name container_name
    exported_namespace exported_pod exported_container err_code xid
    gen_ai.token.type gen_ai.request.model gen_ai.response.model server.address server.port
    tailrace.endpoint tailrace.pool
    """,
)
"""Kept of data points. All attributes enter the series key, kept or not."""

LOG_KEYS: Final = _keys(
    KeyKind.TEXT,
    """
    tailrace.endpoint tailrace.pool tailrace.tenant tailrace.agent_id log_name event.name
    tailrace.request_class tailrace.prefix_key tailrace.cache_salt tailrace.adapter
    gen_ai.conversation.id http.route tenant.id
    upstream_host upstream_cluster upstream_address route_name response_flags response_code_details
    method http.request.method path url.path authority user_agent downstream_remote_address
    client.address x_request_id request_id error.type gen_ai.request.model
    """,
) + _keys(
    KeyKind.NUMBER,
    """
    response_code http.response.status_code duration duration_ms response_duration
    upstream_first_byte_ms first_upstream_byte upstream_service_time bytes_received bytes_sent
    upstream_request_attempt_count retry_after gen_ai.usage.input_tokens gen_ai.usage.output_tokens
    """,
)
"""Kept of log records: Envoy's access-log operators under the names of our own configuration."""

CLASS_KEYS: Final = (
    "tailrace.request_class",
    "openai.request.service_tier",
    "gen_ai.openai.request.service_tier",
)
"""Where a request's class is looked for unless the configuration names other keys."""
TENANT_KEYS: Final = ("tailrace.tenant", "tenant.id")
"""Likewise its tenant."""
