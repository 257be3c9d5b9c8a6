"""The client's side of the telemetry: one CLIENT span an attempt, by the real OpenTelemetry SDK.

Enters: finished attempts. Leaves: OTLP over gRPC, batched for a fraction of a second. Names follow
the HTTP and GenAI semantic conventions. The provider belongs to this object, never to the process.
"""

from types import TracebackType
from typing import Final, Self

from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import SpanKind, Status, StatusCode
from opentelemetry.util.types import AttributeValue

from pipeline.clock import NS_PER_S
from pipeline.demo.traffic import PATH, Attempt

SERVICE_NAME: Final = "tailrace-demo-client"
BATCH_DELAY_MS: Final = 200  # two decisions; the SDK's own 5 s would be most of what is measured
EXPORT_TIMEOUT_MS: Final = 2_000
OPERATION: Final = "text_completion"


class SpanSender:
    """Sends a span for every attempt; a context manager, so that the last batch is flushed."""

    def __init__(self, endpoint: str, agent_id: str) -> None:
        """`endpoint` is an OTLP/gRPC address, `agent_id` what this client calls itself in Watch."""
        self._agent_id = agent_id
        exporter = OTLPSpanExporter(
            endpoint=f"http://{endpoint}", insecure=True, timeout=EXPORT_TIMEOUT_MS // 1000
        )
        self._provider = TracerProvider(
            resource=Resource.create({"service.name": SERVICE_NAME, "tailrace.agent_id": agent_id}),
            shutdown_on_exit=False,
        )
        self._provider.add_span_processor(
            BatchSpanProcessor(
                exporter,
                schedule_delay_millis=BATCH_DELAY_MS,
                export_timeout_millis=EXPORT_TIMEOUT_MS,
            )
        )
        self._tracer = self._provider.get_tracer(__name__)

    def send(self, attempt: Attempt) -> None:
        """Record `attempt`; the batch processor sends it from its own thread."""
        span = self._tracer.start_span(
            f"{OPERATION} {attempt.job.model}",
            kind=SpanKind.CLIENT,
            start_time=attempt.started_ns,
            attributes={**_attributes(attempt), "tailrace.agent_id": self._agent_id},
        )
        if attempt.error:
            span.set_status(Status(StatusCode.ERROR, attempt.error))
        span.end(end_time=attempt.started_ns + round(attempt.duration_s * NS_PER_S))

    def __enter__(self) -> Self:
        """The SDK runs since the construction."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Send what is left and end the SDK's thread."""
        self._provider.shutdown()


def _attributes(attempt: Attempt) -> dict[str, AttributeValue]:
    host, _, port = attempt.address.rpartition(":")
    attributes: dict[str, AttributeValue] = {
        "http.request.method": "POST",
        "url.path": PATH,
        "server.address": host,
        "server.port": int(port),
        "gen_ai.operation.name": OPERATION,
        "gen_ai.request.model": attempt.job.model,
        "gen_ai.request.max_tokens": attempt.job.max_tokens,
        "gen_ai.request.stream": attempt.job.stream,
        "tailrace.tenant": attempt.job.tenant,
    }
    if attempt.resend_count:
        attributes["http.request.resend_count"] = attempt.resend_count
    if attempt.status:
        attributes["http.response.status_code"] = attempt.status
    if attempt.error:
        attributes["error.type"] = attempt.error
    else:
        attributes["gen_ai.usage.input_tokens"] = attempt.input_tokens
        attributes["gen_ai.usage.output_tokens"] = attempt.output_tokens
    if attempt.ttft_s is not None:
        attributes["gen_ai.response.time_to_first_chunk"] = attempt.ttft_s
    return attributes
