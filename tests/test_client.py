"""The agent's side: what a view holds, whom a picker picks, and how a client finds its way back."""

import asyncio
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.client import BlockingClient, DecisionsClient, View
from pipeline.clock import Clock, HandClock
from pipeline.journal import Operation
from pipeline.model import Override, State
from pipeline.pick import DRIFT_S, PROBE_SHARE, READMIT_S, DrawTable, Endpoint, Picker
from pipeline.publish.config import PublishConfig
from pipeline.publish.records import Board
from pipeline.publish.watch import DecisionsServer
from pipeline.telemetry import Telemetry
from pipeline.wire import decisions_pb2 as wire
from tests.publish.fleet import Row, new_board, snapshot

VALID_S = 10.0


def sent(
    name: str, weight: int = 1000, state: State = State.HEALTHY, **fields: Any
) -> wire.Endpoint:
    fields = {"address": f"{name}:80", "pool": "p", "admission": 1.0} | fields
    return wire.Endpoint(id=name, weight=weight, state=int(state), **fields)  # type: ignore[arg-type]  # any field


def full(endpoints: Sequence[wire.Endpoint], epoch: int = 1) -> wire.Snapshot:
    return wire.Snapshot(
        epoch=epoch,
        instance="i",
        full=True,
        valid_for_ms=round(VALID_S * 1_000),
        endpoints=endpoints,
    )


def heartbeat(epoch: int) -> wire.Snapshot:
    return wire.Snapshot(
        epoch=epoch, from_epoch=epoch - 1, instance="i", valid_for_ms=round(VALID_S * 1_000)
    )


class Agent:
    """A picker with its view, fed by hand."""

    def __init__(self, endpoints: Sequence[wire.Endpoint], seed: int = 1) -> None:
        self.clock = HandClock()
        self.view = View()
        self.picker = Picker(self.clock, random.Random(seed))
        self.hear(full(endpoints))

    def hear(self, message: wire.Snapshot) -> None:
        assert self.view.apply(message)
        self.picker.hear(message, self.view.endpoints)

    def picked(self, count: int, pool: str = "") -> Counter[str]:
        return Counter(each.id for each in self.picks(count, pool))

    def picks(self, count: int, pool: str = "") -> list[Endpoint]:
        found = [self.picker.pick(pool) for _ in range(count)]
        return [each for each in found if each is not None]


# view


def test_a_full_snapshot_replaces_everything() -> None:
    view = View()
    assert view.apply(full([sent("a"), sent("b")]))
    assert view.apply(full([sent("c")], epoch=2))
    assert list(view.endpoints) == ["c"]
    assert view.epoch == 2


def test_a_delta_removes_first_and_then_adds() -> None:
    view = View()
    view.apply(full([sent("a"), sent("b")]))
    delta = wire.Snapshot(
        epoch=3,
        from_epoch=1,
        instance="i",
        endpoints=[sent("a", 5)],
        removed=[wire.Tombstone(id="a", epoch=2), wire.Tombstone(id="b", epoch=2)],
    )
    assert view.apply(delta)
    assert {name: each.weight for name, each in view.endpoints.items()} == {"a": 5}


@pytest.mark.parametrize(
    "delta",
    [
        wire.Snapshot(epoch=9, from_epoch=5, instance="i", endpoints=[sent("x")]),
        wire.Snapshot(epoch=9, from_epoch=4, instance="other", endpoints=[sent("x")]),
        wire.Snapshot(epoch=3, from_epoch=2, instance="i", endpoints=[sent("x")]),
    ],
    ids=["a gap", "another instance", "older than what is held"],
)
def test_a_delta_that_does_not_fit_is_refused_and_changes_nothing(delta: wire.Snapshot) -> None:
    view = View()
    view.apply(full([sent("a")], epoch=4))
    assert not view.apply(delta)
    assert (list(view.endpoints), view.epoch) == (["a"], 4)


# picking


def test_nothing_is_picked_from_nothing() -> None:
    agent = Agent([])
    assert agent.picker.pick() is None
    assert agent.picker.weights() == {}
    assert Agent([sent("a")]).picker.pick("no such pool") is None


def test_picks_stay_in_the_pool_that_was_asked_for() -> None:
    agent = Agent([sent("a", pool="x"), sent("b", pool="y"), sent("c", pool="y")])
    assert set(agent.picked(200, "y")) == {"b", "c"}
    assert set(agent.picked(200)) == {"a", "b", "c"}


def test_idle_picks_follow_the_weights() -> None:
    agent = Agent([sent("a", 1000), sent("b", 600), sent("c", 400)])
    counts = agent.picked(20_000)
    assert counts["a"] / 20_000 == pytest.approx(0.5, abs=0.015)
    assert counts["b"] / 20_000 == pytest.approx(0.3, abs=0.015)


