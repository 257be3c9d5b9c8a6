"""The process: servers, files, signals and helper threads around one loop.

Start order: state, membership, loop thread, decision port, OTLP port (ready last). Shutdown is the
reverse: stop accepting, finish what was admitted, decide once more, save, close.
"""

import asyncio
import signal
import sys
import threading
import uuid
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final
from wsgiref.simple_server import WSGIServer

import msgspec
import numpy as np
import structlog
from prometheus_client import start_http_server

from pipeline.address import split_listen
from pipeline.channel import Channel, Place
from pipeline.clock import Clock, SystemClock
from pipeline.config import Senders, TailraceConfig
from pipeline.decode.columns import DECODER, Decoder, new_decoder
from pipeline.decode.redact import redact
from pipeline.errors import ConfigError, DependencyLost, Rejected
from pipeline.file_watcher import FileWatcher
from pipeline.journal import Batch, JournalWriter, Operation, Start
from pipeline.loop import Loop, UnusableState
from pipeline.loop_thread import Asked, Item, LoopThread, Received
from pipeline.model import Client, Export, Override, Receipt, Snapshot, State
from pipeline.publish.own_spans import OwnSpans
from pipeline.publish.records import Board
from pipeline.publish.watch import DecisionsServer
from pipeline.receive.otlp_grpc import OtlpGrpcServer
from pipeline.state import StateStore
from pipeline.telemetry import Telemetry

JOURNAL_VERSION: Final = 1
FIRST_DECISION_WITHIN_S: Final = 5.0
"""Nothing is served before the first decision; a loop that cannot even make that is logged."""
SWITCH_INTERVAL_S: Final = 0.001
"""A tick gives the interpreter up at every large numpy call, and waits this long to have it back
while a batch is decoded; at the default of 5 ms, such ticks take twice as long."""
STATE_NAMES: Final = ("loop", "identity", "fold", "decide", "overrides")

log = structlog.get_logger()


