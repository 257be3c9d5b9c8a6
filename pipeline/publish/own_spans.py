"""The service's own traces: one `route_decision` span per pool and changed epoch, as OTLP.

Spans carry `tailrace.self`, which the receiver drops, so a Collector that sends everything back
cannot close a circle. The queue is bounded; what does not fit, or cannot be sent, is counted.
"""

import asyncio
import hashlib
from collections import deque
from typing import Final

import grpc
import numpy as np
import structlog
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from pipeline.model import Int64s, Snapshot, State
from pipeline.telemetry import Telemetry

EXPORT: Final = "/opentelemetry.proto.collector.trace.v1.TraceService/Export"
MAX_QUEUED: Final = 2_048
"""Spans waiting for the next export; a second of them at 20 pools is 200."""
FLUSH_S: Final = 1.0
TIMEOUT_S: Final = 5.0

log = structlog.get_logger()


class OwnSpans:
    """Collects spans on the loop thread, exports them from the event loop."""

    def __init__(self, endpoint: str, instance: str, telemetry: Telemetry) -> None:
        """Export to `endpoint` (host:port, plaintext) as service instance `instance`."""
        self._endpoint = endpoint
        self._instance = instance
        self._telemetry = telemetry
        self._queue: deque[Span] = deque()
        self._last: Int64s | None = None

    def decided(self, snapshot: Snapshot, cost_ns: int) -> None:
        """Queue a span for every pool of `snapshot` in which a weight or state changed."""
        key = _decision_key(snapshot)
        directory = snapshot.directory
        same = self._last is not None and len(self._last) == len(key)
        changed = directory.known & ((key != self._last) if same else True)
        self._last = key
        if not changed.any():
            return
        counts = np.bincount(directory.pool[changed] + 1, minlength=len(directory.pools) + 1)
        for index in np.flatnonzero(counts[1:]):
            span = _span(snapshot, directory.pools[index], int(counts[index + 1]), cost_ns)
            if len(self._queue) < MAX_QUEUED:
                self._queue.append(span)
            else:
                self._telemetry.own_spans_total.labels("dropped").inc()

    async def run(self) -> None:
        """Export what is queued once a second, until cancelled."""
        async with grpc.aio.insecure_channel(self._endpoint) as channel:
            export = channel.unary_unary(
                EXPORT,
                request_serializer=ExportTraceServiceRequest.SerializeToString,
                response_deserializer=ExportTraceServiceResponse.FromString,
            )
            while True:
                await asyncio.sleep(FLUSH_S)
                if self._queue:
                    await self._export(export)

    async def _export(self, export: grpc.aio.UnaryUnaryMultiCallable) -> None:
        spans = [self._queue.popleft() for _ in range(len(self._queue))]
        try:
            await export(_request(spans, self._instance), timeout=TIMEOUT_S)
        except grpc.aio.AioRpcError as error:
            log.warning("own spans not exported", endpoint=self._endpoint, code=error.code().name)
            self._telemetry.own_spans_total.labels("dropped").inc(len(spans))
        else:
            self._telemetry.own_spans_total.labels("sent").inc(len(spans))


def _decision_key(snapshot: Snapshot) -> Int64s:
    return snapshot.weight.astype(np.int64) * len(State) + snapshot.state


def _span(snapshot: Snapshot, pool: str, changed: int, cost_ns: int) -> Span:
    seed = hashlib.blake2b(f"{snapshot.epoch}/{pool}".encode(), digest_size=24).digest()
    return Span(
        trace_id=seed[:16],
        span_id=seed[16:],
        name="route_decision",
        kind=Span.SPAN_KIND_INTERNAL,
        start_time_unix_nano=snapshot.time_ns,
        end_time_unix_nano=snapshot.time_ns + cost_ns,
        attributes=[
            KeyValue(key="tailrace.self", value=AnyValue(bool_value=True)),
            KeyValue(key="tailrace.pool", value=AnyValue(string_value=pool)),
            KeyValue(key="tailrace.epoch", value=AnyValue(int_value=snapshot.epoch)),
            KeyValue(key="tailrace.changed_endpoints", value=AnyValue(int_value=changed)),
        ],
    )


def _request(spans: list[Span], instance: str) -> ExportTraceServiceRequest:
    request = ExportTraceServiceRequest()
    group = request.resource_spans.add()
    for key, value in (("service.name", "tailrace"), ("service.instance.id", instance)):
        group.resource.attributes.append(KeyValue(key=key, value=AnyValue(string_value=value)))
    group.resource.attributes.append(KeyValue(key="tailrace.self", value=AnyValue(bool_value=True)))
    scope = group.scope_spans.add()
    scope.scope.name = "tailrace.decide"
    scope.spans.extend(spans)
    return request
