"""`tailrace bench ingest`: items per second and core, of Tailrace and of its peers side by side.

An engine is a process on a core of its own and the load generator another on another core. A round
measures every engine once, one after the other, so that slow changes of the machine hit all alike;
figures are medians over rounds. Items count when they were acknowledged, and an engine that
acknowledged what it did not count has no figure.
"""

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from pipeline.bench.batches import Signal
from pipeline.bench.driver import Generator, Memory
from pipeline.bench.engines import (
    ENGINES,
    WHAT,
    Engine,
    Level,
    Running,
    counted,
    left_out,
    missing,
    running,
)
from pipeline.bench.figures import MOST_REPEATS, is_noisy, loss, per_core, ratios, spread
from pipeline.bench.in_process import InProcess
from pipeline.bench.jobs import Build, Closed, Compression, Outcome, distinct
from pipeline.bench.machine import cores, describe, pinned, steal
from pipeline.errors import DependencyLost

AROUND_S: Final = 3.0
"""What starting and ending an engine takes, roughly."""
LEAST_RATIO: Final = 0.2
"""Of the time that was asked for, which must have been measured."""
BUILD_S: Final = 20.0
"""What building the batches of one size takes, roughly."""

Tell = Callable[[str], None]
"""Called with a line about what happens."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What is measured."""

    signals: tuple[Signal, ...] = ("spans", "points")
    batches: tuple[int, ...] = (10, 100, 1000, 8192)
    compressions: tuple[Compression, ...] = ("none", "gzip")
    levels: tuple[Level, ...] = ("A", "B")
    peers: bool = False
    rounds: int = 5
    seconds: float = 10.0
    warm_s: float = 3.0
    connections: int = 1
    in_flight: int = 16
    most_batches: int = 4096
    """Distinct batches at most, for a quick look."""
    in_process: bool = True


class Cell(NamedTuple):
    """One row of the result."""

    engine: Engine
    signal: Signal
    batch: int
    compression: Compression


class Measured(NamedTuple):
    """One measurement of one cell."""

    outcome: Outcome
    rss_mb: float
    steal_ratio: float
    problem: str
    """Why it has no figure; "" when it has one."""
    decoder: str
    discarded: int


@dataclass
class _Series:
    """What the rounds of a cell gave."""

    cell: Cell
    measured: list[Measured] = field(default_factory=list)


def cells(plan: Plan, available: Sequence[Engine]) -> Iterator[Cell]:
    """What a round measures, in order; sizes outermost, since batches are built once a size."""
    for signal in plan.signals:
        for batch in plan.batches:
            for compression in plan.compressions:
                for engine in available:
                    if signal in engine.signals and engine.level in plan.levels:
                        yield Cell(engine, signal, batch, compression)


def estimate_s(plan: Plan, available: Sequence[Engine]) -> float:
    """How long it takes, roughly, without repeats."""
    each = plan.warm_s + plan.seconds + AROUND_S
    count = sum(1 for _ in cells(plan, available))
    sizes = len(plan.signals) * len(plan.batches)
    inside = sizes * plan.rounds * (2 * plan.seconds + 2 * AROUND_S) if plan.in_process else 0.0
    return plan.rounds * count * each + sizes * BUILD_S + inside


def available(plan: Plan) -> tuple[list[Engine], list[dict[str, str]]]:
    """The engines that are measured, and those that are skipped, with the reason."""
    wanted = [engine for engine in ENGINES if plan.peers or engine.name == "tailrace"]
    why = {engine.name: missing(engine.name) for engine in wanted}
    skipped = [{"engine": name, "why": text} for name, text in why.items() if text]
    return [engine for engine in wanted if not why[engine.name]], skipped


def run(plan: Plan, tell: Tell) -> dict[str, Any]:
    """Measure everything; machine, rows and ratios."""
    engines, skipped = available(plan)
    for each in skipped:
        tell(f"skipped: {each['engine']}: {each['why']}")
    tell(f"this takes about {estimate_s(plan, engines) / 60:.0f} minutes")
    engine_core, own_core = cores()
    rows: list[dict[str, Any]] = []
    decoder = ""
    with pinned(own_core), Generator(own_core) as generator:
        for signal in plan.signals:
            for batch in plan.batches:
                build = Build(signal, batch, min(distinct(batch), plan.most_batches))
                tell(f"building {build.batches:,} batches of {batch:,} {signal}")
                generator.build(build)
                own = [c for c in cells(plan, engines) if (c.signal, c.batch) == (signal, batch)]
                series = [_Series(cell) for cell in own]
                inside = InProcess(build, plan.seconds, engine_core) if plan.in_process else None
                for round_ in range(plan.rounds):
                    for each_ in series:
                        measured = _measure(each_.cell, plan, generator, engine_core)
                        each_.measured.append(measured)
                        decoder = measured.decoder or decoder
                        tell(f"round {round_ + 1}/{plan.rounds}: {_line(each_.cell, measured)}")
                    if inside is not None:
                        tell(f"round {round_ + 1}/{plan.rounds}: {inside.measure()}")
                rows += [_row(each_, build) for each_ in series]
                rows += inside.rows() if inside is not None else []
    return {
        "machine": {**describe(decoder), "engine_core": engine_core, "load_core": own_core},
        "method": _method(plan),
        "rows": rows,
        "ratios": ratios(rows),
        "skipped": skipped,
    }