def test_the_traffic_of_two_agents_together_follows_the_weights() -> None:
    endpoints = [sent("a", 2000), sent("b", 1000), sent("c", 500), sent("d", 500)]
    agents = [Agent(endpoints, seed=1), Agent(endpoints, seed=2)]
    together: Counter[str] = Counter()
    for agent in agents:
        leases = []
        for _ in range(4_000):  # 40 requests under way all the time
            endpoint = agent.picker.pick()
            assert endpoint is not None
            lease = agent.picker.request(endpoint)
            lease.__enter__()
            leases.append(lease)
            if len(leases) > 40:
                leases.pop(0).__exit__(None, None, None)
            together[endpoint.id] += 1
    for name, share in {"a": 0.5, "b": 0.25, "c": 0.125, "d": 0.125}.items():
        assert together[name] / 8_000 == pytest.approx(share, abs=0.02)


def test_the_less_loaded_of_two_is_taken_in_proportion_to_its_weight() -> None:
    agent = Agent([sent("big", 3000), sent("small", 1000)])
    for _ in range(2):
        agent.picker.begin("big")
    agent.picker.begin("small")
    assert set(agent.picked(50)) == {"big"}  # 2/3000 < 1/1000
    for _ in range(2):
        agent.picker.begin("big")
    assert set(agent.picked(50)) == {"small"}  # 4/3000 > 1/1000


def test_requests_count_as_in_flight_from_entry_to_exit_even_when_they_fail() -> None:
    agent = Agent([sent("a")])
    endpoint = agent.picker.pick()
    assert endpoint is not None
    with agent.picker.request(endpoint) as chosen:
        assert chosen is endpoint
        assert agent.picker.in_flight("a") == 1
    with pytest.raises(RuntimeError), agent.picker.request(endpoint):
        raise RuntimeError
    assert agent.picker.in_flight("a") == 0


@pytest.mark.parametrize("state", [State.OPEN, State.DRAINING])
def test_an_endpoint_that_is_out_is_not_picked_while_another_can(state: State) -> None:
    agent = Agent([sent("a", 0, state), sent("b", 1)])
    assert set(agent.picked(500)) == {"b"}


def test_when_all_are_out_all_are_picked_in_proportion_to_their_past() -> None:
    agent = Agent([sent("a", 3000), sent("b", 1000)])
    agent.clock.advance(60.0)
    agent.hear(full([sent("a", 0, State.OPEN), sent("b", 0, State.DRAINING)], epoch=2))
    counts = agent.picked(8_000)
    assert counts["a"] / 8_000 == pytest.approx(0.75, abs=0.02)


def test_admission_scales_the_share_of_an_endpoint() -> None:
    agent = Agent([sent("a", admission=0.25), sent("b")])
    assert agent.picker.weights() == {"a": 250.0, "b": 1000.0}


def test_an_endpoint_without_an_address_is_never_picked() -> None:
    agent = Agent([sent("a", address=""), sent("b")])
    assert set(agent.picked(100)) == {"b"}


def test_a_state_of_a_newer_service_counts_as_unknown() -> None:
    unknown = sent("a")
    unknown.state = 99  # type: ignore[assignment]  # on purpose
    assert Agent([unknown]).picker.endpoints[0].state is State.UNKNOWN


@given(st.lists(st.integers(1, 10_000), min_size=2, max_size=8), st.integers(0, 2**32))
def test_two_draws_are_of_two_endpoints(weights: list[int], seed: int) -> None:
    endpoint = Endpoint("a", "p", "a:80", "", 1000, State.HEALTHY, 1.0)
    table = DrawTable([endpoint] * len(weights), weights)
    first, second = table.draw_two(random.Random(seed))
    assert first != second
    assert 0 <= min(first, second) < max(first, second) < len(weights)


def test_the_second_draw_follows_the_weights_of_the_others() -> None:
    endpoint = Endpoint("a", "p", "a:80", "", 1000, State.HEALTHY, 1.0)
    table = DrawTable([endpoint] * 3, [6.0, 3.0, 1.0])
    rng = random.Random(5)
    draws = Counter(table.draw_two(rng) for _ in range(40_000))
    for (first, second), share in {
        (0, 1): 0.6 * 3 / 4,
        (1, 0): 0.3 * 6 / 7,
        (2, 0): 0.1 * 6 / 9,
        (2, 1): 0.1 * 3 / 9,
    }.items():
        assert draws[first, second] / 40_000 == pytest.approx(share, abs=0.01)


