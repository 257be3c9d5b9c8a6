"""Connections: their cap, what idle ones cost, and how they are asked to move on."""

import asyncio
import gc
import resource
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing

import grpc
import pytest

from pipeline.errors import ConfigError
from pipeline.receive.config import ReceiveConfig
from pipeline.receive.intake import Intake
from pipeline.receive.otlp_grpc import OtlpGrpcServer
from pipeline.telemetry import Telemetry
from tests.receive.serving import PREFACE, SETTINGS, Running, Sink, export, serving
from tests.receive.test_encodings import resident_bytes

MAX_RSS_PER_CONNECTION = 100 << 10


@pytest.mark.parametrize("n", [500, 2000])
async def test_idle_connections_cost_little_and_the_cap_is_honoured(n: int) -> None:
    needed = 2 * n + 300  # both ends of each are in this process
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < needed:
        pytest.skip(f"needs {needed} file descriptors; the hard limit is {hard}")
    if soft < needed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
    async with serving(max_connections=n + 1) as running:
        await running.export(b"before")
        gc.collect()
        before = resident_bytes()
        idle: list[socket.socket] = []
        try:
            for _ in range(n):
                idle.append(await idle_connection(running))  # noqa: PERF401  # closed if one fails
            grown = resident_bytes() - before
            await running.export(b"beside them")
            async with running.connect() as one_more:
                with pytest.raises(grpc.aio.AioRpcError) as error:
                    await export(one_more, b"beyond", timeout=5)
        finally:
            for connection in idle:
                connection.close()
        assert error.value.code() is grpc.StatusCode.UNAVAILABLE
        assert grown / n < MAX_RSS_PER_CONNECTION
        assert [export.body for export in running.sink.exports] == [b"before", b"beside them"]


async def idle_connection(running: Running) -> socket.socket:
    """A connection that HTTP/2 is up on, and nothing else."""
    event_loop = asyncio.get_running_loop()
    connection = socket.socket()
    connection.setblocking(False)
    await event_loop.sock_connect(connection, ("127.0.0.1", running.port))
    await event_loop.sock_sendall(connection, PREFACE + SETTINGS)
    assert await event_loop.sock_recv(connection, 4096)
    return connection


async def test_a_busy_sender_is_asked_to_reconnect_and_loses_nothing() -> None:
    async with serving(max_connection_age_s=1.0) as running, counting(running) as relay:
        channel = grpc.aio.insecure_channel(relay.address)
        sent = 0
        async with channel, asyncio.timeout(60):
            while relay.connections < 3:
                await asyncio.gather(*(export(channel, b"x") for _ in range(4)))
                sent += 4
                await asyncio.sleep(0.01)
        assert len(running.sink.exports) == sent


class Relay:
    """Counts the connections that go through it."""

    def __init__(self, port: int) -> None:
        self.address = f"127.0.0.1:{port}"
        self.connections = 0


@asynccontextmanager
async def counting(running: Running) -> AsyncIterator[Relay]:
    tasks: list[asyncio.Task[None]] = []

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with closing(writer):
            while data := await reader.read(1 << 16):
                writer.write(data)

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        relay.connections += 1
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", running.port)
        tasks.append(asyncio.create_task(pump(reader, far_writer)))
        tasks.append(asyncio.create_task(pump(far_reader, writer)))

    listener = await asyncio.start_server(accept, "127.0.0.1", 0)
    relay = Relay(listener.sockets[0].getsockname()[1])
    try:
        yield relay
    finally:
        listener.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await listener.wait_closed()


async def test_two_servers_share_a_port_only_when_told_to_and_their_counts_add_up() -> None:
    async with serving() as running:
        with pytest.raises(ConfigError, match="taken"):
            await again(running.address)[0].start()
    first, first_sink = again("127.0.0.1:0")
    second, second_sink = again(address := await first.start())
    await second.start()
    try:
        for _ in range(20):
            options = [("grpc.use_local_subchannel_pool", 1)]
            async with grpc.aio.insecure_channel(address, options=options) as channel:
                await export(channel, b"x")
        assert len(first_sink.exports) + len(second_sink.exports) == 20
    finally:
        await first.stop(0)
        await second.stop(0)


def again(address: str) -> tuple[OtlpGrpcServer, Sink]:
    """A server of its own for `address`, which others may share."""
    sink = Sink()
    intake = Intake(ReceiveConfig(listen=address), sink.submit, Telemetry())
    return OtlpGrpcServer(intake, reuse_port=True), sink
