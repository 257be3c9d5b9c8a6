"""The decision port: `Decisions` (Get, Watch), `Operator` and gRPC health on one `grpc.aio` server.

A watcher is a flag and the epoch it was sent last, never a queue: when its transport is ready again
it is sent the newest state, however many ticks were missed. Messages are encoded once for all
watchers that stand at the same epoch. Silence means loss: heartbeats fill quiet times.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final, TypeVar

import grpc
import structlog
from google.protobuf.message import DecodeError
from google.protobuf.message import Message as WireMessage
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from pipeline.address import is_loopback, split_listen
from pipeline.errors import ConfigError, DependencyLost, Overloaded, Rejected
from pipeline.journal import Operation
from pipeline.model import Override
from pipeline.publish.config import PublishConfig
from pipeline.publish.operate import (
    overrides_on_wire,
    remove_operation,
    set_operation,
    was_removed,
)
from pipeline.publish.records import Board, Message, Pools, Published, View
from pipeline.telemetry import Telemetry
from pipeline.wire import decisions_pb2 as wire

__all__ = ["DecisionsServer", "PublishConfig", "Watcher", "Watchers"]

DECISIONS: Final = "tailrace.v1.Decisions"
OPERATOR: Final = "tailrace.v1.Operator"
MAX_REQUEST_BYTES: Final = 64 * 1024
"""Requests are an override or a list of pools."""
MAX_POOLS: Final = 256
"""As many pools as a process keeps."""
KEEPALIVE_MS: Final = 20_000
"""How soon a peer that vanished without a word stops counting as a watcher."""

OPTIONS: Final = (
    ("grpc.so_reuseport", 0),
    ("grpc.max_receive_message_length", MAX_REQUEST_BYTES),
    ("grpc.keepalive_time_ms", KEEPALIVE_MS),
    ("grpc.keepalive_timeout_ms", KEEPALIVE_MS // 2),
    ("grpc.http2.min_ping_interval_without_data_ms", KEEPALIVE_MS // 4),
)

Operate = Callable[[Operation], Awaitable[tuple[Override, ...]]]
"""Carries an operation out on the loop thread; the overrides in force afterwards."""
Request = TypeVar("Request", bound=WireMessage)

log = structlog.get_logger()


class Watcher:
    """One Watch stream: what it wants to see and what it holds."""

    __slots__ = ("beat", "epoch", "instance", "pending", "pools", "view")

    def __init__(self, view: View, pools: Pools, instance: str, epoch: int) -> None:
        """It says that it holds `epoch` of `instance`; its first message is due at once."""
        self.view = view
        self.pools = pools
        self.instance = instance
        self.epoch = epoch
        self.beat = True
        self.pending = asyncio.Event()
        self.pending.set()

    def wake(self, *, beat: bool) -> None:
        """Let it look at the board; with `beat`, it is sent something even if nothing changed."""
        self.beat |= beat
        self.pending.set()


class Watchers:
    """All Watch streams of one server and the messages they share; for the event loop's thread."""

    def __init__(self, board: Board, telemetry: Telemetry) -> None:
        """Serve from `board`."""
        self._board = board
        self._telemetry = telemetry
        self._open: set[Watcher] = set()
        self._source: Published | None = None
        self._shared: dict[tuple[View, Pools, int], Message] = {}
        self._is_closed = False

    def __len__(self) -> int:
        """How many streams are open."""
        return len(self._open)

    def wake(self, *, beat: bool = False) -> None:
        """Let every watcher look at the board."""
        for watcher in self._open:
            watcher.wake(beat=beat)

    def close(self) -> None:
        """End every stream once what it is writing is written."""
        self._is_closed = True
        self.wake()

    async def serve(self, watcher: Watcher, write: Callable[[bytes], Awaitable[None]]) -> None:
        """Keep one watcher up to date until `close` or cancellation; `write` waits for its peer."""
        gauge = self._telemetry.watchers.labels(watcher.view.name.lower())
        self._open.add(watcher)
        gauge.inc()
        try:
            while not self._is_closed:
                await watcher.pending.wait()
                watcher.pending.clear()
                await self._send(watcher, write)
        finally:
            self._open.discard(watcher)
            gauge.dec()

    async def _send(self, watcher: Watcher, write: Callable[[bytes], Awaitable[None]]) -> None:
        published = self._board.published
        if published is None:
            return
        message = self._message(watcher, published)
        if message.kind == "heartbeat" and not watcher.beat:
            return
        watcher.beat = False
        await write(message.data)
        watcher.instance, watcher.epoch = published.instance, published.epoch
        self._telemetry.watch_sent_total.labels(message.kind).inc()
        self._telemetry.watch_bytes_total.inc(len(message.data))

    def _message(self, watcher: Watcher, published: Published) -> Message:
        if published is not self._source:
            self._source = published
            self._shared.clear()
        follows = published.can_follow(watcher.instance, watcher.epoch)
        key = (watcher.view, watcher.pools, watcher.epoch if follows else -1)
        message = self._shared.get(key)
        if message is None:
            message = (
                published.delta(watcher.view, watcher.pools, watcher.epoch)
                if follows
                else published.full(watcher.view, watcher.pools)
            )
            self._shared[key] = message
        return message


