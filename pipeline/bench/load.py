"""`tailrace bench load`: whether the tick keeps its rate while a whole fleet reports, on one core.

The service runs as users run it, as a process of its own pinned to one core; this process sends
OTLP over gRPC from the other cores and reads the service's own metrics. `start` measures how soon
a service serves and what it weighs when idle.
"""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import grpc
import yaml
from prometheus_client.parser import text_string_to_metric_families

from pipeline.bench import payloads
from pipeline.demo.engine import free_port
from pipeline.errors import DependencyLost

METRICS_EXPORT: Final = "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export"
TRACES_EXPORT: Final = "/opentelemetry.proto.collector.trace.v1.TraceService/Export"
SENDS_PER_S: Final = 10
"""Requests of each signal a second: 100 endpoints, or 200 spans, in one."""
LEARN_S: Final = 3.0
"""Until every endpoint has reported a few times; both rates are told, with and without."""
READY_WITHIN_S: Final = 30.0
POLL_S: Final = 0.01
IDLE_S: Final = 5.0


class Served(NamedTuple):
    """A running service process."""

    pid: int
    otlp: str
    metrics: str
    start_s: float


@contextlib.contextmanager
def service(core: int | None = None) -> Iterator[Served]:
    """A service on free ports, pinned to `core`; yields once its OTLP port answers SERVING."""
    ports = [free_port() for _ in range(3)]
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "tailrace.yaml"
        config.write_text(
            yaml.safe_dump(
                {
                    "receive": {"listen": f"127.0.0.1:{ports[0]}"},
                    "publish": {"listen": f"127.0.0.1:{ports[1]}"},
                    "telemetry": {
                        "metrics_listen": f"127.0.0.1:{ports[2]}",
                        "log_level": "error",
                    },
                    "state": {"folder": ""},
                }
            ),
            encoding="utf-8",
        )
        begun_s = time.perf_counter()
        with _pinned(core):
            process = subprocess.Popen(  # noqa: S603 - our own command
                [sys.executable, "-m", "pipeline", "serve", "--config", str(config)]
            )
        try:
            _wait_serving(process, f"127.0.0.1:{ports[0]}")
            took_s = time.perf_counter() - begun_s
            yield Served(process.pid, f"127.0.0.1:{ports[0]}", f"127.0.0.1:{ports[2]}", took_s)
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(30)


@contextlib.contextmanager
def _pinned(core: int | None) -> Iterator[None]:
    """This thread, and so the children it starts, on one core."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, before if core is None else {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def start() -> dict[str, Any]:
    """Seconds from the command to SERVING, and resident memory idle with three endpoints."""
    with service() as served:
        asyncio.run(_report_once(served, endpoints=3))
        time.sleep(IDLE_S)
        return {
            "start_s": round(served.start_s, 3),
            "idle_rss_mb": round(_rss_mb(served.pid), 1),
            "endpoints": 3,
        }


def load(endpoints: int, points: int, spans_per_s: int, seconds: float) -> dict[str, Any]:
    """Send a fleet's telemetry for `seconds`; what became of the tick, and what it cost."""
    cores = sorted(os.sched_getaffinity(0))
    with service(cores[0]) as served:
        os.sched_setaffinity(0, cores[1:] or cores)
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
    with urllib.request.urlopen(f"http://{served.metrics}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    values: dict[tuple[str, str], float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            key = sample.name, next(iter(sample.labels.values()), "")
            values[key] = values.get(key, 0.0) + sample.value
    late_total = values["tailrace_tick_late_seconds_count", ""]
    states = ("healthy", "degraded", "open", "half_open", "draining", "unknown")
    return {
        "time_s": time.monotonic(),
        "ticks": late_total,
        "tick_s": values["tailrace_tick_seconds_sum", ""],
        "late": late_total - values["tailrace_tick_late_seconds_bucket", "0.1"],
        "points": values.get(("tailrace_received_items_total", "metrics"), 0.0),
        "spans": values.get(("tailrace_received_items_total", "traces"), 0.0),
        "endpoints": sum(values.get(("tailrace_endpoints", state), 0.0) for state in states),
        "cpu_s": _cpu_s(served.pid),
        "rss_mb": _rss_mb(served.pid),
    }


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rsplit(") ", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _rss_mb(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def _wait_serving(process: "subprocess.Popen[bytes]", address: str) -> None:
    from grpc_health.v1 import health_pb2, health_pb2_grpc  # noqa: PLC0415 - only here

    deadline = time.monotonic() + READY_WITHIN_S
    request = health_pb2.HealthCheckRequest()
    while time.monotonic() < deadline and process.poll() is None:
        with grpc.insecure_channel(address) as channel, contextlib.suppress(grpc.RpcError):
            if health_pb2_grpc.HealthStub(channel).Check(request, timeout=1).status == 1:
                return
        time.sleep(POLL_S)
    raise DependencyLost(f"the service did not serve within {READY_WITHIN_S:.0f} s")
