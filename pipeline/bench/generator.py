"""The load generator, a process of its own on a core of its own: jobs in, outcomes out.

It keeps its batches between jobs, stamps each with the time at which it is sent, or made where that
is done beforehand, and spends as little as it can: what it costs is reported with every outcome.
"""

import itertools
import os
import sys
import threading
import time
import zlib
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from typing import Final, NamedTuple

import msgspec
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

from pipeline.bench import batches
from pipeline.bench.connection import Answer, Connection
from pipeline.bench.figures import quantile
from pipeline.bench.jobs import Build, Closed, Compression, Job, Open, Outcome, encode
from pipeline.bench.machine import tree_cpu_s
from pipeline.bench.template import Template

READY_S: Final = 20.0
CLOSED_TIMEOUT_S: Final = 60.0
"""No request of a closed loop may be counted as failed because the engine is slow."""
FRESH_S: Final = 45.0
"""Bodies made beforehand carry the time at which they were made; older ones are made anew."""
POINTS_ONCE: Final = 8_000_000
"""Compressed points are sent once: a time that comes twice would be dropped as a duplicate. So
many are made at most, a fifth of a gigabyte; a measurement ends early when they run out."""
POINTS_PER_S: Final = 1_500_000
"""More than any engine takes on one core."""
MOST_PACKED: Final = 65_536
COMPRESSORS: Final = 2
STEP_NS: Final = 10_000
"""Between the times of compressed batches, so that every series moves forward."""


class Sent(NamedTuple):
    """The tag of a request."""

    at_ns: int
    items: int
    size: int


class Ended(NamedTuple):
    """One answered request."""

    sent: Sent
    at_ns: int
    answer: Answer


