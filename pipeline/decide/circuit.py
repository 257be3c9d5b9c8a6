"""The circuit of each endpoint: an explicit table of transitions, applied to all slots at once.

Hard evidence opens at once; soft evidence opens the worst first and never more of a group than the
cap, counting everyone who is out. OPEN tries again after a back-off that doubles, HALF_OPEN sends a
small share and closes on success. Times are the stage's own elapsed ns, which never run backwards.
"""

from collections.abc import Iterator
from enum import IntEnum
from typing import ClassVar, NamedTuple

import numpy as np
import xxhash

from pipeline.clock import NS_PER_S
from pipeline.decide.columns import Blanks, Columns
from pipeline.decide.config import CircuitConfig
from pipeline.decide.evidence import Cause, Evidence
from pipeline.decide.groups import Groups
from pipeline.decide.wording import ailment, cause_of, wording
from pipeline.model import Bools, Bytes, Floats, Int64s, State

JITTER = 0.25  # of the back-off, at most, so that what opened together does not return together
EARLY_SHARE = 0.1  # of neutral: what scrapes alone can earn
MAX_ATTEMPTS = 32  # far past the longest back-off; keeps the power of two finite


class Trigger(IntEnum):
    """What may move a circuit, strongest first: a slot takes the first that applies to it."""

    DRAIN = 0
    UNDRAIN = 1
    HARD = 2
    SOFT = 3
    PROBE_FAILED = 4
    PANIC = 5
    RETRY = 6
    PROBE_OK = 7
    HEARD = 8
    AIL = 9
    RECOVER = 10


class Transition(NamedTuple):
    """One row of the table."""

    trigger: Trigger
    sources: tuple[State, ...]
    to: State


_CLOSED = (State.UNKNOWN, State.HEALTHY, State.DEGRADED)
TRANSITIONS = (
    Transition(Trigger.DRAIN, (*_CLOSED, State.OPEN, State.HALF_OPEN), State.DRAINING),
    Transition(Trigger.UNDRAIN, (State.DRAINING,), State.UNKNOWN),
    Transition(Trigger.HARD, (*_CLOSED, State.HALF_OPEN), State.OPEN),
    Transition(Trigger.SOFT, _CLOSED, State.OPEN),
    Transition(Trigger.PROBE_FAILED, (State.HALF_OPEN,), State.OPEN),
    Transition(Trigger.PANIC, (State.OPEN,), State.HALF_OPEN),
    Transition(Trigger.RETRY, (State.OPEN,), State.HALF_OPEN),
    Transition(Trigger.PROBE_OK, (State.HALF_OPEN,), State.HEALTHY),
    Transition(Trigger.HEARD, (State.UNKNOWN,), State.HEALTHY),
    Transition(Trigger.AIL, (State.HEALTHY,), State.DEGRADED),
    Transition(Trigger.RECOVER, (State.DEGRADED,), State.HEALTHY),
)


_EVEN_ON_HOLD = (Trigger.HARD, Trigger.DRAIN, Trigger.UNDRAIN)


def _table(*members: IntEnum) -> Bools:
    """bool[8] that is true at these codes: membership by one look-up."""
    table = np.zeros(8, np.bool_)
    table[list(members)] = True
    return table


_SOURCES = tuple(_table(*transition.sources) for transition in TRANSITIONS)
_IS_CLOSED = _table(*_CLOSED)
_IS_OUT = _table(State.OPEN, State.HALF_OPEN, State.DRAINING)
_IS_GONE = _table(State.OPEN, State.DRAINING)
_IS_HARD = _table(Cause.REFUSED, Cause.DOWN, Cause.REMAP)
_IS_SOFT = _table(Cause.FAILURE, Cause.LATENCY, Cause.SILENCE)


class Change(NamedTuple):
    """One endpoint that changed state."""

    slot: int
    before: State
    after: State
    text: str


