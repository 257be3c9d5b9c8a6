"""A fleet on a hand-moved clock: real OTLP bytes through the real loop, no sleeping."""

from collections.abc import Iterable
from typing import Final

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.metrics.v1.metrics_pb2 import AggregationTemporality, Metric

from pipeline.clock import HandClock, Instant
from pipeline.config import TailraceConfig, parse
from pipeline.decode.columns import new_decoder
from pipeline.loop import Loop
from pipeline.model import OtlpSignal, Rights, Sender, Snapshot
from tests.builders import START, key_values, span_request

GATEWAY: Final = Sender("10.0.0.250", Rights.METRICS | Rights.REQUESTS)
TICK_S: Final = 0.1
CUMULATIVE: Final = AggregationTemporality.AGGREGATION_TEMPORALITY_CUMULATIVE


def static_pool(addresses: Iterable[str], authority: str = "act", name: str = "chat") -> str:
    """Configuration of one static pool, as YAML."""
    members = "".join(f"\n      - address: {address}" for address in addresses)
    return (
        f"pools:\n  - name: {name}\n    membership: static\n"
        f"    authority: {authority}\n    members:{members}\n"
    )


class HandFleet:
    """vLLM-like engines that are scraped every second, and a gateway that sends client spans."""

    def __init__(self, addresses: Iterable[str], config: str | None = None) -> None:
        """Static members `addresses` in pool `chat`, authority act, unless `config` is given."""
        self.addresses = list(addresses)
        text = static_pool(self.addresses) if config is None else config
        self.config: TailraceConfig = parse(text, "test")
        self.clock = HandClock(START)
        self.dropped: dict[str, int] = {}
        self._decoder = new_decoder()
        self.loop = self.new_loop()
        self.tokens = dict.fromkeys(self.addresses, 0.0)
        self.running = dict.fromkeys(self.addresses, 4.0)
        self.down: set[str] = set()
        self.latency_s = dict.fromkeys(self.addresses, 0.2)
        self.silent = False
        self._ticks = 0

    def new_loop(self) -> Loop:
        """A loop of this fleet's configuration, with its static members set."""
        loop = Loop(self.config, self._count)
        for pool in self.config.pools:
            if pool.membership == "static":
                from pipeline.journal import Members

                loop.apply(Members(pool.name, pool.members))
        return loop

    def _count(self, stage: str, reason: str, count: int) -> None:
        key = f"{stage}/{reason}"
        self.dropped[key] = self.dropped.get(key, 0) + count

    def send(self, signal: OtlpSignal, body: bytes, sender: Sender = GATEWAY) -> None:
        """One export request, folded at once."""
        work = self.loop.begin(self._decoder.decode(signal, body), sender, self.clock.now())
        self.loop.fold_all(work)

    def run(self, seconds: float, tick_s: float = TICK_S) -> Snapshot:
        """Let time pass: a tick each `tick_s`, scrapes and requests as the fleet stands."""
        for _ in range(round(seconds / tick_s)):
            now = self.clock.advance(tick_s)
            if not self.silent:
                if self._ticks % 10 == 0:
                    self.send(OtlpSignal.METRICS, self.scrape(now))
                self.send(OtlpSignal.TRACES, self.requests(now))
            self._ticks += 1
            snapshot = self.loop.tick(now)
        return snapshot

    def scrape(self, now: Instant) -> bytes:
        """Every engine's page; of a down one only `up` 0."""
        request = ExportMetricsServiceRequest()
        for address in self.addresses:
            group = request.resource_metrics.add()
            host, _, port = address.rpartition(":")
            pairs = {
                "service.name": "vllm",
                "service.instance.id": address,
                "server.address": host,
                "server.port": port,
            }
            group.resource.attributes.extend(key_values(pairs))
            metrics = group.scope_metrics.add().metrics
            is_up = address not in self.down
            _gauge(metrics.add(), "up", float(is_up), now)
            if is_up:
                self.tokens[address] += 100.0
                _gauge(metrics.add(), "vllm:num_requests_running", self.running[address], now)
                _gauge(metrics.add(), "vllm:num_requests_waiting", 0.0, now)
                _counter(metrics.add(), "vllm:generation_tokens_total", self.tokens[address], now)
        return request.SerializeToString()

    def requests(self, now: Instant, per_endpoint: int = 2, **attributes: object) -> bytes:
        """Client spans that ended now, `per_endpoint` to each engine; a down one refuses."""
        rows = []
        for address in self.addresses:
            host, _, port = address.rpartition(":")
            latency_ns = round(self.latency_s[address] * 1e9)
            row = {
                "name": "chat",
                "kind": 3,
                "start_ns": now.wall_ns - latency_ns,
                "end_ns": now.wall_ns,
                "server.address": host,
                "server.port": int(port),
                "gen_ai.operation.name": "chat",
                "gen_ai.usage.input_tokens": 200,
                "gen_ai.usage.output_tokens": 20,
                **attributes,
            }
            if address in self.down:
                row |= {"error.type": "ConnectionRefusedError", "status": 2}
            else:
                row |= {"http.response.status_code": 200}
            rows += [row] * per_endpoint
        return span_request(({"service.name": "gateway"}, rows)).SerializeToString()


def _gauge(metric: Metric, name: str, value: float, now: Instant) -> None:
    metric.name = name
    point = metric.gauge.data_points.add(as_double=value, time_unix_nano=now.wall_ns)
    point.attributes.extend(key_values({"model_name": "m", "engine": "0"} if ":" in name else {}))


def _counter(metric: Metric, name: str, value: float, now: Instant) -> None:
    metric.name = name
    metric.sum.aggregation_temporality = CUMULATIVE
    metric.sum.is_monotonic = True
    point = metric.sum.data_points.add(
        as_double=value, time_unix_nano=now.wall_ns, start_time_unix_nano=START.wall_ns
    )
    point.attributes.extend(key_values({"model_name": "m", "engine": "0"}))


def published(snapshot: Snapshot) -> dict[str, tuple[int, int]]:
    """Weight and state of every target by id, as receivers see them."""
    directory = snapshot.directory
    return {
        directory.id[i]: (int(snapshot.weight[i]), int(snapshot.state[i]))
        for i in directory.slots().tolist()
        if snapshot.target[i]
    }
