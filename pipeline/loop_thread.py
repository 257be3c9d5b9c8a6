"""The thread that owns the loop: takes the one ordered queue, keeps ticks on time, records.

A due tick goes before the next batch and between two slices of one. What is taken is written to the
journal in that order, so that replay can do the same. This thread is one of the two supervisors: an
unexpected error costs the entry that caused it, is logged once and counted, and the loop goes on.
"""

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import structlog

from pipeline.channel import Channel
from pipeline.clock import NS_PER_S, Clock, Instant
from pipeline.errors import DependencyLost, TailraceError
from pipeline.ingest import Received
from pipeline.journal import (
    Batch,
    Entry,
    JournalWriter,
    Members,
    Note,
    Operation,
    OverrideFile,
    Tick,
)
from pipeline.loop import Loop, Work
from pipeline.model import Client, Columns, OtlpSignal, Override, Receipt, Sender, Snapshot
from pipeline.telemetry import Telemetry

EARLY_TICK_GAP_NS: Final = 20_000_000
"""Ticks forced by hard evidence come this long after another, or twice what that one cost."""
TICK_TO_ENTRIES: Final = 4
"""After a tick of t, entries get at least t / 4, however late the next tick is."""
IDLE_WAIT_S: Final = 0.25
"""Longest wait for an entry, so that a stop is noticed soon."""

log = structlog.get_logger()


@dataclass(frozen=True, slots=True, eq=False)
class Asked:
    """An operator's word; `done` gets the overrides in force afterwards."""

    operation: Operation
    done: Callable[[tuple[Override, ...] | Exception], None]


Item = Received | Asked | OverrideFile | Members | Note


