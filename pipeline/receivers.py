"""Receiver processes as the deciding process sees them: started, heard, restarted, stopped.

What they hand over goes into the one queue in the order of its arrival. A receiver that dies had
acknowledged nothing that was not folded; what was folded and not answered yet is sent again by its
sender and counts twice: delivery is at least once, and everything acknowledged was folded. Counts
of its last second are lost with it; the items of the conservation counters are counted here.
"""

import asyncio
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Final

import msgspec
import structlog

from pipeline import counter_deltas
from pipeline.address import split_listen
from pipeline.columns_wire import CorruptFrame, decode
from pipeline.config import TailraceConfig
from pipeline.errors import ConfigError, DependencyLost
from pipeline.ingest import Received
from pipeline.model import Client, Receipt
from pipeline.receive.config import ReceiveConfig
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
from pipeline.telemetry import Telemetry

READY_WITHIN_S: Final = 30.0
FIRST_BACK_OFF_S: Final = 0.2
MAX_BACK_OFF_S: Final = 30.0
STEADY_S: Final = 60.0
"""A receiver that lived this long starts again at once, not where the back-off had got to."""
SEND_TIMEOUT_S: Final = 5
"""Answers are few and small: a receiver that takes none for so long is stuck, and is ended."""
_ENDED: Final = DependencyLost("the receiver process has ended")

log = structlog.get_logger()


class Receivers:
    """`start` once, then `stop`, which is safe twice."""

    def __init__(
        self,
        config: TailraceConfig,
        put: Callable[[Received], None],
        telemetry: Telemetry,
        *,
        record: bool,
    ) -> None:
        """`put` queues a batch for the fold, always: receivers bound what they hand over."""
        self._config = config
        self._put = put
        self._telemetry = telemetry
        self._record = record
        self._reserved: list[socket.socket] = []
        self._processes: list[_Process] = []

    async def start(self) -> dict[str, str]:
        """Start every receiver and wait until all serve; their common addresses.

        `ConfigError` when a port is taken or a receiver cannot use its configuration.
        """
        count = self._config.receive.processes
        begin = self._begin(count)
        self._processes = [_Process(i, begin, self._put, self._telemetry) for i in range(count)]
        for name in SUMMED_GAUGES:
            getattr(self._telemetry, name).set_function(partial(self._sum, name))
        self._telemetry.receivers.set_function(
            lambda: sum(process.is_serving for process in self._processes)
        )
        for process in self._processes:
            process.start()
        try:
            return await asyncio.to_thread(self._wait_ready)
        except ConfigError:
            await self.stop(0.0)
            raise

    async def stop(self, grace_s: float) -> None:
        """Every receiver finishes what it had admitted; the queue must be folded meanwhile."""
        await asyncio.to_thread(self._stop, grace_s)

    def _wait_ready(self) -> dict[str, str]:
        return [process.wait_ready() for process in self._processes][-1]

    def _stop(self, grace_s: float) -> None:
        for process in self._processes:
            process.ask_to_stop(grace_s)
        for process in self._processes:
            process.join(2 * grace_s + SEND_TIMEOUT_S)
        for reserved in self._reserved:
            reserved.close()

    def _sum(self, gauge: str) -> float:
        return sum(process.gauges.get(gauge, 0.0) for process in self._processes)

    def pids(self) -> list[int]:
        """The processes that run now."""
        return [process.pid for process in self._processes if process.pid]

    def _begin(self, count: int) -> Begin:
        config, loop = share(self._config.receive, count), self._config.loop
        listen = self._reserve("receive.listen", config.listen)
        http = config.http
        if http.listen:
            http = msgspec.structs.replace(
                http, listen=self._reserve("receive.http.listen", http.listen)
            )
        return Begin(
            receive=msgspec.structs.replace(config, listen=listen, http=http),
            decode_threads=loop.decode_threads,
            queue_entries=loop.queue_entries,
            acknowledge=loop.acknowledge,
            max_owed_bytes=loop.max_owed_bytes // count,
            record=self._record,
            log_level=self._config.telemetry.log_level,
        )

    def _reserve(self, field: str, listen: str) -> str:
        """Hold the port without listening: it stays ours while receivers come and go."""
        host, port = split_listen(field, listen)
        try:
            family, _, _, _, address = socket.getaddrinfo(
                host.strip("[]"), int(port), type=socket.SOCK_STREAM
            )[0]
            # Shared ports hide a foreign listener that shares too: look alone first.
            with socket.socket(family, socket.SOCK_STREAM) as alone:
                alone.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                alone.bind(address)
                address = alone.getsockname()
            shared = socket.socket(family, socket.SOCK_STREAM)
            self._reserved.append(shared)
            shared.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            shared.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            shared.bind(address)
        except OSError as error:
            raise ConfigError(f"{field}: {listen} is taken or not ours") from error
        return f"{host}:{address[1]}"


