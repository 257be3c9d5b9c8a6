"""The engines that are measured: Tailrace, and its peers where they are installed.

Each is started as its users start it, pinned to one core, once per measurement. Level A receives
and decodes, and discards; level B also makes windows of requests per endpoint. What an engine
counts itself is what conservation is checked against.
"""

import contextlib
import importlib.util
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

import yaml

from pipeline.bench import batches
from pipeline.bench.batches import Signal
from pipeline.bench.machine import pinned
from pipeline.bench.serving import Page, scrape, service
from pipeline.demo.collector import BINARY
from pipeline.demo.engine import HOST, free_port
from pipeline.demo.process import Child
from pipeline.errors import DependencyLost

Level = Literal["A", "B"]
Name = Literal["tailrace", "rotel", "otelcol"]

NOBODY: Final = [{"network": "0.0.0.0/0", "rights": []}, {"network": "::/0", "rights": []}]
"""Senders without any right: what they send is received, decoded, counted and left out."""
FLUSH: Final = "10s"
"""Of spanmetrics: as long as the window that Tailrace decides from."""
MAX_MESSAGE_MIB: Final = 64


class Engine(NamedTuple):
    """What to start."""

    name: Name
    level: Level
    signals: tuple[Signal, ...]
    variant: str = ""


class Running(NamedTuple):
    """An engine that takes OTLP/gRPC at `otlp`."""

    pid: int
    otlp: str
    metrics: str
    """host:port of its own metrics; "" = it has none."""

    def page(self) -> Page | None:
        """Its own metrics as of now."""
        return scrape(self.metrics) if self.metrics else None


ENGINES: Final = (
    Engine("tailrace", "A", ("spans", "points")),
    Engine("rotel", "A", ("spans", "points"), "default batching"),
    Engine("rotel", "A", ("spans", "points"), "no batching"),
    Engine("otelcol", "A", ("spans", "points")),
    Engine("tailrace", "B", ("spans", "points")),
    Engine("otelcol", "B", ("spans",), "spanmetrics"),
)
WHAT: Final = {
    ("tailrace", "A"): "tailrace serve, senders without rights: receive, decode, discard",
    ("tailrace", "B"): "tailrace serve, a static pool of 1,200 endpoints: receive, decode, fold "
    "into windows, decide ten times a second, acknowledge after the fold",
    ("rotel", "A"): "rotel agent, otlp -> blackhole",
    ("otelcol", "A"): "OpenTelemetry Collector, otlp -> nop, GOMAXPROCS=1",
    ("otelcol", "B"): "OpenTelemetry Collector, otlp -> spanmetrics (exponential histogram, by "
    "endpoint, status and model, 10 s flush) -> nop, GOMAXPROCS=1",
}


def missing(name: Name) -> str:
    """Why an engine cannot be measured here; "" when it can."""
    if name == "rotel" and _rotel() is None:
        return "the package rotel is not installed"
    if name == "otelcol" and _otelcol() is None:
        return "no Collector: run `make collector`, or put otelcol on PATH"
    return ""


@contextlib.contextmanager
def running(engine: Engine, core: int | None) -> Iterator[Running]:
    """Start `engine` on `core`, and end it."""
    if engine.name == "tailrace":
        with service(core, tailrace_settings(engine.level)) as served:
            yield Running(served.pid, served.otlp, served.metrics)
        return
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        otlp, metrics = f"{HOST}:{free_port()}", ""
        if engine.name == "rotel":
            command = rotel_command(otlp, folder, is_batching=engine.variant != "no batching")
        else:
            metrics = f"{HOST}:{free_port()}"
            config = folder / "collector.yaml"
            config.write_text(yaml.safe_dump(collector_settings(engine.level, otlp, metrics)))
            command = [str(_otelcol()), f"--config={config}"]
        peer = _Peer(command, folder / "log", {"GOMAXPROCS": "1"})
        with pinned(core):
            peer.__enter__()
        try:
            yield Running(peer.pid, otlp, metrics)
        finally:
            peer.__exit__()


class _Peer(Child):
    """A peer's process."""

    @property
    def pid(self) -> int:
        """Of the running process."""
        if self._process is None or self._process.poll() is not None:
            raise DependencyLost(f"it ended at once: {self.last_words()}")
        return self._process.pid


