"""Export requests in, decoded batches out into the ordered queue, answers back to who waits.

Places in the queue are taken in admission order and requests are decoded in that order, so the
oldest request that is not folded is always decoded or being decoded: whoever waits for it waits for
work, never for a place behind itself. What is decoded ahead of the fold is bounded; the rest stays
as the bytes that came, which the receivers' budget bounds.
"""

import asyncio
import random
import threading
from collections import deque
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any, Final, Generic, Literal, Protocol, TypeAlias, TypeVar

import structlog

from pipeline.channel import Channel, Place
from pipeline.decode.columns import Decoder, new_decoder
from pipeline.decode.inflate import inflate
from pipeline.decode.otlp_json import to_protobuf
from pipeline.decode.redact import redact
from pipeline.errors import DependencyLost, Overloaded, Rejected
from pipeline.model import (
    Client,
    Columns,
    Encoding,
    Export,
    LogColumns,
    OtlpSignal,
    PointColumns,
    ProfileColumns,
    Receipt,
    SpanColumns,
)
from pipeline.telemetry import Telemetry

Acknowledge: TypeAlias = Literal["after-fold", "on-enqueue"]

MAX_AHEAD_BYTES: Final = 32 << 20
"""Of decoded batches that wait for the fold: a span of two bytes takes some hundred when decoded.
What is decoded is at most this and, a worker, one largest request."""
MAX_AHEAD_BATCHES: Final = 64
"""Enough to keep the fold busy; also bounds what one receiver process has handed over."""
REQUEST_BYTES: Final = 256
"""What a request is taken for on top of its body, so that tiny ones are bounded too."""
MAX_TOGETHER_BYTES: Final = 256 << 10
"""Requests that came together and are small go to a worker, and on to the fold, together: for them
waking a thread costs more than decoding. Inflated bytes, as the receivers charge them."""
RETRY_AFTER_S: Final = (1.0, 5.0)
"""The delay asked of a refused sender is drawn from this range, so that they spread."""

T = TypeVar("T")

log = structlog.get_logger()


class Done(Protocol):
    """Called once, from any thread, with what the sender is told."""

    def __call__(self, result: Receipt | Exception, /) -> None:
        """The batch was folded, or could not be."""


@dataclass(slots=True, eq=False)
class Received:
    """A decoded export request; `done` gets a `Receipt` once it is folded, or an error."""

    signal: OtlpSignal
    columns: Columns
    client: Client
    record: bytes | None
    """What the journal keeps of it, redacted; None when nothing is recorded."""
    done: Done


class Answers(Generic[T]):
    """Gives futures of one event loop their results from other threads, many a wake-up.

    Waking an event loop is a write and a read of a pipe: under load most answers ride along.
    """

    def __init__(self, event_loop: asyncio.AbstractEventLoop) -> None:
        """For futures of `event_loop`."""
        self._event_loop = event_loop
        self._ready: deque[tuple[asyncio.Future[T], T | Exception]] = deque()
        self._scheduled = False

    def future(self) -> "asyncio.Future[T]":
        """One to be settled later; on the event loop's thread."""
        return self._event_loop.create_future()

    def settle(self, future: "asyncio.Future[T]", result: T | Exception) -> None:
        """From any thread; nobody may wait for the future any more."""
        self._ready.append((future, result))
        # A race here is at most a wake-up too many: `_settle_all` clears the flag before it looks.
        if self._scheduled:
            return
        self._scheduled = True
        try:
            self._event_loop.call_soon_threadsafe(self._settle_all)
        except RuntimeError:  # the event loop has ended: nobody is left to tell
            log.debug("answer without a listener")

    def _settle_all(self) -> None:
        self._scheduled = False
        while self._ready:
            future, result = self._ready.popleft()
            if future.done():
                continue
            if isinstance(result, Exception):
                future.set_exception(result)
            else:
                future.set_result(result)


