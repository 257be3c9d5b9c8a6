"""Tailrace as users run it: `tailrace serve` as a process of its own, and what it says of itself.

Nothing of the service is replaced or reached into: it gets a configuration file, and figures come
from its `/metrics` page and from /proc.
"""

import contextlib
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import grpc
import yaml
from grpc_health.v1 import health_pb2, health_pb2_grpc
from prometheus_client.parser import text_string_to_metric_families

from pipeline.bench.machine import pinned
from pipeline.demo.engine import HOST, free_port
from pipeline.errors import DependencyLost

READY_WITHIN_S: Final = 60.0
STOPS_WITHIN_S: Final = 30.0
POLL_S: Final = 0.01


class Served(NamedTuple):
    """A running service process."""

    pid: int
    otlp: str
    decisions: str
    metrics: str
    start_s: float


class Sample(NamedTuple):
    """One line of a metrics page."""

    name: str
    labels: Mapping[str, str]
    value: float


class Page:
    """A metrics page as it was when it was read."""

    def __init__(self, samples: list[Sample]) -> None:
        """`samples` in the order of the page."""
        self._samples = samples

    def get(self, name: str, **labels: str) -> float:
        """The sum of the samples of that name with those labels; 0.0 when there is none.

        >>> page = Page([Sample("a", {"b": "1", "c": "1"}, 2.0), Sample("a", {"b": "2"}, 3.0)])
        >>> page.get("a"), page.get("a", b="2"), page.get("none")
        (5.0, 3.0, 0.0)
        """
        return sum(self._values(name, labels), 0.0)

    def has(self, name: str) -> bool:
        """Whether there is a sample of that name."""
        return any(sample.name == name for sample in self._samples)

    def by(self, name: str, *keys: str) -> dict[str, float]:
        """The samples of that name, not zero, by the values of labels `keys`."""
        found: dict[str, float] = {}
        for sample in self._samples:
            if sample.name == name and sample.value:
                key = " ".join(sample.labels.get(each, "") for each in keys)
                found[key] = found.get(key, 0.0) + sample.value
        return found

    def _values(self, name: str, labels: Mapping[str, str]) -> Iterator[float]:
        for sample in self._samples:
            if sample.name == name and labels.items() <= sample.labels.items():
                yield sample.value


def scrape(address: str) -> Page:
    """The metrics page at `address` (host:port)."""
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    return Page(
        [
            Sample(sample.name, sample.labels, sample.value)
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        ]
    )


@contextlib.contextmanager
def service(core: int | None = None, settings: Mapping[str, Any] | None = None) -> Iterator[Served]:
    """A service on free ports, pinned to `core`; yields once its OTLP port answers SERVING.

    `settings` are further sections of the configuration; everything else is the default.
    """
    otlp, decisions, metrics = (f"{HOST}:{free_port()}" for _ in range(3))
    tree = {
        "receive": {"listen": otlp, "http": {"listen": ""}},
        "publish": {"listen": decisions},
        "telemetry": {"metrics_listen": metrics, "log_level": "error"},
        "state": {"folder": ""},
        **(settings or {}),
    }
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "tailrace.yaml"
        config.write_text(yaml.safe_dump(tree), encoding="utf-8")
        begun_s = time.perf_counter()
        with pinned(core):
            process = subprocess.Popen(  # noqa: S603 - our own command
                [sys.executable, "-m", "pipeline", "serve", "--config", str(config)]
            )
        try:
            _wait_serving(process, otlp)
            took_s = time.perf_counter() - begun_s
            yield Served(process.pid, otlp, decisions, metrics, took_s)
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(STOPS_WITHIN_S)


def _wait_serving(process: "subprocess.Popen[bytes]", address: str) -> None:
    deadline = time.monotonic() + READY_WITHIN_S
    request = health_pb2.HealthCheckRequest()
    while time.monotonic() < deadline and process.poll() is None:
        with grpc.insecure_channel(address) as channel, contextlib.suppress(grpc.RpcError):
            if health_pb2_grpc.HealthStub(channel).Check(request, timeout=1).status == 1:
                return
        time.sleep(POLL_S)
    raise DependencyLost(f"the service did not serve within {READY_WITHIN_S:.0f} s")
