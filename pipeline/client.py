"""The agent's side for Python: watch decisions, keep the newest view, pick an endpoint a request.

`View` applies messages, `DecisionsClient` keeps a view and a `Picker` fed over gRPC, resuming where
it stopped, and `BlockingClient` does so on a thread for code without an event loop.
"""

import asyncio
import random
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, Self

import grpc

from pipeline.clock import Clock, SystemClock
from pipeline.pick import Endpoint, Lease, Picker
from pipeline.wire import decisions_pb2 as wire

MAX_EVENTS: Final = 256
"""As many as the service keeps."""
FIRST_VALID_S: Final = 10.0
"""How long the first message of a stream may take; later ones say for how long they hold."""

CHANNEL_OPTIONS: Final = (
    ("grpc.enable_http_proxy", 0),  # decisions are inside the cluster, never behind a web proxy
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 5_000),
    ("grpc.max_receive_message_length", 64 << 20),
)


class View:
    """What the service said last: endpoints, pools, and in the FULL view events and unmatched."""

    def __init__(self) -> None:
        """Nothing is known."""
        self.instance = ""
        self.epoch = 0
        self.time_ns = 0
        self.endpoints: dict[str, wire.Endpoint] = {}
        self.pools: dict[str, wire.Pool] = {}
        self.unmatched: dict[str, wire.Unmatched] = {}
        self.events: deque[wire.Event] = deque(maxlen=MAX_EVENTS)

    def apply(self, snapshot: wire.Snapshot) -> bool:
        """Take up a message; False, and nothing changes, for a delta that does not fit this view.

        A delta fits when it comes from the same instance and begins at or before the epoch held.
        """
        if snapshot.full:
            self.endpoints, self.pools, self.unmatched = {}, {}, {}
            self.events.clear()
        elif snapshot.instance != self.instance or not (
            snapshot.from_epoch <= self.epoch <= snapshot.epoch
        ):
            return False
        for tombstone in snapshot.removed:
            self.endpoints.pop(tombstone.id, None)
            self.unmatched.pop(tombstone.id, None)
        self.endpoints.update((endpoint.id, endpoint) for endpoint in snapshot.endpoints)
        self.unmatched.update((unmatched.id, unmatched) for unmatched in snapshot.unmatched)
        self.pools.update((pool.name, pool) for pool in snapshot.pools)
        self.events.extend(snapshot.events)
        self.instance, self.epoch = snapshot.instance, snapshot.epoch
        self.time_ns = snapshot.time_unix_ns
        return True


