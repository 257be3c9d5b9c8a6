"""Overrides: who governs, what each action does, the file, expiry, and that nothing beats them."""

import msgspec
import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from pipeline.clock import NS_PER_S
from pipeline.decide.overrides import OverrideSet, govern, parse_overrides
from pipeline.errors import ConfigError, Rejected
from pipeline.model import Override, PoolConfig, State
from tests.decide.world import Fleet, directory


def governed_by(*overrides: Override) -> list[str]:
    """The action that governs each of six endpoints: two pools of three, nodes of two."""
    held = OverrideSet(100)
    for override in overrides:
        held.set(override)
    governing = govern(held.active(0), directory((3, 3)))
    actions = [o.action for o in governing.overrides]
    return [actions[i] if i >= 0 else "-" for i in governing.governor[:6].tolist()]


PIN = Override(scope="endpoint", target="ep-0", action="pin", value=200)
NODE = Override(scope="node", target="node-0", action="cap", value=300)
POOL = Override(scope="pool", target="pool-0", action="hold")
ALL = Override(scope="all", action="neutral")


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ([PIN], "pin - - - - -"),
        ([NODE], "cap cap - - - -"),
        ([POOL], "hold hold hold - - -"),
        ([ALL], "neutral neutral neutral neutral neutral neutral"),
        # the narrowest scope governs, whatever the order
        ([PIN, NODE, POOL, ALL], "pin cap hold neutral neutral neutral"),
        ([ALL, POOL, NODE, PIN], "pin cap hold neutral neutral neutral"),
        # an address names an endpoint too
        (
            [Override(scope="endpoint", target="10.0.0.4:8000", action="drain")],
            "- - - - drain -",
        ),
        # off governs all of its scope
        ([PIN, Override(scope="pool", target="pool-0", action="off")], "off off off - - -"),
        ([PIN, NODE, Override(scope="all", action="off")], "off off off off off off"),
        # the operator's word before the file's, within one scope
        (
            [PIN, Override(scope="endpoint", target="ep-0", action="exclude", source="file")],
            "pin" + " -" * 5,
        ),
        # what names nobody governs nobody
        ([Override(scope="pool", target="elsewhere", action="off")], "- - - - - -"),
    ],
)
def test_which_override_governs(overrides: list[Override], expected: str) -> None:
    assert governed_by(*overrides) == expected.split()


@pytest.mark.parametrize(
    ("action", "value", "weight", "state"),
    [
        ("pin", 250, 250, State.HEALTHY),
        ("cap", 50, 50, State.DEGRADED),
        ("cap", 5000, 72, State.DEGRADED),  # a cap raises nothing
        ("drain", 0, 0, State.DRAINING),
        ("exclude", 0, 0, State.OPEN),
        ("hold", 0, 72, State.DEGRADED),
        ("neutral", 0, 1000, State.HEALTHY),
        ("off", 0, 1000, State.HEALTHY),
    ],
)
def test_what_each_action_does_to_a_slow_endpoint(
    action: str, value: int, weight: int, state: State
) -> None:
    fleet = Fleet((4,))
    fleet.latency(0, 4.0)
    fleet.run(6)
    row = {"scope": "endpoint", "target": "ep-0", "action": action, "value": value}
    override = msgspec.convert(row, Override)
    fleet.decider.overrides.set(override)
    snapshot = fleet.tick()
    assert fleet.weights() == [weight, 1000, 1000, 1000]
    assert fleet.states()[0] is state
    assert snapshot.admission[0] == (weight > 0)
    assert snapshot.decided_weight[0] == 72, "what Tailrace would do stays visible"
    assert snapshot.rule[0].startswith(f"override {action}")
    assert [event.kind for event in snapshot.events] == ["override_start"]
    fleet.decider.overrides.remove("endpoint", "ep-0")
    assert [event.kind for event in fleet.tick().events] == ["override_end"]
    assert fleet.weights()[0] == 72


def test_off_is_as_without_tailrace() -> None:
    fleet = Fleet((3, 2))
    fleet.kill(0)
    fleet.latency(1, 4.0)
    fleet.run(5)
    fleet.decider.overrides.set(Override(scope="pool", target="pool-0", action="off"))
    snapshot = fleet.tick()
    assert fleet.weights() == [1000] * 5
    assert fleet.states() == [State.HEALTHY] * 5
    assert (snapshot.admission[:5] == 1).all()
    assert [pool.off for pool in snapshot.pools] == [True, False]