def tailrace_settings(level: Level) -> dict[str, Any]:
    """Sections of the configuration that make a level; everything else is the default."""
    if level == "A":
        return {"senders": NOBODY}
    pool = {"name": "bench", "membership": "static", "members": batches.members()}
    return {"pools": [pool]}


def rotel_command(otlp: str, folder: Path, *, is_batching: bool) -> list[str]:
    """The agent in the foreground; its HTTP port is not used."""
    return [
        *(str(_rotel()), "start", "--exporter", "blackhole"),
        *("--otlp-grpc-endpoint", otlp),
        *("--otlp-http-endpoint", f"{HOST}:{free_port()}"),
        *("--otlp-grpc-max-recv-msg-size-mib", str(MAX_MESSAGE_MIB)),
        *("--pid-file", str(folder / "pid"), "--log-file", str(folder / "agent.log")),
        *(() if is_batching else ("--disable-batching",)),
    ]


def collector_settings(level: Level, otlp: str, metrics: str) -> dict[str, Any]:
    """The Collector's configuration; its own metrics are on at the default level."""
    host, _, port = metrics.partition(":")
    receiver = {"endpoint": otlp, "max_recv_msg_size_mib": MAX_MESSAGE_MIB}
    reader = {"pull": {"exporter": {"prometheus": {"host": host, "port": int(port)}}}}
    tree: dict[str, Any] = {
        "receivers": {"otlp": {"protocols": {"grpc": receiver}}},
        "exporters": {"nop": {}},
        "service": {
            "telemetry": {"metrics": {"readers": [reader]}, "logs": {"level": "warn"}},
            "pipelines": {
                "traces": {"receivers": ["otlp"], "exporters": ["nop"]},
                "metrics": {"receivers": ["otlp"], "exporters": ["nop"]},
            },
        },
    }
    if level == "B":
        tree["connectors"] = {"spanmetrics": _spanmetrics()}
        pipelines = tree["service"]["pipelines"]
        pipelines["traces"]["exporters"] = ["spanmetrics"]
        pipelines["metrics"]["receivers"] = ["spanmetrics"]
    return tree


def _spanmetrics() -> dict[str, Any]:
    """Beside its own service, span name, kind and status: what Tailrace's windows are made by."""
    keys = ("server.address", "server.port", "http.response.status_code", "gen_ai.request.model")
    return {
        "histogram": {"exponential": {"max_size": 160}},
        "dimensions": [{"name": key} for key in keys],
        "aggregation_cardinality_limit": 50_000,
        "metrics_flush_interval": FLUSH,
    }


def counted(engine: Engine, page: Page | None, signal: Signal) -> int | None:
    """Items that the engine says it has taken in; None when it does not say."""
    if page is None:
        return None
    if engine.name == "tailrace":
        kind = "traces" if signal == "spans" else "metrics"
        return int(page.get("tailrace_acknowledged_items_total", signal=kind))
    noun = "spans" if signal == "spans" else "metric_points"
    for name in (f"otelcol_receiver_accepted_{noun}", f"otelcol_receiver_accepted_{noun}_total"):
        if page.has(name):
            return int(page.get(name))
    return 0


def decoder_of(page: Page | None) -> str:
    """Which decoder a Tailrace used; "" for other engines."""
    return next(iter(page.by("tailrace_decoder_active", "decoder")), "") if page else ""


def left_out(engine: Engine, page: Page | None) -> dict[str, int]:
    """Items that Tailrace left out at level B, by stage and reason: there should be none."""
    if engine.name != "tailrace" or engine.level == "A" or page is None:
        return {}
    counts = page.by("tailrace_dropped_total", "stage", "reason")
    return {reason: int(count) for reason, count in counts.items()}


def _rotel() -> Path | None:
    spec = importlib.util.find_spec("rotel")
    if spec is None or not spec.submodule_search_locations:
        return None
    agent = Path(spec.submodule_search_locations[0]) / "rotel-agent"
    return agent if agent.is_file() else None


def _otelcol() -> Path | None:
    if BINARY.is_file():
        return BINARY
    on_path = shutil.which("otelcol-contrib") or shutil.which("otelcol")
    return Path(on_path) if on_path else None
