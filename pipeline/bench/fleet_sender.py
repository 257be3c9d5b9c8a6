"""The reference fleet as a process: engines' pages and gateways' spans, at the pace of a clock.

Reads one `Fleet` from standard input, says `learned` and `ended` when those moments come, and ends
with one `Report`. Batches look like a Collector's with its default batch processor: what came in
200 ms, one connection a gateway.
"""

import itertools
import os
import random
import re
import sys
import time
from collections import Counter
from typing import Final

import msgspec
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from pipeline.bench import payloads
from pipeline.bench.connection import Connection
from pipeline.bench.generator import Ended, Reader, Sent

GATEWAYS: Final = 6
STEP_S: Final = 0.2
PAGE_POINTS: Final = 126
REQUESTS_A_BATCH: Final = 60
"""Of each gateway, a step: 1,800 a second together, of five spans each."""
CHURN_A_S: Final = 0.01 / 60
"""The share of endpoints that is replaced by new ones."""
TIMEOUT_S: Final = 10.0
ID: Final = bytes.fromhex("a1b2c3d4e5f60718")
"""Stands for every id until a batch is sent."""
INNER: Final = ("parse request", "pick endpoint", "stream answer")


class Fleet(msgspec.Struct, frozen=True, kw_only=True):
    """What reports."""

    target: str
    endpoints: int = 1200
    scrape_s: float = 15.0
    learn_s: float = 20.0
    seconds: float = 60.0


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What became of what was sent after the fleet had been learned."""

    sent: list[tuple[int, int]]
    """(monotonic ns of sending, wall ms of the acknowledgement) of each acknowledged batch."""
    ack_ms: list[float]
    failed: int
    """Requests that were not acknowledged, from the very beginning."""
    answers: dict[str, int]
    replaced: int
    cpu_s: float
    seconds: float


def request_spans(endpoint: int) -> bytes:
    """The five spans of one request to `endpoint`, as fields of a scope, not stamped yet."""
    request = ExportTraceServiceRequest.FromString(payloads.spans(endpoint + 1, endpoint, 1))
    scope = request.resource_spans[0].scope_spans[0]
    called = scope.spans[0]
    called.trace_id, called.span_id = ID + ID, ID
    for name in ("POST /v1/chat/completions", *INNER):
        span = scope.spans.add()
        span.CopyFrom(called)
        span.name = name
        span.kind = Span.SPAN_KIND_INTERNAL if name in INNER else Span.SPAN_KIND_SERVER
        del span.attributes[0]  # whom it called
    scope.ClearField("scope")
    return scope.SerializeToString()


def trace_body(gateway: int, groups: list[bytes]) -> bytes:
    """A gateway's export request with the spans of several requests."""
    empty = ExportTraceServiceRequest.FromString(payloads.spans(1, 0, 0))
    resource = empty.resource_spans[0].resource
    resource.attributes.add(key="service.instance.id").value.string_value = f"gateway-{gateway}"
    inner = _field(1, resource.SerializeToString()) + _field(2, b"".join(groups))
    return _field(1, inner)


def _field(number: int, value: bytes) -> bytes:
    size, head = len(value), bytearray((number << 3 | 2,))
    while size > 127:
        head.append(size & 127 | 128)
        size >>= 7
    return bytes((*head, size)) + value


