"""The decision port: watchers that are slow, late or away, and the real server and its clients."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
import msgspec
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from pipeline.client import View as AgentView
from pipeline.errors import ConfigError, DependencyLost, Overloaded, Rejected
from pipeline.journal import Operation
from pipeline.model import Override
from pipeline.publish.config import PublishConfig
from pipeline.publish.records import Board, Pools, View
from pipeline.publish.watch import (
    MAX_POOLS,
    DecisionsServer,
    Operate,
    Watcher,
    Watchers,
)
from pipeline.telemetry import Telemetry
from pipeline.wire import decisions_pb2 as wire
from pipeline.wire.decisions_pb2_grpc import DecisionsStub, OperatorStub
from tests.publish.fleet import Row, new_board, snapshot

ALL: Pools = frozenset()
LIMIT_S = 20.0
"""Bound of every wait; nothing is expected to take a hundredth of it."""


class Peer:
    """The far end of a stream: takes one message for each `ready`."""

    def __init__(self, *, ready: int = 1_000) -> None:
        self.messages: list[wire.Snapshot] = []
        self._ready = asyncio.Semaphore(ready)
        self._taken = asyncio.Condition()

    async def write(self, data: bytes) -> None:
        await self._ready.acquire()
        async with self._taken:
            self.messages.append(wire.Snapshot.FromString(data))
            self._taken.notify_all()

    def ready(self) -> None:
        self._ready.release()

    async def took(self, count: int) -> None:
        async with asyncio.timeout(LIMIT_S), self._taken:
            await self._taken.wait_for(lambda: len(self.messages) >= count)


@contextlib.asynccontextmanager
async def served(watchers: Watchers, watcher: Watcher, peer: Peer) -> AsyncIterator[None]:
    task = asyncio.create_task(watchers.serve(watcher, peer.write))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def watching(instance: str = "", epoch: int = 0, view: View = View.ROUTING) -> Watcher:
    return Watcher(view, ALL, instance, epoch)


async def test_a_slow_watcher_is_sent_the_newest_state_not_the_ticks_it_missed() -> None:
    board = new_board("i")
    watchers = Watchers(board, Telemetry())
    peer = Peer(ready=0)
    board.update(snapshot([Row("a"), Row("b")], epoch=1))
    async with served(watchers, watching(), peer):
        for epoch in range(2, 50):
            board.update(snapshot([Row("a", weight=1000 + epoch), Row("b")], epoch=epoch))
            watchers.wake()
            await asyncio.sleep(0)
        peer.ready()
        await peer.took(1)
        peer.ready()
        await peer.took(2)
        first, second = peer.messages
        assert first.full
        assert not second.full
        assert second.from_epoch == first.epoch
        assert [(each.id, each.weight) for each in second.endpoints] == [("a", 1049)]
        assert second.epoch == 49


async def test_watchers_at_the_same_epoch_share_one_encoded_message() -> None:
    board = new_board("i")
    watchers = Watchers(board, Telemetry())
    board.update(snapshot([Row("a")], epoch=1))
    sent: list[bytes] = []
    everybody = asyncio.Event()

    async def write(data: bytes) -> None:
        sent.append(data)
        if len(sent) == 3:
            everybody.set()

    tasks = [asyncio.create_task(watchers.serve(watching("i", 1), write)) for _ in range(3)]
    async with asyncio.timeout(LIMIT_S):
        await everybody.wait()
    assert all(data is sent[0] for data in sent)
    watchers.close()
    await asyncio.gather(*tasks)


async def test_an_agent_that_resumes_is_sent_what_it_missed() -> None:
    board = new_board("i")
    watchers = Watchers(board, Telemetry())
    board.update(snapshot([Row("a"), Row("b"), Row("c")], epoch=1))
    board.update(snapshot([Row("a"), Row("b", weight=5), None], epoch=2, n=3))
    peer = Peer()
    async with served(watchers, watching("i", 1), peer):
        await peer.took(1)
    (message,) = peer.messages
    assert (message.full, message.from_epoch, message.epoch) == (False, 1, 2)
    assert [each.id for each in message.endpoints] == ["b"]
    assert [each.id for each in message.removed] == ["c"]


async def test_an_agent_of_another_instance_is_sent_everything() -> None:
    board = new_board("new")
    watchers = Watchers(board, Telemetry())
    board.update(snapshot([Row("a")], epoch=1))
    peer = Peer()
    async with served(watchers, watching("old", 1), peer):
        await peer.took(1)
    assert peer.messages[0].full


async def test_an_agent_that_resumes_up_to_date_is_greeted_with_a_heartbeat() -> None:
    board = new_board("i")
    telemetry = Telemetry()
    watchers = Watchers(board, telemetry)
    board.update(snapshot([Row("a")], epoch=1))
    peer = Peer()
    async with served(watchers, watching("i", 1), peer):
        await peer.took(1)
    assert (peer.messages[0].full, list(peer.messages[0].endpoints)) == (False, [])
    count = telemetry.registry.get_sample_value
    assert count("tailrace_watch_sent_total", {"kind": "heartbeat"}) == 1.0


async def test_a_beat_is_sent_on_quiet_ticks_and_moves_the_epoch_that_the_agent_holds() -> None:
    board = new_board("i", valid_for_s=7.0)
    watchers = Watchers(board, Telemetry())
    board.update(snapshot([Row("a")], epoch=1))
    peer = Peer()
    async with served(watchers, watching(), peer):
        await peer.took(1)
        board.update(snapshot([Row("a")], epoch=5))
        watchers.wake()
        watchers.wake(beat=True)
        await peer.took(2)
        board.update(snapshot([Row("a", weight=9)], epoch=6))
        watchers.wake()
        await peer.took(3)
    _, beat, delta = peer.messages
    assert (beat.epoch, beat.from_epoch, beat.valid_for_ms, beat.instance) == (5, 1, 7_000, "i")
    assert not beat.endpoints
    assert (delta.from_epoch, delta.epoch) == (5, 6)


async def test_a_full_view_change_sends_nothing_to_routing_watchers() -> None:
    board = new_board("i")
    watchers = Watchers(board, Telemetry())
    board.update(snapshot([Row("a", rule="")], epoch=1))
    routing, full = Peer(), Peer()
    async with (
        served(watchers, watching(), routing),
        served(watchers, watching(view=View.FULL), full),
    ):
        await routing.took(1)
        await full.took(1)
        board.update(snapshot([Row("a", rule="held")], epoch=2, time_s=2.0))
        watchers.wake()
        await full.took(2)
        assert full.messages[1].endpoints[0].rule == "held"
        assert len(routing.messages) == 1


async def test_open_streams_are_counted_by_view_and_no_longer_when_they_end() -> None:
    telemetry = Telemetry()
    board = new_board("i")
    board.update(snapshot([Row("a")], epoch=1))
    watchers = Watchers(board, telemetry)
    peer = Peer()

    def count() -> float | None:
        return telemetry.registry.get_sample_value("tailrace_watchers", {"view": "full"})

    async with served(watchers, watching(view=View.FULL), peer):
        await peer.took(1)
        assert (len(watchers), count()) == (1, 1.0)
    assert (len(watchers), count()) == (0, 0.0)


# the real server


async def nothing_in_force(operation: Operation) -> tuple[Override, ...]:
    return ()


@contextlib.asynccontextmanager
async def running(
    board: Board, operate: Operate = nothing_in_force, **settings: Any
) -> AsyncIterator[tuple[DecisionsServer, grpc.aio.Channel]]:
    config = PublishConfig(listen="127.0.0.1:0", **settings)
    server = DecisionsServer(config, board, operate, Telemetry())
    address = await server.start()
    try:
        async with grpc.aio.insecure_channel(address) as channel:
            yield server, channel
    finally:
        await server.stop(0.0)


def stubs(channel: grpc.aio.Channel) -> tuple[Any, Any]:
    decisions: Callable[[Any], Any] = DecisionsStub
    operator: Callable[[Any], Any] = OperatorStub
    return decisions(channel), operator(channel)


async def refusal(call: Awaitable[Any]) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value.code(), caught.value.details() or ""


async def read_until(call: Any, agent: AgentView, epoch: int) -> None:
    async with asyncio.timeout(LIMIT_S):
        while agent.epoch < epoch:
            assert agent.apply(await call.read())


async def test_get_and_watch_tell_the_same_over_a_real_connection() -> None:
    board = new_board("i")
    board.update(snapshot([Row("a"), Row("b", pool="other")], epoch=1))
    async with running(board) as (_, channel):
        decisions, _ = stubs(channel)
        agent = AgentView()
        call = decisions.Watch(wire.WatchRequest(view=wire.VIEW_FULL, pools=["llama"]))
        await read_until(call, agent, 1)
        board.update(snapshot([Row("a", weight=77), Row("b", pool="other")], epoch=2, time_s=2.0))
        await read_until(call, agent, 2)
        got = await decisions.Get(wire.GetRequest(view=wire.VIEW_FULL, pools=["llama"]))
        assert {each.id: each for each in got.endpoints} == agent.endpoints
        assert agent.endpoints["a"].weight == 77
        assert list(agent.pools) == ["llama"]


async def test_a_watch_that_began_before_the_first_decision_gets_it() -> None:
    board = new_board("i")
    async with running(board) as (_, channel):
        decisions, _ = stubs(channel)
        assert await refusal(decisions.Get(wire.GetRequest())) == (
            grpc.StatusCode.UNAVAILABLE,
            "nothing is decided yet",
        )
        call = decisions.Watch(wire.WatchRequest())
        reading = asyncio.ensure_future(call.read())
        await asyncio.to_thread(board.update, snapshot([Row("a")], epoch=4))
        async with asyncio.timeout(LIMIT_S):
            assert (await reading).epoch == 4


async def test_heartbeats_fill_quiet_times() -> None:
    board = new_board("i", valid_for_s=1.0)
    board.update(snapshot([Row("a")], epoch=1))
    async with running(board, heartbeat_s=0.01, valid_for_s=1.0) as (_, channel):
        call = stubs(channel)[0].Watch(wire.WatchRequest())
        async with asyncio.timeout(LIMIT_S):
            first, *beats = [await call.read() for _ in range(4)]
        assert first.full
        assert all(not beat.full and not beat.endpoints and beat.epoch == 1 for beat in beats)


async def test_health_says_whether_anything_is_decided() -> None:
    board = new_board("i")
    async with running(board) as (_, channel):
        health = health_pb2_grpc.HealthStub(channel)
        asked = health_pb2.HealthCheckRequest(service="tailrace.v1.Decisions")
        assert (await health.Check(health_pb2.HealthCheckRequest())).status == 1
        call = health.Watch(asked)
        async with asyncio.timeout(LIMIT_S):
            assert (await call.read()).status == 2
            board.update(snapshot([Row("a")], epoch=1))
            assert (await call.read()).status == 1


async def test_watchers_beyond_the_bound_are_told_to_retry() -> None:
    board = new_board("i")
    board.update(snapshot([Row("a")], epoch=1))
    async with running(board, max_watchers=1) as (_, channel):
        decisions, _ = stubs(channel)
        async with asyncio.timeout(LIMIT_S):
            first = decisions.Watch(wire.WatchRequest())
            await first.read()
            code, details = await refusal(decisions.Watch(wire.WatchRequest()).read())
        assert (code, details) == (grpc.StatusCode.UNAVAILABLE, "at most 1 watchers; retry")


@pytest.mark.parametrize(
    ("method", "data", "details"),
    [
        ("Decisions/Get", b"\xff", "not a GetRequest"),
        ("Decisions/Get", wire.GetRequest(view=9).SerializeToString(), "view: 9 is neither"),  # type: ignore[arg-type]  # unknown
        (
            "Decisions/Get",
            wire.GetRequest(pools=[str(i) for i in range(MAX_POOLS + 1)]).SerializeToString(),
            "pools: more than",
        ),
        ("Operator/SetOverride", b"", "override: missing"),
        ("Operator/SetOverride", b"\x0a\x05", "not a SetOverrideRequest"),
        ("Operator/RemoveOverride", b"", "scope: must be one of"),
    ],
)
async def test_a_malformed_request_is_refused_with_the_reason(
    method: str, data: bytes, details: str
) -> None:
    board = new_board("i")
    board.update(snapshot([Row("a")], epoch=1))
    async with running(board) as (_, channel):
        code, said = await refusal(channel.unary_unary(f"/tailrace.v1.{method}")(data))
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert said.startswith(details)


class InForce:
    """Overrides as the loop would keep them."""

    def __init__(self) -> None:
        self.overrides: dict[tuple[str, str], Override] = {}

    async def operate(self, operation: Operation) -> tuple[Override, ...]:
        if operation.set is not None:
            self.overrides[operation.set.scope, operation.set.target] = operation.set
        if operation.remove is not None:
            self.overrides.pop(operation.remove, None)
        return tuple(self.overrides.values())


async def test_an_operator_sets_lists_and_removes_an_override() -> None:
    sent = wire.Override(
        scope=wire.Override.SCOPE_POOL,
        target="llama",
        action=wire.Override.ACTION_HOLD,
        owner="ann",
    )
    kept = wire.Override()
    kept.CopyFrom(sent)
    kept.source = "operator"
    async with running(new_board("i"), InForce().operate) as (_, channel):
        _, operator = stubs(channel)
        done = await operator.SetOverride(wire.SetOverrideRequest(override=sent))
        assert list(done.overrides) == [kept]
        listed = await operator.ListOverrides(wire.ListOverridesRequest())
        assert list(listed.overrides) == [kept]
        removal = wire.RemoveOverrideRequest(scope=sent.scope, target=sent.target)
        removed = await operator.RemoveOverride(removal)
        assert (removed.removed, list(removed.overrides)) == (True, [])
        again = await operator.RemoveOverride(removal)
        assert not again.removed


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (Rejected("full", "too many overrides"), grpc.StatusCode.INVALID_ARGUMENT),
        (Overloaded("queue full", 1.0), grpc.StatusCode.UNAVAILABLE),
        (DependencyLost("stopping"), grpc.StatusCode.UNAVAILABLE),
    ],
)
async def test_a_refusal_by_the_loop_is_told_as_permanent_or_retryable(
    error: Exception, code: grpc.StatusCode
) -> None:
    async def operate(operation: Operation) -> tuple[Override, ...]:
        raise error

    async with running(new_board("i"), operate) as (_, channel):
        _, operator = stubs(channel)
        answer = await refusal(operator.ListOverrides(wire.ListOverridesRequest()))
    assert answer == (code, str(error))


async def test_a_taken_port_is_a_configuration_error_that_names_it() -> None:
    async with running(new_board("i")) as (server, _):
        config = PublishConfig(listen=server.address)
        second = DecisionsServer(config, new_board("j"), nothing_in_force, Telemetry())
        with pytest.raises(ConfigError, match=server.address):
            await second.start()
        await second.stop(0.0)


@pytest.mark.parametrize("listen", ["0.0.0.0:4320", "[::]:4320", "10.1.2.3:4320", "host:4320"])
def test_plaintext_off_loopback_must_be_asked_for(listen: str) -> None:
    with pytest.raises(ConfigError, match="plaintext_off_loopback"):
        DecisionsServer(PublishConfig(listen=listen), new_board("i"), nothing_in_force, Telemetry())
    allowed = PublishConfig(listen=listen, plaintext_off_loopback=True)
    DecisionsServer(allowed, new_board("i"), nothing_in_force, Telemetry())


@pytest.mark.parametrize("listen", ["127.0.0.1:1", "localhost:1", "[::1]:1"])
def test_loopback_needs_no_leave(listen: str) -> None:
    DecisionsServer(PublishConfig(listen=listen), new_board("i"), nothing_in_force, Telemetry())


def test_a_validity_of_less_than_two_heartbeats_is_refused() -> None:
    with pytest.raises(msgspec.ValidationError, match="at least twice heartbeat_s"):
        msgspec.convert({"heartbeat_s": 6.0}, PublishConfig)


async def test_stopping_ends_streams_and_is_safe_twice_and_before_the_start() -> None:
    board = new_board("i")
    board.update(snapshot([Row("a")], epoch=1))
    async with running(board) as (server, channel):
        call = stubs(channel)[0].Watch(wire.WatchRequest())
        async with asyncio.timeout(LIMIT_S):
            await call.read()
            await server.stop(5.0)
            await server.stop(5.0)
            assert await call.read() is grpc.aio.EOF
        board.update(snapshot([Row("a", weight=3)], epoch=2))
    idle = DecisionsServer(PublishConfig(), board, nothing_in_force, Telemetry())
    await idle.stop(0.0)
