import shutil
import socket
import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from queue import Queue
from typing import Any, Final

import grpc
import pytest
import yaml
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from tests.otelcol.collector import HERE, HOW, ROOT, collector_path, running
from tests.parts import require

EDGE: Final = ROOT / "otel-collector.yaml"
KINDS: Final = ("receivers", "processors", "connectors", "exporters", "extensions")
TRACES: Final = "/opentelemetry.proto.collector.trace.v1.TraceService/Export"
METRICS: Final = "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export"
WITHIN_S: Final = 30.0

Exports = dict[str, Queue[bytes]]


@pytest.fixture
def collector() -> Path:
    path = collector_path()
    require("otelcol", path is not None, f"the real Collector; {HOW}")
    assert path is not None
    return path


# The manifest


MANIFEST: Final = yaml.safe_load((HERE / "manifest.yaml").read_text())


def modules(kind: str) -> dict[str, str]:
    return dict(entry["gomod"].split() for entry in MANIFEST[kind])


def test_every_module_of_the_manifest_has_the_same_release() -> None:
    beta = {version for kind in KINDS for version in modules(kind).values()}
    stable = set(modules("providers").values())
    assert beta == {f"v{MANIFEST['dist']['version']}"}
    assert len(stable) == 1  # numbered v1.x in the same release; the builder refuses a mix


@pytest.mark.parametrize("kind", KINDS)
def test_each_component_of_the_edge_collector_is_in_the_manifest(kind: str) -> None:
    config = yaml.safe_load(EDGE.read_text())
    built = {path.rsplit("/", 1)[-1] for path in modules(kind)}
    for component in config.get(kind, {}):
        assert {name := module_name(component), name + kind.removesuffix("s")} & built, component


def module_name(component: str) -> str:
    """`memory_limiter/small` comes from memorylimiter, `otlp_grpc` from otlp."""
    return component.split("/", maxsplit=1)[0].replace("_grpc", "").replace("_", "")


# The build


