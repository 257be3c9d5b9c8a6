"""Senders that people run, each with data of its own `service.name`, and what was handed to them.

Every `send` hands over a round of spans, points and log records; `close` flushes. What a sender was
given is in `sent`, so that it can be compared with what the service's journal holds of its name.
"""

import gzip
import json
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

import grpc
import yaml
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message
from opentelemetry.exporter.otlp.proto.grpc._log_exporter import OTLPLogExporter as GrpcLogs
from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter as GrpcMetrics
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as GrpcSpans
from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter as HttpLogs
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter as HttpMetrics
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as HttpSpans
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import BatchLogRecordProcessor
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import SpanKind

from pipeline.bench.serving import Page, scrape
from pipeline.clock import NS_PER_S
from pipeline.decode.columns import decode
from pipeline.demo.engine import HOST, free_port
from pipeline.demo.process import Child
from pipeline.journal import Batch, read
from pipeline.model import OtlpSignal, ProfileColumns
from pipeline.receive.otlp_grpc import SERVICES
from tests.builders import key_values, span_request
from tests.e2e.senders import eventually
from tests.otelcol import collector

SPANS: Final = 40
POINTS: Final = 20
LOGS: Final = 10
"""Of one round."""
TOOK_NS: Final = NS_PER_S // 10
MEMBER: Final = ("10.0.0.1", 8000)
PATIENCE_S: Final = 30.0

TRACES, METRICS, LOG_RECORDS = OtlpSignal.TRACES, OtlpSignal.METRICS, OtlpSignal.LOGS
ROUND: Final = Counter({TRACES: SPANS, METRICS: POINTS, LOG_RECORDS: LOGS})


class Served(NamedTuple):
    """A service process."""

    otlp: str
    http: str
    metrics: str
    log: Path
    journal: Path

    def page(self) -> Page:
        """Its own metrics as of now."""
        return scrape(self.metrics)

    def logged(self) -> list[dict[str, Any]]:
        """The lines of its log that are its own; gRPC's core writes some beside them."""
        lines = self.log.read_text(encoding="utf-8").splitlines()
        return [json.loads(line) for line in lines if line.startswith("{")]


@contextmanager
def service(
    folder: Path, settings: Mapping[str, Any], receive: Mapping[str, Any]
) -> Iterator[Served]:
    """`tailrace serve --record`, with more `settings` and more fields of `receive`."""
    otlp, http, metrics, decisions = (f"{HOST}:{free_port()}" for _ in range(4))
    served = Served(otlp, http, metrics, folder / "tailrace.log", folder / "journal")
    tree = {
        "receive": {"listen": otlp, "http": {"listen": http}, **receive},
        "publish": {"listen": decisions},
        "telemetry": {"metrics_listen": metrics},
        "state": {"folder": ""},
        **settings,
    }
    config = folder / "tailrace.yaml"
    config.write_text(yaml.safe_dump(tree), encoding="utf-8")
    command = [sys.executable, "-m", "pipeline", "serve", "--config", str(config)]
    with Child([*command, "--record", str(served.journal)], served.log) as child:
        eventually(lambda: '"event": "serving"' in served.log.read_text(), "it does not serve")
        assert child.is_alive
        yield served


def folded(journal: Path) -> dict[str, Counter[OtlpSignal]]:
    """What was folded of each `service.name`: items by signal."""
    found: dict[str, Counter[OtlpSignal]] = {}
    for record in read(journal):
        if not isinstance(record.entry, Batch):
            continue
        columns = decode(record.entry.signal, record.entry.body)
        if isinstance(columns, ProfileColumns) or not columns.n:
            continue
        names = columns.resources.codes("service.name")[columns.resource]
        for code, n in Counter(names.tolist()).items():
            name = columns.strings.text(code) if code >= 0 else ""
            found.setdefault(name, Counter())[record.entry.signal] += n
    return found


class Sender(Protocol):
    """`send` any number of times, then `close`."""

    name: str
    sent: Counter[OtlpSignal]

    def send(self) -> None:
        """Hand over one round."""

    def close(self) -> None:
        """Flush, and end what was started."""


