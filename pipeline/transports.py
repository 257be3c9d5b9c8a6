"""Every port that takes OTLP, around one intake: what a service or a receiver process opens."""

import asyncio

from pipeline.receive.config import ReceiveConfig, Submit
from pipeline.receive.intake import Intake
from pipeline.receive.otlp_grpc import OtlpGrpcServer
from pipeline.receive.otlp_http import OtlpHttpServer
from pipeline.telemetry import Telemetry


class Transports:
    """`start` once; `stop` is safe twice, and without `start`. For one event loop."""

    def __init__(
        self,
        config: ReceiveConfig,
        submit: Submit,
        telemetry: Telemetry,
        *,
        reuse_port: bool = False,
    ) -> None:
        """Check the configuration and read its files (`ConfigError`); nothing is opened yet."""
        intake = Intake(config, submit, telemetry)
        self._servers: dict[str, OtlpGrpcServer | OtlpHttpServer] = {}
        if config.http.listen:
            http = OtlpHttpServer(config, intake, telemetry, reuse_port=reuse_port)
            self._servers["otlp_http"] = http
        self._servers["otlp"] = OtlpGrpcServer(intake, reuse_port=reuse_port)

    async def start(self) -> dict[str, str]:
        """Open the ports; the bound addresses by name. `ConfigError` when one cannot be had."""
        return {name: await server.start() for name, server in self._servers.items()}

    async def stop(self, grace_s: float) -> None:
        """Refuse new requests everywhere, finish running ones for at most `grace_s`, close."""
        await asyncio.gather(*(server.stop(grace_s) for server in self._servers.values()))