def _measure(cell: Cell, plan: Plan, generator: Generator, core: int) -> Measured:
    """One measurement, repeated while the hypervisor gives the cores to others."""
    for discarded in range(MOST_REPEATS + 1):
        before = steal()
        try:
            measured = _measure_once(cell, plan, generator, core)
        except (DependencyLost, OSError) as error:
            return Measured(Outcome(), 0.0, 0.0, str(error), "", discarded)
        ratio = steal().ratio_since(before)
        if not is_noisy(ratio):
            break
    return measured._replace(steal_ratio=ratio, discarded=discarded)


def _measure_once(cell: Cell, plan: Plan, generator: Generator, core: int) -> Measured:
    with running(cell.engine, core) as engine, Memory(engine.pid).watched() as memory:
        outcome = generator.do(
            Closed(
                target=engine.otlp,
                pid=engine.pid,
                compression=cell.compression,
                connections=plan.connections,
                in_flight=plan.in_flight,
                warm_s=plan.warm_s,
                seconds=plan.seconds,
            )
        )
        problem, decoder = _judge(cell, engine, outcome, plan.seconds)
    return Measured(outcome, memory.most_mb, 0.0, problem, decoder, 0)


def _judge(cell: Cell, engine: Running, outcome: Outcome, seconds: float) -> tuple[str, str]:
    """Why the figure does not count, and Tailrace's decoder."""
    page = engine.page()
    problem = loss(outcome.acked_items, counted(cell.engine, page, cell.signal))
    refused = {code: count for code, count in outcome.answers.items() if code != "OK"}
    if refused:
        problem = problem or f"requests failed: {refused}"
    if outcome.rejected_items:
        problem = problem or f"{outcome.rejected_items} items rejected"
    if outcome.seconds < LEAST_RATIO * seconds:
        problem = problem or f"batches ran out after {outcome.seconds:.1f} s"
    dropped = left_out(cell.engine, page)
    if dropped:
        problem = problem or f"left out: {dropped}"
    is_own = page is not None and cell.engine.name == "tailrace"
    decoder = (
        next(iter(page.by("tailrace_decoder_active", "decoder")), "") if is_own and page else ""
    )
    return problem, decoder


def _line(cell: Cell, measured: Measured) -> str:
    name = " ".join((cell.engine.name, cell.engine.variant)).strip()
    text = f"{name}, level {cell.engine.level}, {cell.signal}, {cell.batch}, {cell.compression}: "
    if measured.problem:
        return text + measured.problem
    outcome = measured.outcome
    figure = per_core(outcome.measured_items, outcome.cpu_s)
    return (
        f"{text}{figure:,.0f} items/s/core, client {outcome.client_cpu_s / outcome.seconds:.2f} "
        f"cores, steal {measured.steal_ratio:.1%}"
    )


def _row(series: _Series, build: Build) -> dict[str, Any]:
    cell, good = series.cell, [m for m in series.measured if not m.problem]
    row: dict[str, Any] = {
        "engine": cell.engine.name,
        "variant": cell.engine.variant,
        "signal": cell.signal,
        "level": cell.engine.level,
        "batch": cell.batch,
        "compression": cell.compression,
        "transport": "grpc",
        "rounds": len(good),
        "discarded": sum(m.discarded for m in series.measured),
        "noisy": sum(is_noisy(m.steal_ratio) for m in good),
        "distinct_batches": build.batches,
    }
    if len(good) < len(series.measured):
        problem = next(m.problem for m in series.measured if m.problem)
        return {**row, "items_per_core_s": None, "rss_mb": None, "ack_p99_ms": None, "why": problem}
    outcomes = [m.outcome for m in good]
    figures = [per_core(o.measured_items, o.cpu_s) for o in outcomes]
    return {
        **row,
        "items_per_core_s": round(statistics.median(figures)),
        "spread": round(spread(figures), 3),
        "items_per_s": round(statistics.median(o.measured_items / o.seconds for o in outcomes)),
        "rss_mb": round(max(m.rss_mb for m in good), 1),
        "ack_p50_ms": round(statistics.median(o.p50_ms for o in outcomes), 2),
        "ack_p99_ms": round(statistics.median(o.p99_ms for o in outcomes), 2),
        "engine_cores": round(statistics.median(o.cpu_s / o.seconds for o in outcomes), 2),
        "load_cores": round(statistics.median(o.client_cpu_s / o.seconds for o in outcomes), 2),
        "item_bytes": round(outcomes[0].item_bytes),
        "sent_item_bytes": round(outcomes[0].sent_item_bytes, 1),
    }


def _method(plan: Plan) -> dict[str, Any]:
    """What a reader must know to read the rows."""
    return {
        "rounds": plan.rounds,
        "warm_s": plan.warm_s,
        "seconds": plan.seconds,
        "connections": plan.connections,
        "in_flight": plan.in_flight,
        "items_per_core_s": "acknowledged items / CPU seconds of the engine's process tree",
        "conservation": "acknowledged items against the engine's own count; rotel has none and is "
        "not checked",
        "spans": "12 attributes and 1 event; times and ids are new in every request, attribute "
        "values repeat after distinct_batches requests",
        "points": "half gauges, half histograms of 16 buckets; times and counts move in every "
        "request",
        "gzip": "bodies are compressed beforehand, level 1; spans keep the times and ids of then "
        "and repeat after distinct_batches requests, points are sent once",
        "levels": {
            **{f"{name} {level}": text for (name, level), text in WHAT.items()},
            "in-process A, B": "one process, one thread, no transport, no ticks: decode; decode "
            "and fold into the same static pool",
        },
    }
