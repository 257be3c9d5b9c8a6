"""`tailrace bench fleet`: the reference fleet against the shipped service, open loop.

1,200 engines are scraped, six gateways send the spans of 1,800 requests a second, and one engine
in a hundred is replaced each minute. The age of a decision is measured from outside: from the
moment at which a batch is handed to gRPC until a watching client holds an update that was decided
after the batch had been folded. Acknowledgement comes after the fold and an epoch is the wall time
of its tick, so that is the first update whose epoch is not before the acknowledgement.
"""

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Final, Self

import grpc
import msgspec
import numpy as np

from pipeline.bench.driver import Memory
from pipeline.bench.engines import decoder_of
from pipeline.bench.figures import quantile
from pipeline.bench.fleet_sender import Fleet, Report
from pipeline.bench.machine import cores, describe, pinned, tree_cpu_s
from pipeline.bench.serving import Page, Served, scrape, service
from pipeline.errors import DependencyLost
from pipeline.wire import decisions_pb2 as wire
from pipeline.wire import decisions_pb2_grpc

SETTLE_S: Final = 5.0
"""New endpoints cost more than known ones; what is measured is a fleet that is there."""
LAST_UPDATES_S: Final = 1.0
OPTIONS: Final = (("grpc.max_receive_message_length", 64 << 20), ("grpc.enable_http_proxy", 0))


class Watcher:
    """When a client held which epoch; a context manager around its stream."""

    def __init__(self, address: str) -> None:
        """Watches everything, FULL, at `address`, once entered."""
        self.held: list[tuple[int, int]] = []
        """(monotonic ns, epoch), ascending."""
        self._channel = grpc.insecure_channel(address, options=OPTIONS)
        stub = decisions_pb2_grpc.DecisionsStub(self._channel)
        self._stream = stub.Watch(wire.WatchRequest(agent_id="bench", view=wire.VIEW_FULL))
        self._thread = threading.Thread(target=self._read)

    def __enter__(self) -> Self:
        """Begin to read."""
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """End the stream."""
        self._stream.cancel()
        self._thread.join()
        self._channel.close()

    def _read(self) -> None:
        try:
            for update in self._stream:
                if update.epoch and (not self.held or update.epoch > self.held[-1][1]):
                    self.held.append((time.monotonic_ns(), update.epoch))
        except grpc.RpcError as error:
            if error.code() is not grpc.StatusCode.CANCELLED:
                raise


def decision_ages_ms(
    sent: Sequence[tuple[int, int]], held: Sequence[tuple[int, int]]
) -> list[float]:
    """Age of the decision for each batch that has one, in ms.

    `sent`: (monotonic ns of sending, wall ms of the acknowledgement). `held`: (monotonic ns,
    epoch), ascending. Batches after which no update came are left out.

    >>> decision_ages_ms([(0, 100), (0, 151), (0, 201)], [(5_000_000, 150), (9_000_000, 200)])
    [5.0, 9.0]
    """
    if not held or not sent:
        return []
    times, epochs = np.array(held).T
    begun, acked = np.array(sent).T
    at = np.searchsorted(epochs, acked)
    known = at < len(epochs)
    ages: list[float] = ((times[at[known]] - begun[known]) / 1e6).tolist()
    return ages


def run(
    scrape_s: float,
    seconds: float,
    tell: Callable[[str], None],
    *,
    endpoints: int = 1200,
    settle_s: float = SETTLE_S,
) -> dict[str, Any]:
    """One variant of the fleet for `seconds`, `settle_s` after each engine was scraped once."""
    learn_s = scrape_s + settle_s
    tell(f"scrapes each {scrape_s:g} s: this takes about {learn_s + seconds + 10:.0f} seconds")
    _, own_core = cores()
    settings = {"pools": [{"name": "*", "membership": "telemetry"}]}
    with service(None, settings) as served, Memory(served.pid).watched() as memory:
        fleet = Fleet(
            target=served.otlp,
            endpoints=endpoints,
            scrape_s=scrape_s,
            learn_s=learn_s,
            seconds=seconds,
        )
        with (
            pinned(own_core),
            _Sender(fleet) as sender,
            Watcher(served.decisions) as watcher,
        ):
            sender.wait_for("learned")
            begun = _Sample(served)
            sender.wait_for("ended")
            ended = _Sample(served)
            report = sender.report()
            time.sleep(LAST_UPDATES_S)
        return _figures(report, watcher, memory, begun, ended, scrape_s)