class LoopThread:
    """Runs a `Loop` on the entries of a channel until stopped."""

    def __init__(
        self,
        loop: Loop,
        channel: Channel[Item],
        clock: Clock,
        *,
        sender_of: Callable[[Client], Sender],
        tick_s: float,
        publish: Callable[[Snapshot, int], None],
        telemetry: Telemetry,
        journal: JournalWriter | None = None,
        save: Callable[[dict[str, Mapping[str, Any]]], None] | None = None,
        save_every_s: float = 60.0,
    ) -> None:
        """`publish` gets each snapshot and its cost in ns; `save` a state export between ticks.

        `sender_of` tells what a client's data may do.
        """
        self._loop = loop
        self._channel = channel
        self._clock = clock
        self._sender_of = sender_of
        self._tick_ns = round(tick_s * NS_PER_S)
        self._publish = publish
        self._telemetry = telemetry
        self._journal = journal
        self._save = save
        self._save_every_ns = round(save_every_s * NS_PER_S)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tailrace-loop", daemon=True)
        self._due_ns = 0
        self._early_from_ns = 0
        self._saved_ns = 0
        self._slices_before_tick = 0
        self._flow = {signal: _Flow(telemetry, signal.value) for signal in OtlpSignal}

    def start(self) -> None:
        """Begin; the first tick is due one period later, after what is queued already."""
        now = self._clock.now()
        self._due_ns = now.mono_ns + self._tick_ns
        self._saved_ns = now.mono_ns
        self._thread.start()

    def stop(self, timeout_s: float) -> bool:
        """Fold what is queued, decide once more, save; whether the thread ended in time."""
        self._stop.set()
        self._channel.wake()
        if self._thread.is_alive():
            self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while not (self._stop.is_set() and len(self._channel) == 0):
            self._supervised("tick", self._tick_if_due)
            item = self._channel.take(self._wait_s())
            if item is not None:
                self._supervised("entry", partial(self._take, item))
        self._supervised("tick", lambda: self._tick(self._clock.now(), "due"))
        self._supervised("stop", self._finish)

    def _finish(self) -> None:
        if self._save is not None:
            self._save(self._loop.export_state())
        if self._journal is not None:
            self._journal.close()

    def _supervised(self, task: str, step: Callable[[], None]) -> None:
        try:
            step()
        except Exception:  # the supervisor of the loop thread: nothing may end it
            self._telemetry.supervised_failures_total.labels(task).inc()
            log.exception("unexpected error in the loop thread", task=task)

    def _wait_s(self) -> float:
        if self._stop.is_set():
            return 0.0
        until_due_s = (self._due_ns - self._clock.now().mono_ns) / NS_PER_S
        return min(max(until_due_s, 0.0), IDLE_WAIT_S)

    def _take(self, item: Item) -> None:
        now = self._clock.now()
        self._slices_before_tick = 0
        if isinstance(item, Received):
            self._fold(item, now)
        elif isinstance(item, Asked):
            self._operate(item, now)
        else:
            self._record(now, item)
            self._loop.apply(item)

    def _operate(self, item: Asked, now: Instant) -> None:
        answer: tuple[Override, ...] | Exception = DependencyLost("not carried out")
        try:
            self._record(now, item.operation)
            answer = self._loop.operate(item.operation, now)
        except TailraceError as error:
            answer = error
        finally:
            item.done(answer)

    def _fold(self, item: Received, now: Instant) -> None:
        receipt: Receipt | Exception = DependencyLost("folding failed")
        try:
            sender = self._sender_of(item.client)
            if item.record is not None:
                entry = Batch(item.signal, item.record, sender.peer, int(sender.rights))
                self._record(now, entry)
            work = self._loop.begin(item.columns, sender, now)
            self._fold_in_slices(work)
            receipt = _receipt(item.columns)
            self._flow[item.signal].count(item.columns.n, receipt.rejected, work)
        finally:
            item.done(receipt)

    def _fold_in_slices(self, work: Work) -> None:
        while not work.is_done:
            self._loop.fold_slice(work)
            self._slices_before_tick = work.done
            self._supervised("tick", self._tick_if_due)  # its fault is not the batch's

    def _tick_if_due(self) -> None:
        now = self._clock.now()
        if now.mono_ns >= self._due_ns:
            late_ns = now.mono_ns - self._due_ns
            self._telemetry.tick_late_seconds.observe(late_ns / NS_PER_S)
            missed = late_ns // self._tick_ns
            self._due_ns += (missed + 1) * self._tick_ns
            self._tick(now, "due")
            self._leave_time_for_entries(now)
        elif self._loop.early_tick_wanted and now.mono_ns >= self._early_from_ns:
            self._tick(now, "early")

    def _leave_time_for_entries(self, begun: Instant) -> None:
        """Ticks that cost more than their period allows come less often: batches must be folded."""
        ended_ns = self._clock.now().mono_ns
        spare_ns = (ended_ns - begun.mono_ns) // TICK_TO_ENTRIES
        self._due_ns = max(self._due_ns, ended_ns + spare_ns)

    def _tick(self, now: Instant, kind: str) -> None:
        self._record(now, Tick(self._slices_before_tick))
        begun_ns = time.perf_counter_ns()
        snapshot = self._loop.tick(now)
        cost_ns = time.perf_counter_ns() - begun_ns
        self._publish(snapshot, cost_ns)
        gap_ns = max(EARLY_TICK_GAP_NS, 2 * cost_ns)
        self._early_from_ns = now.mono_ns + gap_ns
        self._telemetry.ticks_total.labels(kind).inc()
        self._telemetry.tick_seconds.observe(cost_ns / NS_PER_S)
        if self._save is not None and now.mono_ns - self._saved_ns >= self._save_every_ns:
            self._saved_ns = now.mono_ns
            self._save(self._loop.export_state())

    def _record(self, now: Instant, entry: Entry) -> None:
        if self._journal is not None:
            self._journal.append(now, entry)


class _Flow:
    """The conservation counters of one signal."""

    def __init__(self, telemetry: Telemetry, signal: str) -> None:
        self._received = telemetry.received_items_total.labels(signal)
        self._acknowledged = telemetry.acknowledged_items_total.labels(signal)
        self._rejected = telemetry.rejected_items_total.labels(signal)
        self._folded = telemetry.folded_items_total.labels(signal)
        self._unused = telemetry.left_out_items_total.labels(signal, "normalise")
        self._late = telemetry.left_out_items_total.labels(signal, "fold")

    def count(self, n: int, rejected: int, work: Work) -> None:
        """A batch of n items beside the rejected ones was folded to its end."""
        self._received.inc(n)
        self._acknowledged.inc(n + rejected)
        self._folded.inc(work.rows - work.left_out)
        for counter, items in (
            (self._rejected, rejected),
            (self._unused, n - work.rows),
            (self._late, work.left_out),
        ):
            if items:
                counter.inc(items)


def _receipt(columns: Columns) -> Receipt:
    rejected = getattr(columns, "rejected", 0)
    return Receipt(rejected, "points without time, value or temporality" if rejected else "")