def requests(name: str) -> dict[OtlpSignal, Message]:
    """A round as OTLP: client spans towards a member of the pool, gauges, log records, all now."""
    now_ns = time.time_ns()
    ids = range(now_ns, now_ns + SPANS)
    host, port = MEMBER
    row: dict[str, Any] = {"end_ns": now_ns, "start_ns": now_ns - TOOK_NS}
    row |= {"http.response.status_code": 200}
    row |= {"server.address": host, "server.port": port, "gen_ai.operation.name": "chat"}
    rows = [
        {**row, "trace_id": i.to_bytes(16, "big"), "span_id": i.to_bytes(8, "big")} for i in ids
    ]
    metrics = ExportMetricsServiceRequest()
    points = metrics.resource_metrics.add()
    points.resource.attributes.extend(key_values({"service.name": name}))
    for number in range(POINTS):
        metric = points.scope_metrics.add().metrics.add(name=f"depth.{number}")
        metric.gauge.data_points.add(as_double=number, time_unix_nano=now_ns)
    logs = ExportLogsServiceRequest()
    records = logs.resource_logs.add()
    records.resource.attributes.extend(key_values({"service.name": name}))
    for number in range(LOGS):
        record = records.scope_logs.add().log_records.add(time_unix_nano=now_ns)
        record.body.string_value = f"line {number}"
    spans = span_request(({"service.name": name}, rows))
    return {TRACES: spans, METRICS: metrics, LOG_RECORDS: logs}


class Through:
    """A forwarder that runs by itself (Collector, Rotel), fed over OTLP/gRPC at `otlp`."""

    def __init__(self, name: str, otlp: str) -> None:
        self.name = name
        self.sent: Counter[OtlpSignal] = Counter()
        self._channel = grpc.insecure_channel(otlp)
        grpc.channel_ready_future(self._channel).result(PATIENCE_S)

    def send(self) -> None:
        for signal, request in requests(self.name).items():
            call = self._channel.unary_unary(f"/{SERVICES[signal]}/Export")
            call(request.SerializeToString(), timeout=PATIENCE_S)
        self.sent += ROUND

    def close(self) -> None:
        self._channel.close()


class Sdk:
    """The Python SDK as applications use it: spans and log records in batches, points by reader."""

    def __init__(self, name: str, spans: Any, metrics: Any, logs: Any) -> None:
        self.name = name
        self.sent: Counter[OtlpSignal] = Counter()
        resource = Resource({"service.name": name})
        self._spans = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._spans.add_span_processor(BatchSpanProcessor(spans, schedule_delay_millis=1000))
        self._reader = PeriodicExportingMetricReader(metrics, export_interval_millis=1e9)
        self._metrics = MeterProvider([self._reader], resource, shutdown_on_exit=False)
        meter = self._metrics.get_meter("e2e")
        self._counters = [meter.create_counter(f"calls.{number}") for number in range(POINTS)]
        self._logs = LoggerProvider(resource=resource, shutdown_on_exit=False)
        self._logs.add_log_record_processor(BatchLogRecordProcessor(logs))
        self._tracer, self._logger = self._spans.get_tracer("e2e"), self._logs.get_logger("e2e")

    def send(self) -> None:
        attributes: dict[str, Any] = {"server.address": MEMBER[0], "server.port": MEMBER[1]}
        attributes |= {"gen_ai.operation.name": "chat", "http.response.status_code": 200}
        for number in range(SPANS):
            self._tracer.start_span(f"{number}", kind=SpanKind.CLIENT, attributes=attributes).end()
        for number in range(LOGS):
            self._logger.emit(timestamp=time.time_ns(), body=f"line {number}")
        for counter in self._counters:
            counter.add(1)
        assert self._reader.force_flush(PATIENCE_S * 1000)
        self.sent += ROUND

    def close(self) -> None:
        self._spans.shutdown()
        self._logs.shutdown()
        self._metrics.shutdown()  # which collects and exports once more
        self.sent[METRICS] += POINTS


def sdk_over_grpc(served: Served) -> Sdk:
    """Without compression, as the SDK's default is."""
    to: dict[str, Any] = {"endpoint": f"http://{served.otlp}", "insecure": True}
    return Sdk("sdk-grpc", GrpcSpans(**to), GrpcMetrics(**to), GrpcLogs(**to))


def sdk_over_http(served: Served) -> Sdk:
    """Protobuf, as the SDK's default is."""
    url = f"http://{served.http}/v1"
    spans, metrics = HttpSpans(endpoint=f"{url}/traces"), HttpMetrics(endpoint=f"{url}/metrics")
    return Sdk("sdk-http", spans, metrics, HttpLogs(endpoint=f"{url}/logs"))