def share(config: ReceiveConfig, count: int) -> ReceiveConfig:
    """The budgets of one of `count` receivers; each takes at least one largest request."""
    return msgspec.structs.replace(
        config,
        max_bytes_in_flight=max(config.max_bytes_in_flight // count, config.max_message_bytes),
        max_bytes_waiting=config.max_bytes_waiting // count,
        max_bytes_arriving=max(config.max_bytes_arriving // count, config.max_message_bytes),
        max_connections=-(-config.max_connections // count),
        http=msgspec.structs.replace(
            config.http,
            max_connections=-(-config.http.max_connections // count),
            max_bytes_uploading=max(
                config.http.max_bytes_uploading // count, config.max_message_bytes
            ),
        ),
    )


class _Process:
    """One receiver and its successors, on a thread that hears what it says."""

    def __init__(
        self,
        number: int,
        begin: Begin,
        put: Callable[[Received], None],
        telemetry: Telemetry,
    ) -> None:
        self.is_serving = False
        self.gauges: dict[str, float] = {}
        self.pid = 0
        self._number = number
        self._begin = begin
        self._put = put
        self._telemetry = telemetry
        self._lock = threading.Lock()
        self._link: Link | None = None
        self._stop: Stop | None = None
        self._stopping = threading.Event()
        self._heard = threading.Event()
        self._handed_over = 0
        self._ready = Ready({})
        self._why = ""
        self._thread = threading.Thread(
            target=self._run, name=f"tailrace-receiver-{number}", daemon=True
        )

    def start(self) -> None:
        self._thread.start()

    def wait_ready(self) -> dict[str, str]:
        """The addresses of the first process; `ConfigError` when it does not serve."""
        if not self._heard.wait(READY_WITHIN_S):
            raise ConfigError(f"receive.processes: no receiver within {READY_WITHIN_S:.0f} s")
        if self._why:
            raise ConfigError(self._why)
        return self._ready.addresses

    def ask_to_stop(self, grace_s: float) -> None:
        with self._lock:
            self._stop = Stop(grace_s)
            self._stopping.set()
            if self._link is not None:
                self._tell(self._link, self._stop)

    def join(self, patience_s: float) -> None:
        """Wait for its end as long as it hands over batches; end it when it has stopped to."""
        handed_over = -1
        while self._thread.is_alive() and handed_over != self._handed_over:
            handed_over = self._handed_over
            self._thread.join(patience_s)
        if self._thread.is_alive():
            log.error("a receiver process is stuck and is ended", receiver=self._number)
            with self._lock:
                if self._link is not None:
                    self._link.close()  # which ends it
            self._thread.join(patience_s)

    def _run(self) -> None:
        back_off_s = FIRST_BACK_OFF_S
        while not self._stopping.is_set():
            begun_s = time.monotonic()
            code = self._live()
            if self._stopping.is_set() or self._why:
                return
            if time.monotonic() - begun_s > STEADY_S:
                back_off_s = FIRST_BACK_OFF_S
            self._telemetry.receiver_restarts_total.inc()
            log.error(
                "a receiver process ended, starting another",
                receiver=self._number,
                exit_code=code,
                after_s=back_off_s,
            )
            self._stopping.wait(back_off_s)
            back_off_s = min(2 * back_off_s, MAX_BACK_OFF_S)

    def _live(self) -> int:
        """One process from its start to its end; its exit code."""
        ours, theirs = socket.socketpair()
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", SEND_TIMEOUT_S, 0))
        with theirs:
            process = subprocess.Popen(  # noqa: S603 - our own module
                [sys.executable, "-m", "pipeline.receiver_process", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                start_new_session=True,  # a terminal's Ctrl-C is for the deciding process
            )
        link = Link(ours)
        self._tell(link, self._begin)
        with self._lock:
            self._link, self.pid = link, process.pid
            if self._stop is not None:
                self._tell(link, self._stop)
        try:
            self._hear(link)
        finally:
            with self._lock:
                self._link, self.pid = None, 0
            self.is_serving, self.gauges = False, {}
            link.close()
            code = _reap(process)
            link.release()
        return code

    def _hear(self, link: Link) -> None:
        """Everything that the process says, until it has ended."""
        try:
            while (received := link.receive()) is not None:
                message, payload = received
                if isinstance(message, Batch):
                    self._handed_over += 1
                    self._put(self._batch(link, message, payload))
                elif isinstance(message, Counts):
                    self._count(message)
                elif isinstance(message, Ready):
                    self._ready, self.is_serving = message, True
                    self._heard.set()
                elif isinstance(message, Failed):
                    self._fail(message)
        except CorruptFrame as error:
            self._telemetry.supervised_failures_total.labels("receiver").inc()
            log.error("a receiver process cannot be understood", why=str(error))
        except Exception:  # a supervisor: the process is ended and another started
            self._telemetry.supervised_failures_total.labels("receiver").inc()
            log.exception("unexpected error while hearing a receiver process")

    def _batch(self, link: Link, head: Batch, payload: memoryview) -> Received:
        record: bytes | None = None
        if head.record_bytes >= 0:
            border = len(payload) - head.record_bytes
            if border < 0:
                raise CorruptFrame("a record longer than its message")
            payload, record = payload[:border], bytes(payload[border:])
        return Received(
            head.signal,
            decode(payload),
            Client(head.peer, head.name),
            record,
            partial(self._answer, link, head.sequence),
        )

    def _answer(self, link: Link, sequence: int, result: Receipt | Exception, /) -> None:
        if isinstance(result, Receipt):
            self._tell(link, Done(sequence, True, result.rejected, result.message))
        else:
            self._tell(link, Done(sequence, False))

    def _tell(self, link: Link, message: Begin | Done | Stop) -> None:
        try:
            link.send(message)
        except (OSError, ValueError):  # gone, stuck or closed: its senders were not told, and retry
            link.close()

    def _count(self, message: Counts) -> None:
        counter_deltas.add(self._telemetry, message.deltas)
        self.gauges = message.gauges
        for name in COMMON_GAUGES:
            if message.gauges.get(name):
                getattr(self._telemetry, name).set(message.gauges[name])

    def _fail(self, message: Failed) -> None:
        if self._heard.is_set():  # it served once, with this configuration
            log.error("a receiver process cannot serve", why=message.why)
            return
        self._why = message.why
        self._heard.set()


def _reap(process: "subprocess.Popen[bytes]") -> int:
    """The exit code of a process whose connection has ended, which ends it."""
    try:
        return process.wait(SEND_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()