@pytest.mark.parametrize("authority", ["observe", "veto", "weigh", "act"])
def test_overrides_apply_at_every_authority(authority: str) -> None:
    fleet = Fleet((3,), pools=(PoolConfig(name="*", authority=authority),))  # type: ignore[arg-type]
    fleet.decider.overrides.set(PIN)
    fleet.tick()
    assert fleet.weights() == [200, 1000, 1000]


def test_overrides_never_exclude_everybody() -> None:
    fleet = Fleet((2,))
    fleet.latency(0, 2.0)
    fleet.run(5)
    before = fleet.weights()
    fleet.decider.overrides.set(Override(scope="all", action="exclude"))
    snapshot = fleet.tick()
    assert fleet.weights() == before
    assert snapshot.pools[0].note == "every endpoint is out: the last weights stay"
    assert "pool" in [event.kind for event in snapshot.events]


def test_overrides_and_circuits_together_never_exclude_everybody() -> None:
    fleet = Fleet((2,))
    fleet.run(2)
    fleet.decider.overrides.set(Override(scope="endpoint", target="ep-0", action="exclude"))
    fleet.tick()
    assert fleet.weights() == [0, 1000]
    fleet.kill(1)
    fleet.run(2)
    assert fleet.weights() == [0, 1000], "the last weights stay"
    assert fleet.states() == [State.OPEN, State.OPEN]


def test_excluded_endpoints_count_for_the_cap_of_soft_openings() -> None:
    fleet = Fleet((3,), calls_per_s=10)
    fleet.decider.overrides.set(Override(scope="endpoint", target="ep-0", action="drain"))
    fleet.run(2)
    fleet.failing(1, 0.9)
    fleet.run(2)
    assert fleet.states()[1] is State.DEGRADED


def test_overrides_end_on_wall_time() -> None:
    fleet = Fleet((3,))
    ends_ns = fleet.clock.now().wall_ns + 2 * NS_PER_S
    fleet.decider.overrides.set(
        Override(scope="endpoint", target="ep-0", action="pin", value=5, expires_ns=ends_ns)
    )
    fleet.run(1.9)
    assert fleet.weights()[0] == 5
    snapshot = fleet.run(0.1)
    assert fleet.weights()[0] == 1000
    assert [event.kind for event in snapshot.events] == ["override_end"]
    assert fleet.decider.overrides.list() == ()


def test_a_set_refuses_what_cannot_be_meant_and_more_than_its_limit() -> None:
    held = OverrideSet(1)
    with pytest.raises(Rejected, match="needs a target"):
        held.set(Override(scope="pool", action="off"))
    with pytest.raises(Rejected, match="needs a value"):
        held.set(Override(scope="all", action="pin"))
    held.set(PIN)
    held.set(PIN)
    with pytest.raises(Rejected, match="1 overrides are in force"):
        held.set(NODE)


def test_the_file_is_replaced_as_a_whole_or_not_at_all() -> None:
    held = OverrideSet(3)
    held.set(PIN)
    held.replace_file([NODE, POOL])
    assert [o.source for o in held.list()] == ["file", "file", "operator"]
    with pytest.raises(Rejected):
        held.replace_file([ALL, Override(scope="node", action="drain")])
    assert len(held.list()) == 3
    held.replace_file([])
    assert held.list() == (PIN,)


def test_export_and_restore_keep_every_override() -> None:
    held, other = OverrideSet(10), OverrideSet(10)
    for override in (PIN, NODE, POOL, ALL):
        held.set(override)
    other.restore([*held.export(), {"scope": "galaxy"}])
    assert other.list() == held.list()


