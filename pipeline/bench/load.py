"""`tailrace bench load`: whether the tick keeps its rate while a whole fleet reports, on one core.

The service runs as users run it, as a process of its own pinned to one core; this process sends
OTLP over gRPC from the other cores and reads the service's own metrics. `start` measures how soon
a service serves and what it weighs when idle.
"""

import asyncio
import os
import time
from typing import Any, Final

import grpc

from pipeline.bench import payloads
from pipeline.bench.machine import cores, tree_cpu_s, tree_memory_mb
from pipeline.bench.serving import Served, scrape, service

METRICS_EXPORT: Final = "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export"
TRACES_EXPORT: Final = "/opentelemetry.proto.collector.trace.v1.TraceService/Export"
SENDS_PER_S: Final = 10
"""Requests of each signal a second: 100 endpoints, or 200 spans, in one."""
LEARN_S: Final = 3.0
"""Until every endpoint has reported a few times; both rates are told, with and without."""
IDLE_S: Final = 5.0


def start() -> dict[str, Any]:
    """Seconds from the command to SERVING, and resident memory idle with three endpoints."""
    with service() as served:
        asyncio.run(_report_once(served, endpoints=3))
        time.sleep(IDLE_S)
        return {
            "start_s": round(served.start_s, 3),
            "idle_rss_mb": round(tree_memory_mb(served.pid), 1),
            "endpoints": 3,
        }


def load(endpoints: int, points: int, spans_per_s: int, seconds: float) -> dict[str, Any]:
    """Send a fleet's telemetry for `seconds`; what became of the tick, and what it cost."""
    engine_core, own_core = cores()
    with service(engine_core) as served:
        os.sched_setaffinity(0, {own_core})
        fleet = _Fleet(endpoints, points, spans_per_s)
        begun = _sample(served)
        failed = asyncio.run(fleet.report(served, LEARN_S))
        learned = _sample(served)
        failed += asyncio.run(fleet.report(served, seconds))
        ended = _sample(served)
    elapsed_s = ended["time_s"] - begun["time_s"]
    ticks = ended["ticks"] - begun["ticks"]
    return {
        "endpoints": int(ended["endpoints"]),
        "points_per_s": round((ended["points"] - begun["points"]) / elapsed_s),
        "spans_per_s": round((ended["spans"] - begun["spans"]) / elapsed_s),
        "seconds": round(elapsed_s, 1),
        "ticks_per_s": round(ticks / elapsed_s, 2),
        "ticks_per_s_learned": round(
            (ended["ticks"] - learned["ticks"]) / (ended["time_s"] - learned["time_s"]), 2
        ),
        "tick_ms_mean": round((ended["tick_s"] - begun["tick_s"]) / max(ticks, 1) * 1e3, 2),
        "late_over_100ms": int(ended["late"] - begun["late"]),
        "cores": round((ended["cpu_s"] - begun["cpu_s"]) / elapsed_s, 3),
        "rss_mb": round(ended["rss_mb"], 1),
        "failed_requests": failed,
    }


async def _report_once(served: Served, endpoints: int) -> None:
    async with grpc.aio.insecure_channel(served.otlp) as channel:
        body = payloads.stamped(payloads.metrics(range(endpoints), 40), time.time_ns(), 1.0)
        await channel.unary_unary(METRICS_EXPORT)(body, timeout=10)


class _Fleet:
    """What a fleet sends, tenth of a second by tenth of a second."""

    def __init__(self, endpoints: int, points: int, spans_per_s: int) -> None:
        share = -(-endpoints // SENDS_PER_S)
        self._pages = [
            payloads.metrics(range(low, min(low + share, endpoints)), points)
            for low in range(0, endpoints, share)
        ]
        each = -(-spans_per_s // SENDS_PER_S)
        self._traces = [payloads.spans(endpoints, i * each, each) for i in range(SENDS_PER_S)]
        self._step = 0

    def _bodies(self) -> tuple[bytes, bytes]:
        now_ns, count = time.time_ns(), float(1000 + 100 * self._step)
        page = self._pages[self._step % len(self._pages)]
        trace = self._traces[self._step % len(self._traces)]
        self._step += 1
        return payloads.stamped(page, now_ns, count), payloads.stamped(trace, now_ns, count)

    async def report(self, served: Served, seconds: float) -> int:
        """Send for so long; the number of requests that failed."""
        failed = 0

        async def post(export: Any, body: bytes) -> None:
            nonlocal failed
            try:
                await export(body, timeout=10)
            except grpc.aio.AioRpcError:
                failed += 1

        options = [("grpc.max_send_message_length", -1)]
        async with (
            grpc.aio.insecure_channel(served.otlp, options=options) as channel,
            asyncio.TaskGroup() as group,
        ):
            exports = channel.unary_unary(METRICS_EXPORT), channel.unary_unary(TRACES_EXPORT)
            begun_s = time.monotonic()
            for step in range(round(seconds * SENDS_PER_S)):
                await asyncio.sleep(begun_s + step / SENDS_PER_S - time.monotonic())
                for export, body in zip(exports, self._bodies(), strict=True):
                    group.create_task(post(export, body))
        return failed


def _sample(served: Served) -> dict[str, float]:
    values = scrape(served.metrics)
    late_total = values.get("tailrace_tick_late_seconds_count")
    return {
        "time_s": time.monotonic(),
        "ticks": late_total,
        "tick_s": values.get("tailrace_tick_seconds_sum"),
        "late": late_total - values.get("tailrace_tick_late_seconds_bucket", le="0.1"),
        "points": values.get("tailrace_received_items_total", signal="metrics"),
        "spans": values.get("tailrace_received_items_total", signal="traces"),
        "endpoints": values.get("tailrace_endpoints"),
        "cpu_s": tree_cpu_s(served.pid),
        "rss_mb": tree_memory_mb(served.pid),
    }