class Circuits(Columns):
    """States and timers of all circuits."""

    BLANK: ClassVar[Blanks] = {
        "state": ("uint8", State.UNKNOWN),
        "cause": ("uint8", Cause.NONE),
        "attempt": ("int64", 0),
        "since_ns": ("int64", 0),
        "retry_ns": ("int64", 0),
        "backoff_ns": ("int64", 0),
        "ailing_ns": ("int64", 0),
        "up_before": ("int64", 0),
        "refused_before": ("float64", 0.0),
        "slow_ns": ("int64", 0),
        "probe_ok": ("float64", 0.0),
        "probe_share": ("float64", 0.0),
        "probe_share_ns": ("int64", 0),
        "capped": ("bool", False),
    }
    state: Bytes
    cause: Bytes
    attempt: Int64s
    since_ns: Int64s
    retry_ns: Int64s
    backoff_ns: Int64s
    ailing_ns: Int64s
    up_before: Int64s
    refused_before: Floats
    slow_ns: Int64s
    probe_ok: Floats
    probe_share: Floats
    probe_share_ns: Int64s
    capped: Bools

    def __init__(self, config: CircuitConfig, probe_share: float) -> None:
        """`probe_share` is where HALF_OPEN starts, of neutral."""
        super().__init__()
        self._config = config
        self._probe_share = probe_share
        self._window_ns = config.failure_window_s * NS_PER_S

    @property
    def is_closed(self) -> Bools:
        """Where requests are served as usual, bool[n]."""
        closed: Bools = _IS_CLOSED[self.state]
        return closed

    def lasting(self, excess: Floats, past_limit: Floats, now_ns: int) -> Bools:
        """Where the latency excess is past the limit and has been for long enough."""
        over = (excess >= self._config.latency_ratio) & (excess > past_limit)
        self.slow_ns = np.where(over, np.where(self.slow_ns == 0, max(now_ns, 1), self.slow_ns), 0)
        hold_ns = round(self._config.latency_hold_s * NS_PER_S)
        return over & (now_ns - self.slow_ns >= hold_ns)

    def step(
        self,
        evidence: Evidence,
        groups: Groups,
        *,
        ids: tuple[str, ...],
        draining: Bools,
        removed: Bools,
        hold: Bools,
        now_ns: int,
    ) -> list[Change]:
        """Apply the table once and return what changed, by slot.

        `removed` are slots that somebody else took out (they count for the cap); on `hold` only
        hard evidence acts.
        """
        self._probe(evidence, now_ns)
        fired = self._fire(evidence, groups, draining, removed, now_ns)
        before = self.state.copy()
        occurring = np.bincount(before, minlength=len(State)) > 0
        still, may_move = groups.of >= 0, ~hold
        for transition, sources in zip(TRANSITIONS, _SOURCES, strict=True):
            if not (sources[: len(State)] & occurring).any():
                continue
            slots = fired[transition.trigger] & still & sources[before]
            if transition.trigger not in _EVEN_ON_HOLD:
                slots &= may_move
            still &= ~slots
            self.state[slots] = transition.to
        self._forgive(now_ns)
        self.refused_before = evidence.refused_count.copy()
        changed = np.flatnonzero(self.state != before)
        return list(self._enter(changed, before, evidence, ids, now_ns))

    def _fire(
        self,
        evidence: Evidence,
        groups: Groups,
        draining: Bools,
        removed: Bools,
        now_ns: int,
    ) -> dict[Trigger, Bools]:
        """Which triggers apply, by slot."""
        config, state = self._config, self.state
        hard = evidence.hard
        in_state_ns = now_ns - self.since_ns
        soft = self._within_cap(evidence, groups, removed | draining, now_ns)
        ailing = evidence.ailing | self.capped
        self.ailing_ns = np.where(ailing, now_ns, self.ailing_ns)
        blocked = hard | evidence.silent
        closed = groups.count(_IS_CLOSED[state] & ~removed & ~draining)
        # With nothing else to send to, only hard evidence ends a trial.
        alone = groups.spread((closed == 0).astype(np.float64), 0.0) > 0
        is_open, is_half = state == State.OPEN, state == State.HALF_OPEN
        due, succeeded, failed = is_open, is_half, is_half
        if is_open.any():
            due = is_open & (now_ns >= np.minimum(self.retry_ns, self._returned_ns(evidence)))
        if is_half.any():
            succeeded = self._probe_succeeded(evidence, in_state_ns)
            failed = self._probe_failed(evidence, in_state_ns) & ~alone
        return {
            Trigger.DRAIN: draining,
            Trigger.UNDRAIN: ~draining,
            Trigger.HARD: hard,
            Trigger.SOFT: soft,
            Trigger.PROBE_FAILED: failed,
            Trigger.PANIC: self._panic(groups, removed | draining),
            Trigger.RETRY: due & ~blocked,
            Trigger.PROBE_OK: succeeded,
            Trigger.HEARD: evidence.news,
            Trigger.AIL: ailing,
            Trigger.RECOVER: now_ns - self.ailing_ns >= round(config.clear_s * NS_PER_S),
        }

    def _returned_ns(self, evidence: Evidence) -> Int64s:
        """When a hard-opened endpoint that scrapes up again may be tried."""
        base_ns = self._config.returned_s * NS_PER_S
        doubled = base_ns * 2.0 ** np.clip(self.attempt - 1, 0, MAX_ATTEMPTS)
        early = self.since_ns + np.minimum(doubled, self.backoff_ns).astype(np.int64)
        hard = _IS_HARD[self.cause]
        seen_up = (evidence.up_samples >= 1) & (evidence.up_samples != self.up_before)
        never = np.int64(np.iinfo(np.int64).max)
        return np.where(hard & seen_up, early, never)

    def _soft(self, evidence: Evidence, now_ns: int) -> Bools:
        """Soft evidence, less delays from before a circuit closed again."""
        settled = (self.attempt == 0) | (now_ns - self.since_ns >= self._window_ns)
        soft: Bools = evidence.silent | evidence.failing | (evidence.slow & settled)
        return soft

    def _within_cap(self, evidence: Evidence, groups: Groups, removed: Bools, now_ns: int) -> Bools:
        """The soft evidence that may act: the worst of each group, as far as the cap goes."""
        closed = _IS_CLOSED[self.state]
        wants = self._soft(evidence, now_ns) & closed & ~evidence.hard & ~removed
        wants &= groups.of >= 0
        self.capped = np.zeros(self.n, np.bool_)
        allowed = np.zeros(self.n, np.bool_)
        if not wants.any():
            return allowed
        out = groups.count(_IS_OUT[self.state] | removed | (evidence.hard & closed))
        cap = np.maximum(1, np.floor(groups.sizes * self._config.cap_share + 1e-9)).astype(np.int64)
        room = np.where(groups.sizes > 1, np.minimum(cap, groups.sizes - 1) - out, 0)
        slots = np.flatnonzero(wants)
        badness = np.where(evidence.failing, 3.0 + evidence.failure_ratio, 0.0)
        badness = np.fmax(badness, np.where(evidence.slow, 2.0 - 1 / evidence.excess, 0.0))
        order = slots[np.lexsort((slots, -badness[slots], groups.of[slots]))]
        group = groups.of[order]
        place = np.arange(len(order)) - np.searchsorted(group, group)
        allowed[order] = place < room[group]
        self.capped = wants & ~allowed
        return allowed

    def _panic(self, groups: Groups, removed: Bools) -> Bools:
        """Soft openings of a group in which nothing else is left are taken back."""
        soft: Bools = (self.state == State.OPEN) & _IS_SOFT[self.cause] & ~removed
        if not soft.any():
            return soft
        left = groups.count(~_IS_GONE[self.state] & ~removed)
        soft &= groups.spread((left == 0).astype(np.float64), 0.0) > 0
        return soft

    def _probe(self, evidence: Evidence, now_ns: int) -> None:
        """Count successes since HALF_OPEN began; grow the share."""
        half = self.state == State.HALF_OPEN
        if not half.any():
            return
        seen = half & (evidence.new_successes > 0)
        self.probe_ok = np.where(seen, self.probe_ok + evidence.new_successes, self.probe_ok)
        self.probe_share_ns = np.where(seen, now_ns, self.probe_share_ns)
        early = self._is_back(evidence) & (self.probe_share < EARLY_SHARE)
        double_s = np.where(early, self._config.probe_early_s, self._config.probe_double_s)
        starved = half & (now_ns - self.probe_share_ns >= double_s * NS_PER_S)
        doubled = np.minimum(self.probe_share * 2, np.where(early, EARLY_SHARE, 1.0))
        self.probe_share = np.where(starved, doubled, self.probe_share)
        self.probe_share_ns = np.where(starved, now_ns, self.probe_share_ns)

    def _is_back(self, evidence: Evidence) -> Bools:
        """Whom hard evidence opened and two scrapes have seen up again."""
        back: Bools = _IS_HARD[self.cause] & (evidence.up_samples >= 2)
        return back

    def _probe_failed(self, evidence: Evidence, in_state_ns: Int64s) -> Bools:
        whole = in_state_ns >= round(evidence.recent_s * NS_PER_S)
        failed: Bools = whole & (evidence.recent_failures > 0) & (evidence.recent_s > 0)
        refused = evidence.refused_count > self.refused_before
        slow = evidence.slow & (in_state_ns >= self._window_ns)
        failed |= refused | slow | evidence.silent | (evidence.new_failures > 0)
        return failed

    def _probe_succeeded(self, evidence: Evidence, in_state_ns: Int64s) -> Bools:
        served = self.probe_ok >= self._config.close_successes
        in_state_s = in_state_ns / NS_PER_S
        progress = (evidence.progress_age_s < in_state_s) | (self.probe_ok >= 1)
        back = self._is_back(evidence) & progress
        calm = evidence.excess < self._config.degraded_ratio
        quick = (self.cause == Cause.LATENCY) & progress & calm
        quick &= in_state_s >= self._config.latency_hold_s
        heard = (self.cause == Cause.SILENCE) & evidence.news
        succeeded: Bools = (served & calm) | back | quick | heard
        return succeeded

    def _forgive(self, now_ns: int) -> None:
        forgive_ns = np.maximum(round(self._config.forgive_s * NS_PER_S), self.backoff_ns)
        calm = (self.state == State.HEALTHY) & (now_ns - self.since_ns >= forgive_ns)
        self.attempt[calm] = 0

    def _enter(
        self,
        changed: Int64s,
        before: Bytes,
        evidence: Evidence,
        ids: tuple[str, ...],
        now_ns: int,
    ) -> Iterator[Change]:
        for slot in changed.tolist():
            was, state = State(int(before[slot])), State(int(self.state[slot]))
            if state is State.OPEN:
                self._open(slot, evidence, ids[slot], now_ns)
            if state is State.HALF_OPEN:
                self.probe_ok[slot] = 0.0
                self.probe_share[slot] = self._probe_share
                self.probe_share_ns[slot] = now_ns
            cause = cause_of(slot, evidence, Cause.NONE)
            if state is State.DEGRADED:
                text = ailment(slot, evidence, self._config, capped=bool(self.capped[slot]))
            else:
                waited_s = (now_ns - int(self.since_ns[slot])) / NS_PER_S
                text = wording(slot, was, state, cause, evidence, waited_s)
            # DEGRADED and HEALTHY are both closed: forgiveness counts from the closing.
            if not (was in _CLOSED and state in _CLOSED):
                self.since_ns[slot] = now_ns
            yield Change(slot, was, state, text)

    def _open(self, slot: int, evidence: Evidence, endpoint: str, now_ns: int) -> None:
        config = self._config
        self.cause[slot] = cause_of(slot, evidence, Cause(int(self.cause[slot])))
        self.attempt[slot] = min(int(self.attempt[slot]) + 1, MAX_ATTEMPTS)
        self.up_before[slot] = evidence.up_samples[slot]
        self.backoff_ns[slot] = backoff_ns(endpoint, int(self.attempt[slot]), config)
        self.retry_ns[slot] = now_ns + self.backoff_ns[slot]


def backoff_ns(endpoint: str, attempt: int, config: CircuitConfig) -> int:
    """Time in OPEN before attempt number `attempt` (from 1): doubling, jittered, at most the cap.

    The jitter only shortens and by less than half, so the time never falls from one attempt to the
    next.
    """
    seconds = min(config.backoff_s * 2.0 ** (attempt - 1), config.backoff_max_s)
    if seconds >= config.backoff_max_s:
        return round(config.backoff_max_s * NS_PER_S)
    share = xxhash.xxh3_64_intdigest(f"{endpoint}|{attempt}".encode()) / 2.0**64
    return round(seconds * (1 - JITTER * share) * NS_PER_S)
