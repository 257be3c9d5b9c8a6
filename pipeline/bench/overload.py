"""`tailrace bench overload`: three times what it can take, and whether anything was lost.

The maximum is measured first, closed loop. Then an open loop offers a multiple of it whatever the
answers, over several connections, and counts refusals as senders read them. At the end those
senders hang up, and fresh ones ask for half the maximum: the service has recovered from the moment
on at which every request is acknowledged as fast as before, within twice the 99th percentile.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from pipeline.bench.driver import Generator, Memory
from pipeline.bench.engines import decoder_of, tailrace_settings
from pipeline.bench.figures import per_core, quantile
from pipeline.bench.jobs import Build, Closed, Compression, Open, Outcome
from pipeline.bench.machine import cores, describe, free_memory_bytes, pinned
from pipeline.bench.serving import Page, Served, scrape, service

SLOWER: Final = 2.0
"""Recovered: the 99th percentile is within this many times that of before."""
RECOVERY_WINDOW_S: Final = 0.5
"""Over which that percentile is taken."""
STEADY_WINDOWS: Final = 4
SETTLE_S: Final = 0.5
ITEM_BYTES: Final = 640
"""A span on the wire, and what its sender keeps of it while the request is open."""
DEADLINE_SLACK: Final = 1.2
CONNECTIONS: Final = 8
IN_FLIGHT: Final = 32
FLOW: Final = ("acknowledged", "folded", "rejected", "left_out")

Request = tuple[float, float, bool]
"""(when it was sent, latency in ms, acknowledged)."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What is offered."""

    seconds: float = 60.0
    offered_x: float = 3.0
    compression: Compression = "none"
    batch: int = 1000
    batches: int = 512
    max_s: float = 10.0
    """How long the maximum is measured."""
    calm_s: float = 10.0
    """How long half the maximum is offered, before and after."""
    timeout_s: float = 5.0
    """A sender's deadline, the Collector's default."""


def run(plan: Plan, tell: Callable[[str], None]) -> dict[str, Any]:
    """Measure; every figure, and what the sender saw by status."""
    engine_core, own_core = cores()
    total_s = plan.max_s + 2 * plan.calm_s + plan.seconds + 30
    tell(f"this takes about {total_s:.0f} seconds")
    with pinned(own_core), Generator(own_core) as generator:
        tell("building batches")
        generator.build(Build("spans", plan.batch, plan.batches))
        with (
            service(engine_core, tailrace_settings("B")) as served,
            Memory(served.pid).watched() as memory,
        ):
            return {
                **_measure(plan, served, generator, memory, tell),
                "machine": {
                    **describe(decoder_of(scrape(served.metrics))),
                    "engine_core": engine_core,
                    "load_core": own_core,
                },
            }


def _measure(
    plan: Plan,
    served: Served,
    generator: Generator,
    memory: Memory,
    tell: Callable[[str], None],
) -> dict[str, Any]:
    tell("measuring the maximum")
    best = generator.do(
        Closed(
            target=served.otlp,
            pid=served.pid,
            compression=plan.compression,
            connections=CONNECTIONS,
            in_flight=IN_FLIGHT,
            warm_s=plan.max_s / 3,
            seconds=plan.max_s,
        )
    )
    maximum_per_s = best.measured_items / best.seconds
    tell(f"{maximum_per_s:,.0f} spans/s; now half of that")
    calm = _open(plan, served, maximum_per_s / 2, plan.calm_s, trace=True)
    before = generator.do(calm)
    tell(f"now {plan.offered_x:g} times the maximum for {plan.seconds:.0f} s")
    offered = _open(plan, served, maximum_per_s * plan.offered_x, plan.seconds)
    over = generator.do(offered)
    tell("now half again")
    # Compressing afresh would be a pause in which the service recovers unseen.
    after = generator.do(msgspec.structs.replace(calm, refresh=False))
    outcomes = (best, before, over, after)
    page = _drained(served, sum(outcome.acked_items for outcome in outcomes))
    return {
        **_offered(plan, over, maximum_per_s),
        **_lost(page, sum(outcome.acked_items for outcome in outcomes)),
        "rss_max_mb": round(memory.most_mb, 1),
        "recover_s": _recover_s(over, after, calm_p99_ms(before.trace)),
        "goodput_ratio": round(over.measured_items / over.seconds / maximum_per_s, 3),
        "max_spans_per_s": round(maximum_per_s),
        "max_spans_per_core_s": round(per_core(best.measured_items, best.cpu_s)),
        "p99_ms_at_half_before": round(calm_p99_ms(before.trace), 1),
        "p99_ms_at_half_after": round(calm_p99_ms(after.trace), 1),
        "refused_at_half": before.sent - before.answers.get("OK", 0),
        "load_cores": round(over.client_cpu_s / over.seconds, 2),
        "batch": plan.batch,
        "compression": plan.compression,
        "connections": CONNECTIONS,
        "most_open": offered.most_open,
    }


