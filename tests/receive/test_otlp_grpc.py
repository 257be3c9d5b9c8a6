"""A real gRPC client against a real server on a free port."""

import asyncio
import socket
from contextlib import suppress
from typing import Any

import grpc
import pytest
import structlog
from google.rpc import error_details_pb2, status_pb2  # type: ignore[import-untyped]  # no stubs
from grpc_health.v1 import health_pb2, health_pb2_grpc
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2

from pipeline.errors import ConfigError, DependencyLost, Overloaded, Rejected
from pipeline.model import Client, OtlpSignal, Receipt
from pipeline.receive.config import MIB, ReceiveConfig
from pipeline.receive.google_rpc import RETRY_INFO, STATUS_DETAILS
from pipeline.receive.intake import Intake
from pipeline.receive.otlp_grpc import SERVICES, OtlpGrpcServer, server_options
from pipeline.telemetry import Telemetry
from tests.receive.serving import (
    PING,
    PREFACE,
    SETTINGS,
    Sink,
    eventually,
    serving,
    trailers,
)

pytestmark = pytest.mark.asyncio

RETRYABLE = {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED}


def server_of(config: ReceiveConfig) -> OtlpGrpcServer:
    return OtlpGrpcServer(Intake(config, Sink().submit, Telemetry()))


@pytest.mark.parametrize("signal", list(OtlpSignal))
async def test_every_signal_is_handed_over_with_its_bytes_and_the_peer_without_port(
    signal: OtlpSignal,
) -> None:
    async with serving() as running:
        assert await running.export(b"body", signal) == b""
        exported = running.sink.exports[0]
        assert (exported.signal, exported.body, exported.max_bytes) == (signal, b"body", 4)
        assert running.sink.clients == [Client("127.0.0.1")]
        assert running.value("transport_requests_total", transport="grpc") == 1
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
    async with serving(
        max_message_bytes=MIB, max_bytes_in_flight=MIB, max_bytes_waiting=0
    ) as running:
        running.sink.gate = asyncio.Event()
        first = asyncio.ensure_future(running.export(bytes(MIB - 100)))
        await running.sink.entered.wait()
        errors = [await running.refused(bytes(1000)) for _ in range(3)]
        assert {error.code() for error in errors} == {grpc.StatusCode.UNAVAILABLE}
        assert len({trailers(error)[RETRY_INFO] for error in errors}) == 3
        running.sink.gate.set()
        assert await first == b""
        assert await running.export(bytes(1000)) == b""
        assert [len(export.body) for export in running.sink.exports] == [MIB - 100, 1000]
        assert running.value("dropped_total", stage="receive", reason="bytes_in_flight") == 3


async def test_the_budget_returns_to_zero_after_the_sender_gave_up_and_the_work_ended() -> None:
    async with serving() as running:
        running.sink.gate = asyncio.Event()
        call = asyncio.ensure_future(running.export(bytes(500)))
        await running.sink.entered.wait()
        assert running.intake.bytes_in_flight == 500
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        await eventually(
            lambda: running.value("received_requests_total", signal="traces", outcome="failed") == 1
        )
        assert running.intake.bytes_in_flight == 500  # the batch is still held by the fold
        running.sink.gate.set()
        await eventually(lambda: running.intake.bytes_in_flight == 0)
        assert running.value("bytes_in_flight") == 0


async def test_a_deadline_that_passes_during_the_work_frees_the_budget_too() -> None:
    async with serving() as running:
        running.sink.gate = asyncio.Event()
        error = await running.refused(bytes(500), timeout=0.2)
        assert error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        running.sink.gate.set()
        await eventually(lambda: running.intake.bytes_in_flight == 0)


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
        assert len(running.sink.exports) == 1


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
        assert running.intake.bytes_in_flight == 1
        running.sink.gate.set()
        await stopping
        assert running.intake.bytes_in_flight == 0


async def test_stop_is_safe_twice_and_without_start() -> None:
    server = server_of(ReceiveConfig(listen="127.0.0.1:0"))
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
        server = server_of(ReceiveConfig(listen=address))
        with pytest.raises(ConfigError, match=address):
            await server.start()


async def test_a_second_server_on_the_same_port_is_refused() -> None:
    async with serving() as running:
        config = ReceiveConfig(listen=running.address)
        with pytest.raises(ConfigError, match="taken"):
            await server_of(config).start()


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
        server_of(ReceiveConfig(**settings))


@pytest.mark.parametrize("listen", ["0.0.0.0:0", "[::]:0"])
async def test_off_loopback_plaintext_is_a_choice(listen: str) -> None:
    config = ReceiveConfig(listen=listen, plaintext_off_loopback=True)
    server_of(config)


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