class DecisionsClient:
    """Watches decisions from an event loop: reconnects, resumes, and picks.

    `start`, `close` and `until` belong to one event loop; picking is for any thread.
    """

    def __init__(
        self,
        target: str,
        *,
        agent_id: str = "",
        pools: Sequence[str] = (),
        full: bool = False,
        clock: Clock | None = None,
        rng: random.Random | None = None,
        retry_first_s: float = 0.1,
        retry_most_s: float = 5.0,
    ) -> None:
        """Watch `target` (host:port), all pools unless some are named, ROUTING unless `full`.

        A lost stream is taken up again after a random part of `retry_first_s`, doubled at each
        failure up to `retry_most_s`.
        """
        self.view = View()
        self._target = target
        self._wanted = wire.WatchRequest(
            agent_id=agent_id,
            pools=pools,
            view=wire.VIEW_FULL if full else wire.VIEW_ROUTING,
        )
        self._rng = random.Random() if rng is None else rng  # noqa: S311  # spreads load
        self._retry_first_s = retry_first_s
        self._retry_most_s = retry_most_s
        self._picker = Picker(SystemClock() if clock is None else clock, self._rng)
        self._task: asyncio.Task[None] | None = None
        self._heard = asyncio.Condition()

    @property
    def endpoints(self) -> tuple[Endpoint, ...]:
        """The endpoints as published last, by id."""
        return self._picker.endpoints

    def pick(self, pool: str = "") -> Endpoint | None:
        """An endpoint of `pool` ("" = any) for the next request; None when there is none."""
        return self._picker.pick(pool)

    def request(self, endpoint: Endpoint) -> Lease:
        """Count a request to `endpoint` as in flight: `with client.request(endpoint): ...`."""
        return self._picker.request(endpoint)

    def weights(self, pool: str = "") -> dict[str, float]:
        """The weights that picks follow now, by endpoint id; those without one get no request."""
        return self._picker.weights(pool)

    async def start(self) -> None:
        """Begin to watch; `until` waits for something to be known."""
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name="tailrace-watch")

    async def close(self) -> None:
        """Stop watching; the last view stays. Safe twice."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def until(self, holds: Callable[[View], bool], timeout_s: float = 10.0) -> View:
        """The view once `holds` is true of it, looked at after every message; `TimeoutError`."""
        async with asyncio.timeout(timeout_s), self._heard:
            await self._heard.wait_for(lambda: holds(self.view))
        return self.view

    async def _run(self) -> None:
        delay_s = self._retry_first_s
        async with grpc.aio.insecure_channel(self._target, options=CHANNEL_OPTIONS) as channel:
            watch = channel.unary_stream(
                "/tailrace.v1.Decisions/Watch",
                request_serializer=wire.WatchRequest.SerializeToString,
                response_deserializer=wire.Snapshot.FromString,
            )
            while True:
                heard = await self._follow(watch)
                delay_s = self._retry_first_s if heard else min(delay_s * 2, self._retry_most_s)
                await asyncio.sleep(self._rng.uniform(0.0, delay_s))

    async def _follow(self, watch: Any) -> int:
        """Read one stream until it ends, breaks, falls silent or does not fit; messages read."""
        heard = 0
        valid_s = FIRST_VALID_S
        request = wire.WatchRequest(instance=self.view.instance, epoch=self.view.epoch)
        request.MergeFrom(self._wanted)
        call = watch(request)
        try:
            while True:
                async with asyncio.timeout(valid_s):
                    snapshot = await call.read()
                if snapshot is grpc.aio.EOF:
                    return heard
                if not await self._hear(snapshot):
                    return heard
                heard += 1
                valid_s = snapshot.valid_for_ms / 1_000
        except (grpc.aio.AioRpcError, TimeoutError):
            return heard
        finally:
            call.cancel()

    async def _hear(self, snapshot: wire.Snapshot) -> bool:
        async with self._heard:
            if not self.view.apply(snapshot):
                self.view.instance = ""  # resume from nothing: the next stream begins in full
                return False
            self._picker.hear(snapshot, self.view.endpoints)
            self._heard.notify_all()
        return True


class BlockingClient:
    """A `DecisionsClient` on a thread of its own, for code without an event loop."""

    def __init__(self, target: str, **options: Any) -> None:
        """Takes what `DecisionsClient` takes, and begins to watch."""
        self._client: DecisionsClient
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="tailrace-client", daemon=True
        )
        self._thread.start()
        self._run(self._begin(target, options), 10.0)

    @property
    def endpoints(self) -> tuple[Endpoint, ...]:
        """The endpoints as published last, by id."""
        return self._client.endpoints

    def pick(self, pool: str = "") -> Endpoint | None:
        """An endpoint of `pool` ("" = any) for the next request; None when there is none."""
        return self._client.pick(pool)

    def request(self, endpoint: Endpoint) -> Lease:
        """Count a request to `endpoint` as in flight: `with client.request(endpoint): ...`."""
        return self._client.request(endpoint)

    def weights(self, pool: str = "") -> dict[str, float]:
        """The weights that picks follow now, by endpoint id; those without one get no request."""
        return self._client.weights(pool)

    def until(self, holds: Callable[[View], bool], timeout_s: float = 10.0) -> None:
        """Wait until `holds` is true of the view; called on the client's thread; `TimeoutError`."""
        self._run(self._client.until(holds, timeout_s), timeout_s + 1.0)

    def close(self) -> None:
        """Stop watching and end the thread. Safe twice."""
        if self._loop.is_closed():
            return
        self._run(self._client.close(), 10.0)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10.0)
        self._loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def _begin(self, target: str, options: dict[str, Any]) -> None:
        self._client = DecisionsClient(target, **options)
        await self._client.start()

    def _run(self, step: Any, timeout_s: float) -> None:
        asyncio.run_coroutine_threadsafe(step, self._loop).result(timeout_s)
