"""Many gRPC senders at once, and what became of everything that they sent."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import grpc

from pipeline.model import OtlpSignal
from pipeline.receive.otlp_grpc import SERVICES
from tests.e2e.embedded import Running
from tests.hand_fleet import HandFleet

ADDRESSES = [f"10.0.0.{i}:8000" for i in range(1, 5)]
EXPORT = f"/{SERVICES[OtlpSignal.TRACES]}/Export"
SIGNAL = OtlpSignal.TRACES.value
PATIENCE_S = 30.0
PAUSE_S = 0.01
"""After a refusal, so that senders leave the service some processor time."""


def joined_spans(running: Running, per_endpoint: int) -> tuple[bytes, int]:
    """A request whose spans all join members of the pool, ended now; how many spans it holds."""
    now = running.service._clock.now()
    return HandFleet(ADDRESSES).requests(now, per_endpoint), per_endpoint * len(ADDRESSES)


@dataclass
class Tally:
    """Requests by what their senders were told."""

    sent: int = 0
    acknowledged: int = 0
    refused: int = 0
    """Answered by the service: come again, or never."""
    unanswered: int = 0
    """The deadline passed or the connection went: the sender cannot know."""
    lock: threading.Lock = field(default_factory=threading.Lock)

    def count(self, outcome: str) -> None:
        with self.lock:
            self.sent += 1
            setattr(self, outcome, getattr(self, outcome) + 1)


class Senders:
    """Threads that send one body again and again until stopped or done."""

    def __init__(
        self,
        address: str,
        body: bytes,
        *,
        threads: int = 8,
        requests: int | None = None,
        timeout_s: float = PATIENCE_S,
        reconnect: bool = False,
    ) -> None:
        self.tally = Tally()
        self._address = address
        self._body = body
        self._requests = requests
        self._timeout_s = timeout_s
        self._reconnect = reconnect
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._run) for _ in range(threads)]
        for thread in self._threads:
            thread.start()

    def join(self) -> Tally:
        """Wait until all is sent."""
        for thread in self._threads:
            thread.join()
        return self.tally

    def stop(self) -> Tally:
        """Send no more; what is on its way is finished."""
        self._stop.set()
        return self.join()

    def _run(self) -> None:
        left = self._requests
        while not self._stop.is_set() and left != 0:
            with _channel(self._address) as channel:
                call = channel.unary_unary(EXPORT)
                while not self._stop.is_set() and left != 0:
                    left = None if left is None else left - 1
                    outcome = self._send(call)
                    self.tally.count(outcome)
                    if outcome != "acknowledged":
                        self._stop.wait(PAUSE_S)
                    if self._reconnect:
                        break

    def _send(self, call: grpc.UnaryUnaryMultiCallable) -> str:
        try:
            call(self._body, timeout=self._timeout_s)
        except grpc.RpcError as error:
            # What the service itself refuses carries its details; a broken connection does not.
            answered = any(key == "grpc-status-details-bin" for key, _ in error.trailing_metadata())
            return "refused" if answered else "unanswered"
        return "acknowledged"


@contextmanager
def _channel(address: str) -> Iterator[grpc.Channel]:
    options = [
        ("grpc.use_local_subchannel_pool", 1),  # a connection of its own
        ("grpc.max_send_message_length", -1),
        ("grpc.initial_reconnect_backoff_ms", 50),
        ("grpc.max_reconnect_backoff_ms", 200),
    ]
    with grpc.insecure_channel(address, options=options) as channel:
        yield channel


def eventually(holds: Callable[[], bool], what: str) -> None:
    """Wait until `holds`, for the counters of threads and processes that run by themselves."""
    deadline_s = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline_s, what
        time.sleep(0.02)


def settled(running: Running) -> dict[str, float]:
    """The conservation counters once nothing is on its way any more; asserts the equation."""
    channel = running.service._channel
    eventually(lambda: len(channel) == 0, "the queue is not folded")
    counts = _flow(running)
    while (again := _flow(running)) != counts:
        counts = again
        time.sleep(0.1)
    parts = ("rejected", "folded", "normalise", "fold")
    assert counts["acknowledged"] == sum(counts[part] for part in parts), counts
    return counts


def _flow(running: Running) -> dict[str, float]:
    found = {
        name: running.value(f"{name}_items_total", signal=SIGNAL)
        for name in ("acknowledged", "rejected", "folded")
    }
    for stage in ("normalise", "fold"):
        found[stage] = running.value("left_out_items_total", signal=SIGNAL, stage=stage)
    return found
