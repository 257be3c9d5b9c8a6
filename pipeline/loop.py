"""The synchronous heart: batches in, a snapshot out at every tick; only it wires the stages.

One thread calls it, with time passed in. Service and replay drive this one class:
`begin` a decoded batch, `fold_slice` until nothing is left, `tick` when one is due. Between two
slices a tick may come first, so a large batch never makes one late.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final, Protocol

import msgspec
import numpy as np

from pipeline.clock import NS_PER_MS, NS_PER_S, Instant
from pipeline.config import TailraceConfig
from pipeline.decide.decider import Decider
from pipeline.errors import Rejected, TailraceError
from pipeline.fingerprint.assign import Fingerprints
from pipeline.fingerprint.load import ADVICE, Band, LoadFingerprints
from pipeline.fold.breakdown import Breakdown
from pipeline.fold.endpoints import EndpointFold
from pipeline.fold.requests import RequestFold
from pipeline.journal import Members, Note, Operation, OverrideFile
from pipeline.model import (
    Canonical,
    Columns,
    Event,
    Int32s,
    LogColumns,
    Observation,
    Override,
    PointColumns,
    RequestRows,
    RequestWindow,
    Rights,
    SampleRows,
    Sender,
    SignalMatrix,
    Snapshot,
    SpanColumns,
)
from pipeline.normalise.attributes import normalise_logs, normalise_spans
from pipeline.normalise.endpoint import IdentityState
from pipeline.normalise.identity import Identity
from pipeline.normalise.metrics import PointNormaliser
from pipeline.normalise.traits import TraitKeys
from pipeline.signals import SIGNAL_INDEX

SLICE_ROWS: Final = 2_000
"""Rows folded between two looks at the clock: about a millisecond."""
WINDOWS_S: Final = (1, 10)
"""Request windows that deciding reads: trials and hard evidence, everything else."""
SIGNAL_WINDOW_S: Final = 10
"""The window whose figures appear as `window_*` signals."""
RETIRE_EVERY_NS: Final = NS_PER_S
"""Endpoints are forgotten after minutes of silence; looking for them each tick would cost more."""
LOAD_EVERY_NS: Final = NS_PER_S
"""Agents report about once a second; a correlation says nothing new in between."""
MAX_NOTES: Final = 64
"""Notes kept for the next snapshot; more in one tick are counted only."""

MAX_EPOCH: Final = 1 << 53
"""Milliseconds, of far beyond any clock; also what JSON readers hold exactly."""
MISFITS: Final = (
    TailraceError,
    msgspec.MsgspecError,
    AttributeError,
    LookupError,
    OverflowError,
    TypeError,
    ValueError,
)
"""How a stage meets state of another shape than its own."""

ROW_REASONS: Final = (
    "late",
    "future",
    "unknown_slot",
    "series_full",
    "duplicate",
    "out_of_order",
)
"""Why the fold leaves a whole row out; other reasons cost a value of it."""

Drop = Callable[[str, str, int], None]
"""Called with (stage, reason, how many)."""


class BySlot(Protocol):
    """A stage with state by endpoint slot."""

    def resize(self, n_slots: int) -> None:
        """Make room; never shrinks."""

    def forget(self, slots: Int32s) -> None:
        """The endpoints of `slots` are gone."""


class UnusableState(TailraceError):
    """State that a stage cannot take up, whole as its file may be; `stage` names it."""

    def __init__(self, stage: str, why: str) -> None:
        """`why` is for the log."""
        super().__init__(f"{stage}: {why}")
        self.stage = stage
        self.why = why


class Work:
    """One normalised batch on its way into the fold, slice by slice."""

    __slots__ = ("done", "left_out", "now", "parts", "rows")

    def __init__(self, canonical: Canonical, now: Instant) -> None:
        """Cut the rows of `canonical` into slices, all folded as of `now`."""
        self.now = now
        self.parts: list[RequestRows | SampleRows] = []
        self.done = 0
        self.rows = 0
        self.left_out = 0
        """Of the rows, by the fold."""
        for rows in (canonical.requests, canonical.samples):
            if rows is not None:
                self.rows += rows.n
                self.parts += [
                    rows.part(low, low + SLICE_ROWS) for low in range(0, rows.n, SLICE_ROWS)
                ]

    @property
    def is_done(self) -> bool:
        """Whether every slice has been folded."""
        return self.done == len(self.parts)


class Loop:
    """All state and every stage of the decision path."""

    def __init__(
        self, config: TailraceConfig, dropped: Drop = lambda *_: None, secret: bytes = b""
    ) -> None:
        """Build the stages from `config`; `dropped` hears of everything that is left out.

        `secret` is that of prefix keys, without which there are none.
        """
        self.identity = Identity(config.identity, config.pools)
        self._points = PointNormaliser()
        keys = config.fingerprint
        self._trait_keys = TraitKeys(keys.class_attributes, keys.tenant_attributes)
        self.fingerprints = Fingerprints(config.fingerprint, secret)
        self.load = LoadFingerprints()
        self.endpoint_fold = EndpointFold(config.fold)
        self.request_fold = RequestFold(config.requests)
        self.breakdown = Breakdown(config.breakdown, self.request_fold)
        self.decider = Decider(config.decide, config.pools)
        shortest_s = config.decide.latency.window_s
        self._timed_windows = {s for s in WINDOWS_S if s >= shortest_s} | {SIGNAL_WINDOW_S}
        self.epoch = 0
        self.early_tick_wanted = False
        self._dropped = dropped
        self._notes: list[str] = []
        self._retire_from_ns = 0
        self._load_from_ns = 0
        self._slots = 0

    def begin(self, columns: Columns, sender: Sender, now: Instant) -> Work:
        """Normalise a decoded batch; nothing of it counts until its slices are folded."""
        self._count("decode", columns.dropped)
        if sender.rights == Rights.NONE:
            return self._refuse_all(columns, sender, now)
        canonical = self._normalise(columns, sender, now)
        self._count("normalise", canonical.dropped)
        notes, reasons = self.identity.take_notes()
        self._count("normalise", reasons)
        self._note(*canonical.notes, *notes)
        self._fit()
        return Work(self._fingerprinted(canonical, now), now)

    def fold_slice(self, work: Work) -> None:
        """Fold the next slice of `work`, which must not be done."""
        part = work.parts[work.done]
        work.done += 1
        if isinstance(part, RequestRows):
            left_out = self.breakdown.fold(part, self.identity.directory().pool, work.now)
            self.early_tick_wanted |= bool(part.refused.any())
        else:
            left_out = self.endpoint_fold.fold(part, work.now)
            self.early_tick_wanted |= self.endpoint_fold.saw_down(part)
        self._count("fold", left_out)
        work.left_out += sum(left_out.get(reason, 0) for reason in ROW_REASONS)

    def fold_all(self, work: Work) -> None:
        """Fold what is left of `work`."""
        while not work.is_done:
            self.fold_slice(work)

    def tick(self, now: Instant) -> Snapshot:
        """Decide the next epoch from everything folded so far."""
        self.early_tick_wanted = False
        self._forget_retired(now)
        self._fit()
        self.epoch = max(self.epoch + 1, now.wall_ns // NS_PER_MS)
        observation = self.observe(now)
        self._observe_load(observation, now)
        snapshot = self.decider.decide(observation, now, self.epoch)
        if not self._notes:
            return snapshot
        events = tuple(Event(now.wall_ns, "note", "", "", text) for text in self._notes)
        self._notes = []
        return replace(snapshot, events=snapshot.events + events)

    def observe(self, now: Instant) -> Observation:
        """What a tick at `now` decides from."""
        directory = self.identity.directory()
        windows = {
            seconds: self.request_fold.window(seconds, now, latency=seconds in self._timed_windows)
            for seconds in WINDOWS_S
        }
        signals = self.endpoint_fold.signals(now, directory, quantiles=False)
        self._add_window_signals(signals, windows[SIGNAL_WINDOW_S])
        if self.decider.reads_token_lengths:
            row = SIGNAL_INDEX["token_length_deviation"]
            signals.value[row] = self.request_fold.token_length_deviation(directory, now)
        heard_age_s = np.minimum(
            self.endpoint_fold.heard_age_s(now), self.request_fold.heard_age_s(now)
        )
        return Observation(
            directory=directory,
            signals=signals,
            windows=windows,
            heard_age_s=heard_age_s,
            report_interval_s=self.endpoint_fold.report_interval_s(),
            down_samples=self.endpoint_fold.down_samples,
            up_samples=self.endpoint_fold.up_samples,
            refused_recent=self.request_fold.refused_recent(now, seconds=3),
            catching_up=self.endpoint_fold.catching_up(now),
        )

    def operate(self, operation: Operation, now: Instant) -> tuple[Override, ...]:
        """Carry out an operator's word; the overrides in force afterwards."""
        overrides = self.decider.overrides
        if operation.set is not None:
            overrides.set(operation.set)
        if operation.remove is not None:
            overrides.remove(*operation.remove)
        return overrides.active(now.wall_ns)

    def apply(self, entry: OverrideFile | Members | Note) -> None:
        """Take up what a file says now, or a note for the next snapshot."""
        if isinstance(entry, OverrideFile):
            try:
                self.decider.overrides.replace_file(entry.overrides)
            except Rejected as error:
                self._note(f"override file: {error}; what it said before stays in force")
        elif isinstance(entry, Members):
            self._note(*self.identity.set_members(entry.pool, entry.members))
        else:
            self._note(entry.text)

    def export_state(self) -> dict[str, Mapping[str, Any]]:
        """State of every stage by name, plain maps; see `restore`."""
        return {
            "loop": {"epoch": self.epoch},
            "identity": msgspec.to_builtins(self.identity.export_state()),
            "fold": self.endpoint_fold.export_state(),
            "fingerprint": self.fingerprints.export_state(),
            "load": self.load.export_state(),
            "decide": self.decider.export_state(),
            "overrides": {"overrides": self.decider.overrides.export()},
        }

    def restore(self, state: Mapping[str, Mapping[str, Any]]) -> None:
        """Take up exported state before the first batch; a stage that is missing starts afresh.

        `UnusableState` names the first stage that its state does not fit; this loop is then half
        restored and of no further use.
        """
        stages: dict[str, Callable[[Any], None]] = {
            "loop": self._restore_epoch,
            "identity": self._restore_identity,
            "fold": self.endpoint_fold.restore,
            "fingerprint": self.fingerprints.restore,
            "load": self.load.restore,
            "overrides": lambda part: self.decider.overrides.restore(part["overrides"]),
            "decide": lambda part: self.decider.restore(part, self.identity.directory()),
        }
        for stage, restore in stages.items():
            if stage not in state:
                continue
            try:
                restore(state[stage])
            except MISFITS as error:
                raise UnusableState(stage, f"{type(error).__name__}: {error}") from error

    def _restore_epoch(self, part: Mapping[str, Any]) -> None:
        epoch = int(part["epoch"])
        if not 0 <= epoch <= MAX_EPOCH:
            raise ValueError(f"epoch {epoch}")
        self.epoch = epoch

    def _restore_identity(self, part: Mapping[str, Any]) -> None:
        self.identity.restore(msgspec.convert(part, IdentityState))
        self._fit()

    def _normalise(self, columns: Columns, sender: Sender, now: Instant) -> Canonical:
        if isinstance(columns, SpanColumns):
            return normalise_spans(columns, self.identity, sender, now, self._trait_keys)
        if isinstance(columns, PointColumns):
            return self._points.normalise_points(columns, self.identity, sender, now)
        if isinstance(columns, LogColumns):
            return normalise_logs(columns, self.identity, sender, now, self._trait_keys)
        return Canonical()

    def _fingerprinted(self, canonical: Canonical, now: Instant) -> Canonical:
        if canonical.requests is None or canonical.traits is None:
            return canonical
        directory = self.identity.directory()
        requests = self.fingerprints.assign(canonical.requests, canonical.traits, directory, now)
        self._count("fingerprint", self.fingerprints.take_counts())
        return replace(canonical, requests=requests)

    def _refuse_all(self, columns: Columns, sender: Sender, now: Instant) -> Work:
        """Nothing of a sender without any right is looked at."""
        self._count("normalise", {"sender_rights": columns.n})
        if columns.n:
            text = f"{sender.peer} sends without any right; it is left out"
            self.identity.tell(text, "sender_rights", sender.peer)
        return Work(Canonical(), now)

    def _note(self, *texts: str) -> None:
        self._notes += texts[: MAX_NOTES - len(self._notes)]

    def _fit(self) -> None:
        slots = self.identity.directory().n
        if slots != self._slots:
            self._slots = slots
            for stage in self._by_slot:
                stage.resize(slots)

    def _forget_retired(self, now: Instant) -> None:
        if now.mono_ns < self._retire_from_ns:
            return
        self._retire_from_ns = now.mono_ns + RETIRE_EVERY_NS
        self.fingerprints.retire(now)
        slots = self.identity.retired(now)
        if len(slots):
            for stage in self._by_slot:
                stage.forget(slots)

    @property
    def _by_slot(self) -> tuple[BySlot, ...]:
        stages = (self.endpoint_fold, self.request_fold, self.breakdown)
        return (*stages, self.decider, self.load)

    def _observe_load(self, seen: Observation, now: Instant) -> None:
        if now.mono_ns < self._load_from_ns:
            return
        self._load_from_ns = now.mono_ns + LOAD_EVERY_NS
        for slot in self.load.observe(seen.signals, seen.directory, now).tolist():
            if self.load.band[slot] == Band.TIGHT:
                text = f"CPU/GPU coupling {self.load.coupling[slot]:.2f}; {ADVICE[Band.TIGHT]}"
                self._note(f"{seen.directory.id[slot]}: {text}")

    def _add_window_signals(self, signals: SignalMatrix, window: RequestWindow) -> None:
        calls = window.failure_calls
        with np.errstate(invalid="ignore", divide="ignore"):
            failure_ratio = np.where(calls > 0, window.failures / calls, np.nan)
        for name, column in (
            ("window_ttft_p50_s", window.ttft_p50_s),
            ("window_duration_p50_s", window.duration_p50_s),
            ("window_calls_per_s", window.calls / window.seconds),
            ("window_failure_ratio", failure_ratio),
        ):
            row = SIGNAL_INDEX[name]
            signals.value[row] = column
            signals.age_s[row] = np.where(np.isnan(column), np.inf, 0.0)

    def _count(self, stage: str, counts: Mapping[str, int]) -> None:
        for reason, count in counts.items():
            if count:
                self._dropped(stage, reason, count)
