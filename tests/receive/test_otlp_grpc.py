"""A real gRPC client against a real server on a free port."""

import asyncio
import random
import resource
import socket
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import grpc
import pytest
import structlog
from google.rpc import error_details_pb2, status_pb2  # type: ignore[import-untyped]  # no stubs
from grpc_health.v1 import health_pb2, health_pb2_grpc
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2

from pipeline.errors import ConfigError, DependencyLost, Overloaded, Rejected
from pipeline.model import Client, Export, OtlpSignal, Receipt
from pipeline.receive.google_rpc import RETRY_INFO, STATUS_DETAILS
from pipeline.receive.otlp_grpc import MIB, SERVICES, OtlpGrpcServer, ReceiveConfig, server_options
from pipeline.telemetry import Telemetry

pytestmark = pytest.mark.asyncio

Call = tuple[OtlpSignal, bytes, str]
RETRYABLE = {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED}
NO_LIMIT = [("grpc.max_send_message_length", -1)]


class Sink:
    """Where the server submits: keeps what it got and answers as told."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.answer: Receipt | Exception = Receipt()
        self.gate: asyncio.Event | None = None
        self.entered = asyncio.Event()

    async def submit(self, export: Export, client: Client) -> Receipt:
        self.calls.append((export.signal, export.body, client.peer))
        self.entered.set()
        if self.gate is not None:
            await self.gate.wait()
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


class Running:
    """A started server, its sink and a channel to it."""

    def __init__(self, server: OtlpGrpcServer, sink: Sink, telemetry: Telemetry, address: str):
        self.server = server
        self.sink = sink
        self.telemetry = telemetry
        self.address = address
        self.channel = grpc.aio.insecure_channel(address, options=NO_LIMIT)

    async def export(
        self, body: bytes = b"", signal: OtlpSignal = OtlpSignal.TRACES, **more: Any
    ) -> bytes:
        answer: bytes = await self.method(signal)(body, **{"timeout": 10, **more})
        return answer

    def method(self, signal: OtlpSignal = OtlpSignal.TRACES) -> Callable[..., Any]:
        made: Callable[..., Any] = self.channel.unary_unary(f"/{SERVICES[signal]}/Export")
        return made

    async def refused(self, body: bytes = b"", **more: Any) -> grpc.aio.AioRpcError:
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await self.export(body, **more)
        return error.value

    def value(self, name: str, **labels: str) -> float:
        return self.telemetry.registry.get_sample_value(f"tailrace_{name}", labels) or 0.0


@asynccontextmanager
async def serving(**settings: Any) -> AsyncIterator[Running]:
    telemetry, sink = Telemetry(), Sink()
    config = ReceiveConfig(**{"listen": "127.0.0.1:0", **settings})
    server = OtlpGrpcServer(config, sink.submit, telemetry, random.Random(5))
    running = Running(server, sink, telemetry, await server.start())
    try:
        yield running
    finally:
        await running.channel.close()
        await server.stop(1.0)


def trailers(error: grpc.aio.AioRpcError) -> dict[str, Any]:
    return dict(error.trailing_metadata())


@pytest.mark.parametrize("signal", list(OtlpSignal))
async def test_every_signal_is_handed_over_with_its_bytes_and_the_peer_without_port(
    signal: OtlpSignal,
) -> None:
    async with serving() as running:
        assert await running.export(b"body", signal) == b""
        assert running.sink.calls == [(signal, b"body", "127.0.0.1")]
        assert running.value("received_requests_total", signal=signal.value, outcome="ok") == 1
        assert running.value("received_bytes_total", signal=signal.value) == 4


async def test_partial_success_is_told_with_its_exact_count() -> None:
    async with serving() as running:
        running.sink.answer = Receipt(300, "no time: 300")
        answer = await running.export(b"x", OtlpSignal.METRICS)
        parsed = metrics_service_pb2.ExportMetricsServiceResponse.FromString(answer)
        assert parsed.partial_success.rejected_data_points == 300
        assert parsed.partial_success.error_message == "no time: 300"


async def test_bad_data_is_invalid_argument_with_a_bad_request() -> None:
    async with serving() as running:
        running.sink.answer = Rejected("malformed", "not a valid OTLP traces request")
        error = await running.refused(b"x")
        assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
        status = status_pb2.Status.FromString(trailers(error)[STATUS_DETAILS])
        assert (status.code, status.message) == (3, "not a valid OTLP traces request")
        detail = error_details_pb2.BadRequest()
        assert status.details[0].Unpack(detail)
        assert detail.field_violations[0].description == "not a valid OTLP traces request"
        assert running.value("received_requests_total", signal="traces", outcome="rejected") == 1


@pytest.mark.parametrize(
    ("fault", "low_s", "high_s", "outcome"),
    [
        (Overloaded("queue", 2.5), 2.5, 2.5, "overloaded"),
        (DependencyLost("secret detail"), 1.0, 5.0, "failed"),
        (RuntimeError("secret detail"), 1.0, 5.0, "failed"),
    ],
)
async def test_every_other_failure_is_unavailable_with_both_retry_trailers(
    fault: Exception, low_s: float, high_s: float, outcome: str
) -> None:
    async with serving() as running:
        running.sink.answer = fault
        with structlog.testing.capture_logs() as logs:
            error = await running.refused(b"x")
        assert error.code() is grpc.StatusCode.UNAVAILABLE
        assert "secret" not in str(error)
        found = trailers(error)
        info = error_details_pb2.RetryInfo.FromString(found[RETRY_INFO])
        delay_s = info.retry_delay.seconds + info.retry_delay.nanos / 1e9
        assert low_s <= delay_s <= high_s
        status = status_pb2.Status.FromString(found[STATUS_DETAILS])
        same = error_details_pb2.RetryInfo()
        assert status.code == 14 and status.details[0].Unpack(same) and same == info
        assert running.value("received_requests_total", signal="traces", outcome=outcome) == 1
        assert len(logs) == isinstance(fault, RuntimeError)


async def test_overload_refuses_with_differing_delays_and_nothing_else_is_lost() -> None:
    settings = {"max_message_bytes": MIB, "max_bytes_in_flight": MIB, "max_bytes_waiting": 0}
    async with serving(**settings) as running:
        running.sink.gate = asyncio.Event()
        first = asyncio.ensure_future(running.export(bytes(MIB - 100)))
        await running.sink.entered.wait()
        errors = [await running.refused(bytes(1000)) for _ in range(3)]
        assert {error.code() for error in errors} == {grpc.StatusCode.UNAVAILABLE}
        assert len({trailers(error)[RETRY_INFO] for error in errors}) == 3
        running.sink.gate.set()
        assert await first == b""
        assert await running.export(bytes(1000)) == b""
        assert [len(body) for _, body, _ in running.sink.calls] == [MIB - 100, 1000]
        assert running.value("dropped_total", stage="receive", reason="bytes_in_flight") == 3


@pytest.mark.parametrize("compression", [grpc.Compression.NoCompression, grpc.Compression.Gzip])
async def test_4_mib_and_more_is_accepted_and_more_than_64_mib_refused(
    compression: grpc.Compression,
) -> None:
    async with serving() as running:
        body = bytes(4 * MIB + 1)
        assert await running.export(body, compression=compression) == b""
        assert running.sink.calls[0][1] == body
        error = await running.refused(bytes(64 * MIB + 1), compression=compression)
        assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        await eventually(lambda: running.value("prehandler_failures_total") == 1)


BOMB = """
import sys, grpc
with grpc.insecure_channel(sys.argv[1], options=[("grpc.max_send_message_length", -1)]) as channel:
    call = channel.unary_unary(sys.argv[2])
    try:
        call(bytes(200 << 20), compression=grpc.Compression.Gzip, timeout=60)
    except grpc.RpcError as error:
        print(error.code().name)