class _Job:
    """One request from its admission until its batch is folded."""

    __slots__ = ("answer", "client", "export", "held_bytes", "ingest", "owed_bytes", "place")

    def __init__(
        self,
        ingest: "Ingest",
        export: Export,
        client: Client,
        place: Place[Any],
        answer: "asyncio.Future[Receipt]",
    ) -> None:
        self.ingest = ingest
        self.export = export
        self.client = client
        self.place = place
        self.answer = answer
        self.owed_bytes = 0
        """Of a request that was acknowledged and is not folded yet."""
        self.held_bytes = 0
        """What its columns take while they wait for the fold."""

    def done(self, result: Receipt | Exception, /) -> None:
        self.ingest.finish(self, result)


class Ingest:
    """Decodes in worker threads, in order; `start`, `submit` any number of times, `stop` once.

    `submit` runs on one event loop; entries go to the channel, whose consumer calls their `done`.
    """

    def __init__(
        self,
        channel: Channel[Any],
        telemetry: Telemetry,
        *,
        threads: int,
        record: bool = False,
        acknowledge: Acknowledge = "after-fold",
        max_owed_bytes: int = 0,
        jitter: random.Random | None = None,
    ) -> None:
        """`record` adds redacted bodies; `max_owed_bytes` bounds what is acknowledged early."""
        self._channel = channel
        self._telemetry = telemetry
        self._record = record
        self._max_owed_bytes = max_owed_bytes if acknowledge == "on-enqueue" else 0
        self._owed_bytes = 0
        self._owed_lock = threading.Lock()
        self._jitter = random.Random() if jitter is None else jitter  # noqa: S311  # spreads retries
        self._fresh: list[_Job] = []
        """Submitted in this turn of the event loop."""
        self._jobs: SimpleQueue[list[_Job] | None] = SimpleQueue()
        self._ahead = _Ahead()
        self._workers = [
            threading.Thread(target=self._work, name=f"tailrace-decode-{i}", daemon=True)
            for i in range(threads)
        ]
        self._wire_bytes = {
            signal: telemetry.wire_bytes_total.labels(signal.value) for signal in OtlpSignal
        }
        self._answers: Answers[Receipt]
        self._stopped = False

    def start(self) -> None:
        """Begin, on the event loop that submits."""
        self._event_loop = asyncio.get_running_loop()
        self._answers = Answers(self._event_loop)
        for worker in self._workers:
            worker.start()

    def submit(self, export: Export, client: Client) -> "asyncio.Future[Receipt]":
        """What the sender is told, once it may be told; `Overloaded` comes with the future too."""
        answer = self._answers.future()
        try:
            if self._stopped:
                raise Overloaded("stopping", self._retry_after_s())
            place = self._channel.reserve()
        except Overloaded as error:
            answer.set_exception(Overloaded(error.reason, self._retry_after_s()))
            return answer
        job = _Job(self, export, client, place, answer)
        if self._owe(job):
            answer.set_result(Receipt())
        if not self._fresh:
            self._event_loop.call_soon(self._hand_over)
        self._fresh.append(job)
        return answer

    async def stop(self) -> None:
        """Decode what was submitted, then end the workers; somebody must go on consuming."""
        self._stopped = True
        self._hand_over()
        for _ in self._workers:
            self._jobs.put(None)
        for worker in self._workers:
            await asyncio.to_thread(worker.join)

    def finish(self, job: _Job, result: Receipt | Exception) -> None:
        """The batch of `job` was folded, or failed; from any thread, once."""
        if job.held_bytes:
            self._ahead.remove(job.held_bytes)
        if not job.owed_bytes:
            self._answers.settle(job.answer, result)
            return
        with self._owed_lock:
            self._owed_bytes -= job.owed_bytes
        if isinstance(result, Exception):
            self._count_lost(job, result)

    def _hand_over(self) -> None:
        """Give the workers what this turn brought, in order: small requests together."""
        together: list[_Job] = []
        size = 0
        for job in self._fresh:
            size += min(job.export.max_bytes, MAX_TOGETHER_BYTES)
            if together and size > MAX_TOGETHER_BYTES:
                self._jobs.put(together)
                together, size = [], min(job.export.max_bytes, MAX_TOGETHER_BYTES)
            together.append(job)
        if together:
            self._jobs.put(together)
        self._fresh = []

    def _owe(self, job: _Job) -> bool:
        """Whether the sender is told at once; past the bound it waits for the fold."""
        size = len(job.export.body) + REQUEST_BYTES
        with self._owed_lock:
            if self._owed_bytes + size > self._max_owed_bytes:
                return False
            self._owed_bytes += size
        job.owed_bytes = size
        return True

    def _retry_after_s(self) -> float:
        return self._jitter.uniform(*RETRY_AFTER_S)

    def _count_lost(self, job: _Job, error: Exception) -> None:
        """The sender was told that all is well: the loss is ours to tell."""
        reason = error.reason if isinstance(error, Rejected) else "failed"
        self._telemetry.lost_requests_total.labels(job.export.signal.value, reason).inc()

    # decode workers

    def _work(self) -> None:
        decoder = new_decoder()
        while True:
            self._ahead.wait()  # before requests are taken: those that were taken wait for nothing
            jobs = self._jobs.get()
            if jobs is None:
                return
            filled = []
            for job in jobs:
                try:
                    filled.append((job.place, self._decoded(decoder, job)))
                except Rejected as error:
                    # A new one: the traceback of this one holds the inflated body.
                    self._give_up(job, Rejected(error.reason, error.description))
                    self._telemetry.dropped_total.labels("decode", error.reason).inc()
                except BaseException:  # a supervisor; a panic of the native decoder is no Exception
                    self._give_up(job, DependencyLost("decoding failed"))
                    self._telemetry.supervised_failures_total.labels("decode").inc()
                    log.exception("unexpected error while decoding")
                    decoder = new_decoder()
            self._channel.fill_all(filled)
            del filled  # nothing is held while waiting for more

    def _decoded(self, decoder: Decoder, job: _Job) -> Received:
        signal, body, encoding, is_json, max_bytes = job.export
        self._wire_bytes[signal].inc(len(body))
        if is_json:
            body = to_protobuf(signal, inflate(body, encoding, max_bytes))
            encoding = Encoding.IDENTITY
        columns = decoder.decode(signal, body, encoding, max_bytes)
        record = redact(signal, inflate(body, encoding, max_bytes)) if self._record else None
        job.held_bytes = size_of(columns) + (len(record) if record else 0)
        self._ahead.add(job.held_bytes)
        return Received(signal, columns, job.client, record, job.done)

    def _give_up(self, job: _Job, error: Exception) -> None:
        self._channel.abandon(job.place)
        job.done(error)


