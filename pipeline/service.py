"""The process: servers, files, signals and helper threads around one loop.

Start order: state, membership, loop thread, decision port, OTLP port (ready last). Shutdown is the
reverse: stop accepting, finish what was admitted, decide once more, save, close.
"""

import asyncio
import signal
import threading
import uuid
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, Final
from wsgiref.simple_server import WSGIServer

import msgspec
import numpy as np
import structlog
from prometheus_client import start_http_server

from pipeline.address import split_listen
from pipeline.channel import Channel
from pipeline.clock import Clock, SystemClock
from pipeline.config import Senders, TailraceConfig
from pipeline.decode.columns import DECODER
from pipeline.errors import ConfigError
from pipeline.file_watcher import FileWatcher
from pipeline.fingerprint.prefix import load_secret
from pipeline.ingest import Answers, Ingest
from pipeline.journal import JournalWriter, Operation, Start
from pipeline.loop import Loop, UnusableState
from pipeline.loop_thread import Asked, Item, LoopThread
from pipeline.model import Override, Snapshot, State
from pipeline.process import new_event_loop, prepare
from pipeline.publish.own_spans import OwnSpans
from pipeline.publish.records import Board
from pipeline.publish.watch import DecisionsServer
from pipeline.receivers import Receivers
from pipeline.state import StateStore
from pipeline.telemetry import Telemetry
from pipeline.transports import Transports

JOURNAL_VERSION: Final = 1
FIRST_DECISION_WITHIN_S: Final = 5.0
"""Nothing is served before the first decision; a loop that cannot even make that is logged."""
STATE_NAMES: Final = ("loop", "identity", "fold", "fingerprint", "load", "decide", "overrides")

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
        self._secret = load_secret(config.fingerprint.prefix.secret_file)
        self._loop = Loop(config, self._dropped, self._secret)
        self._decided = threading.Event()
        self._saver = ThreadPoolExecutor(1, "tailrace-state")
        self._tasks: list[asyncio.Task[None]] = []
        self._spans: OwnSpans | None = None
        if config.telemetry.traces_endpoint:
            self._spans = OwnSpans(config.telemetry.traces_endpoint, self.instance, self.telemetry)
        self._metrics: WSGIServer | None = None
        self._endpoint_counts: list[int] = []

    async def start(self) -> None:
        """Open every port; `ConfigError` when one is taken or a file cannot be used."""
        event_loop = asyncio.get_running_loop()
        state = self._restore()
        journal = self._journal(state)
        self._board = Board(self.instance, self.config.publish)
        self._decisions = DecisionsServer(
            self.config.publish, self._board, self._operate, self.telemetry
        )
        self._front = self._new_front()
        self._thread = LoopThread(
            self._loop,
            self._channel,
            self._clock,
            sender_of=self._senders.of,
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
        self.addresses |= await self._front.start()
        self._serve_metrics()
        self._spawn(event_loop, "files", watcher.run)
        if self._spans is not None:
            self._spawn(event_loop, "own_spans", self._spans.run)
        self.telemetry.decoder.labels(DECODER).set(1)
        if DECODER == "reference":
            log.warning(
                "the reference decoder serves, several times slower than the native one;"
                " tailrace doctor says why"
            )
        log.info("serving", decoder=DECODER, instance=self.instance, **self.addresses)

    async def stop(self, grace_s: float = 5.0) -> None:
        """Stop in order, losing nothing that was acknowledged; safe to call twice."""
        await self._front.stop(grace_s)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
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

    def _new_front(self) -> "Here | Receivers":
        """What takes OTLP: this process, or several others."""
        config, record = self.config, self._record is not None
        if config.receive.processes:
            return Receivers(config, self._channel.put, self.telemetry, record=record)
        ingest = Ingest(
            self._channel,
            self.telemetry,
            threads=config.loop.decode_threads,
            record=record,
            acknowledge=config.loop.acknowledge,
            max_owed_bytes=config.loop.max_owed_bytes,
        )
        return Here(ingest, Transports(config.receive, ingest.submit, self.telemetry))

    # operators

    async def _operate(self, operation: Operation) -> tuple[Override, ...]:
        answers: Answers[tuple[Override, ...]] = Answers(asyncio.get_running_loop())
        done = answers.future()
        self._channel.put(Asked(operation, partial(answers.settle, done)))
        return await done

    # decisions out (loop thread)

    def _publish(self, snapshot: Snapshot, cost_ns: int) -> None:
        self._board.update(snapshot)
        self._decided.set()
        if self._spans is not None:
            self._spans.decided(snapshot, cost_ns)
        self.telemetry.epoch.set(snapshot.epoch)
        self._count_endpoints(snapshot)
        for event in snapshot.events:
            self.telemetry.events_total.labels(event.kind).inc()
            log.info(event.text, kind=event.kind, endpoint=event.endpoint, pool=event.pool)

    def _count_endpoints(self, snapshot: Snapshot) -> None:
        directory = snapshot.directory
        members = directory.known & directory.member
        by_state = np.bincount(snapshot.state[members], minlength=len(State)).tolist()
        unmatched = int(np.count_nonzero(directory.known & ~directory.member))
        no_address = int(np.count_nonzero(members & ~snapshot.target))
        counts = [*by_state, unmatched, no_address]
        if counts == self._endpoint_counts:
            return
        self._endpoint_counts = counts
        for state in State:
            self.telemetry.endpoints.labels(state.name.lower()).set(by_state[state])
        self.telemetry.unmatched_endpoints.set(unmatched)
        self.telemetry.no_address_endpoints.set(no_address)

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
                self._loop = Loop(self.config, self._dropped, self._secret)
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


class Here:
    """OTLP taken and decoded by this process."""

    def __init__(self, ingest: Ingest, transports: Transports) -> None:
        """`transports` submit to `ingest`."""
        self._ingest = ingest
        self._transports = transports

    async def start(self) -> dict[str, str]:
        """Open the ports; the bound addresses by name."""
        self._ingest.start()
        return await self._transports.start()

    async def stop(self, grace_s: float) -> None:
        """Refuse new requests, answer the running ones, decode what was admitted."""
        await self._transports.stop(grace_s)
        await self._ingest.stop()


async def serve(config: TailraceConfig, record: Path | None = None) -> None:
    """Run a service until SIGINT or SIGTERM."""
    prepare()
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
        self._event_loop = new_event_loop()
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
