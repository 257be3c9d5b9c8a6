"""Circuits: the table row by row, then whole lives of endpoints, then any history at all."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from pipeline.clock import NS_PER_S
from pipeline.decide.circuit import TRANSITIONS, Circuits, Trigger, backoff_ns
from pipeline.decide.config import CircuitConfig
from pipeline.decide.evidence import Cause, Evidence
from pipeline.decide.groups import Groups
from pipeline.model import State
from tests.decide.world import Fleet, directory

CONFIG = CircuitConfig()


def quiet(n: int) -> Evidence:
    """No evidence against anyone, everyone heard and up."""
    no = np.zeros(n, np.bool_)
    return Evidence(
        refused=no.copy(),
        down=no.copy(),
        remap=no.copy(),
        failing=no.copy(),
        slow=no.copy(),
        silent=no.copy(),
        suspect=no.copy(),
        ailing=no.copy(),
        refused_count=np.zeros(n),
        down_samples=np.zeros(n, np.int32),
        up_samples=np.full(n, 5, np.int32),
        failure_ratio=np.zeros(n),
        failure_calls=np.zeros(n),
        excess=np.ones(n),
        new_successes=np.zeros(n),
        new_failures=np.zeros(n),
        recent_failures=np.zeros(n),
        recent_s=1.0,
        progress_age_s=np.full(n, np.inf),
        news=np.ones(n, np.bool_),
    )


class Bench:
    """Circuits of one group, stepped by hand."""

    def __init__(self, n: int = 4) -> None:
        self.where = directory((n,))
        self.groups = Groups.of_directory(self.where)
        self.circuits = Circuits(CONFIG, 0.02)
        self.circuits.resize(self.where.n)
        self.evidence = quiet(self.where.n)
        self.draining = np.zeros(self.where.n, np.bool_)
        self.removed = np.zeros(self.where.n, np.bool_)
        self.now_ns = NS_PER_S

    def step(self, seconds: float = 0.1) -> list[str]:
        self.now_ns += round(seconds * NS_PER_S)
        changes = self.circuits.step(
            self.evidence,
            self.groups,
            ids=self.where.id,
            draining=self.draining,
            removed=self.removed,
            hold=np.zeros(self.where.n, np.bool_),
            now_ns=self.now_ns,
        )
        return [change.text for change in changes]

    def state(self, slot: int = 0) -> State:
        return State(int(self.circuits.state[slot]))

    def put(self, state: State, cause: Cause = Cause.NONE, slot: int = 0) -> None:
        circuits = self.circuits
        circuits.state[:] = State.HEALTHY
        circuits.state[slot], circuits.cause[slot] = state, cause
        circuits.since_ns[slot] = self.now_ns
        circuits.probe_share_ns[slot] = self.now_ns
        circuits.retry_ns[slot] = self.now_ns + 5 * NS_PER_S
        circuits.backoff_ns[slot] = 5 * NS_PER_S
        circuits.up_before[slot] = 5
        circuits.attempt[slot] = 1 if state in (State.OPEN, State.HALF_OPEN) else 0


CLOSED = (State.UNKNOWN, State.HEALTHY, State.DEGRADED)


@pytest.mark.parametrize(
    ("before", "evidence", "seconds", "after"),
    [
        # hard evidence opens from everywhere but OPEN and DRAINING
        *[(state, {"refused": True}, 0.1, State.OPEN) for state in CLOSED],
        *[(state, {"down": True}, 0.1, State.OPEN) for state in CLOSED],
        *[(state, {"remap": True}, 0.1, State.OPEN) for state in CLOSED],
        (State.HALF_OPEN, {"down": True}, 0.1, State.OPEN),
        (State.DRAINING, {"down": True, "draining": True}, 0.1, State.DRAINING),
        # soft evidence opens closed circuits
        (State.HEALTHY, {"failing": True}, 0.1, State.OPEN),
        (State.DEGRADED, {"slow": True}, 0.1, State.OPEN),
        (State.HEALTHY, {"silent": True}, 0.1, State.OPEN),
        # mild evidence degrades and, gone for long enough, is forgotten
        (State.HEALTHY, {"ailing": True}, 0.1, State.DEGRADED),
        (State.DEGRADED, {"ailing": True}, 60.0, State.DEGRADED),
        (State.DEGRADED, {}, 0.1, State.DEGRADED),
        (State.DEGRADED, {}, 5.1, State.HEALTHY),
        # OPEN waits for its back-off, and for hard evidence and silence to end
        (State.OPEN, {}, 4.9, State.OPEN),
        (State.OPEN, {}, 5.1, State.HALF_OPEN),
        (State.OPEN, {"down": True}, 60.0, State.OPEN),
        (State.OPEN, {"silent": True}, 60.0, State.OPEN),
        (State.OPEN, {"failing": True}, 5.1, State.HALF_OPEN),
        # a scrape that sees it up again shortens the first wait
        (State.OPEN, {"up_samples": 1}, 0.9, State.OPEN),
        (State.OPEN, {"up_samples": 1}, 1.1, State.HALF_OPEN),
        # HALF_OPEN closes on successes, or on up = 1 twice with token progress
        (State.HALF_OPEN, {"new_successes": 2.0, "up_samples": 1}, 0.1, State.HALF_OPEN),
        (State.HALF_OPEN, {"new_successes": 3.0, "up_samples": 1}, 0.1, State.HEALTHY),
        (State.HALF_OPEN, {"new_successes": 1.0, "up_samples": 2}, 0.1, State.HEALTHY),
        (State.HALF_OPEN, {"up_samples": 2, "progress_age_s": 0.2}, 0.5, State.HEALTHY),
        (State.HALF_OPEN, {"up_samples": 1, "progress_age_s": 0.2}, 0.5, State.HALF_OPEN),
        (State.HALF_OPEN, {"up_samples": 2, "progress_age_s": 9.0}, 0.5, State.HALF_OPEN),
        # and opens again on the first failure of the trial
        (State.HALF_OPEN, {"recent_failures": 1.0}, 1.1, State.OPEN),
        (State.HALF_OPEN, {"recent_failures": 1.0}, 0.5, State.HALF_OPEN),  # from before it
        (State.HALF_OPEN, {"new_failures": 1.0, "new_successes": 9.0}, 0.1, State.OPEN),
        (State.HALF_OPEN, {"refused_count": 1.0}, 0.1, State.OPEN),
        # draining comes and goes with the membership source
        (State.HEALTHY, {"draining": True}, 0.1, State.DRAINING),
        (State.OPEN, {"draining": True}, 0.1, State.DRAINING),
        (State.DRAINING, {}, 0.1, State.UNKNOWN),
        # being heard makes a new endpoint healthy
        (State.UNKNOWN, {}, 0.1, State.HEALTHY),
        (State.UNKNOWN, {"news": False}, 60.0, State.UNKNOWN),
    ],
)
def test_transitions(
    before: State, evidence: dict[str, float | bool], seconds: float, after: State
) -> None:
    bench = Bench()
    bench.put(before, Cause.DOWN)
    for name, value in evidence.items():
        column = bench.draining if name == "draining" else getattr(bench.evidence, name)
        column[0] = value
    bench.step(seconds)
    assert bench.state() is after
    assert all(bench.state(slot) is State.HEALTHY for slot in (1, 2, 3))


def test_every_trigger_has_its_row_in_the_table_in_order() -> None:
    triggers = [transition.trigger for transition in TRANSITIONS]
    assert triggers == sorted(Trigger)


@pytest.mark.parametrize(
    ("n", "bad", "opened"), [(1, 1, 0), (2, 2, 1), (3, 3, 1), (5, 5, 1), (6, 6, 2), (12, 12, 4)]
)
def test_soft_evidence_opens_at_most_a_third_and_never_a_pool_of_one(
    n: int, bad: int, opened: int
) -> None:
    bench = Bench(n)
    bench.circuits.state[:] = State.HEALTHY
    bench.evidence.failing[:bad] = True
    bench.evidence.failure_ratio[:n] = np.linspace(0.3, 0.9, n)
    for _ in range(5):
        bench.step()
    states = [bench.state(slot) for slot in range(n)]
    assert states.count(State.OPEN) == opened
    assert states[n - opened :] == [State.OPEN] * opened, "the worst first"
    assert states.count(State.DEGRADED) == n - opened


def test_the_cap_counts_everyone_who_is_out() -> None:
    bench = Bench(6)
    bench.circuits.state[:] = State.HEALTHY
    bench.removed[5] = True
    bench.evidence.down[4] = True
    bench.step()
    bench.evidence.failing[:3] = True
    bench.step()
    assert [bench.state(slot) for slot in range(3)] == [State.DEGRADED] * 3


def test_hard_evidence_is_not_capped() -> None:
    bench = Bench(4)
    bench.circuits.state[:] = State.HEALTHY
    bench.evidence.down[:] = True
    bench.step()
    assert [bench.state(slot) for slot in range(4)] == [State.OPEN] * 4


def test_a_soft_opening_is_taken_back_when_nothing_else_is_left() -> None:
    bench = Bench(3)
    bench.circuits.state[:] = State.HEALTHY
    bench.evidence.failing[0] = True
    bench.step()
    bench.evidence.down[1:3] = True
    bench.step()
    assert [bench.state(slot) for slot in range(3)] == [State.OPEN] * 3
    bench.evidence.silent[0] = True
    for _ in range(50):
        bench.step()
        assert bench.state(0) is State.HALF_OPEN


@given(st.text(min_size=1, max_size=20))
def test_back_off_never_shrinks_and_ends_at_its_limit(endpoint: str) -> None:
    waits = [backoff_ns(endpoint, attempt, CONFIG) / NS_PER_S for attempt in range(1, 33)]
    assert waits == sorted(waits)
    assert 3.75 <= waits[0] <= 5
    assert waits[-1] == 300
    assert waits == [backoff_ns(endpoint, attempt, CONFIG) / NS_PER_S for attempt in range(1, 33)]


def test_back_offs_of_endpoints_that_opened_together_differ() -> None:
    waits = {backoff_ns(f"ep-{number}", 1, CONFIG) for number in range(50)}
    assert len(waits) == 50


def test_the_probe_share_doubles_every_ten_seconds_without_a_sample() -> None:
    fleet = Fleet((4,))
    fleet.run(2)
    fleet.kill(0)
    fleet.run(3)
    fleet.observation.refused_recent[0] = fleet.observation.down_samples[0] = 0
    fleet.observation.up_samples[0] = 1
    fleet.run(1)
    assert fleet.states()[0] is State.HALF_OPEN
    assert fleet.weights()[0] == 20
    seen = [fleet.run(10).weight[0] for _ in range(7)]
    assert seen == [40, 80, 160, 320, 640, 1000, 1000]


def test_a_killed_endpoint_is_out_in_one_tick_and_back_within_ten_seconds_of_answering() -> None:
    fleet = Fleet((3,), calls_per_s=10)
    fleet.run(5)
    fleet.kill(1)
    snapshot = fleet.tick()
    assert fleet.states()[1] is State.OPEN
    assert fleet.weights() == [1000, 0, 1000]
    assert snapshot.admission[1] == 0
    assert [event.endpoint for event in snapshot.events] == ["ep-1"]
    fleet.run(8)
    fleet.observation.refused_recent[1] = fleet.observation.down_samples[1] = 0
    for second in range(10):
        fleet.observation.up_samples[1] = second + 1
        for seconds, each in fleet.observation.windows.items():
            each.calls[1] = each.failure_calls[1] = min(second, seconds) * 1.0
        fleet.run(1)
        if fleet.states()[1] is State.HEALTHY:
            break
    assert second < 6
    fleet.run(11)
    assert fleet.weights() == [1000] * 3


def test_one_failed_scrape_cuts_to_the_probe_share_and_two_open() -> None:
    fleet = Fleet((3,))
    fleet.run(2)
    fleet.observation.down_samples[0] = 1
    snapshot = fleet.tick()
    assert fleet.weights() == [20, 1000, 1000]
    assert fleet.states()[0] is State.DEGRADED
    assert snapshot.rule[0] == "degraded: one scrape failed (up = 0)"
    fleet.observation.down_samples[0] = 2
    snapshot = fleet.tick()
    assert fleet.weights() == [0, 1000, 1000]
    assert snapshot.rule[0] == "opened: 2 scrapes in a row failed (up = 0)"


def test_refused_connections_beside_successes_open_nothing_at_once() -> None:
    fleet = Fleet((3,))
    fleet.run(2)
    fleet.observation.refused_recent[0] = 5
    fleet.tick()
    assert fleet.states()[0] is State.HEALTHY


@pytest.mark.parametrize(("ratio", "calls_per_s"), [(0.3, 3.0), (0.5, 1.5), (1.0, 1.0)])
def test_a_failing_share_opens_within_the_window(ratio: float, calls_per_s: float) -> None:
    fleet = Fleet((4,), calls_per_s=calls_per_s)
    fleet.run(2)
    fleet.failing(0, ratio)
    fleet.run(1)
    assert fleet.states()[0] is State.OPEN


def test_overload_is_pressure_and_opens_nothing() -> None:
    fleet = Fleet((4,), calls_per_s=10)
    for each in fleet.observation.windows.values():
        each.overloads[0] = each.calls[0] * 0.9
    fleet.run(20)
    assert fleet.states() == [State.HEALTHY] * 4


def test_a_latency_outlier_opens_only_when_it_lasts() -> None:
    fleet = Fleet((4,))
    fleet.run(10)
    fleet.latency(0, 12.0)
    fleet.run(2)
    assert fleet.states()[0] is State.DEGRADED
    snapshot = fleet.run(2)
    assert fleet.states()[0] is State.OPEN
    assert "times its peers'" in snapshot.rule[0]


def test_all_hard_open_keeps_the_last_weights_and_says_so() -> None:
    fleet = Fleet((3,))
    fleet.latency(0, 2.0)
    fleet.run(5)
    before = fleet.weights()
    for slot in range(3):
        fleet.kill(slot)
    snapshot = fleet.tick()
    assert fleet.states() == [State.OPEN] * 3
    assert fleet.weights() == before
    assert snapshot.pools[0].note == "every endpoint is out: the last weights stay"
    assert any(event.kind == "pool" for event in snapshot.events)
    fleet.run(30)
    assert fleet.weights() == before


def test_a_draining_member_gets_nothing_and_comes_back_slowly() -> None:
    fleet = Fleet((3,))
    fleet.run(2)
    draining = np.zeros(fleet.n, np.bool_)
    draining[0] = True
    fleet.change_directory(draining=draining)
    fleet.tick()
    assert fleet.states()[0] is State.DRAINING
    assert fleet.weights() == [0, 1000, 1000]
    fleet.change_directory(draining=np.zeros(fleet.n, np.bool_))
    fleet.tick()
    assert 0 < fleet.weights()[0] <= 120
    fleet.run(12)
    assert fleet.weights() == [1000] * 3


def test_reopening_waits_longer_each_time() -> None:
    fleet = Fleet((4,), calls_per_s=10)
    fleet.run(2)
    opened, before = [], State.HEALTHY
    fleet.failing(0, 1.0)
    for tick in range(1200):
        fleet.tick()
        state = fleet.states()[0]
        if state is State.OPEN and before is not State.OPEN:
            opened.append(tick / 10)
        before = state
    waits = np.diff(opened)
    assert len(waits) >= 3
    assert (waits[1:] > 1.5 * waits[:-1]).all()


class AnyHistory(RuleBasedStateMachine):
    """Soft and mild evidence in any order: the cap holds, somebody always serves, no flapping."""

    def __init__(self) -> None:
        super().__init__()
        self.bench = Bench(7)
        self.bench.circuits.state[:] = State.HEALTHY
        self.opened: dict[int, list[int]] = {slot: [] for slot in range(7)}

    @rule(
        slot=st.integers(0, 6),
        kind=st.sampled_from(["failing", "slow", "silent", "ailing"]),
        on=st.booleans(),
    )
    def soft(self, slot: int, kind: str, on: bool) -> None:
        getattr(self.bench.evidence, kind)[slot] = on
        self.bench.evidence.excess[slot] = 9.0 if self.bench.evidence.slow[slot] else 1.0

    @rule(slot=st.integers(0, 6), ok=st.integers(0, 3), failed=st.integers(0, 1))
    def requests(self, slot: int, ok: int, failed: int) -> None:
        self.bench.evidence.new_successes[slot] = ok
        self.bench.evidence.recent_failures[slot] = failed

    @precondition(lambda self: self.bench.now_ns < 3000 * NS_PER_S)
    @rule(seconds=st.sampled_from([0.1, 1.0, 6.0, 70.0]))
    def time_passes(self, seconds: float) -> None:
        before = self.bench.circuits.state.copy()
        self.bench.step(seconds)
        for slot in range(7):
            if self.bench.state(slot) is State.OPEN and before[slot] != State.OPEN:
                self.opened[slot].append(self.bench.now_ns)

    @invariant()
    def at_most_a_third_is_out(self) -> None:
        out = [self.bench.state(slot) in (State.OPEN, State.HALF_OPEN) for slot in range(7)]
        assert sum(out) <= 2

    @invariant()
    def nobody_opens_again_before_its_back_off(self) -> None:
        for times in self.opened.values():
            gaps = np.diff(times)
            assert (gaps >= 3.75 * NS_PER_S).all()

    @invariant()
    def timers_are_sane(self) -> None:
        circuits = self.bench.circuits
        assert (circuits.backoff_ns <= 300 * NS_PER_S).all()
        assert ((circuits.probe_share >= 0) & (circuits.probe_share <= 1)).all()


TestAnyHistory = AnyHistory.TestCase
TestAnyHistory.settings = settings(max_examples=30, stateful_step_count=40, deadline=None)


def test_evidence_without_windows_is_no_evidence() -> None:
    fleet = Fleet((3,))
    fleet.observation = replace(fleet.observation, windows={})
    fleet.run(5)
    assert fleet.states() == [State.HEALTHY] * 3
    assert fleet.weights() == [1000] * 3