class Bodies:
    """What is sent next: a batch as of now, or the next of those made beforehand."""

    def __init__(self, signal: batches.Signal, templates: list[Template]) -> None:
        """`templates` are sent in turn."""
        self.signal = signal
        self._templates = itertools.cycle(templates)
        self._count = len(templates)
        self._items = templates[0].items
        self._packed: list[tuple[bytes, int]] = []
        self._packed_at_s = 0.0
        self._compression: Compression | None = None
        self._next = 0
        self._lock = threading.Lock()
        self.item_bytes = sum(t.size for t in templates) / sum(t.items for t in templates)

    def prepare(
        self,
        compression: Compression,
        seconds: float,
        *,
        refresh: bool = True,
        beforehand: bool = False,
    ) -> None:
        """Compress, if a job needs that and what there is has been sent or is stale.

        With `beforehand` bodies that are not compressed are made now, too: an open loop has no
        time for it.
        """
        self._is_made = compression == "gzip" or beforehand
        if not self._is_made:
            return
        is_stale = refresh and time.monotonic() - self._packed_at_s > FRESH_S
        is_other = compression != self._compression
        if not is_stale and not is_other and self._packed and not self.sends_once:
            return
        pack = _packed if compression == "gzip" else _plain
        count = self._count
        if self.sends_once:
            items = min(POINTS_ONCE, round(POINTS_PER_S * seconds))
            count = min(max(count, items // self._items), MOST_PACKED)
        now_ns = time.time_ns()

        def bodies() -> "itertools.chain[tuple[bytes, int]]":
            return itertools.chain(
                (template.stamped(now_ns + i * STEP_NS), template.items)
                for i, template in enumerate(itertools.islice(self._templates, count))
            )

        with ThreadPoolExecutor(COMPRESSORS, initializer=_use_all_cores) as pool:
            self._packed = []
            for chunk in _chunks(bodies(), 64):
                self._packed += pool.map(pack, chunk)
        self._packed_at_s, self._next = time.monotonic(), 0
        self._compression = compression

    @property
    def sends_once(self) -> bool:
        """Whether a compressed body may be sent a second time."""
        return self.signal == "points"

    def take(self) -> tuple[bytes, int] | None:
        """(body, items); None when nothing is left. From any thread."""
        with self._lock:
            if not self._is_made:
                template = next(self._templates)
                return template.stamped(time.time_ns()), template.items
            if self._next == len(self._packed):
                if self.sends_once:
                    return None
                self._next = 0
            self._next += 1
            return self._packed[self._next - 1]


def _chunks(
    bodies: "itertools.chain[tuple[bytes, int]]", size: int
) -> "itertools.chain[list[tuple[bytes, int]]]":
    return itertools.chain(iter(lambda: list(itertools.islice(bodies, size)), []))


def _use_all_cores() -> None:
    """Nothing is measured while bodies are compressed."""
    os.sched_setaffinity(0, range(os.cpu_count() or 1))


def _plain(body: tuple[bytes, int]) -> tuple[bytes, int]:
    return body


def _packed(body: tuple[bytes, int]) -> tuple[bytes, int]:
    packer = zlib.compressobj(1, zlib.DEFLATED, 31)  # level 1, as Go's and Rust's exporters
    return packer.compress(body[0]) + packer.flush(), body[1]


class Marks(NamedTuple):
    """A moment at which CPU time was read."""

    at_ns: int
    engine_s: float
    own_s: float


def _mark(pid: int) -> Marks:
    return Marks(time.perf_counter_ns(), tree_cpu_s(pid) if pid else 0.0, time.process_time())


def run_closed(job: Closed, bodies: Bodies) -> Outcome:
    """As soon as a request is answered the next one goes out."""
    bodies.prepare(job.compression, job.warm_s + job.seconds)
    ended: list[Ended] = []
    stop = threading.Event()
    connections = _connect(job, bodies.signal)
    each = max(1, job.in_flight // job.connections)
    threads = [
        threading.Thread(target=_pump, args=(connection, bodies, each, ended, stop))
        for connection in connections
    ]
    for thread in threads:
        thread.start()
    stop.wait(job.warm_s)
    begin = _mark(job.pid)
    stop.wait(job.seconds)
    end = _mark(job.pid)
    stop.set()
    for thread in threads:
        thread.join()
    for connection in connections:
        connection.close()
    return _outcome(bodies, ended, begin, end, len(ended))


def _pump(
    connection: Connection,
    bodies: Bodies,
    in_flight: int,
    ended: list[Ended],
    stop: threading.Event,
) -> None:
    """Keep one connection busy until told to stop or nothing is left, then drain it."""
    is_open = 0
    while True:
        while is_open < in_flight and not stop.is_set():
            body = bodies.take()
            if body is None:
                stop.set()
                break
            tag = Sent(time.perf_counter_ns(), body[1], len(body[0]))
            connection.send(body[0], tag, CLOSED_TIMEOUT_S)
            is_open += 1
        if not is_open:
            return
        answer = connection.answer()
        is_open -= 1
        ended.append(Ended(answer.tag, time.perf_counter_ns(), answer))


class Reader:
    """Takes the answers of one connection on a thread of its own."""

    def __init__(self, connection: Connection, ended: list[Ended]) -> None:
        """`ended` gets every answered request, and may be shared with other readers."""
        self.connection = connection
        self._ended = ended
        self._due: SimpleQueue[bool] = SimpleQueue()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def send(self, body: bytes, tag: Sent, timeout_s: float) -> None:
        """Hand a request over, from one thread."""
        self.connection.send(body, tag, timeout_s)
        self._due.put(True)

    def _run(self) -> None:
        while self._due.get():
            answer = self.connection.answer()
            self._ended.append(Ended(answer.tag, time.perf_counter_ns(), answer))

    def hang_up(self) -> None:
        """Cancel what is open, take those answers, end."""
        self._due.put(False)
        self.connection.close()
        self._thread.join()


def run_open(job: Open, bodies: Bodies) -> Outcome:
    """Requests go out when they are due, whatever became of earlier ones."""
    bodies.prepare(job.compression, job.seconds, refresh=job.refresh, beforehand=True)
    ended: list[Ended] = []
    begun_ns = time.perf_counter_ns()
    readers = [Reader(connection, ended) for connection in _connect(job, bodies.signal)]
    sent = not_sent = 0
    begin = _mark(job.pid)
    while (elapsed_s := (time.perf_counter_ns() - begin.at_ns) / 1e9) < job.seconds:
        due = int(elapsed_s * job.requests_per_s) - sent - not_sent
        if due < 1:
            time.sleep(min(0.01, 1 / job.requests_per_s))
        for _ in range(due):
            if sent - len(ended) >= job.most_open:
                not_sent += 1
                continue
            body = bodies.take()
            assert body is not None, "an open loop of compressed points is not offered"
            tag = Sent(time.perf_counter_ns(), body[1], len(body[0]))
            readers[sent % len(readers)].send(body[0], tag, job.timeout_s)
            sent += 1
    end = _mark(job.pid)
    for reader in readers:
        reader.hang_up()
    outcome = _outcome(bodies, ended, begin, end, sent)
    trace = [
        (
            round((each.sent.at_ns - begun_ns) / 1e9, 4),
            round((each.at_ns - each.sent.at_ns) / 1e6, 3),
            each.answer.code == "OK",
        )
        for each in (ended if job.trace else ())
    ]
    return msgspec.structs.replace(
        outcome, not_sent=not_sent, trace=trace, begun_s=begun_ns / 1e9, ended_s=end.at_ns / 1e9
    )


def _connect(job: Closed | Open, signal: batches.Signal) -> list[Connection]:
    is_gzip = job.compression == "gzip"
    connections = [Connection(job.target, signal, is_gzip=is_gzip) for _ in range(job.connections)]
    for connection in connections:
        if not connection.ready(READY_S):
            raise SystemExit(f"{job.target} does not answer")
    return connections


def _outcome(bodies: Bodies, ended: list[Ended], begin: Marks, end: Marks, sent: int) -> Outcome:
    acked = [each for each in ended if each.answer.code == "OK"]
    rejected = sum(_rejected(bodies.signal, each.answer.message) for each in acked)
    measured = [each for each in acked if begin.at_ns <= each.at_ns < end.at_ns]
    latencies_ms = [(each.at_ns - each.sent.at_ns) / 1e6 for each in measured]
    bytes_sent = sum(each.sent.size for each in ended)
    return Outcome(
        sent=sent,
        answers=dict(Counter(each.answer.code for each in ended)),
        non_retryable=sum(
            each.answer.code != "OK" and not each.answer.is_retryable for each in ended
        ),
        acked_items=sum(each.sent.items for each in acked) - rejected,
        rejected_items=rejected,
        measured_items=sum(each.sent.items for each in measured),
        seconds=(end.at_ns - begin.at_ns) / 1e9,
        cpu_s=end.engine_s - begin.engine_s,
        client_cpu_s=end.own_s - begin.own_s,
        p50_ms=quantile(latencies_ms, 0.5),
        p99_ms=quantile(latencies_ms, 0.99),
        item_bytes=bodies.item_bytes,
        sent_item_bytes=bytes_sent / max(1, sum(each.sent.items for each in ended)),
    )


def _rejected(signal: batches.Signal, message: bytes) -> int:
    if not message:
        return 0
    if signal == "spans":
        return int(ExportTraceServiceResponse.FromString(message).partial_success.rejected_spans)
    answer = ExportMetricsServiceResponse.FromString(message)
    return int(answer.partial_success.rejected_data_points)


def main() -> None:
    """Serve jobs from standard input until it ends."""
    bodies: Bodies | None = None
    for line in sys.stdin.buffer:
        job = msgspec.json.decode(line, type=Job)
        if isinstance(job, Build):
            bodies = None  # two sets do not fit into memory
            templates = [
                batches.build(job.signal, number, job.batch, job.batches)
                for number in range(job.batches)
            ]
            bodies = Bodies(job.signal, templates)
            outcome = Outcome(item_bytes=bodies.item_bytes)
        else:
            assert bodies is not None, "nothing was built"
            outcome = run_open(job, bodies) if isinstance(job, Open) else run_closed(job, bodies)
        sys.stdout.buffer.write(encode(outcome))
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
