"""A whole service in this process, on free ports, and gRPC and commands towards it."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc

from pipeline.config import parse
from pipeline.model import OtlpSignal
from pipeline.receive.otlp_grpc import SERVICES
from pipeline.service import Embedded, Service


def ports(receive: str = "") -> str:
    """Free ports for everything, with more fields of `receive` as YAML, such as "processes: 2"."""
    return f"""
receive:
  listen: "127.0.0.1:0"
  http: {{listen: "127.0.0.1:0"}}
  {receive}
publish: {{listen: "127.0.0.1:0"}}
telemetry: {{metrics_listen: ""}}
"""


PORTS = ports()


def tailrace(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command as a person would, in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "pipeline", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


class Running:
    """A started service, its addresses, and a channel to its OTLP port."""

    def __init__(self, service: Service, addresses: dict[str, str]) -> None:
        self.service = service
        self.addresses = addresses
        self.decisions = addresses["decisions"]
        self.channel = grpc.insecure_channel(
            addresses["otlp"], options=[("grpc.max_send_message_length", -1)]
        )

    def export(self, body: bytes, signal: OtlpSignal = OtlpSignal.TRACES, **more: Any) -> bytes:
        """One export; the raw answer. Raises `grpc.RpcError` for a refusal."""
        call = self.channel.unary_unary(f"/{SERVICES[signal]}/Export")
        answer: bytes = call(body, timeout=20, **more)
        return answer

    def code(self, body: bytes, signal: OtlpSignal = OtlpSignal.TRACES, **more: Any) -> str:
        """The name of the answer's status code."""
        try:
            self.export(body, signal, **more)
        except grpc.RpcError as error:
            return str(error.code().name)
        return "OK"

    def value(self, name: str, **labels: str) -> float:
        """One of the service's own metrics."""
        return self.service.telemetry.registry.get_sample_value(f"tailrace_{name}", labels) or 0.0

    def dropped(self) -> dict[str, float]:
        """Drop counters by "stage/reason"."""
        return {
            f"{sample.labels['stage']}/{sample.labels['reason']}": sample.value
            for family in self.service.telemetry.registry.collect()
            for sample in family.samples
            if sample.name == "tailrace_dropped_total"
        }


@contextmanager
def running(
    config: str = "", state: Path | None = None, receive: str = "", record: Path | None = None
) -> Iterator[Running]:
    """A service with `config` beside free ports, keeping state in `state` or nowhere.

    `receive` are more fields of that section, `record` the folder of a journal.
    """
    folder = f'state: {{folder: "{state or ""}"}}\n'
    embedded = Embedded(Service(parse(ports(receive) + folder + config, "test"), record=record))
    addresses = embedded.start()
    found = Running(embedded.service, addresses)
    try:
        yield found
    finally:
        found.channel.close()
        embedded.stop()
