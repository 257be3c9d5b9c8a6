"""OTLP over gRPC: raw request bodies in, answers that senders can act on out.

An empty answer means that the whole batch was folded. Bad data is INVALID_ARGUMENT (do not retry);
everything else that goes wrong is UNAVAILABLE with RetryInfo (retry later), never UNKNOWN, and no
text of an exception leaves the process. Bytes count against the budget until the batch is folded,
also when the sender has left before.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Annotated, Any, Final, NoReturn, TypeAlias

import grpc
import msgspec
import structlog
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from pipeline.address import is_loopback, peer_host, split_listen
from pipeline.errors import ConfigError, DependencyLost, Overloaded, Rejected
from pipeline.model import Client, Config, Export, OtlpSignal, Receipt
from pipeline.receive.admission import Admission, Limits
from pipeline.receive.google_rpc import bad_request_trailers, partial_success, retry_trailers
from pipeline.telemetry import Telemetry

Submit: TypeAlias = Callable[[Export, Client], Awaitable[Receipt]]
"""(request, who sent it) -> what the sender is told, once the batch is decoded and folded."""

_COLLECTOR: Final = "opentelemetry.proto.collector"
SERVICES: Final[Mapping[OtlpSignal, str]] = {
    OtlpSignal.TRACES: f"{_COLLECTOR}.trace.v1.TraceService",
    OtlpSignal.METRICS: f"{_COLLECTOR}.metrics.v1.MetricsService",
    OtlpSignal.LOGS: f"{_COLLECTOR}.logs.v1.LogsService",
    OtlpSignal.PROFILES: f"{_COLLECTOR}.profiles.v1development.ProfilesService",
}

MIB: Final = 1 << 20
_MAX_MESSAGE_CHARS: Final = 1024
"""Of a partial success: OTLP wants answers bounded."""

_MAX_SENDERS_NAMED: Final = 32
"""User agents that are named in a log line for sending what cannot be read."""

_INVALID_ARGUMENT: Final = grpc.StatusCode.INVALID_ARGUMENT
_UNAVAILABLE: Final = grpc.StatusCode.UNAVAILABLE

_Seconds: TypeAlias = Annotated[float, msgspec.Meta(ge=1)]

log = structlog.get_logger()


class ReceiveConfig(Config, frozen=True, kw_only=True):
    """OTLP/gRPC: where to listen and what a sender may use."""

    listen: str = "127.0.0.1:4317"
    """host:port, or unix:/path; port 0 picks a free one."""
    plaintext_off_loopback: bool = False
    """Listen without TLS on an address that other machines reach."""
    max_message_bytes: Annotated[int, msgspec.Meta(ge=MIB)] = 64 * MIB
    """Largest request, inflated; a larger one is refused for good (RESOURCE_EXHAUSTED)."""
    max_bytes_in_flight: Annotated[int, msgspec.Meta(ge=MIB)] = 128 * MIB
    """Bytes of requests that are being decoded and folded; not below max_message_bytes."""
    max_bytes_waiting: Annotated[int, msgspec.Meta(ge=0)] = 32 * MIB
    """Bytes of requests that may wait for room; what comes on top is told to retry."""
    max_wait_s: Annotated[float, msgspec.Meta(ge=0, le=4)] = 0.5
    """How long a request waits for room before it is told to retry; senders give up after 5 s."""
    max_connections: Annotated[int, msgspec.Meta(ge=1)] = 2000
    """Open connections; a sender beyond sees UNAVAILABLE."""
    max_streams_per_connection: Annotated[int, msgspec.Meta(ge=1)] = 32
    """Concurrent requests of one connection; more queue at the sender."""
    min_ping_interval_s: Annotated[float, msgspec.Meta(ge=0.1)] = 5.0
    """A sender that sends keepalive pings faster than this is disconnected."""
    keepalive_interval_s: _Seconds = 60.0
    """An idle connection is pinged this often, to find peers that are gone."""
    keepalive_timeout_s: _Seconds = 20.0
    """A ping not answered in this time closes the connection."""
    max_connection_idle_s: _Seconds = 900.0
    """A connection without requests is closed after this."""
    max_connection_age_s: _Seconds = 600.0
    """A connection is asked to reconnect after this (+-10 %), so that new replicas get traffic."""
    max_connection_age_grace_s: _Seconds = 30.0
    """Time that its running requests then still have."""


class OtlpGrpcServer:
    """`start` once; `stop` is safe twice, and without `start`. For one event loop."""

    def __init__(
        self,
        config: ReceiveConfig,
        submit: Submit,
        telemetry: Telemetry,
        jitter: random.Random | None = None,
    ) -> None:
        """Check the configuration (`ConfigError`); nothing is opened yet."""
        check_config(config)
        self._config = config
        self._submit = submit
        self._telemetry = telemetry
        self._admission = Admission(
            Limits(config.max_bytes_in_flight, config.max_bytes_waiting, config.max_wait_s),
            random.Random() if jitter is None else jitter,  # noqa: S311  # spreads retries
        )
        self._work: set[asyncio.Future[Receipt]] = set()
        self._watch = PreHandlerWatch(telemetry)
        self._health = health.aio.HealthServicer()
        self._server: grpc.aio.Server | None = None

    @property
    def bytes_in_flight(self) -> int:
        """Admitted bytes that are not folded yet."""
        return self._admission.in_flight_bytes

    async def start(self) -> str:
        """Open the port and serve; the bound address. `ConfigError` when it cannot be had."""
        listen = self._config.listen
        server = grpc.aio.server(interceptors=[self._watch], options=server_options(self._config))
        for signal, service in SERVICES.items():
            handler = grpc.unary_unary_rpc_method_handler(partial(self._export, signal))
            server.add_generic_rpc_handlers(
                (grpc.method_handlers_generic_handler(service, {"Export": handler}),)
            )
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        try:
            port = server.add_insecure_port(listen)
        except RuntimeError as error:
            raise ConfigError(f"receive.listen: {listen} is taken or not ours") from error
        await server.start()
        self._server = server
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
        if self._work:  # senders that left before their batch was folded
            await asyncio.wait(self._work, timeout=grace_s)

    async def _set_health(self, status: int) -> None:
        for service in ("", *SERVICES.values()):
            await self._health.set(service, status)

    async def _export(self, signal: OtlpSignal, body: bytes, context: Any) -> bytes:
        self._watch.entered()
        try:
            receipt = await self._receive(signal, body, context)
        except Rejected as error:
            self._count(signal, "rejected")
            await _refuse(context, error)
        except Overloaded as error:
            self._count(signal, "overloaded", error.reason)
            await _retry(context, "overloaded, retry later", error.retry_after_s)
        except DependencyLost:
            self._count(signal, "failed")
            await _retry(context, "not ready, retry later", self._admission.retry_after_s())
        except asyncio.CancelledError:
            self._count(signal, "failed")
            raise
        except Exception:  # one of the two supervisors: an unknown fault must not lose the batch
            self._count(signal, "failed")
            log.exception("request failed", signal=signal.value)
            await _retry(context, "internal fault, retry later", self._admission.retry_after_s())
        self._count(signal, "ok")
        return partial_success(receipt.rejected, receipt.message[:_MAX_MESSAGE_CHARS])

    async def _receive(self, signal: OtlpSignal, body: bytes, context: Any) -> Receipt:
        """Admit, then submit; the budget is given back when the submitted work ends."""
        size = len(body)
        remaining_s = context.time_remaining()
        if remaining_s is not None and remaining_s <= 0:
            raise Overloaded("deadline", self._admission.retry_after_s())
        await self._admission.admit(size, remaining_s)
        self._telemetry.bytes_in_flight.set(self._admission.in_flight_bytes)
        self._telemetry.received_bytes_total.labels(signal.value).inc(size)
        client = Client(peer_host(context.peer()))
        work = asyncio.ensure_future(self._submit(Export(signal, body), client))
        self._work.add(work)
        work.add_done_callback(partial(self._worked, size))
        # A sender that leaves cancels this wait, not the work: no batch is folded by halves.
        return await asyncio.shield(work)

    def _worked(self, size: int, work: "asyncio.Future[Receipt]") -> None:
        self._work.discard(work)
        self._admission.release(size)
        self._telemetry.bytes_in_flight.set(self._admission.in_flight_bytes)
        if not work.cancelled():
            work.exception()  # seen, also when nobody waits for it any more

    def _count(self, signal: OtlpSignal, outcome: str, reason: str = "") -> None:
        self._telemetry.received_requests_total.labels(signal.value, outcome).inc()
        if reason:
            self._telemetry.dropped_total.labels("receive", reason).inc()


class PreHandlerWatch(grpc.aio.ServerInterceptor):  # type: ignore[misc]  # grpc has no types
    """Counts requests that began but never reached their handler: nothing else sees them.

    Unknown compression, corrupt gzip and oversize fail inside gRPC, and the sender drops the batch.
    """

    def __init__(self, telemetry: Telemetry) -> None:
        """Start with no request seen."""
        self._telemetry = telemetry
        self._began: dict[asyncio.Task[Any], str] = {}
        self._named: set[str] = set()

    async def intercept_service(self, continuation: Any, details: Any) -> Any:
        """Runs for every request, before its body is read, in the task that serves it."""
        task = asyncio.current_task()
        if task is not None and details.method.startswith(f"/{_COLLECTOR}"):
            self._began[task] = _user_agent(details.invocation_metadata)
            task.add_done_callback(self._ended)
        return await continuation(details)

    def entered(self) -> None:
        """The current request has reached its handler."""
        task = asyncio.current_task()
        if task is not None:
            self._began.pop(task, None)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        sender = self._began.pop(task, None)
        if sender is None:
            return
        self._telemetry.prehandler_failures_total.inc()
        if sender not in self._named and len(self._named) < _MAX_SENDERS_NAMED:
            self._named.add(sender)
            log.warning(
                "a sender's request cannot be read",
                user_agent=sender,
                hint="send with compression gzip or none, below max_message_bytes",
            )


def check_config(config: ReceiveConfig) -> None:
    """`ConfigError` for what field types cannot say."""
    if not config.listen.startswith("unix:"):
        split_listen("receive.listen", config.listen)
    if not (config.plaintext_off_loopback or is_loopback(config.listen)):
        raise ConfigError(
            f"receive.listen: {config.listen} is reachable from other machines without TLS;"
            " set receive.plaintext_off_loopback: true to accept that"
        )
    if config.max_bytes_in_flight < config.max_message_bytes:
        raise ConfigError(
            "receive.max_bytes_in_flight: below receive.max_message_bytes,"
            " so that the largest request could never be taken"
        )


def server_options(config: ReceiveConfig) -> list[tuple[str, int]]:
    """The gRPC server's options; gRPC ignores a name that it does not know without a word."""
    return [
        ("grpc.so_reuseport", 0),
        ("grpc.max_receive_message_length", config.max_message_bytes),
        ("grpc.max_send_message_length", 4 * MIB),
        ("grpc.max_concurrent_streams", config.max_streams_per_connection),
        ("grpc.max_allowed_incoming_connections", config.max_connections),
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


def _user_agent(metadata: Any) -> str:
    found = [value for key, value in metadata or () if key == "user-agent"]
    return str(found[0])[:128] if found else ""


async def _refuse(context: Any, error: Rejected) -> NoReturn:
    """Answer INVALID_ARGUMENT: the sender drops the batch."""
    code, message = _INVALID_ARGUMENT, error.description
    trailers = bad_request_trailers(code.value[0], message, error.reason)
    await context.abort(code, message, trailers)
    raise AssertionError("abort returned")


async def _retry(context: Any, message: str, retry_after_s: float) -> NoReturn:
    """Answer UNAVAILABLE with a delay: the sender tries again."""
    trailers = retry_trailers(_UNAVAILABLE.value[0], message, retry_after_s)
    await context.abort(_UNAVAILABLE, message, trailers)
    raise AssertionError("abort returned")
