"""Values that never repeat, where no key is made of them: decisions and memory stay the same."""

import gc
import tracemalloc
from collections.abc import Iterable
from typing import Any, Final

import msgspec

from pipeline.model import OtlpSignal
from pipeline.publish.records import canonical
from tests.builders import START, span_request
from tests.hand_fleet import HandFleet

ADDRESSES: Final = [f"10.0.0.{i}:8000" for i in range(1, 5)]
SETTLE_S: Final = 3.0
KEPT_BYTES: Final = 64 << 10
"""What may differ by chance; one word and one table entry a span would be some 2 MB."""
SOURCE_BYTES: Final = 512
"""A process is a source whose clock is learned, in a table that is bounded and expires."""


def values(i: int) -> dict[str, Any]:
    """What differs from span to span where it does."""
    return {
        "span_id": i.to_bytes(8, "big"),
        "name": f"GET /users/{i:032x}",
        "url.path": f"/users/{i:032x}",
        "http.target": f"/users/{i}?q={i:032x}",
        "user_agent.original": f"agent {i:032x}",
        "gen_ai.conversation.id": f"{i:032x}",
        f"custom.{i}": "x",
    }


def process(i: int) -> dict[str, Any]:
    """What differs from process to process of one service."""
    instance = {"service.instance.id": f"{i:032x}", "container.id": f"{i:064x}"}
    return {"service.name": "gateway", "process.pid": i, **instance}


def body(spans: Iterable[int], resource: int = 1, trace: int = 1) -> bytes:
    """Client spans towards the pool, one for each number in `spans`, of one trace."""
    end_ns = START.wall_ns + round(SETTLE_S * 1e9)
    common: dict[str, Any] = {"kind": 3, "end_ns": end_ns, "start_ns": end_ns - 200_000_000}
    common |= {"trace_id": trace.to_bytes(16, "big"), "http.response.status_code": 200}
    rows: list[dict[str, Any]] = []
    for number, i in enumerate(spans):
        host, _, port = ADDRESSES[number % len(ADDRESSES)].rpartition(":")
        called: dict[str, Any] = {"server.address": host, "server.port": int(port)}
        rows.append({**common, **called, "gen_ai.operation.name": "chat", **values(i)})
    return span_request((process(resource), rows)).SerializeToString()


def check(plain: list[bytes], fresh: list[bytes], kept_bytes: int = KEPT_BYTES) -> None:
    """Both lead to equal snapshots and equal state, byte for byte; `fresh` keeps little more."""
    kept, decided = [], []
    for bodies in (plain, fresh):
        fleet = HandFleet(ADDRESSES)
        fleet.run(SETTLE_S)
        fleet.send(OtlpSignal.TRACES, plain[0])
        tracemalloc.start()
        try:
            for each in bodies:
                fleet.send(OtlpSignal.TRACES, each)
            gc.collect()
            kept.append(tracemalloc.get_traced_memory()[0])
        finally:
            tracemalloc.stop()
        snapshot = fleet.run(1.0)
        state = msgspec.msgpack.encode(fleet.loop.export_state())
        decided.append((canonical(snapshot), state, fleet.dropped))
    assert decided[0] == decided[1]
    assert kept[1] - kept[0] < kept_bytes


def test_a_trace_of_twenty_thousand_spans_is_twenty_thousand_requests_and_nothing_more() -> None:
    """Scenario: 20,000 spans with ids, names, paths, agents and keys of their own, of one trace.

    Guarantees: as of 20,000 equal ones.
    """
    fresh = [body(range(i, i + 1000)) for i in range(1, 20_001, 1000)]
    check([body([1] * 1000)] * 20, fresh)


def test_traces_that_never_end_or_repeat_leave_nothing_behind() -> None:
    fresh = [body([1] * 4, trace=i) for i in range(1, 501)]
    check([body([1] * 4)] * 500, fresh)


def test_processes_that_come_and_go_under_one_name_are_one_source() -> None:
    """Scenario: 500 requests of a gateway, each by a process with an id, container and instance.

    Guarantees: as from one process: no count forks, and none starts anew.
    """
    fresh = [body([1] * 4, resource=i) for i in range(1, 501)]
    check([body([1] * 4)] * 500, fresh, kept_bytes=500 * SOURCE_BYTES)