class Curl:
    """OTLP/JSON, one process a request, compressed or not."""

    def __init__(self, name: str, served: Served, *, is_gzipped: bool) -> None:
        self.name = name
        self.sent: Counter[OtlpSignal] = Counter()
        headers = ["-H", "content-type: application/json"]
        self._command = ["curl", "-sS", "--max-time", f"{PATIENCE_S:.0f}", *headers]
        if is_gzipped:
            self._command += ["-H", "content-encoding: gzip"]
        self._is_gzipped = is_gzipped
        self._url = f"http://{served.http}/v1"

    def send(self) -> None:
        for signal, request in requests(self.name).items():
            body = json.dumps(otlp_json(request)).encode()
            body = gzip.compress(body) if self._is_gzipped else body
            command = [*self._command, "--data-binary", "@-", f"{self._url}/{signal.value}"]
            answer = subprocess.run(command, input=body, capture_output=True, check=True)
            assert (answer.stdout, answer.stderr) == (b"{}", b"")
        self.sent += ROUND

    def close(self) -> None:
        """Nothing is kept between two requests."""


def otlp_json(request: Message) -> Any:
    """As OTLP has it: ids in hex and enums as integers, unlike protobuf's own mapping."""
    tree = MessageToDict(request, use_integers_for_enums=True)
    for resource in tree.get("resourceSpans", ()):
        for scope, spans in zip(resource["scopeSpans"], _span_lists(request), strict=True):
            for told, span in zip(scope["spans"], spans, strict=True):
                told |= {"traceId": span.trace_id.hex(), "spanId": span.span_id.hex()}
    return tree


def _span_lists(request: Any) -> Iterator[Any]:
    return (s.spans for resource in request.resource_spans for s in resource.scope_spans)


def has_curl() -> bool:
    """Whether there is a curl."""
    return shutil.which("curl") is not None


class Exporter(NamedTuple):
    """One of a Collector's exporters."""

    kind: str
    """otlp_grpc or otlp_http."""
    compression: str = ""
    """"" = its default."""


@contextmanager
def collector_of(
    folder: Path, served: Served, exporters: Mapping[str, Exporter], *, scrapes: bool = False
) -> Iterator[dict[str, Through]]:
    """One Collector with a receiver, a pipeline a signal and an exporter for each name.

    With `scrapes`, its prometheus receiver reads the service's own metrics too, every second, for
    the first exporter.
    """
    receivers: dict[str, Any] = {}
    outs: dict[str, Any] = {}
    pipelines: dict[str, Any] = {}
    for name, (kind, compression) in exporters.items():
        grpc_receiver = {"endpoint": f"{HOST}:{free_port()}"}
        receivers[f"otlp/{name}"] = {"protocols": {"grpc": grpc_receiver}}
        endpoint = served.otlp if kind == "otlp_grpc" else f"http://{served.http}"
        out = {"endpoint": endpoint, "tls": {"insecure": True}}
        outs[f"{kind}/{name}"] = out | ({"compression": compression} if compression else {})
        for signal in ("traces", "metrics", "logs"):
            way = {"receivers": [f"otlp/{name}"], "exporters": [f"{kind}/{name}"]}
            pipelines[f"{signal}/{name}"] = way
    if scrapes:
        receivers["prometheus"] = {"config": {"scrape_configs": [_scrape_of(served.metrics)]}}
        first = next(iter(exporters))
        pipelines[f"metrics/{first}"]["receivers"].append("prometheus")
    health = f"{HOST}:{free_port()}"
    tree = {
        "extensions": {"health_check": {"endpoint": health}},
        "receivers": receivers,
        "exporters": outs,
        "service": {
            "extensions": ["health_check"],
            "pipelines": pipelines,
            "telemetry": {"metrics": {"level": "none"}},
        },
    }
    config = folder / "collector.yaml"
    config.write_text(yaml.safe_dump(tree), encoding="utf-8")
    log = folder / "collector.log"
    with collector.running(config, env={}, ready_url=f"http://{health}", log=log):
        yield {
            name: Through(name, receivers[f"otlp/{name}"]["protocols"]["grpc"]["endpoint"])
            for name in exporters
        }


def _scrape_of(address: str) -> dict[str, Any]:
    targets = [{"targets": [address]}]
    return {"job_name": "tailrace", "scrape_interval": "1s", "static_configs": targets}


@contextmanager
def rotel(name: str, agent: Path, folder: Path, endpoint: str, protocol: str) -> Iterator[Through]:
    """Rotel's agent, which sends what it gets to `endpoint` by `protocol` (grpc or http)."""
    folder.mkdir()
    otlp = f"{HOST}:{free_port()}"
    command = [
        *(str(agent), "start", "--exporter", "otlp"),
        *("--otlp-exporter-endpoint", f"http://{endpoint}"),
        *("--otlp-exporter-protocol", protocol),
        *("--otlp-grpc-endpoint", otlp, "--otlp-http-endpoint", f"{HOST}:{free_port()}"),
        *("--pid-file", str(folder / "pid"), "--log-file", str(folder / "agent.log")),
    ]
    with Child(command, folder / "log"):
        yield Through(name, otlp)
