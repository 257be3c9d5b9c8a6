"""Per-client limits: buckets, shares, a bounded table."""

import random
from pathlib import Path

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.clock import HandClock
from pipeline.receive.config import MIB, ClientsConfig
from pipeline.receive.limits import ClientBounds, ClientLimiter
from tests.receive.serving import retry_delay_s, serving, write

INF = float("inf")


def bounds(
    requests_per_s: float = 0.0,
    bytes_per_s: float = 0.0,
    burst_bytes: float = 100.0,
    in_flight_bytes: float = INF,
) -> ClientBounds:
    return ClientBounds(requests_per_s, bytes_per_s, burst_bytes, in_flight_bytes)


def test_requests_come_in_bursts_of_one_second_and_then_at_their_rate() -> None:
    limiter = ClientLimiter(bounds(requests_per_s=4))
    assert [limiter.take("a", 1, 0.0) for _ in range(4)] == [0.0] * 4
    assert limiter.take("a", 1, 0.0) == pytest.approx(0.25)
    assert limiter.take("a", 1, 0.1) == pytest.approx(0.15)
    assert limiter.take("a", 1, 0.25) == 0.0
    assert [limiter.take("a", 1, 100.0) for _ in range(5)][-1] != 0.0  # no more than the burst


def test_a_rate_below_one_a_second_still_lets_one_through() -> None:
    limiter = ClientLimiter(bounds(requests_per_s=0.1))
    assert limiter.take("a", 1, 0.0) == 0.0
    assert limiter.take("a", 1, 0.0) == pytest.approx(10.0)


def test_bytes_are_limited_apart_from_requests() -> None:
    limiter = ClientLimiter(bounds(bytes_per_s=50, burst_bytes=100))
    assert limiter.take("a", 80, 0.0) == 0.0
    assert limiter.take("a", 40, 0.0) == pytest.approx(0.4)
    assert limiter.take("a", 40, 0.4) == 0.0


def test_clients_do_not_share_their_buckets() -> None:
    limiter = ClientLimiter(bounds(requests_per_s=1))
    assert limiter.take("a", 1, 0.0) == limiter.take("b", 1, 0.0) == 0.0


def test_a_share_bounds_what_a_client_holds_but_one_request_always_passes() -> None:
    limiter = ClientLimiter(bounds(in_flight_bytes=100))
    assert limiter.take("a", 150, 0.0) == 0.0
    assert limiter.take("a", 1, 0.0) is None
    limiter.release("a", 150)
    assert limiter.take("a", 60, 0.0) == 0.0
    assert limiter.take("a", 60, 0.0) is None
    assert limiter.take("a", 40, 0.0) == 0.0


def test_what_is_undone_was_never_taken() -> None:
    limiter = ClientLimiter(bounds(requests_per_s=1, bytes_per_s=1))
    assert limiter.take("a", 100, 0.0) == 0.0
    limiter.undo("a", 100)
    assert limiter.take("a", 100, 0.0) == 0.0


def test_a_full_table_forgets_who_was_idle_longest_and_never_who_holds_bytes() -> None:
    limiter = ClientLimiter(bounds(requests_per_s=1), max_clients=2)
    limiter.take("holds", 1, 0.0)
    limiter.take("idle", 1, 0.0)
    limiter.release("idle", 1)
    assert limiter.take("new", 1, 0.0) == 0.0
    assert len(limiter) == 2
    limiter.release("holds", 1)
    assert limiter.take("holds", 1, 0.0) != 0.0  # still known: its burst is used up


def test_a_table_full_of_clients_that_hold_bytes_refuses_new_ones() -> None:
    limiter = ClientLimiter(bounds(), max_clients=2)
    assert limiter.take("a", 1, 0.0) == limiter.take("b", 1, 0.0) == 0.0
    assert limiter.take("c", 1, 0.0) is None


@given(
    st.lists(st.tuples(st.integers(1, 100), st.floats(0, 3)), max_size=50),
    st.floats(1, 200),
)
def test_no_client_ever_gets_more_than_its_burst_and_its_rate(
    steps: list[tuple[int, float]], rate: float
) -> None:
    limiter = ClientLimiter(bounds(bytes_per_s=rate, burst_bytes=100))
    now_s = taken = 0.0
    for size, pause_s in steps:
        now_s += pause_s
        wait_s = limiter.take("a", size, now_s)
        assert wait_s is not None
        if wait_s == 0:
            taken += size
            limiter.release("a", size)
        else:
            assert limiter.take("a", size, now_s + wait_s + 1e-6) == 0.0  # as it was told
            limiter.release("a", size)
            now_s, taken = now_s + wait_s + 1e-6, taken + size
        assert taken <= 100 + rate * now_s + 1e-3


def test_the_table_stays_bounded_under_any_number_of_clients() -> None:
    limiter = ClientLimiter(bounds(requests_per_s=1), max_clients=10)
    rnd = random.Random(1)
    for i in range(1000):
        key = str(rnd.randrange(500))
        if limiter.take(key, 1, float(i)) == 0.0:
            limiter.release(key, 1)
        assert len(limiter) <= 10


async def test_a_client_beyond_its_rate_is_told_when_to_come_back() -> None:
    clock = HandClock()
    clients = ClientsConfig(requests_per_s=2)
    async with serving(clock=clock, clients=clients) as running:
        await running.export(b"1")
        await running.export(b"2")
        error = await running.refused(b"3")
        assert error.code() is grpc.StatusCode.UNAVAILABLE
        assert 0.5 <= retry_delay_s(error) <= 0.75
        assert running.value("dropped_total", stage="receive", reason="client_limit") == 1
        clock.advance(0.5)
        await running.export(b"3")
        assert [export.body for export in running.sink.exports] == [b"1", b"2", b"3"]


async def test_clients_are_told_apart_by_their_names(
    tmp_path: Path,
) -> None:
    tokens = write(
        tmp_path / "tokens.yaml",
        "- {name: a, token: aaaaaaaaaaaaaaaa}\n- {name: b, token: bbbbbbbbbbbbbbbb}\n",
    )
    clients = ClientsConfig(requests_per_s=1)
    async with serving(clock=HandClock(), clients=clients, tokens_file=tokens) as running:

        def as_(token: str) -> tuple[tuple[str, str]]:
            return (("authorization", f"Bearer {token}"),)

        await running.export(b"", metadata=as_("aaaaaaaaaaaaaaaa"))
        await running.refused(b"", metadata=as_("aaaaaaaaaaaaaaaa"))
        await running.export(b"", metadata=as_("bbbbbbbbbbbbbbbb"))


async def test_bytes_are_charged_inflated() -> None:
    clients = ClientsConfig(bytes_per_s=MIB)
    async with serving(clock=HandClock(), clients=clients, max_message_bytes=MIB) as running:
        await running.export(bytes(MIB - 10), compression=grpc.Compression.Gzip)
        error = await running.refused(bytes(MIB // 2), compression=grpc.Compression.Gzip)
        assert 0.4 < retry_delay_s(error) < 0.8


async def test_limits_leave_nothing_behind_when_the_budget_refuses() -> None:
    clients = ClientsConfig(max_in_flight_ratio=0.5)
    async with serving(
        clients=clients, max_message_bytes=MIB, max_bytes_in_flight=MIB, max_bytes_waiting=0
    ) as running:
        running.sink.answer = RuntimeError("told retryably")
        for _ in range(3):
            await running.refused(bytes(MIB))
        assert running.intake.bytes_in_flight == 0
        assert len(running.sink.exports) == 3