class _Ahead:
    """What is decoded and not folded: workers wait while it is too much."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._room = threading.Event()
        self._room.set()
        self._bytes = 0
        self._batches = 0

    def wait(self) -> None:
        """Until there is room; another worker may be faster, so each may overshoot by one."""
        self._room.wait()

    def add(self, size: int) -> None:
        with self._lock:
            self._bytes += size
            self._batches += 1
            if self._bytes >= MAX_AHEAD_BYTES or self._batches >= MAX_AHEAD_BATCHES:
                self._room.clear()

    def remove(self, size: int) -> None:
        with self._lock:
            self._bytes -= size
            self._batches -= 1
            if self._bytes < MAX_AHEAD_BYTES and self._batches < MAX_AHEAD_BATCHES:
                self._room.set()


_ROW_BYTES: Final = {SpanColumns: 98, PointColumns: 84, LogColumns: 53}
"""Of one row in all columns but attributes."""


def size_of(columns: Columns) -> int:
    """About how many bytes the columns of a batch take, at least one.

    Cheap on purpose: it runs for every request, and only the order of magnitude matters.
    """
    if isinstance(columns, ProfileColumns):
        return 1
    size = len(columns.strings.data) + 12 * len(columns.strings)
    for part in (columns.attributes, columns.resources):
        size += part.n * (4 * len(part.text) + 8 * len(part.number))
    if isinstance(columns, PointColumns):
        size += columns.histograms.counts.nbytes
    return size + columns.n * _ROW_BYTES[type(columns)] + 1