def test_the_build_without_go_is_one_line_and_exit_code_3(tmp_path: Path) -> None:
    copy = tmp_path / "tests/otelcol"
    copy.mkdir(parents=True)
    for name in ("build.sh", "manifest.yaml"):
        (copy / name).write_bytes((HERE / name).read_bytes())
    path = tmp_path / "bin"
    path.mkdir()
    for tool in ("cat", "cut", "dirname", "sha256sum"):
        (path / tool).symlink_to(shutil.which(tool) or tool)
    done = subprocess.run(
        ["/bin/bash", copy / "build.sh"],
        env={"PATH": str(path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 3
    assert done.stderr.splitlines() == [
        "otelcol: go is missing; install Go 1.25 or newer to build the Collector"
    ]


# The edge configuration, in the real Collector


@pytest.mark.parametrize(
    "env",
    [
        pytest.param({}, id="laptop"),
        pytest.param(
            {
                "NODE_NAME": "gpu-7",
                "K8S_NODE_NAME": "gpu-7",
                "TAILRACE_ENDPOINT": "tailrace.tailrace:4317",
                "TAILRACE_INSECURE": "false",
                "TAILRACE_TOKEN": "secret",
                "OTLP_COMPRESSION": "gzip",
                "OTLP_GRPC_ENDPOINT": "0.0.0.0:4317",
                "ENGINE_TARGET": "",
                "ENGINE_FILES": "/etc/tailrace/engines/*.yaml",
                "SCRAPE_INTERVAL": "500ms",
                "MEMORY_LIMIT_MIB": "2048",
            },
            id="node",
        ),
    ],
)
def test_the_collector_accepts_the_edge_configuration(collector: Path, env: dict[str, str]) -> None:
    done = subprocess.run(
        [collector, "validate", f"--config={EDGE}"],
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_a_node_reports_its_engine_under_its_own_name_and_no_probe(
    collector: Path, tmp_path: Path
) -> None:
    """Scenario: a scraped engine on loopback, none from DCGM, and an application's spans.

    Guarantees: `up` and the engine's gauge arrive with the node's name, and so do the spans but
    those of health checks; a token is sent.
    """
    received: Exports = {METRICS: Queue(), TRACES: Queue()}
    with otlp_sink(received) as sink, fake_engine() as engine:
        health, grpc_port, http_port, telemetry = free_ports(4)
        env = {
            "ENGINE_TARGET": engine,
            "DCGM_TARGET": "",
            "NODE_NAME": "gpu-7",
            "SCRAPE_INTERVAL": "200ms",
            "TAILRACE_ENDPOINT": sink,
            "TAILRACE_TOKEN": "secret",
            "HEALTH_ENDPOINT": f"127.0.0.1:{health}",
            "OTLP_GRPC_ENDPOINT": f"127.0.0.1:{grpc_port}",
            "OTLP_HTTP_ENDPOINT": f"127.0.0.1:{http_port}",
            "TELEMETRY_PORT": str(telemetry),
        }
        log = tmp_path / "otelcol.log"
        with running(EDGE, env=env, ready_url=f"http://127.0.0.1:{health}/", log=log):
            send_spans(f"127.0.0.1:{grpc_port}")
            metrics = ExportMetricsServiceRequest.FromString(
                received[METRICS].get(timeout=WITHIN_S)
            )
            spans = ExportTraceServiceRequest.FromString(received[TRACES].get(timeout=WITHIN_S))

    scraped = metrics.resource_metrics[0]
    points = {
        metric.name: metric.gauge.data_points[0].as_double
        for scope in scraped.scope_metrics
        for metric in scope.metrics
    }
    assert points["up"] == 1.0
    assert points["vllm:num_requests_running"] == 3.0
    assert ("host.name", "gpu-7") in attributes(scraped.resource)
    assert ("service.instance.id", engine) in attributes(scraped.resource)
    (traced,) = spans.resource_spans
    assert ("host.name", "gpu-7") in attributes(traced.resource)
    assert [span.name for scope in traced.scope_spans for span in scope.spans] == ["POST /v1/chat"]


@contextmanager
def otlp_sink(received: Exports) -> Iterator[str]:
    """Acknowledge every export that carries the token, and keep its bytes."""

    class Sink(grpc.GenericRpcHandler):  # type: ignore[misc]  # grpc ships no types
        def service(self, call: Any) -> Any:
            if ("authorization", "Bearer secret") not in call.invocation_metadata:
                return None

            def export(request: bytes, context: Any) -> bytes:
                received[call.method].put(request)
                return b""

            return grpc.unary_unary_rpc_method_handler(export)

    server = grpc.server(ThreadPoolExecutor(4), handlers=[Sink()])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        server.stop(None).wait()


@contextmanager
def fake_engine() -> Iterator[str]:
    class Metrics(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.end_headers()
            self.wfile.write(b"# TYPE vllm:num_requests_running gauge\n")
            self.wfile.write(b'vllm:num_requests_running{model_name="m"} 3\n')

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # its name there
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Metrics) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def send_spans(target: str) -> None:
    request = ExportTraceServiceRequest()
    scope = request.resource_spans.add().scope_spans.add()
    add_span(scope.spans.add(), "POST /v1/chat", "url.path", "/v1/chat/completions")
    add_span(scope.spans.add(), "GET /health", "http.route", "/health")
    add_span(scope.spans.add(), "GET", "url.path", "/v2/health/ready")
    add_span(scope.spans.add(), "GET", "http.target", "/healthz?verbose")
    add_span(scope.spans.add(), "check", "rpc.service", "grpc.health.v1.Health")
    add_span(scope.spans.add(), "check", "rpc.method", "grpc.health.v1.Health/Check")
    add_span(scope.spans.add(), "grpc.health.v1.Health/Watch", "peer", "x")
    with grpc.insecure_channel(target) as channel:
        channel.unary_unary(TRACES)(request.SerializeToString(), timeout=WITHIN_S)


def add_span(span: Span, name: str, key: str, value: str) -> None:
    span.name, span.trace_id, span.span_id = name, b"t" * 16, b"s" * 8
    span.attributes.add(key=key).value.string_value = value


def attributes(resource: Any) -> set[tuple[str, str]]:
    return {(entry.key, entry.value.string_value) for entry in resource.attributes}


def free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [listener.getsockname()[1] for listener in sockets]
    for listener in sockets:
        listener.close()
    return ports