"""


async def test_a_decompression_bomb_is_refused_and_leaves_memory_flat() -> None:
    async with serving(max_message_bytes=4 * MIB) as running:
        await running.export(b"warm")
        before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        sender = await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            BOMB,
            running.address,
            f"/{SERVICES[OtlpSignal.TRACES]}/Export",
            stdout=asyncio.subprocess.PIPE,
        )
        output, _ = await sender.communicate()
        grown_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib
        assert output.decode().split() == ["RESOURCE_EXHAUSTED"]
        assert grown_kib < 60 * 1024
        await eventually(lambda: running.value("prehandler_failures_total") == 1)


@asynccontextmanager
async def corrupting_relay(target: str, find: bytes, put: bytes) -> AsyncIterator[str]:
    """A TCP relay to `target` that replaces `find` in what the client sends; its address."""
    host, _, port = target.rpartition(":")
    tasks: list[asyncio.Task[None]] = []
    writers: list[asyncio.StreamWriter] = []

    async def pump(
        source: asyncio.StreamReader, sink: asyncio.StreamWriter, find: bytes, put: bytes
    ) -> None:
        while data := await source.read(65536):
            sink.write(data.replace(find, put))

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection(host, int(port))
        writers.extend((writer, far_writer))
        tasks.append(asyncio.create_task(pump(reader, far_writer, find, put)))
        tasks.append(asyncio.create_task(pump(far_reader, writer, b"", b"")))

    listener = await asyncio.start_server(relay, "127.0.0.1", 0)
    try:
        yield f"127.0.0.1:{listener.sockets[0].getsockname()[1]}"
    finally:
        listener.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for writer in writers:
            writer.close()
        await asyncio.gather(*(w.wait_closed() for w in writers), listener.wait_closed())


async def test_corrupt_gzip_is_internal_and_counted_though_no_handler_ran() -> None:
    async with serving() as running, corrupting_relay(running.address, b"\x1f\x8b", b"??") as relay:
        with structlog.testing.capture_logs() as logs:
            async with grpc.aio.insecure_channel(relay) as channel:
                export = channel.unary_unary(f"/{SERVICES[OtlpSignal.LOGS]}/Export")
                with pytest.raises(grpc.aio.AioRpcError) as error:
                    await export(bytes(10_000), compression=grpc.Compression.Gzip, timeout=10)
            await eventually(lambda: running.value("prehandler_failures_total") == 1)
        assert error.value.code() is grpc.StatusCode.INTERNAL
        assert running.sink.calls == []
        assert [entry["event"] for entry in logs] == ["a sender's request cannot be read"]
        assert "grpc" in logs[0]["user_agent"]


@pytest.mark.parametrize("compression", list(grpc.Compression))
async def test_every_encoding_of_grpc_is_inflated(compression: grpc.Compression) -> None:
    async with serving() as running:
        await running.export(b"abc" * 5000, compression=compression)
        assert running.sink.calls[0][1] == b"abc" * 5000
        assert running.value("prehandler_failures_total") == 0


async def test_the_budget_returns_to_zero_after_the_sender_gave_up_and_the_work_ended() -> None:
    async with serving() as running:
        running.sink.gate = asyncio.Event()
        call = asyncio.ensure_future(running.export(bytes(500)))
        await running.sink.entered.wait()
        assert running.server.bytes_in_flight == 500
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        await eventually(
            lambda: running.value("received_requests_total", signal="traces", outcome="failed") == 1
        )
        assert running.server.bytes_in_flight == 500  # the batch is still held by the fold
        running.sink.gate.set()
        await eventually(lambda: running.server.bytes_in_flight == 0)
        assert running.value("bytes_in_flight") == 0


async def test_a_deadline_that_passes_during_the_work_frees_the_budget_too() -> None:
    async with serving() as running:
        running.sink.gate = asyncio.Event()
        error = await running.refused(bytes(500), timeout=0.2)
        assert error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        running.sink.gate.set()
        await eventually(lambda: running.server.bytes_in_flight == 0)


async def test_stopping_completes_what_runs_and_refuses_what_comes_late() -> None:
    async with serving() as running:
        running.sink.gate = asyncio.Event()
        call = asyncio.ensure_future(running.export(b"x"))
        await running.sink.entered.wait()
        stopping = asyncio.create_task(running.server.stop(10))
        late = await running.refused(b"y", timeout=5)
        assert late.code() in RETRYABLE
        assert not stopping.done()
        running.sink.gate.set()
        assert await call == b""
        await stopping
        assert (await running.refused(b"z", timeout=5)).code() is grpc.StatusCode.UNAVAILABLE
        assert len(running.sink.calls) == 1


async def test_stopping_waits_for_a_batch_whose_sender_has_left() -> None:
    async with serving() as running:
        running.sink.gate = asyncio.Event()
        call = asyncio.ensure_future(running.export(b"x"))
        await running.sink.entered.wait()
        call.cancel()
        stopping = asyncio.create_task(running.server.stop(10))
        await eventually(
            lambda: running.value("received_requests_total", signal="traces", outcome="failed") == 1
        )
        assert running.server.bytes_in_flight == 1
        running.sink.gate.set()
        await stopping
        assert running.server.bytes_in_flight == 0


async def test_stop_is_safe_twice_and_without_start() -> None:
    server = OtlpGrpcServer(ReceiveConfig(listen="127.0.0.1:0"), Sink().submit, Telemetry())
    await server.stop(0)
    await server.start()
    await server.stop(0)
    await server.stop(0)


async def test_health_is_serving_for_every_service() -> None:
    async with serving() as running:
        stub = health_pb2_grpc.HealthStub(running.channel)
        for service in ("", *SERVICES.values()):
            answer = await stub.Check(health_pb2.HealthCheckRequest(service=service))
            assert answer.status == health_pb2.HealthCheckResponse.SERVING


async def test_a_taken_port_is_a_config_error_that_names_the_address() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        server = OtlpGrpcServer(ReceiveConfig(listen=address), Sink().submit, Telemetry())
        with pytest.raises(ConfigError, match=address):
            await server.start()


async def test_a_second_server_on_the_same_port_is_refused() -> None:
    async with serving() as running:
        config = ReceiveConfig(listen=running.address)
        with pytest.raises(ConfigError, match="taken"):
            await OtlpGrpcServer(config, Sink().submit, Telemetry()).start()


PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
SETTINGS = bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))
PING = bytes((0, 0, 8, 6, 0, 0, 0, 0, 0)) + bytes(8)


@pytest.mark.parametrize(("interval_s", "closed"), [(0.1, False), (5.0, True)])
async def test_an_idle_sender_may_ping_as_often_as_configured(
    interval_s: float, closed: bool
) -> None:
    async with serving(min_ping_interval_s=interval_s) as running:
        reader, writer = await asyncio.open_connection(*running.address.split(":"))
        writer.write(PREFACE + SETTINGS)
        heard = b""
        for _ in range(6):
            writer.write(PING)
            with suppress(TimeoutError):  # what else the server has to say, until the next ping
                async with asyncio.timeout(0.2):
                    while data := await reader.read(4096):
                        heard += data
            if writer.is_closing() or reader.at_eof():
                break
        assert (b"too_many_pings" in heard) is closed
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"listen": "0.0.0.0:4317"}, "plaintext_off_loopback"),
        ({"listen": "example.org:4317"}, "plaintext_off_loopback"),
        ({"listen": "4317"}, "not host:port"),
        ({"listen": "127.0.0.1:99999"}, "not host:port"),
        ({"max_bytes_in_flight": MIB}, "max_bytes_in_flight"),
    ],
)
async def test_a_setting_that_cannot_work_is_a_config_error(
    settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        OtlpGrpcServer(ReceiveConfig(**settings), Sink().submit, Telemetry())


@pytest.mark.parametrize("listen", ["0.0.0.0:0", "[::]:0"])
async def test_off_loopback_plaintext_is_a_choice(listen: str) -> None:
    config = ReceiveConfig(listen=listen, plaintext_off_loopback=True)
    OtlpGrpcServer(config, Sink().submit, Telemetry())


async def test_the_connection_cap_is_honoured() -> None:
    async with serving(max_connections=1) as running:
        await running.export(b"x")
        async with grpc.aio.insecure_channel(
            running.address, options=[("grpc.use_local_subchannel_pool", 1)]
        ) as second:
            export = second.unary_unary(f"/{SERVICES[OtlpSignal.TRACES]}/Export")
            with pytest.raises(grpc.aio.AioRpcError) as error:
                await export(b"y", timeout=5)
        assert error.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_every_setting_of_a_connection_reaches_grpc() -> None:
    changed = ReceiveConfig(
        max_message_bytes=2 * MIB,
        max_connections=7,
        max_streams_per_connection=3,
        min_ping_interval_s=9,
        keepalive_interval_s=11,
        keepalive_timeout_s=12,
        max_connection_idle_s=13,
        max_connection_age_s=14,
        max_connection_age_grace_s=15,
    )
    differ = dict(server_options(changed)).items() - dict(server_options(ReceiveConfig())).items()
    assert sorted(value for _, value in differ) == [
        3,
        7,
        9000,
        11000,
        12000,
        13000,
        14000,
        15000,
        2 * MIB,
    ]


async def eventually(is_so: Callable[[], bool]) -> None:
    """Wait for the server's side of an RPC whose client has its answer already."""
    async with asyncio.timeout(10):
        while not is_so():
            await asyncio.sleep(0)
