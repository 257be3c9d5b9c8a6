"""A real gRPC server with a sink behind it, a channel to it, and its own counters."""

import asyncio
import random
import struct
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.rpc import error_details_pb2  # type: ignore[import-untyped]  # no stubs

from pipeline.clock import Clock
from pipeline.model import Client, Export, OtlpSignal, Receipt
from pipeline.receive.config import ReceiveConfig
from pipeline.receive.google_rpc import RETRY_INFO
from pipeline.receive.intake import Intake
from pipeline.receive.otlp_grpc import SERVICES, OtlpGrpcServer
from pipeline.telemetry import Telemetry

NO_LIMIT = [("grpc.max_send_message_length", -1)]
OWN_CONNECTION = [*NO_LIMIT, ("grpc.use_local_subchannel_pool", 1)]


class Sink:
    """Where the server submits: keeps what it got and answers as told."""

    def __init__(self) -> None:
        self.exports: list[Export] = []
        self.clients: list[Client] = []
        self.answer: Receipt | Exception = Receipt()
        self.gate: asyncio.Event | None = None
        self.entered = asyncio.Event()

    async def submit(self, export: Export, client: Client) -> Receipt:
        self.exports.append(export)
        self.clients.append(client)
        self.entered.set()
        if self.gate is not None:
            await self.gate.wait()
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


class Running:
    """A started server, its sink and a channel to it."""

    def __init__(
        self,
        server: OtlpGrpcServer,
        intake: Intake,
        sink: Sink,
        telemetry: Telemetry,
        address: str,
        credentials: grpc.ChannelCredentials | None,
    ) -> None:
        self.server = server
        self.intake = intake
        self.sink = sink
        self.telemetry = telemetry
        self.address = address
        self.channel = self.connect(credentials)

    @property
    def port(self) -> int:
        return int(self.address.rpartition(":")[2])

    def connect(
        self, credentials: grpc.ChannelCredentials | None = None, *options: tuple[str, Any]
    ) -> grpc.aio.Channel:
        """A channel with a connection of its own."""
        more = [*OWN_CONNECTION, *options]
        if credentials is None:
            return grpc.aio.insecure_channel(self.address, options=more)
        return grpc.aio.secure_channel(self.address, credentials, options=more)

    async def export(
        self, body: bytes = b"", signal: OtlpSignal = OtlpSignal.TRACES, **more: Any
    ) -> bytes:
        return await export(self.channel, body, signal, **more)

    async def refused(self, body: bytes = b"", **more: Any) -> grpc.aio.AioRpcError:
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await self.export(body, **more)
        return error.value

    def value(self, name: str, **labels: str) -> float:
        return self.telemetry.registry.get_sample_value(f"tailrace_{name}", labels) or 0.0


async def export(
    channel: grpc.aio.Channel,
    body: bytes = b"",
    signal: OtlpSignal = OtlpSignal.TRACES,
    **more: Any,
) -> bytes:
    """One request over `channel`; the answer."""
    method = channel.unary_unary(f"/{SERVICES[signal]}/Export")
    answer: bytes = await method(body, **{"timeout": 10, **more})
    return answer


@asynccontextmanager
async def serving(
    credentials: grpc.ChannelCredentials | None = None,
    clock: Clock | None = None,
    **settings: Any,
) -> AsyncIterator[Running]:
    """A server on a free port with these settings, until the block ends."""
    telemetry, sink = Telemetry(), Sink()
    config = ReceiveConfig(**{"listen": "127.0.0.1:0", **settings})
    intake = Intake(config, sink.submit, telemetry, jitter=random.Random(5), clock=clock)
    server = OtlpGrpcServer(intake)
    running = Running(server, intake, sink, telemetry, await server.start(), credentials)
    try:
        yield running
    finally:
        if sink.gate is not None:
            sink.gate.set()
        await running.channel.close()
        await server.stop(1.0)


def trailers(error: grpc.aio.AioRpcError) -> dict[str, Any]:
    return dict(error.trailing_metadata())


def retry_delay_s(error: grpc.aio.AioRpcError) -> float:
    """What the error asks its sender to wait."""
    info = error_details_pb2.RetryInfo.FromString(trailers(error)[RETRY_INFO])
    return float(info.retry_delay.seconds + info.retry_delay.nanos / 1e9)


async def eventually(is_so: Callable[[], bool]) -> None:
    """Wait for the server's side of an RPC whose client has its answer already."""
    async with asyncio.timeout(10):
        while not is_so():
            await asyncio.sleep(0)


# HTTP/2 by hand, for what no gRPC client sends

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
SETTINGS = bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))
SETTINGS_ACK = bytes((0, 0, 0, 4, 1, 0, 0, 0, 0))
PING = bytes((0, 0, 8, 6, 0, 0, 0, 0, 0)) + bytes(8)
_DATA, _HEADERS, _CONTINUATION = 0, 1, 9
_END_STREAM, _END_HEADERS = 1, 4
_MAX_FRAME = 16_000


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def header(name: str, value: str) -> bytes:
    """A literal header field without indexing (RFC 7541 6.2.2)."""
    return b"\0" + b"".join(bytes([len(text)]) + text.encode() for text in (name, value))


async def raw_export(
    port: int,
    encoding: str,
    body: bytes,
    *,
    is_compressed: bool = False,
    more: Iterable[tuple[str, str]] = (),
) -> int:
    """One request with any `grpc-encoding` ("" = no such header) and flag; its gRPC status."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(PREFACE + SETTINGS)
    assert await reader.readexactly(len(SETTINGS))  # gRPC's limits hold once they are acknowledged
    writer.write(SETTINGS_ACK + request_headers(encoding, more))
    message = struct.pack(">BI", is_compressed, len(body)) + body
    writer.write(frame(_DATA, _END_STREAM, 1, message))
    try:
        return await _status(reader)
    finally:
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()


def request_headers(encoding: str = "", more: Iterable[tuple[str, str]] = ()) -> bytes:
    """The frames that begin an export on stream 1."""
    headers = [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", f"/{SERVICES[OtlpSignal.TRACES]}/Export"),
        (":authority", "test"),
        ("content-type", "application/grpc"),
        ("te", "trailers"),
        ("user-agent", "OpenTelemetry Collector/0.156.0 (linux/amd64)"),
        *([("grpc-encoding", encoding)] if encoding else []),
        *more,
    ]
    block = b"".join(header(name, value) for name, value in headers)
    parts = [block[at : at + _MAX_FRAME] for at in range(0, len(block), _MAX_FRAME)]
    return b"".join(
        frame(_CONTINUATION if i else _HEADERS, _END_HEADERS if i == len(parts) - 1 else 0, 1, part)
        for i, part in enumerate(parts)
    )


async def _status(reader: asyncio.StreamReader) -> int:
    """The status in the answer's trailers: a literal header field in gRPC's own encoder."""
    heard, name = b"", b"grpc-status"
    async with asyncio.timeout(10):
        while True:
            value = heard.partition(name)[2]
            if value and len(value) > value[0]:
                return int(value[1 : 1 + value[0]])
            data = await reader.read(4096)
            assert data, "closed without an answer"
            heard += data


# files of tokens and certificates


def write(path: Path, content: str | bytes) -> str:
    """Replace a file in one step, as those who deliver secrets do; its name."""
    new = path.with_name(path.name + ".new")
    new.write_bytes(content.encode() if isinstance(content, str) else content)
    new.rename(path)
    return str(path)
