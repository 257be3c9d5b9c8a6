"""The real OpenTelemetry Collector between the demo and the service, where it has been built.

Enters: engines to scrape and the service's OTLP address. Leaves: a Collector on the configuration
that this repository ships, which takes the client's spans and scrapes the engines every second.
"""

import os
from pathlib import Path
from typing import Final

import yaml

from pipeline.demo.engine import HOST, free_port
from pipeline.demo.process import Child

ROOT: Final = Path(__file__).parents[2]
BINARY: Final = ROOT / ".cache" / "otelcol" / "otelcol"
"""Where `make collector` puts it."""
CONFIGURATION: Final = ROOT / "otel-collector.yaml"


def is_built() -> bool:
    """Whether there is a Collector to run, and the configuration to run it with."""
    return os.access(BINARY, os.X_OK) and CONFIGURATION.is_file()


class Collector(Child):
    """A Collector that takes OTLP on `otlp` and sends everything to the service."""

    def __init__(self, folder: Path, *, engines: list[str], service: str) -> None:
        """Files go to `folder`; `engines` and `service` are "ip:port"."""
        self.otlp: Final = f"{HOST}:{free_port()}"
        self.health: Final = f"{HOST}:{free_port()}"
        targets = folder / "engines.yaml"
        targets.write_text(yaml.safe_dump([{"targets": engines}]), encoding="utf-8")
        super().__init__(
            [str(BINARY), f"--config={CONFIGURATION}"],
            folder / "collector.log",
            {
                "OTLP_GRPC_ENDPOINT": self.otlp,
                "OTLP_HTTP_ENDPOINT": f"{HOST}:{free_port()}",
                "HEALTH_ENDPOINT": self.health,
                "TELEMETRY_PORT": str(free_port()),
                "TAILRACE_ENDPOINT": service,
                "SCRAPE_INTERVAL": "1s",
                "ENGINE_TARGET": "",
                "ENGINE_FILES": str(targets),
                "DCGM_TARGET": "",
                "LOG_LEVEL": "warn",
            },
        )