# silence


def test_the_last_weights_stay_while_they_are_valid() -> None:
    agent = Agent([sent("a", 700), sent("b", 1000)])
    agent.clock.advance(VALID_S)
    assert agent.picker.weights() == {"a": 700.0, "b": 1000.0}


def settled(agent: Agent, usual: Mapping[str, int], last: Sequence[wire.Endpoint]) -> None:
    """An hour of heartbeats at the usual weights, then the last word of the service."""
    agent.hear(full([sent(name, weight) for name, weight in usual.items()], epoch=2))
    for epoch in range(3, 363):
        agent.clock.advance(VALID_S)
        agent.hear(heartbeat(epoch))
    agent.hear(full(last, epoch=363))
    agent.clock.advance(VALID_S)


def test_silence_moves_weights_slowly_to_what_they_were_in_the_long_run() -> None:
    agent = Agent([])
    settled(agent, {"a": 2000, "b": 500}, [sent("a", 400, State.DEGRADED), sent("b", 500)])
    seen = [agent.picker.weights()["a"]]
    for _ in range(8):
        agent.clock.advance(DRIFT_S)
        seen.append(agent.picker.weights()["a"])
    assert seen[0] == pytest.approx(400.0)
    assert seen == sorted(seen)
    assert seen[1] < 1_700.0
    assert seen[-1] == pytest.approx(2_000.0, rel=0.05)  # not the pool's neutral
    assert agent.picker.weights()["b"] == pytest.approx(500.0, rel=0.05)


def test_silence_readmits_opened_endpoints_one_at_a_time_with_slow_start() -> None:
    agent = Agent([])
    out = [sent("a", 0, State.OPEN), sent("b", 0, State.OPEN), sent("c", 1000)]
    settled(agent, {"a": 1000, "b": 1000, "c": 1000}, out)
    assert set(agent.picker.weights()) == {"c"}
    agent.clock.advance(0.001)
    assert set(agent.picker.weights()) == {"a", "c"}
    assert agent.picker.weights()["a"] == pytest.approx(1000 * PROBE_SHARE, rel=0.01)
    agent.clock.advance(READMIT_S / 2)
    halfway = agent.picker.weights()
    assert "b" not in halfway
    assert halfway["a"] == pytest.approx(500.0, rel=0.05)
    agent.clock.advance(READMIT_S / 2)
    assert agent.picker.weights()["a"] == pytest.approx(1000.0, rel=0.01)
    assert agent.picker.weights()["b"] == pytest.approx(1000 * PROBE_SHARE, rel=0.05)


def test_an_endpoint_that_fails_while_it_is_tried_again_waits_for_its_next_turn() -> None:
    agent = Agent([])
    out = [sent("a", 0, State.OPEN), sent("b", 0, State.OPEN), sent("c", 1000)]
    settled(agent, {"a": 1000, "b": 1000, "c": 1000}, out)
    agent.clock.advance(1.0)
    (endpoint,) = [each for each in agent.picks(3_000) if each.id == "a"][:1]
    with pytest.raises(OSError, match="refused"), agent.picker.request(endpoint):
        raise OSError("refused")
    assert set(agent.picked(500)) == {"c"}
    agent.clock.advance(READMIT_S)
    assert set(agent.picker.weights()) == {"b", "c"}
    agent.clock.advance(READMIT_S)
    assert set(agent.picker.weights()) == {"a", "b", "c"}


def test_silence_never_readmits_a_draining_endpoint() -> None:
    agent = Agent([])
    settled(agent, {"a": 1000, "b": 1000}, [sent("a", 0, State.DRAINING), sent("b", 1000)])
    agent.clock.advance(3_600.0)
    assert set(agent.picker.weights()) == {"b"}


def test_the_first_word_after_silence_counts_at_once() -> None:
    agent = Agent([])
    settled(agent, {"a": 1000, "b": 1000}, [sent("a", 0, State.OPEN), sent("b", 300)])
    agent.clock.advance(3_600.0)
    assert set(agent.picker.weights()) == {"a", "b"}
    agent.hear(heartbeat(364))
    assert agent.picker.weights() == {"b": 300.0}


def test_silence_leaves_no_trace_in_the_long_average() -> None:
    agent = Agent([])
    settled(agent, {"a": 2000}, [sent("a", 400, State.DEGRADED)])
    agent.clock.advance(100_000.0)
    agent.hear(heartbeat(364))
    agent.clock.advance(VALID_S)
    before = agent.picker.weights()["a"]
    agent.clock.advance(20 * DRIFT_S)
    assert before == 400.0
    assert agent.picker.weights()["a"] == pytest.approx(2_000.0, rel=0.05)


