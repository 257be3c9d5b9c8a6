"""A receiver process: takes OTLP and decodes it; the deciding process folds and owns all state.

Started as `python -m pipeline.receiver_process FD` by `pipeline.receivers`. Batches go up in
admission order; senders are told what the deciding process says. When that process is gone this
one ends at once: what was not folded was not acknowledged, so senders try again.
"""

import asyncio
import os
import signal
import socket
import sys
import threading
from typing import Final

import structlog

from pipeline.channel import Channel
from pipeline.columns_wire import CorruptFrame, encode
from pipeline.counter_deltas import CounterDeltas
from pipeline.errors import ConfigError, DependencyLost
from pipeline.ingest import Done as Answer
from pipeline.ingest import Ingest, Received
from pipeline.model import Receipt
from pipeline.process import prepare, run
from pipeline.receiver_link import (
    COMMON_GAUGES,
    SUMMED_GAUGES,
    Batch,
    Begin,
    Counts,
    Done,
    Failed,
    Link,
    Ready,
    Stop,
)
from pipeline.telemetry import Telemetry, configure_logs
from pipeline.transports import Transports

COUNTS_EVERY_S: Final = 1.0
IDLE_WAIT_S: Final = 0.25
ORPHANED: Final = 3
"""Exit code of a receiver whose deciding process has gone."""

log = structlog.get_logger()


class Uplink:
    """Sends decoded batches up, in order, and calls their `done` with the answers."""

    def __init__(self, link: Link, channel: Channel[Received]) -> None:
        """Nothing is sent before `start`."""
        self._link = link
        self._channel = channel
        self._lock = threading.Lock()
        self._waiting: dict[int, Answer] = {}
        self._settled = threading.Event()
        self._settled.set()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tailrace-uplink", daemon=True)

    def start(self) -> None:
        """Begin to send."""
        self._thread.start()

    def answered(self, done: Done) -> None:
        """The deciding process says what became of a batch."""
        with self._lock:
            answer = self._waiting.pop(done.sequence, None)
        if answer is not None:
            answer(
                Receipt(done.rejected, done.message) if done.ok else DependencyLost("not folded")
            )
        with self._lock:
            if not self._waiting:
                self._settled.set()

    def drain(self) -> None:
        """Send what is queued and wait for every answer; nothing may be queued any more."""
        self._stopping.set()
        self._channel.wake()
        self._thread.join()
        self._settled.wait()

    def _run(self) -> None:
        sequence = 0
        while True:
            item = self._channel.take(IDLE_WAIT_S)
            if item is not None:
                sequence += 1
                self._send(sequence, item)
            elif self._stopping.is_set() and len(self._channel) == 0:
                return

    def _send(self, sequence: int, item: Received) -> None:
        with self._lock:
            self._settled.clear()
            self._waiting[sequence] = item.done
        record = item.record
        head = Batch(
            sequence,
            item.signal,
            item.client.peer,
            item.client.name,
            -1 if record is None else len(record),
        )
        try:
            self._link.send(head, encode(item.columns) + (record or b""))
        except OSError:
            _end_orphaned()


class Receiver:
    """The whole process, on the event loop that runs `serve`."""

    def __init__(self, link: Link, begin: Begin) -> None:
        """Build the parts; `ConfigError` when the configuration cannot be used."""
        self._link = link
        self._telemetry = Telemetry()
        self._deltas = CounterDeltas(self._telemetry)
        self._channel: Channel[Received] = Channel(capacity=begin.queue_entries)
        self._uplink = Uplink(link, self._channel)
        self._ingest = Ingest(
            self._channel,
            self._telemetry,
            threads=begin.decode_threads,
            record=begin.record,
            acknowledge=begin.acknowledge,
            max_owed_bytes=begin.max_owed_bytes,
        )
        self._transports = Transports(
            begin.receive, self._ingest.submit, self._telemetry, reuse_port=True
        )
        self._stop: asyncio.Future[Stop]

    async def serve(self) -> None:
        """Serve until told to stop; every answer is given before it returns."""
        event_loop = asyncio.get_running_loop()
        self._stop = event_loop.create_future()
        self._ingest.start()
        self._uplink.start()
        threading.Thread(target=self._listen, args=(event_loop,), daemon=True).start()
        addresses = await self._transports.start()
        self._link.send(Ready(addresses))
        while not self._stop.done():
            await asyncio.wait({self._stop}, timeout=COUNTS_EVERY_S)
            self._tell_counts()
        await self._transports.stop(self._stop.result().grace_s)
        await self._ingest.stop()
        await asyncio.to_thread(self._uplink.drain)
        self._tell_counts()

    def _tell_counts(self) -> None:
        registry = self._telemetry.registry
        gauges = {
            name: registry.get_sample_value(f"tailrace_{name}") or 0.0
            for name in (*SUMMED_GAUGES, *COMMON_GAUGES)
        }
        self._link.send(Counts(self._deltas.take(), gauges))

    def _listen(self, event_loop: asyncio.AbstractEventLoop) -> None:
        """What the deciding process says, on a thread of its own."""
        try:
            while (received := self._link.receive()) is not None:
                message = received[0]
                if isinstance(message, Done):
                    self._uplink.answered(message)
                elif isinstance(message, Stop):
                    event_loop.call_soon_threadsafe(self._told_to_stop, message)
        except CorruptFrame as error:
            log.error("the deciding process cannot be understood", why=str(error))
        _end_orphaned()

    def _told_to_stop(self, message: Stop) -> None:
        if not self._stop.done():
            self._stop.set_result(message)


def _end_orphaned() -> None:
    """End now: nothing that is not folded was acknowledged, and nobody would fold it."""
    os._exit(ORPHANED)


def main(descriptor: int) -> int:
    """Serve over the inherited socket `descriptor`; the exit code."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # the deciding process says when
    prepare()
    link = Link(socket.socket(fileno=descriptor))
    received = link.receive()
    if received is None or not isinstance(received[0], Begin):
        return ORPHANED
    begin = received[0]
    configure_logs(begin.log_level)
    try:
        run(Receiver(link, begin).serve())
    except ConfigError as error:
        link.send(Failed(str(error)))
        return ConfigError.exit_code
    except BrokenPipeError:
        return ORPHANED
    return 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
