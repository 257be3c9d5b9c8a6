"""OTLP over gRPC: raw request bodies in, answers that senders can act on out.

An empty answer means that the whole batch was folded. Bad data is INVALID_ARGUMENT (do not retry);
everything else that goes wrong is UNAVAILABLE with RetryInfo (retry later), never UNKNOWN, and no
text of an exception leaves the process. Export is one request and one answer; it is served as a
stream of requests, of which the first is read, so that a sender is known before its body is read.
"""

import asyncio
from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from typing import Any, Final

import grpc
import structlog
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from pipeline.address import peer_host, split_listen
from pipeline.errors import ConfigError, DependencyLost, Overloaded, Rejected, Unauthenticated
from pipeline.model import Client, Export, OtlpSignal, Receipt
from pipeline.receive.charge import TOO_LARGE, sniff
from pipeline.receive.config import MIB, ReceiveConfig
from pipeline.receive.google_rpc import (
    Trailers,
    bad_request_trailers,
    partial_success,
    retry_trailers,
)
from pipeline.receive.grpc_uploads import GrpcUploads
from pipeline.receive.intake import Intake
from pipeline.receive.tls import name_in_grpc
from pipeline.receive.unreadable import UnreadableSenders

_COLLECTOR: Final = "opentelemetry.proto.collector"
SERVICES: Final[Mapping[OtlpSignal, str]] = {
    OtlpSignal.TRACES: f"{_COLLECTOR}.trace.v1.TraceService",
    OtlpSignal.METRICS: f"{_COLLECTOR}.metrics.v1.MetricsService",
    OtlpSignal.LOGS: f"{_COLLECTOR}.logs.v1.LogsService",
    OtlpSignal.PROFILES: f"{_COLLECTOR}.profiles.v1development.ProfilesService",
}

_MAX_MESSAGE_CHARS: Final = 1024
"""Of a partial success: OTLP wants answers bounded."""
_PEERS_REMEMBERED: Final = 4096
"""Connections whose peer's spelling is parsed only once."""

_INVALID_ARGUMENT: Final = grpc.StatusCode.INVALID_ARGUMENT
_RESOURCE_EXHAUSTED: Final = grpc.StatusCode.RESOURCE_EXHAUSTED
_UNAUTHENTICATED: Final = grpc.StatusCode.UNAUTHENTICATED
_UNAVAILABLE: Final = grpc.StatusCode.UNAVAILABLE

log = structlog.get_logger()


class OtlpGrpcServer:
    """`start` once; `stop` is safe twice, and without `start`. For one event loop."""

    def __init__(self, intake: Intake, *, reuse_port: bool = False) -> None:
        """Nothing is opened yet. `reuse_port` lets several processes share the address."""
        self._intake = intake
        self._config = intake.config
        self._reuse_port = reuse_port
        self._unreadable = UnreadableSenders(intake.telemetry)
        self._uploads = GrpcUploads(intake)
        self._watching: asyncio.Task[None] | None = None
        self._peer_host = lru_cache(_PEERS_REMEMBERED)(peer_host)
        self._health = health.aio.HealthServicer()
        self._server: grpc.aio.Server | None = None

    async def start(self) -> str:
        """Open the port and serve; the bound address. `ConfigError` when it cannot be had."""
        listen = self._config.listen
        server = grpc.aio.server(options=server_options(self._config, reuse_port=self._reuse_port))
        server.add_generic_rpc_handlers((_Exports(self._export, self._unreadable),))
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        try:
            port = self._open(server, listen)
        except RuntimeError as error:
            raise ConfigError(f"receive.listen: {listen} is taken or not ours") from error
        await server.start()
        self._server = server
        self._watching = asyncio.get_running_loop().create_task(self._uploads.watch())
        await self._set_health(health_pb2.HealthCheckResponse.SERVING)
        if listen.startswith("unix:"):
            return listen
        return f"{split_listen('receive.listen', listen)[0]}:{port}"

    async def stop(self, grace_s: float) -> None:
        """Refuse new requests, finish running ones for at most `grace_s`, then close."""
        if self._server is None:
            return
        server, self._server = self._server, None
        await self._set_health(health_pb2.HealthCheckResponse.NOT_SERVING)
        await server.stop(grace_s)
        if self._watching is not None:
            self._watching.cancel()
        await self._intake.drained(grace_s)

    def _open(self, server: grpc.aio.Server, listen: str) -> int:
        tls = self._intake.tls
        if tls is None:
            return int(server.add_insecure_port(listen))
        return int(server.add_secure_port(listen, tls.grpc_credentials()))

    async def _set_health(self, status: int) -> None:
        for service in ("", *SERVICES.values()):
            await self._health.set(service, status)

    async def _export(self, signal: OtlpSignal, _requests: object, context: Any) -> bytes:
        try:
            receipt = await self._receive(signal, context)
        except Unauthenticated:
            self._unreadable.is_over()
            return _refuse(context, _UNAUTHENTICATED, "no valid bearer token", ())
        except Rejected as error:
            return _reject(context, error)
        except Overloaded as error:
            return _retry(context, "overloaded, retry later", error.retry_after_s)
        except DependencyLost:
            return _retry(context, "not ready, retry later", self._intake.retry_after_s())
        except Exception:  # one of the two supervisors: an unknown fault must not lose the batch
            log.exception("request failed", signal=signal.value)
            return _retry(context, "internal fault, retry later", self._intake.retry_after_s())
        return _told(receipt)

    async def _receive(self, signal: OtlpSignal, context: Any) -> Receipt:
        """Authenticate, read, hand over."""
        client = self._client(context)
        try:
            body = await self._uploads.read(context)
        except Overloaded as error:
            self._unreadable.is_over()
            self._intake.refused_unread(signal, error)
            raise
        remaining_s = context.time_remaining()
        if body is grpc.aio.EOF:
            if remaining_s is None or remaining_s > 0:
                await asyncio.sleep(0)  # gRPC cancels this task, unless there was no request at all
                raise Rejected("no_request", "no request")
            body = b""  # its sender's time was over before all of it was here
        self._unreadable.is_over()
        export = Export(signal, body, sniff(body))
        return await self._intake.accept(export, client, remaining_s=remaining_s)

    def _client(self, context: Any) -> Client:
        intake = self._intake
        authorization = certificate = ""
        if intake.asks_token:
            authorization = _header(context.invocation_metadata(), "authorization")
        if intake.asks_certificate:
            certificate = name_in_grpc(context.auth_context())
        return intake.authenticate(self._peer_host(context.peer()), authorization, certificate)