class _Sample:
    """What the service had done at one moment."""

    def __init__(self, served: Served) -> None:
        self.page: Page = scrape(served.metrics)
        self.at_s = time.monotonic()
        self.cpu_s = tree_cpu_s(served.pid)

    def since(self, earlier: "_Sample", name: str, **labels: str) -> float:
        """Increase of a counter, a second."""
        more = self.page.get(name, **labels) - earlier.page.get(name, **labels)
        return more / (self.at_s - earlier.at_s)


class _Sender:
    """The fleet's process, which says on standard output how far it is."""

    def __init__(self, fleet: Fleet) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "pipeline.bench.fleet_sender"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert self._process.stdin is not None
        self._process.stdin.write(msgspec.json.encode(fleet))
        self._process.stdin.close()

    def __enter__(self) -> Self:
        """It runs already."""
        return self

    def __exit__(self, *_: object) -> None:
        """End it."""
        assert self._process.stdout is not None
        self._process.kill()
        self._process.wait()
        self._process.stdout.close()

    def wait_for(self, word: str) -> None:
        """Until it has said `word`."""
        line = self._line()
        if line.strip() != word.encode():
            raise DependencyLost(f"the fleet's sender said {line!r} instead of {word}")

    def report(self) -> Report:
        """What it says at its end."""
        return msgspec.json.decode(self._line(), type=Report)

    def _line(self) -> bytes:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise DependencyLost("the fleet's sender ended; it says why above")
        return line


def _figures(
    report: Report,
    watcher: Watcher,
    memory: Memory,
    begun: _Sample,
    ended: _Sample,
    scrape_s: float,
) -> dict[str, Any]:
    ages_ms = decision_ages_ms(report.sent, watcher.held)
    seconds = ended.at_s - begun.at_s
    held = [at for at, _ in watcher.held if begun.at_s <= at / 1e9 < ended.at_s]
    page = ended.page
    return {
        "scrape_s": scrape_s,
        "cores": round((ended.cpu_s - begun.cpu_s) / seconds, 3),
        "rss_mb": round(memory.most_mb, 1),
        "spans_per_s": round(ended.since(begun, "tailrace_received_items_total", signal="traces")),
        "points_per_s": round(
            ended.since(begun, "tailrace_received_items_total", signal="metrics")
        ),
        "decision_age_p99_ms": _quantile(ages_ms, 0.99),
        "decision_age_p50_ms": _quantile(ages_ms, 0.5),
        "ticks_per_s": round(ended.since(begun, "tailrace_ticks_total"), 2),
        "updates_per_s": round(len(held) / seconds, 2),
        "tick_ms_mean": round(
            1e3
            * ended.since(begun, "tailrace_tick_seconds_sum")
            / max(ended.since(begun, "tailrace_tick_seconds_count"), 1e-9),
            2,
        ),
        "endpoints_learned": int(begun.page.get("tailrace_endpoints")),
        "endpoints": int(page.get("tailrace_endpoints")),
        "replaced": report.replaced,
        "seconds": round(seconds, 1),
        "batches_acked": len(report.sent),
        "batches_aged": len(ages_ms),
        "failed_requests": report.failed,
        "answers": report.answers,
        "ack_p99_ms": _quantile(report.ack_ms, 0.99),
        "load_cores": round(report.cpu_s / report.seconds, 2),
        "machine": describe(decoder_of(page)),
        "method": {
            "service": "any core; what it used is `cores`",
            "load": "on the last core, with the watching client",
            "spans": "six gateways, 300 spans each 200 ms; of five spans one is the client's",
            "points": "126 an endpoint, sent each 200 ms by those that are due",
            "decision_age": "batch handed to gRPC until a watching client holds an update that "
            "was decided after its acknowledgement; nothing is sent when nothing changed",
        },
    }


def _quantile(values: Sequence[float], q: float) -> float | None:
    """In a figure nothing is not zero."""
    return round(quantile(values, q), 1) if values else None