class Service:
    """One Tailrace process: `await start()`, then `await stop()` once."""

    def __init__(
        self, config: TailraceConfig, *, record: Path | None = None, clock: Clock | None = None
    ) -> None:
        """Build everything; nothing is opened and nothing runs yet."""
        self.config = config
        self.telemetry = Telemetry()
        self.instance = uuid.uuid4().hex
        self.addresses: dict[str, str] = {}
        self._clock = clock or SystemClock()
        self._record = record
        folder = config.state.folder
        self._store = StateStore(Path(folder).expanduser()) if folder else None
        self._channel: Channel[Item] = Channel(capacity=config.loop.queue_entries)
        self._senders = Senders(config.senders)
        self._loop = Loop(config, self._dropped)
        self._pool = ThreadPoolExecutor(config.loop.decode_threads, "tailrace-decode")
        self._decided = threading.Event()
        self._decoders = threading.local()
        self._saver = ThreadPoolExecutor(1, "tailrace-state")
        self._tasks: list[asyncio.Task[None]] = []
        self._spans: OwnSpans | None = None
        if config.telemetry.traces_endpoint:
            self._spans = OwnSpans(config.telemetry.traces_endpoint, self.instance, self.telemetry)
        self._metrics: WSGIServer | None = None

    async def start(self) -> None:
        """Open every port; `ConfigError` when one is taken or a file cannot be used."""
        event_loop = asyncio.get_running_loop()
        state = self._restore()
        journal = self._journal(state)
        self._board = Board(self.instance, self.config.publish)
        self._decisions = DecisionsServer(
            self.config.publish, self._board, self._operate, self.telemetry
        )
        self._otlp = OtlpGrpcServer(self.config.receive, self._submit, self.telemetry)
        self._thread = LoopThread(
            self._loop,
            self._channel,
            self._clock,
            tick_s=self.config.loop.tick_s,
            publish=self._publish,
            telemetry=self.telemetry,
            journal=journal,
            save=self._save if self._store is not None else None,
            save_every_s=self.config.state.save_every_s,
        )
        watcher = FileWatcher(self.config, self._channel.put)
        watcher.first_read()
        self._thread.start()
        await asyncio.to_thread(self._decided.wait, FIRST_DECISION_WITHIN_S)
        self.addresses["decisions"] = await self._decisions.start()
        self.addresses["otlp"] = await self._otlp.start()
        self._serve_metrics()
        self._spawn(event_loop, "files", watcher.run)
        if self._spans is not None:
            self._spawn(event_loop, "own_spans", self._spans.run)
        self.telemetry.decoder.labels(DECODER).set(1)
        log.info("serving", decoder=DECODER, instance=self.instance, **self.addresses)

    async def stop(self, grace_s: float = 5.0) -> None:
        """Stop in order, losing nothing that was acknowledged; safe to call twice."""
        await self._otlp.stop(grace_s)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.to_thread(self._pool.shutdown)
        ended = await asyncio.to_thread(self._thread.stop, 2 * grace_s)
        if not ended:
            log.error("the loop thread did not end in time")
        await self._decisions.stop(grace_s)
        await asyncio.to_thread(self._saver.shutdown)
        if self._store is not None:
            self._store.release()
        if self._metrics is not None:
            self._metrics.shutdown()
            self._metrics.server_close()
            self._metrics = None
        log.info("stopped")

    # data in

    async def _submit(self, export: Export, client: Client) -> Receipt:
        """Decode in the pool, fold in the loop thread, acknowledge after the fold."""
        event_loop = asyncio.get_running_loop()
        done: asyncio.Future[Receipt] = event_loop.create_future()
        place = self._channel.reserve()

        def finish(result: Receipt | Exception) -> None:
            _settle(event_loop, done, result)

        event_loop.run_in_executor(self._pool, self._decode, place, export, client, finish)
        return await done

    def _decode(
        self,
        place: Place[Item],
        export: Export,
        client: Client,
        finish: Callable[[Receipt | Exception], None],
    ) -> None:
        kind = export.signal
        try:
            columns = self._decoder().decode(kind, export.body)
            record = None
            sender = self._senders.of(client.peer)
            if self._record is not None:
                body = redact(kind, export.body)
                record = Batch(kind, body, client.peer, int(sender.rights))
        except Rejected as error:
            self._channel.abandon(place)
            self.telemetry.dropped_total.labels("decode", error.reason).inc()
            finish(error)
        except BaseException:  # the place must not block the queue, whatever happened
            self._channel.abandon(place)
            finish(DependencyLost("decoding failed"))
            raise
        else:
            self.telemetry.received_items_total.labels(kind.value).inc(columns.n)
            self._channel.fill(place, Received(columns, sender, record, finish))

    def _decoder(self) -> Decoder:
        """The decoder of this worker thread; one is never used by two at once."""
        decoder: Decoder | None = getattr(self._decoders, "decoder", None)
        if decoder is None:
            decoder = self._decoders.decoder = new_decoder()
        return decoder

    async def _operate(self, operation: Operation) -> tuple[Override, ...]:
        event_loop = asyncio.get_running_loop()
        done: asyncio.Future[tuple[Override, ...]] = event_loop.create_future()
        self._channel.put(Asked(operation, lambda result: _settle(event_loop, done, result)))
        return await done

    # decisions out (loop thread)

    def _publish(self, snapshot: Snapshot, cost_ns: int) -> None:
        self._board.update(snapshot)
        self._decided.set()
        if self._spans is not None:
            self._spans.decided(snapshot, cost_ns)
        self.telemetry.epoch.set(snapshot.epoch)
        directory = snapshot.directory
        counts = np.bincount(
            snapshot.state[directory.known & directory.member], minlength=len(State)
        )
        for state in State:
            self.telemetry.endpoints.labels(state.name.lower()).set(int(counts[state]))
        self.telemetry.unmatched_endpoints.set(int((directory.known & ~directory.member).sum()))
        no_address = directory.known & directory.member & ~snapshot.target
        self.telemetry.no_address_endpoints.set(int(no_address.sum()))
        for event in snapshot.events:
            self.telemetry.events_total.labels(event.kind).inc()
            log.info(event.text, kind=event.kind, endpoint=event.endpoint, pool=event.pool)

    def _dropped(self, stage: str, reason: str, count: int) -> None:
        self.telemetry.dropped_total.labels(stage, reason).inc(count)

    # state and files

    def _restore(self) -> dict[str, Mapping[str, Any]]:
        """Give the loop the state files; one that does not fit costs its stage only."""
        if self._store is None:
            return {}
        self._store.claim()
        loaded = {name: self._store.load(name) for name in STATE_NAMES}
        while True:
            state: dict[str, Mapping[str, Any]] = {
                name: part for name, part in loaded.items() if part is not None
            }
            try:
                self._loop.restore(state)
            except UnusableState as error:
                self._loop = Loop(self.config, self._dropped)
                loaded[error.stage] = self._store.reject(error.stage, error.why)
            else:
                return state

    def _save(self, state: dict[str, Mapping[str, Any]]) -> None:
        self._saver.submit(self._write_state, state)

    def _write_state(self, state: dict[str, Mapping[str, Any]]) -> None:
        assert self._store is not None
        for name, part in state.items():
            try:
                self._store.save(name, part)
                self.telemetry.state_writes_total.labels("ok").inc()
            except (OSError, OverflowError, TypeError, ValueError) as error:  # disk, or not data
                self.telemetry.state_writes_total.labels("failed").inc()
                log.error("state not written", name=name, why=str(error))

    def _journal(self, state: dict[str, Mapping[str, Any]]) -> JournalWriter | None:
        if self._record is None:
            return None
        journal = JournalWriter(
            self._record,
            segment_bytes=self.config.record.segment_bytes,
            max_bytes=self.config.record.max_bytes,
            written=self.telemetry.journal_bytes_total.inc,
        )
        start = Start(JOURNAL_VERSION, msgspec.json.encode(self.config), state, DECODER)
        journal.append(self._clock.now(), start)
        return journal

    def _serve_metrics(self) -> None:
        listen = self.config.telemetry.metrics_listen
        if not listen:
            return
        host, port = split_listen("telemetry.metrics_listen", listen)
        try:
            self._metrics, _ = start_http_server(
                int(port), host.strip("[]"), registry=self.telemetry.registry
            )
        except OSError as error:
            raise ConfigError(f"telemetry.metrics_listen: {listen}: {error}") from error
        self.addresses["metrics"] = f"{host}:{self._metrics.server_port}"

    def _spawn(
        self,
        event_loop: asyncio.AbstractEventLoop,
        name: str,
        run: Callable[[], Awaitable[None]],
    ) -> None:
        async def supervised() -> None:
            while True:
                try:
                    await run()
                    return
                except asyncio.CancelledError:
                    raise
                except Exception:  # the supervisor of the event loop's tasks
                    self.telemetry.supervised_failures_total.labels(name).inc()
                    log.exception("task failed, restarting it", task=name)
                    await asyncio.sleep(1.0)

        self._tasks.append(event_loop.create_task(supervised(), name=name))