class DecisionsServer:
    """Serves a board until stopped. `start` and `stop` belong to one event loop."""

    def __init__(
        self, config: PublishConfig, board: Board, operate: Operate, telemetry: Telemetry
    ) -> None:
        """Nothing is bound yet. `ConfigError` for an address that may not be listened on."""
        self._host, _ = split_listen("publish.listen", config.listen)
        if not (config.plaintext_off_loopback or is_loopback(config.listen)):
            raise ConfigError(
                f"publish.listen: {config.listen} is reachable from other machines without "
                "authentication; set publish.plaintext_off_loopback to allow it"
            )
        self._config = config
        self._board = board
        self._operate = operate
        self._watchers = Watchers(board, telemetry)
        self._health = health.aio.HealthServicer()
        self._tasks: list[asyncio.Task[None]] = []
        self._server: Any = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._decided = asyncio.Event()
        self.address = config.listen
        """host:port as bound, after `start`."""

    async def start(self) -> str:
        """Bind and serve; the address as bound. `ConfigError` when it cannot be had."""
        self._server = grpc.aio.server(
            options=OPTIONS, maximum_concurrent_rpcs=self._config.max_watchers + 64
        )
        self._server.add_generic_rpc_handlers(self._handlers())
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        self.address = self._bind()
        await self._health.set("", health_pb2.HealthCheckResponse.SERVING)
        await self._health.set(DECISIONS, health_pb2.HealthCheckResponse.NOT_SERVING)
        await self._server.start()
        self._loop = asyncio.get_running_loop()
        self._board.subscribe(self._wake_from_any_thread)
        self._on_update()
        self._tasks = [
            asyncio.create_task(self._beat(), name="watch-heartbeat"),
            asyncio.create_task(self._announce(), name="watch-health"),
        ]
        return self.address

    async def stop(self, grace_s: float) -> None:
        """End streams, give other calls `grace_s`; safe twice and without `start`."""
        if self._server is None:
            return
        server, self._server = self._server, None
        self._board.unsubscribe(self._wake_from_any_thread)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._health.enter_graceful_shutdown()
        self._watchers.close()
        await server.stop(grace_s)

    def _bind(self) -> str:
        try:
            port = self._server.add_insecure_port(self._config.listen)
        except RuntimeError as error:
            raise ConfigError(f"publish.listen: cannot listen on {self._config.listen}") from error
        return f"{self._host}:{port}"

    def _handlers(self) -> tuple[Any, ...]:
        unary = grpc.unary_unary_rpc_method_handler
        return (
            grpc.method_handlers_generic_handler(
                DECISIONS,
                {
                    "Get": unary(self._get),
                    "Watch": grpc.unary_stream_rpc_method_handler(self._watch),
                },
            ),
            grpc.method_handlers_generic_handler(
                OPERATOR,
                {
                    "SetOverride": unary(self._set_override),
                    "RemoveOverride": unary(self._remove_override),
                    "ListOverrides": unary(self._list_overrides),
                },
            ),
        )

    # waking

    def _wake_from_any_thread(self) -> None:
        assert self._loop is not None
        with contextlib.suppress(RuntimeError):  # the event loop closed meanwhile: nobody watches
            self._loop.call_soon_threadsafe(self._on_update)

    def _on_update(self) -> None:
        if self._board.published is not None:
            self._decided.set()
            self._watchers.wake()

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(self._config.heartbeat_s)
            self._watchers.wake(beat=True)

    async def _announce(self) -> None:
        await self._decided.wait()
        await self._health.set(DECISIONS, health_pb2.HealthCheckResponse.SERVING)

    # Decisions

    async def _get(self, data: bytes, context: Any) -> bytes:
        request = await _parsed(wire.GetRequest, data, context)
        view, pools = await _wanted(request, context)
        published = self._board.published
        if published is None:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "nothing is decided yet")
            raise AssertionError("abort raises")
        return published.full(view, pools).data

    async def _watch(self, data: bytes, context: Any) -> None:
        request = await _parsed(wire.WatchRequest, data, context)
        view, pools = await _wanted(request, context)
        if len(self._watchers) >= self._config.max_watchers:
            most = self._config.max_watchers
            await context.abort(grpc.StatusCode.UNAVAILABLE, f"at most {most} watchers; retry")
        watcher = Watcher(view, pools, request.instance, request.epoch)
        await self._watchers.serve(watcher, context.write)

    # Operator

    async def _set_override(self, data: bytes, context: Any) -> bytes:
        request = await _parsed(wire.SetOverrideRequest, data, context)
        async with _refusals(context):
            published = self._board.published
            now_ns = 0 if published is None else published.time_ns
            operation = set_operation(request, now_ns)
            overrides = await self._operate(operation)
        log.info("override set", override=operation.set, peer=context.peer())
        response = wire.SetOverrideResponse(overrides=overrides_on_wire(overrides))
        return response.SerializeToString()

    async def _remove_override(self, data: bytes, context: Any) -> bytes:
        request = await _parsed(wire.RemoveOverrideRequest, data, context)
        async with _refusals(context):
            operation = remove_operation(request)
            assert operation.remove is not None
            before = await self._operate(Operation())
            after = await self._operate(operation)
        removed = was_removed(operation.remove, before, after)
        log.info("override removed", on=operation.remove, removed=removed, peer=context.peer())
        response = wire.RemoveOverrideResponse(removed=removed, overrides=overrides_on_wire(after))
        return response.SerializeToString()

    async def _list_overrides(self, data: bytes, context: Any) -> bytes:
        await _parsed(wire.ListOverridesRequest, data, context)
        async with _refusals(context):
            overrides = await self._operate(Operation())
        response = wire.ListOverridesResponse(overrides=overrides_on_wire(overrides))
        return response.SerializeToString()


async def _parsed(kind: type[Request], data: bytes, context: Any) -> Request:
    request = kind()
    try:
        request.ParseFromString(data)
    except DecodeError:
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"not a {kind.__name__}")
    return request


async def _wanted(request: wire.GetRequest | wire.WatchRequest, context: Any) -> tuple[View, Pools]:
    if int(request.view) not in tuple(View):
        await context.abort(
            grpc.StatusCode.INVALID_ARGUMENT, f"view: {request.view} is neither ROUTING nor FULL"
        )
    if len(request.pools) > MAX_POOLS:
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"pools: more than {MAX_POOLS}")
    return View(request.view), frozenset(request.pools)


@contextlib.asynccontextmanager
async def _refusals(context: Any) -> AsyncIterator[None]:
    """Answer the two kinds of error as what they are: permanent or retryable."""
    try:
        yield
    except Rejected as error:
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, error.description)
    except (Overloaded, DependencyLost) as error:
        await context.abort(grpc.StatusCode.UNAVAILABLE, str(error))