def _open(
    plan: Plan, served: Served, items_per_s: float, seconds: float, *, trace: bool = False
) -> Open:
    requests_per_s = max(1.0, items_per_s / plan.batch)
    return Open(
        target=served.otlp,
        pid=served.pid,
        compression=plan.compression,
        connections=CONNECTIONS,
        requests_per_s=requests_per_s,
        seconds=seconds,
        most_open=most_open(requests_per_s, plan, free_memory_bytes()),
        timeout_s=plan.timeout_s,
        trace=trace,
    )


def most_open(requests_per_s: float, plan: Plan, free_bytes: int) -> int:
    """Requests that are open when none is answered before its deadline; half of memory at most.

    A bound below that would take off the load whenever the service is slow to answer.

    >>> most_open(100.0, Plan(), 64 << 30), most_open(4000.0, Plan(), 1 << 30)
    (600, 838)
    """
    room = free_bytes // 2 // (plan.batch * ITEM_BYTES)
    return max(1, min(int(requests_per_s * plan.timeout_s * DEADLINE_SLACK), room))


def _offered(plan: Plan, over: Outcome, maximum_per_s: float) -> dict[str, Any]:
    """What was handed to the transport in truth, and how that ended, in requests and items."""
    sent_per_s = over.sent * plan.batch / over.seconds
    refused = {code: n for code, n in over.answers.items() if code not in ("OK", "CANCELLED")}
    return {
        "offered_x": round(sent_per_s / maximum_per_s, 2),
        "wanted_x": plan.offered_x,
        "seconds": round(over.seconds, 1),
        "acked": over.acked_items,
        "refused": sum(refused.values()) * plan.batch,
        "hung_up": over.answers.get("CANCELLED", 0) * plan.batch,
        "not_sent": over.not_sent * plan.batch,
        "refused_by_status": refused,
        "non_retryable_refusals": over.non_retryable,
    }


def _drained(served: Served, acked: int) -> Page:
    """The service's own count, once it has come to rest: what it acknowledged is in it."""
    page = scrape(served.metrics)
    for _ in range(20):
        before = _flow(page)
        time.sleep(SETTLE_S)
        page = scrape(served.metrics)
        if _flow(page) == before and before["acknowledged"] >= acked:
            break
    return page


def _flow(page: Page) -> dict[str, int]:
    return {name: int(page.get(f"tailrace_{name}_items_total", signal="traces")) for name in FLOW}


def _lost(page: Page, acked: int) -> dict[str, Any]:
    """Over the whole run: acknowledged to the sender and in no account of the service.

    More than was acknowledged is no loss: the sender had gone when the answer was ready.
    """
    flow = _flow(page)
    kept = flow["folded"] + flow["rejected"] + flow["left_out"]
    return {
        "lost": max(0, acked - kept),
        "acked_in_all": acked,
        "folded": flow["folded"],
        "rejected": flow["rejected"],
        "left_out": flow["left_out"],
        "folded_not_heard": max(0, kept - acked),
    }


def calm_p99_ms(trace: Sequence[Request]) -> float:
    """99th percentile of the latency of acknowledged requests."""
    return quantile([latency_ms for _, latency_ms, is_acked in trace if is_acked], 0.99)


def _recover_s(over: Outcome, after: Outcome, calm_ms: float) -> float | None:
    """From the last request of the overload, connecting anew included."""
    waited_s = recovered_s(after.trace, calm_ms)
    return None if waited_s is None else round(after.begun_s - over.ended_s + waited_s, 2)


def recovered_s(trace: Sequence[Request], calm_ms: float) -> float | None:
    """The first moment from which on, for two seconds, all is as before; None: there is none.

    As before: every request of each half second is acknowledged, their p99 within bounds. Times
    are of sending.

    >>> recovered_s([(0.1, 50.0, True), (0.4, 9.0, False), (0.6, 3.0, True)], 2.0)
    0.5
    >>> recovered_s([(0.1, 3.0, True)], 2.0), recovered_s([(0.1, 9.0, True)], 2.0)
    (0.0, None)
    """
    windows: dict[int, list[Request]] = {}
    for request in trace:
        windows.setdefault(int(request[0] / RECOVERY_WINDOW_S), []).append(request)
    calm = {
        index
        for index, requests in windows.items()
        if all(is_acked for _, _, is_acked in requests)
        and calm_p99_ms(requests) <= SLOWER * calm_ms
    }
    for index in sorted(windows):
        if all(i in calm for i in range(index, index + STEADY_WINDOWS) if i in windows):
            return index * RECOVERY_WINDOW_S
    return None