def _settle(
    event_loop: asyncio.AbstractEventLoop, future: "asyncio.Future[Any]", result: object
) -> None:
    """Give a future its result from another thread; nobody may wait for it any more."""

    def settle() -> None:
        if future.done():
            return
        if isinstance(result, Exception):
            future.set_exception(result)
        else:
            future.set_result(result)

    try:
        event_loop.call_soon_threadsafe(settle)
    except RuntimeError:  # the event loop has ended: nobody is left to tell
        log.debug("answer without a listener")


async def serve(config: TailraceConfig, record: Path | None = None) -> None:
    """Run a service until SIGINT or SIGTERM."""
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    stop = asyncio.Event()
    event_loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        event_loop.add_signal_handler(number, stop.set)
    service = Service(config, record=record)
    await service.start()
    await stop.wait()
    await service.stop()


class Embedded:
    """A service on an event loop of its own thread, for the demo and for tests."""

    def __init__(self, service: Service) -> None:
        """Wrap `service`; nothing runs before `start`."""
        self.service = service
        self._event_loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._event_loop.run_forever, name="tailrace-service", daemon=True
        )

    def start(self) -> dict[str, str]:
        """Start it; the bound addresses by port name."""
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self.service.start(), self._event_loop).result(30)
        return self.service.addresses

    def stop(self) -> None:
        """Stop it and end the thread."""
        asyncio.run_coroutine_threadsafe(self.service.stop(), self._event_loop).result(60)
        self._event_loop.call_soon_threadsafe(self._event_loop.stop)
        self._thread.join(10)
        self._event_loop.close()
