"""A real OTLP/HTTP server with a sink behind it, and a client that sends what it is told."""

import asyncio
import random
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import msgspec
from google.rpc import status_pb2  # type: ignore[import-untyped]  # no stubs

from pipeline.receive.config import HttpConfig, ReceiveConfig
from pipeline.receive.intake import Intake
from pipeline.receive.otlp_http import OtlpHttpServer
from pipeline.telemetry import Telemetry
from tests.receive.serving import Sink

PROTOBUF = "application/x-protobuf"
JSON = "application/json"


class Response(NamedTuple):
    """One answer, read whole."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def is_open(self) -> bool:
        """Whether the server says that it goes on."""
        return self.headers.get("connection", "") != "close"

    @property
    def problem(self) -> tuple[int, str]:
        """Code and message of the google.rpc.Status that it carries."""
        if self.headers["content-type"] == JSON:
            found = msgspec.json.decode(self.body)
            assert set(found) == {"code", "message"}
            return found["code"], found["message"]
        assert self.headers["content-type"] == PROTOBUF
        status = status_pb2.Status.FromString(self.body)
        return status.code, status.message


class Connection:
    """One connection to the server, at the level of bytes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def send(self, *pieces: bytes | str) -> None:
        for piece in pieces:
            self.writer.write(piece.encode() if isinstance(piece, str) else piece)
        await self.writer.drain()

    async def response(self) -> Response:
        """The next answer; an interim one (100) too."""
        async with asyncio.timeout(20):
            first, *lines = (await self.reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")[:-2]
            headers = {k.lower(): v for k, _, v in (line.partition(": ") for line in lines)}
            body = await self.reader.readexactly(int(headers.get("content-length", "0")))
        return Response(int(first.split()[1]), headers, body)

    async def post(self, body: bytes = b"", path: str = "/v1/traces", **headers: str) -> Response:
        await self.send(head("POST", path, len(body), **headers), body)
        return await self.response()

    async def is_closed(self) -> bool:
        """Wait for the server to close; False when it answers something else."""
        async with asyncio.timeout(20):
            try:
                return await self.reader.read(1) == b""
            except ConnectionError:
                return True

    async def close(self) -> None:
        self.writer.close()


def head(method: str, path: str, length: int | None, **headers: str) -> str:
    """Request line and headers; `content_type="..."` is a header, "" leaves one out."""
    given = {"host": "tailrace", "content_type": PROTOBUF, **headers}
    if length is not None:
        given["content_length"] = str(length)
    lines = [f"{k.replace('_', '-')}: {v}\r\n" for k, v in given.items() if v]
    return f"{method} {path} HTTP/1.1\r\n" + "".join(lines) + "\r\n"


class HttpRunning:
    """A started server, its sink and its own counters."""

    def __init__(
        self,
        server: OtlpHttpServer,
        intake: Intake,
        sink: Sink,
        telemetry: Telemetry,
        address: str,
    ) -> None:
        self.server = server
        self.intake = intake
        self.sink = sink
        self.telemetry = telemetry
        self.address = address
        self._open: list[Connection] = []

    @property
    def port(self) -> int:
        return int(self.address.rpartition(":")[2])

    async def connect(self, tls: ssl.SSLContext | None = None) -> Connection:
        name = "localhost" if tls else None
        streams = await asyncio.open_connection(
            "127.0.0.1", self.port, ssl=tls, server_hostname=name
        )
        connection = Connection(*streams)
        self._open.append(connection)
        return connection

    async def post(self, body: bytes = b"", path: str = "/v1/traces", **headers: str) -> Response:
        """One request on a connection of its own."""
        return await (await self.connect()).post(body, path, **headers)

    async def close(self) -> None:
        for connection in self._open:
            await connection.close()

    def value(self, name: str, **labels: str) -> float:
        return self.telemetry.registry.get_sample_value(f"tailrace_{name}", labels) or 0.0


@asynccontextmanager
async def http_serving(
    http: Mapping[str, Any] | None = None, **settings: Any
) -> AsyncIterator[HttpRunning]:
    """A server on a free port with these settings, until the block ends."""
    telemetry, sink = Telemetry(), Sink()
    config = ReceiveConfig(http=HttpConfig(**{"listen": "127.0.0.1:0", **(http or {})}), **settings)
    intake = Intake(config, sink.submit, telemetry, jitter=random.Random(5))
    server = OtlpHttpServer(config, intake, telemetry, jitter=random.Random(6))
    running = HttpRunning(server, intake, sink, telemetry, await server.start())
    try:
        yield running
    finally:
        if sink.gate is not None:
            sink.gate.set()
        await running.close()
        await server.stop(1.0)