def test_the_override_file() -> None:
    text = """
    overrides:
      - {scope: endpoint, target: "10.0.0.1:8000", action: pin, value: 200, owner: ana, reason: hot}
      - {scope: pool, target: chat, action: "off", expires: 2026-01-02T03:04:05Z}
      - {scope: all, action: hold, expires: 1767323045}
    """
    pin, off, hold = parse_overrides(text)
    assert pin == Override(
        scope="endpoint",
        target="10.0.0.1:8000",
        action="pin",
        value=200,
        owner="ana",
        reason="hot",
        source="file",
    )
    assert off.expires_ns == hold.expires_ns == 1767323045 * NS_PER_S
    assert parse_overrides("") == ()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("overrides: [{scope: galaxy, action: pin}]", r"overrides\[0\]\.scope: "),
        ("overrides: [{scope: all}]", r"overrides\[0\]: .*action"),
        ("overrides: [{scope: all, action: hold, wieght: 3}]", r"overrides\[0\]: .*wieght"),
        ("overrides: [{scope: all, action: pin}]", r"overrides\[0\]\.value: "),
        ("overrides: [{scope: all, action: pin, value: 99999}]", r"overrides\[0\]\.value: "),
        ("overrides: [{scope: pool, action: hold}]", r"overrides\[0\]\.target: "),
        ("overrides: [{scope: all, action: hold, expires: soon}]", r"overrides\[0\]\.expires: "),
        ("overrides: [{scope: all, action: hold, expires: .inf}]", r"overrides\[0\]\.expires: "),
        ("overrides: [{scope: all, action: hold, expires: .nan}]", r"overrides\[0\]\.expires: "),
        ("overrides: [{scope: all, action: hold, expires: 9999-01-01}]", "overrides"),
        ("overrides: [{scope: all, action: hold, expires: -1}]", r"overrides\[0\]\.expires: "),
        ('overrides: [{scope: all, action: hold, owner: "a\\eb"}]', r"overrides\[0\]\.owner: "),
        (f"overrides: [{{scope: all, action: hold, reason: {'x' * 600}}}]", "reason"),
        ("overrides: [{scope: all, action: hold, expires: 2026-13-01T00:00:00Z}]", "not YAML"),
        ("[1, 2", "overrides: not YAML"),
        ("- a", "overrides: "),
    ],
)
def test_a_wrong_file_names_the_field(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_overrides(text)


class NothingMovesAnOverriddenEndpoint(RuleBasedStateMachine):
    """Pinned, excluded, drained and held endpoints stay, whatever happens to the fleet."""

    def __init__(self) -> None:
        super().__init__()
        self.fleet = Fleet((6,), calls_per_s=10)
        self.fleet.latency(3, 2.0)
        self.fleet.run(3)
        for target, action, value in (
            ("ep-0", "pin", 300),
            ("ep-1", "exclude", 0),
            ("ep-2", "drain", 0),
            ("ep-3", "hold", 0),
        ):
            self.fleet.decider.overrides.set(
                Override(scope="endpoint", target=target, action=action, value=value)  # type: ignore[arg-type]
            )
        self.fleet.tick()
        self.before = self.fleet.weights()[:4], self.fleet.states()[:4]

    @rule(slot=st.integers(0, 5))
    def kill(self, slot: int) -> None:
        self.fleet.kill(slot)

    @rule(slot=st.integers(0, 5), up=st.integers(0, 3))
    def revive(self, slot: int, up: int) -> None:
        self.fleet.observation.down_samples[slot] = 0
        self.fleet.observation.refused_recent[slot] = 0
        self.fleet.observation.up_samples[slot] = up

    @rule(slot=st.integers(0, 5), factor=st.sampled_from([0.1, 1.0, 4.0, 20.0]))
    def slow(self, slot: int, factor: float) -> None:
        self.fleet.latency(slot, factor)

    @rule(slot=st.integers(0, 5), ratio=st.sampled_from([0.0, 0.2, 0.9]))
    def fail(self, slot: int, ratio: float) -> None:
        self.fleet.failing(slot, ratio)

    @rule(slot=st.integers(0, 5), on=st.booleans())
    def drain(self, slot: int, on: bool) -> None:
        draining = self.fleet.directory.draining.copy()
        draining[slot] = on
        self.fleet.change_directory(draining=draining)

    @rule(silent=st.sets(st.integers(0, 5)), seconds=st.sampled_from([0.1, 1.0, 30.0]))
    def time_passes(self, silent: set[int], seconds: float) -> None:
        for _ in range(3):
            self.fleet.tick(seconds, silent=sorted(silent))

    @invariant()
    def they_stay(self) -> None:
        self.fleet.tick()
        assert (self.fleet.weights()[:4], self.fleet.states()[:4]) == self.before
        assert np.sum(self.fleet.weights()) > 0


TestNothingMovesAnOverriddenEndpoint = NothingMovesAnOverriddenEndpoint.TestCase
TestNothingMovesAnOverriddenEndpoint.settings = settings(
    max_examples=15, stateful_step_count=15, deadline=None
)
