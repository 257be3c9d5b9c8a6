"""The decide stage: one observation in, one snapshot out, every tick.

Compares, learns, scores, damps, moves circuits, then applies authority and overrides. All state is
arrays by slot; a tick touches no endpoint in Python except where something changed. Equal inputs in
equal order give equal bytes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from pipeline.clock import NS_PER_S, Instant
from pipeline.decide import evidence as evidences
from pipeline.decide.authority import AuthorityGate, PoolConfigs
from pipeline.decide.capacity import Capacity, hardware_classes
from pipeline.decide.circuit import Change, Circuits
from pipeline.decide.columns import Blanks, Columns
from pipeline.decide.config import DecideConfig
from pipeline.decide.evidence import Evidence
from pipeline.decide.faults import Faults
from pipeline.decide.freshness import Fresh, Freshness
from pipeline.decide.groups import Groups
from pipeline.decide.journal import ALL_OUT, FROZEN, OFF, RESTARTED, Journal
from pipeline.decide.latency import Latency
from pipeline.decide.outcomes import Outcome, Outcomes
from pipeline.decide.overrides import Governing, OverrideSet, govern
from pipeline.decide.publication import Publication, Published, shares
from pipeline.decide.restart import AGED, VERSION, Exported, Restart, export_columns
from pipeline.decide.scorers import Context
from pipeline.decide.scoring import Judge, Judged
from pipeline.decide.weights import NEUTRAL, Weights
from pipeline.model import (
    Authority,
    Bools,
    Directory,
    Floats,
    Int64s,
    Observation,
    Override,
    PoolConfig,
    PoolDecision,
    Snapshot,
    State,
)

CAPACITY_NS: Final = NS_PER_S  # learned rates move in minutes: once a second is often enough
MAX_NEWS_GAP_S: Final = 60.0  # a sample stands for at most this much time before it
MAX_ELAPSED_NS: Final = 1 << 60  # 36 years of running; more was never exported
MAX_PAUSE_NS: Final = 3600 * NS_PER_S  # a clock that leaps further is a broken clock
COVERAGE_SHARE: Final = 0.5  # of the confidence depends on how many of the inputs are there


class _Known(NamedTuple):
    """What follows from one directory version."""

    directory: Directory
    groups: Groups
    classes: Groups
    target: Bools
    is_empty: bool
    """There is no endpoint at all."""


class _Tick(NamedTuple):
    """What one tick has worked out, for the snapshot."""

    fresh: Fresh
    judged: Judged
    published: Published
    decided: Floats
    pools: tuple[PoolDecision, ...]


class _Clocks(Columns):
    """Per slot: when it became known (elapsed ns, -1 = not yet), time since its last news."""

    BLANK: ClassVar[Blanks] = {
        "known_ns": ("int64", -1),
        "quiet_s": ("float64", 0.0),
        "unlearned_s": ("float64", 0.0),
    }
    known_ns: Int64s
    quiet_s: Floats
    unlearned_s: Floats


class Decider:
    """Turns observations into snapshots. Not thread-safe; the loop thread owns it.

    Order: `restore` before the first `decide`; `forget` when slots retire; `resize` whenever the
    directory grows (`decide` does it too).
    """

    def __init__(self, config: DecideConfig, pools: tuple[PoolConfig, ...]) -> None:
        """`pools` by name, "*" for the defaults of unlisted ones."""
        self._config = config
        self.overrides = OverrideSet(config.max_overrides)
        self._freshness = Freshness(config.freshness)
        self._outcomes = Outcomes()
        self._latency = Latency(config.latency)
        self._capacity = Capacity(config.capacity)
        self._faults = Faults(config.faults)
        self._weights = Weights(config.weights, config.freshness)
        self._circuits = Circuits(config.circuit, config.weights.probe_share)
        self._gate = AuthorityGate(PoolConfigs(pools), config.circuit.cap_share)
        self._publication = Publication()
        self._restart = Restart()
        self._clocks = _Clocks()
        self._parts: Mapping[str, Columns] = {
            "freshness": self._freshness,
            "outcomes": self._outcomes,
            "latency": self._latency,
            "capacity": self._capacity,
            "faults": self._faults,
            "weights": self._weights,
            "circuits": self._circuits,
            "authority": self._gate,
            "publication": self._publication,
            "restart": self._restart,
        }
        self._judge_all = Judge()
        self._journal = Journal()
        self._known: _Known | None = None
        self._last: Instant | None = None
        self._elapsed_ns = 0
        self._relative: Floats = np.ones(0)
        self._relative_ns = -CAPACITY_NS
        self._governing = Governing((), np.zeros(0, np.int32))
        self._pool_rows: list[tuple[str, int, bool, bool, str]] = []
        self._pool_decisions: tuple[PoolDecision, ...] = ()
        self._empty: tuple[Governing, Snapshot] | None = None
        """What was decided without any endpoint, and would be again."""

    def resize(self, n_slots: int) -> None:
        """Make room for `n_slots` endpoints; never shrinks."""
        if n_slots <= self._clocks.n:
            return
        for part in (*self._parts.values(), self._clocks):
            part.resize(n_slots)
        self._journal.resize(n_slots)
        self._relative = np.concatenate([self._relative, np.ones(n_slots - len(self._relative))])

    def forget(self, slots: npt.NDArray[np.integer[Any]]) -> None:
        """The slots retired: drop everything about their endpoints."""
        self._empty = None
        for part in (*self._parts.values(), self._clocks):
            part.forget(slots)
        self._relative[slots] = 1.0
        for slot in slots.tolist():
            self._journal.forget(slot)

    def set_pools(self, pools: tuple[PoolConfig, ...]) -> None:
        """Take another pool configuration from the next tick on; nothing learned is lost."""
        self._gate.pools = PoolConfigs(pools)
        self._empty = None

    @property
    def reads_token_lengths(self) -> bool:
        """Whether `token_length_deviation` may move a score; else it may be left out."""
        return "hardware" in self._gate.pools.profiles

    def decide(self, observation: Observation, now: Instant, epoch: int) -> Snapshot:
        """Decide one tick. All arrays of the observation have the directory's length.

        Time that runs backwards counts as standing still.
        """
        dt_s = self._advance(now)
        self._journal.begin(now.wall_ns)
        known = self._meet(observation.directory, now)
        governing = self._govern(known, now)
        if self._empty is not None and self._empty[0] is governing and known.is_empty:
            return self._still_empty(self._empty[1], now, epoch, dt_s)
        with np.errstate(divide="ignore", invalid="ignore"):
            snapshot = self._decide(observation, known, governing, now, epoch, dt_s)
        is_final = known.is_empty and not self._restart.waiting
        self._empty = (governing, snapshot) if is_final else None
        return snapshot

    def _still_empty(self, last: Snapshot, now: Instant, epoch: int, dt_s: float) -> Snapshot:
        """Without endpoints only time passes."""
        self._freshness.rest(dt_s)
        self._clocks.quiet_s = np.minimum(self._clocks.quiet_s + dt_s, MAX_NEWS_GAP_S)
        return replace(last, epoch=epoch, time_ns=now.wall_ns, events=self._journal.take())

    def _decide(
        self,
        observation: Observation,
        known: _Known,
        governing: Governing,
        now: Instant,
        epoch: int,
        dt_s: float,
    ) -> Snapshot:
        fresh = self._freshness.update(observation, known.groups, dt_s)
        hold, notes = self._holds(observation, known, fresh, dt_s)
        signals = evidences.usable(observation)
        outcome = self._outcome(observation, dt_s)
        judged, excess = self._judge(observation, signals, outcome, known, fresh, dt_s)
        self._weights.aim(judged.cost, self._relative, known.groups, fresh.news, dt_s)
        weight = self._weights.step(hold, fresh.silence, dt_s)
        evidence = self._evidence(observation, signals, outcome, fresh, excess)
        changes = self._circuits.step(
            evidence,
            known.groups,
            ids=known.directory.id,
            draining=known.directory.draining,
            removed=governing.mask("exclude", "drain"),
            hold=hold,
            now_ns=self._elapsed_ns,
        )
        weight = self._by_state(weight, evidence, changes)
        for change in changes:
            hold[change.slot] = False
        decided, out = self._publication.decide(weight, hold, known.groups)
        told = self._gate.tell(
            decided, self._circuits.state, known.directory, known.groups, self._elapsed_ns
        )
        published = self._publication.publish(told.weight, told.state, governing, known.groups)
        self._journal.states(changes, known.directory)
        pools = self._pools(known, governing, out | published.all_out, notes)
        tick = _Tick(fresh, judged, published, decided, pools)
        return self._snapshot(known, governing, tick, now, epoch)

    def _advance(self, now: Instant) -> float:
        """Move the stage's own clock; seconds since the last tick."""
        if self._last is None:
            gap_ns = now.wall_ns - self._restart.saved_wall_ns if self._restart.waiting else 0
        else:
            gap_ns = now.mono_ns - self._last.mono_ns
        gap_ns = min(max(gap_ns, 0), MAX_PAUSE_NS)
        first = self._last is None
        self._elapsed_ns += gap_ns
        self._last = now
        return 0.0 if first else gap_ns / NS_PER_S

    def _meet(self, directory: Directory, now: Instant) -> _Known:
        """Follow a new directory version: group, forget replaced endpoints, start new ones."""
        before = self._known
        if before is not None and before.directory.version == directory.version:
            return before._replace(directory=directory)
        self.resize(directory.n)
        if before is not None:
            old = before.directory
            replaced = [
                slot
                for slot in np.flatnonzero(self._clocks.known_ns[: old.n] >= 0).tolist()
                if old.id[slot] != directory.id[slot]
            ]
            if replaced:
                self.forget(np.array(replaced, np.int64))
        groups = Groups.of_directory(directory)
        reachable = np.array([address != "" for address in directory.address], np.bool_)
        known = _Known(
            directory=directory,
            groups=groups,
            classes=hardware_classes(directory, groups),
            target=directory.known & directory.member & (directory.pool >= 0) & reachable,
            is_empty=not directory.known.any(),
        )
        self._start(np.flatnonzero(directory.known & (self._clocks.known_ns < 0)), known, now)
        self._known = known
        self._governing = Governing((), np.full(directory.n, -1, np.int32))
        self._relative_ns = self._elapsed_ns - CAPACITY_NS
        return known

    def _start(self, slots: Int64s, known: _Known, now: Instant) -> None:
        """Take up new endpoints: from the state file, else with slow start if the group is old."""
        config = self._config.weights
        since_ns = self._elapsed_ns - self._clocks.known_ns
        old = (self._clocks.known_ns >= 0) & (since_ns > config.slow_start_s * NS_PER_S)
        aged = known.groups.spread(known.groups.count(old).astype(np.float64), 0.0) > 0
        self._clocks.known_ns[slots] = self._elapsed_ns
        joining = slots[aged[slots]]
        self._weights.start(joining, config.slow_start_from if config.slow_start_s > 0 else 1.0)
        for slot in slots.tolist() if self._restart.waiting else ():
            rule = self._restart.adopt(slot, known.directory.id[slot], self._parts)
            if rule is None:
                continue
            self._journal.rules[slot] = rule
            self._freshness.restored(slot)
            if self._restart.is_old(now.wall_ns):
                self._drop_circuit(slot)

    def _drop_circuit(self, slot: int) -> None:
        """The restored circuit is too old; so is a weight that came from it."""
        if self._circuits.state[slot] not in (State.HEALTHY, State.UNKNOWN):
            self._publication.forget(np.array([slot]))
            self._weights.start(np.array([slot]), 1.0)
        self._circuits.forget(np.array([slot]))
        self._journal.forget(slot)

    def _govern(self, known: _Known, now: Instant) -> Governing:
        self.overrides.expire(now.wall_ns)
        active = self.overrides.active(now.wall_ns)
        if active != self._governing.overrides:
            self._governing = govern(active, known.directory)
        self._journal.overrides(active)
        return self._governing

    def _holds(
        self, observation: Observation, known: _Known, fresh: Fresh, dt_s: float
    ) -> tuple[Bools, Sequence[str]]:
        """Which slots stand still, bool[n], and why, per pool ("" = it does not)."""
        directory = known.directory
        held, restarting = self._restart.hold(
            directory, known.groups, self._freshness.heard, fresh.interval_s, dt_s
        )
        silent = np.zeros(len(directory.pools), np.bool_)
        silent[: len(fresh.frozen)] = fresh.frozen[: len(silent)]
        frozen = np.append(silent | restarting, False)
        notes = [
            FROZEN if lost else RESTARTED if new else ""
            for lost, new in zip(silent.tolist(), restarting.tolist(), strict=True)
        ]
        return held | observation.catching_up | frozen[directory.pool], notes

    def _outcome(self, observation: Observation, dt_s: float) -> Outcome:
        window = evidences.window_of(observation, self._config.circuit.failure_window_s)
        return self._outcomes.update(window, observation.signals, dt_s)

    def _judge(
        self,
        observation: Observation,
        signals: Floats,
        outcome: Outcome,
        known: _Known,
        fresh: Fresh,
        dt_s: float,
    ) -> tuple[Judged, Floats]:
        """Learn from the news, then score; returns the scores and the latency excess."""
        since_s = np.minimum(self._clocks.quiet_s + dt_s, MAX_NEWS_GAP_S)
        self._clocks.quiet_s = np.where(fresh.news, 0.0, since_s)
        self._clocks.unlearned_s += np.where(fresh.news, since_s, 0.0)
        if self._elapsed_ns - self._relative_ns >= CAPACITY_NS:
            self._capacity.learn(signals, known.groups, self._clocks.unlearned_s)
            self._clocks.unlearned_s[:] = 0.0
            self._relative = self._capacity.relative(known.groups, known.classes)
            self._relative_ns = self._elapsed_ns
        window = evidences.window_of(observation, self._config.latency.window_s)
        slowness = self._latency.update(
            signals,
            window,
            known.groups,
            self._relative,
            interval_s=fresh.interval_s,
            news=fresh.news,
            dt_s=since_s,
            healthy=self._circuits.state == State.HEALTHY,
            established=self._established(),
        )
        context = Context(
            groups=known.groups,
            capacity=self._relative,
            share=shares(self._publication.weight, known.groups),
            window=window,
            failures=outcome.failures,
            failure_calls=outcome.calls,
            slowness=slowness,
            faults=self._faults.update(signals, self._elapsed_ns),
            latency_exponent=self._config.latency.exponent,
        )
        return self._judge_all(signals, context, known.directory, self._gate.pools), slowness.excess

    def _established(self) -> Bools:
        """Who gets a full share of requests: closed, not starting, not cut to a trial's share."""
        tried = self._publication.decided <= NEUTRAL * self._config.weights.probe_share
        return self._circuits.is_closed & (self._weights.ramp >= 1) & ~tried

    def _evidence(
        self,
        observation: Observation,
        signals: Floats,
        outcome: Outcome,
        fresh: Fresh,
        excess: Floats,
    ) -> Evidence:
        slow = self._circuits.lasting(excess, self._latency.past_limit(), self._elapsed_ns)
        return evidences.gather(observation, signals, fresh, outcome, excess, slow, self._config)

    def _by_state(self, weight: Floats, evidence: Evidence, changes: list[Change]) -> Floats:
        """Weights after the circuits: nothing when open, a share when half-open or suspect."""
        config, circuits = self._config.weights, self._circuits
        for change in changes:
            slot = np.array([change.slot])
            if change.after is State.HALF_OPEN:
                self._latency.reset(slot)
            closing = change.before is State.HALF_OPEN and change.after is State.HEALTHY
            if closing:
                self._outcomes.settle(slot)
            if closing or change.before is State.DRAINING:
                share = max(config.slow_start_from, float(circuits.probe_share[change.slot]))
                ramp = share if config.slow_start_s > 0 else 1.0
                self._weights.start(slot, ramp)
                weight[slot] = self._weights.present()[slot]
        probe = NEUTRAL * config.probe_share
        weight = np.where(evidence.suspect, np.minimum(weight, probe), weight)
        half = circuits.state == State.HALF_OPEN
        weight = np.where(half, NEUTRAL * circuits.probe_share, weight)
        out = (circuits.state == State.OPEN) | (circuits.state == State.DRAINING)
        return np.where(out, 0.0, weight)

    def _pools(
        self, known: _Known, governing: Governing, all_out: Bools, notes: Sequence[str]
    ) -> tuple[PoolDecision, ...]:
        pools = known.directory.pools
        groups = known.groups
        emptied = set(groups.pool[all_out & groups.member].tolist())
        levels = self._gate.pools.levels(pools).tolist()
        switches = [override for override in governing.overrides if override.action == "off"]
        rows = []
        for number, name in enumerate(pools):
            off = any(_covers(override, name) for override in switches)
            note = OFF if off else ALL_OUT if number in emptied else notes[number]
            rows.append((name, levels[number], notes[number] != "", off, note))
        if rows != self._pool_rows:
            self._pool_rows = rows
            self._pool_decisions = tuple(
                PoolDecision(name, Authority(level), frozen, off, note)
                for name, level, frozen, off, note in rows
            )
            self._journal.levels((name, Authority(level)) for name, level, *_ in rows)
            self._journal.notes(pools, [note for *_, note in rows])
        return self._pool_decisions

    def _snapshot(
        self, known: _Known, governing: Governing, tick: _Tick, now: Instant, epoch: int
    ) -> Snapshot:
        used = known.directory.known
        restored = self._restart.restored & ~self._freshness.heard
        share = 1 - COVERAGE_SHARE + COVERAGE_SHARE * tick.judged.coverage
        confidence = np.where(
            restored, AGED * self._restart.confidence, tick.fresh.confidence * share
        )
        self._restart.confidence = np.where(restored, self._restart.confidence, confidence)
        weight = np.where(used, tick.published.weight, 0.0)
        reasons = tick.judged.reasons
        return Snapshot(
            epoch=epoch,
            time_ns=now.wall_ns,
            directory=known.directory,
            target=known.target,
            weight=weight.astype(np.uint32),
            state=np.where(used, tick.published.state, State.UNKNOWN).astype(np.uint8),
            admission=(weight > 0).astype(np.float64),
            confidence=np.where(used, confidence, 0.0),
            decided_weight=np.where(used, tick.decided, 0.0).astype(np.uint32),
            decided_state=self._circuits.state.copy(),
            score=tick.judged.score,
            reason_signal=reasons.signal,
            reason_value=reasons.value,
            reason_peer=reasons.peer,
            reason_points=reasons.points,
            reason_observer=reasons.observer,
            rule=self._journal.shown_rules(governing),
            pools=tick.pools,
            events=self._journal.take(),
        )

    def export_state(self) -> Exported:
        """Everything that a restart needs, as plain data: columns beside the list of ids."""
        known = self._known
        slots = np.zeros(0, np.int64) if known is None else np.flatnonzero(known.directory.known)
        ids = () if known is None else known.directory.id
        return {
            "version": VERSION,
            "wall_ns": 0 if self._last is None else self._last.wall_ns,
            "elapsed_ns": self._elapsed_ns,
            "ids": [ids[slot] for slot in slots.tolist()],
            "rules": [self._journal.rules[slot] for slot in slots.tolist()],
            "columns": export_columns(slots, self._parts),
            "authority": dict(self._journal.authority),
            "shifts": self._gate.export_shifts(),
            "overrides": self.overrides.export(),
        }

    def restore(self, state: Exported, directory: Directory) -> None:
        """Take exported state; endpoints that `directory` lacks get theirs once they are known.

        Raises `Rejected` for state of another version or with columns that do not fit.
        """
        self._restart.load(state, self._parts)
        self._empty = None
        self.resize(directory.n)
        self._elapsed_ns = int(np.clip(state["elapsed_ns"], 0, MAX_ELAPSED_NS))
        levels = {str(pool): Authority(level) for pool, level in state["authority"].items()}
        self._journal.authority = {pool: int(level) for pool, level in levels.items()}
        self._gate.restore_shifts(state["shifts"])
        self.overrides.restore(state["overrides"])


def _covers(override: Override, pool: str) -> bool:
    return override.scope == "all" or (override.scope == "pool" and override.target == pool)