def test_a_whole_pool_that_is_out_stays_in_use_during_silence() -> None:
    agent = Agent([])
    out = [sent("a", 0, State.OPEN), sent("b", 0, State.OPEN)]
    settled(agent, {"a": 1000, "b": 1000}, out)
    agent.clock.advance(1.0)
    assert set(agent.picked(200)) == {"a", "b"}


def test_what_is_gone_is_forgotten() -> None:
    agent = Agent([sent("a"), sent("b")])
    delta = wire.Snapshot(
        epoch=2, from_epoch=1, instance="i", removed=[wire.Tombstone(id="a", epoch=2)]
    )
    agent.hear(delta)
    assert [each.id for each in agent.picker.endpoints] == ["b"]
    assert agent.picker.weights() == {"b": 1000.0}


# the clients over gRPC


async def nothing_in_force(operation: Operation) -> tuple[Override, ...]:
    return ()


async def serving(board: Board, listen: str = "127.0.0.1:0") -> DecisionsServer:
    config = PublishConfig(listen=listen, heartbeat_s=0.05, valid_for_s=1.0)
    server = DecisionsServer(config, board, nothing_in_force, Telemetry())
    await server.start()
    return server


def client_of(address: str, **options: Any) -> DecisionsClient:
    clock: Clock = HandClock()
    fast: dict[str, Any] = {"retry_first_s": 0.01, "retry_most_s": 0.05}
    return DecisionsClient(address, clock=clock, rng=random.Random(3), **(fast | options))


async def test_a_client_picks_by_what_the_service_publishes() -> None:
    board = new_board("i", valid_for_s=1.0)
    board.update(snapshot([Row("a"), Row("b")], epoch=1))
    server = await serving(board)
    try:
        async with client_of(server.address) as client:
            await client.until(lambda view: view.epoch >= 1)
            assert client.pick("llama") in client.endpoints
            gone = [Row("a", weight=0, state=State.OPEN), Row("b")]
            board.update(snapshot(gone, epoch=2))
            await client.until(lambda view: view.epoch >= 2)
            assert client.weights("llama") == {"b": 1000.0}
    finally:
        await server.stop(0.0)


async def test_a_client_finds_a_restarted_service_and_its_new_instance() -> None:
    first = new_board("first", valid_for_s=1.0)
    first.update(snapshot([Row("a"), Row("b")], epoch=1))
    server = await serving(first)
    async with client_of(server.address) as client:
        await client.until(lambda view: view.instance == "first")
        await server.stop(0.0)
        assert client.pick() is not None
        second = new_board("second", valid_for_s=1.0)
        second.update(snapshot([Row("b"), Row("c")], epoch=2))
        server = await serving(second, server.address)
        try:
            view = await client.until(lambda view: view.instance == "second")
            assert set(view.endpoints) == {"b", "c"}
        finally:
            await server.stop(0.0)


async def test_a_client_that_reconnects_to_the_same_instance_resumes_with_a_delta() -> None:
    board = new_board("i", valid_for_s=1.0)
    board.update(snapshot([Row("a"), Row("b")], epoch=1))
    server = await serving(board)
    async with client_of(server.address) as client:
        await client.until(lambda view: view.epoch == 1)
        kept = client.view.endpoints["a"]
        await server.stop(0.0)
        board.update(snapshot([Row("a"), Row("b", weight=9)], epoch=2))
        server = await serving(board, server.address)
        try:
            view = await client.until(lambda view: view.epoch == 2)
            assert view.endpoints["b"].weight == 9
            assert view.endpoints["a"] is kept  # not sent again
        finally:
            await server.stop(0.0)


async def test_waiting_for_a_service_that_is_not_there_ends_with_a_timeout() -> None:
    board = new_board("i")
    server = await serving(board)
    address = server.address
    await server.stop(0.0)
    async with client_of(address) as client:
        with pytest.raises(TimeoutError):
            await client.until(lambda view: view.epoch > 0, timeout_s=0.2)
        assert client.pick() is None


async def test_a_blocking_client_serves_code_without_an_event_loop() -> None:
    board = new_board("i", valid_for_s=1.0)
    board.update(snapshot([Row("a")], epoch=1))
    server = await serving(board)

    def use() -> str:
        with BlockingClient(server.address, rng=random.Random(1)) as client:
            client.until(lambda view: view.epoch >= 1)
            endpoint = client.pick()
            assert endpoint is not None
            with client.request(endpoint):
                return endpoint.address

    try:
        async with asyncio.timeout(20.0):
            assert await asyncio.to_thread(use) == "10.0.0.1:8000"
    finally:
        await server.stop(0.0)