class _Load:
    """What is sent at each step."""

    def __init__(self, fleet: Fleet) -> None:
        self.replaced = 0
        self._fleet = fleet
        self._random = random.Random(1)  # noqa: S311 - repeatable load
        self._ids = itertools.count(1)
        self._live = list(range(fleet.endpoints))
        self._next = fleet.endpoints
        self._pages = list(map(_page, self._live))
        self._spans = list(map(request_spans, self._live))
        self._steps_a_scrape = max(1, round(fleet.scrape_s / STEP_S))

    def replace(self, elapsed_s: float) -> None:
        """Let endpoints go and new ones come, as many as are due by now."""
        due = int(elapsed_s * CHURN_A_S * self._fleet.endpoints)
        while self.replaced < due:
            slot = self._random.randrange(self._fleet.endpoints)
            self._pages[slot], self._spans[slot] = _page(self._next), request_spans(self._next)
            self._next += 1
            self.replaced += 1

    def points(self, gateway: int, step: int) -> bytes:
        """The pages that this gateway's Collector scraped in the last step."""
        own = range(gateway, self._fleet.endpoints, GATEWAYS)
        turn = step % self._steps_a_scrape
        low = turn * len(own) // self._steps_a_scrape
        high = (turn + 1) * len(own) // self._steps_a_scrape
        body = b"".join(self._pages[slot] for slot in own[low:high])
        count = float(1000 + 50 * (step // self._steps_a_scrape))
        return payloads.stamped(body, time.time_ns(), count)

    def traces(self, gateway: int) -> bytes:
        """The spans of the requests that this gateway has finished in the last step."""
        groups = self._random.choices(self._spans, k=REQUESTS_A_BATCH)
        duration_ns = int(self._random.lognormvariate(0.3, 0.5) * 1e9)
        body = payloads.stamped(trace_body(gateway, groups), time.time_ns(), 0.0, duration_ns)
        return re.sub(re.escape(ID), lambda _: next(self._ids).to_bytes(8, "big"), body)


def _page(endpoint: int) -> bytes:
    return payloads.metrics(range(endpoint, endpoint + 1), PAGE_POINTS)


class _Wall:
    """Wall time of moments on the monotonic clock."""

    def __init__(self) -> None:
        self._offset_ns = time.time_ns() - time.monotonic_ns()

    def ms(self, monotonic_ns: int) -> int:
        return (monotonic_ns + self._offset_ns) // 1_000_000


def send(fleet: Fleet) -> Report:
    """Send for `learn_s` and then `seconds`."""
    load, ended = _Load(fleet), list[Ended]()
    readers = {
        signal: [Reader(Connection(fleet.target, signal), ended) for _ in range(GATEWAYS)]
        for signal in ("spans", "points")
    }
    begun_s, steps = time.monotonic(), round((fleet.learn_s + fleet.seconds) / STEP_S)
    learned = round(fleet.learn_s / STEP_S)
    from_ns, cpu_s, sent = 0, 0.0, 0
    for step in range(steps):
        for gateway in range(GATEWAYS):
            due_s = begun_s + (step + gateway / GATEWAYS) * STEP_S
            time.sleep(max(0.0, due_s - time.monotonic()))
            if step == learned and not gateway:
                from_ns, cpu_s = time.perf_counter_ns(), time.process_time()
                _say("learned")
            load.replace(due_s - begun_s)
            bodies = {"spans": load.traces(gateway), "points": load.points(gateway, step)}
            for signal, body in bodies.items():
                if body:
                    tag = Sent(time.perf_counter_ns(), 1, len(body))
                    readers[signal][gateway].send(body, tag, TIMEOUT_S)
                    sent += 1
    cpu_s = time.process_time() - cpu_s
    _say("ended")
    deadline_s = time.monotonic() + TIMEOUT_S
    while len(ended) < sent and time.monotonic() < deadline_s:
        time.sleep(STEP_S)
    for reader in itertools.chain(*readers.values()):
        reader.hang_up()
    wall = _Wall()
    acked = [e for e in ended if e.answer.code == "OK" and e.sent.at_ns >= from_ns]
    return Report(
        sent=[(each.sent.at_ns, wall.ms(each.at_ns)) for each in acked],
        ack_ms=[(each.at_ns - each.sent.at_ns) / 1e6 for each in acked],
        failed=sent - sum(each.answer.code == "OK" for each in ended),
        answers=dict(Counter(each.answer.code for each in ended)),
        replaced=load.replaced,
        cpu_s=cpu_s,
        seconds=fleet.seconds,
    )


def _say(word: str) -> None:
    sys.stdout.write(word + "\n")
    sys.stdout.flush()


def main() -> None:
    """Be the fleet that standard input describes."""
    fleet = msgspec.json.decode(sys.stdin.buffer.read(), type=Fleet)
    report = send(fleet)
    sys.stdout.write(msgspec.json.encode(report).decode() + "\n")
    sys.stdout.flush()
    os._exit(0)  # gRPC's threads need not be waited for


if __name__ == "__main__":
    main()