class _Exports(grpc.GenericRpcHandler):  # type: ignore[misc]  # grpc has no types
    """Finds the handler of a request, and tells that it began."""

    def __init__(self, export: Callable[..., Any], unreadable: UnreadableSenders) -> None:
        self._handlers = {
            f"/{service}/Export": grpc.stream_unary_rpc_method_handler(partial(export, signal))
            for signal, service in SERVICES.items()
        }
        self._unreadable = unreadable

    def service(self, details: Any) -> Any:
        """Runs for every request, before its body is read, in the task that serves it."""
        handler = self._handlers.get(details.method)
        if handler is not None:
            self._unreadable.begins(details.invocation_metadata)
        return handler


def server_options(config: ReceiveConfig, *, reuse_port: bool = False) -> list[tuple[str, int]]:
    """The gRPC server's options; gRPC ignores a name that it does not know without a word."""
    return [
        ("grpc.so_reuseport", int(reuse_port)),
        ("grpc.per_message_decompression", 0),  # the decoder inflates, faster and under its caps
        ("grpc.max_receive_message_length", config.max_message_bytes),
        ("grpc.max_send_message_length", 4 * MIB),
        ("grpc.max_concurrent_streams", config.max_streams_per_connection),
        ("grpc.max_allowed_incoming_connections", config.max_connections),
        ("grpc.server_handshake_timeout_ms", _ms(config.http.header_timeout_s)),
        ("grpc.http2.min_ping_interval_without_data_ms", _ms(config.min_ping_interval_s)),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.keepalive_time_ms", _ms(config.keepalive_interval_s)),
        ("grpc.keepalive_timeout_ms", _ms(config.keepalive_timeout_s)),
        ("grpc.max_connection_idle_ms", _ms(config.max_connection_idle_s)),
        ("grpc.max_connection_age_ms", _ms(config.max_connection_age_s)),
        ("grpc.max_connection_age_grace_ms", _ms(config.max_connection_age_grace_s)),
    ]


def _ms(seconds: float) -> int:
    return round(1000 * seconds)


def _header(metadata: Any, name: str) -> str:
    for key, value in metadata or ():
        if key == name:
            return str(value)
    return ""


def _told(receipt: Receipt) -> bytes:
    if not receipt.rejected and not receipt.message:
        return b""
    return partial_success(receipt.rejected, receipt.message[:_MAX_MESSAGE_CHARS])


def _reject(context: Any, error: Rejected) -> bytes:
    """Answer INVALID_ARGUMENT, or RESOURCE_EXHAUSTED without RetryInfo: the batch is dropped."""
    code = _RESOURCE_EXHAUSTED if error.reason == TOO_LARGE else _INVALID_ARGUMENT
    trailers = bad_request_trailers(code.value[0], error.description, error.reason)
    return _refuse(context, code, error.description, trailers)


def _retry(context: Any, message: str, retry_after_s: float) -> bytes:
    """Answer UNAVAILABLE with a delay: the sender tries again."""
    trailers = retry_trailers(_UNAVAILABLE.value[0], message, retry_after_s)
    return _refuse(context, _UNAVAILABLE, message, trailers)


def _refuse(context: Any, code: grpc.StatusCode, message: str, trailers: Trailers) -> bytes:
    """Set what the sender is told; with such a code gRPC sends no message. Cheaper than abort."""
    context.set_code(code)
    context.set_details(message)
    context.set_trailing_metadata(trailers)
    return b""
