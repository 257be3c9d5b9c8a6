"""The loop thread shares its time between ticks and entries, and answers whoever waits."""

from pipeline.channel import Channel
from pipeline.clock import HandClock
from pipeline.config import TailraceConfig
from pipeline.journal import Operation
from pipeline.loop import Loop
from pipeline.loop_thread import Asked, Item, LoopThread
from pipeline.model import Client, Override, Rights, Sender
from pipeline.telemetry import Telemetry

TICK_S = 0.1


def sender_of(client: Client) -> Sender:
    return Sender(client.peer, Rights.METRICS | Rights.REQUESTS)


def test_ticks_that_cost_more_than_their_period_leave_time_for_entries() -> None:
    clock = HandClock()
    channel = Channel[Item](capacity=100)
    order: list[str] = []

    def answered(_: object) -> None:
        order.append("entry")
        clock.advance(TICK_S / 20)

    def published(*_: object) -> None:
        order.append("tick")
        clock.advance(1.5 * TICK_S)

    for _ in range(100):
        channel.put(Asked(Operation(), answered))
    thread = LoopThread(
        Loop(TailraceConfig()),
        channel,
        clock,
        sender_of=sender_of,
        tick_s=TICK_S,
        publish=published,
        telemetry=Telemetry(),
    )
    thread.start()
    assert thread.stop(30.0)
    assert order.count("entry") == 100
    gaps = "".join(each[0] for each in order).strip("e").split("t")
    assert len(gaps) > 5
    assert min(len(gap) for gap in gaps[1:-2]) >= 5


def test_an_operation_that_fails_unexpectedly_is_answered_all_the_same() -> None:
    channel = Channel[Item](capacity=10)
    answers: list[object] = []
    telemetry = Telemetry()
    loop = Loop(TailraceConfig())
    unencodable = Override(scope="all", action="off", expires_ns=1 << 70, source="file")
    channel.put(Asked(Operation(set=unencodable, remove=(1, 2, 3)), answers.append))  # type: ignore[arg-type]  # what no request can hold
    thread = LoopThread(
        loop,
        channel,
        HandClock(),
        sender_of=sender_of,
        tick_s=TICK_S,
        publish=lambda *_: None,
        telemetry=telemetry,
    )
    thread.start()
    assert thread.stop(30.0)
    assert [type(answer).__name__ for answer in answers] == ["DependencyLost"]
    failures = telemetry.registry.get_sample_value(
        "tailrace_supervised_failures_total", {"task": "entry"}
    )
    assert failures == 1.0
