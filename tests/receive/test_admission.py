"""Admission: three zones, first come first served, nothing leaks."""

import asyncio
import random

import pytest

from pipeline.errors import Overloaded
from pipeline.receive.admission import Admission, Limits

pytestmark = pytest.mark.asyncio


def admission(in_flight: int = 100, waiting: int = 50, wait_s: float = 5.0) -> Admission:
    return Admission(Limits(in_flight, waiting, wait_s), random.Random(7))


async def settle() -> None:
    """Let every ready task run."""
    for _ in range(5):
        await asyncio.sleep(0)


async def test_what_fits_the_budget_is_admitted_at_once() -> None:
    gate = admission()
    await gate.admit(60)
    await gate.admit(40)
    assert gate.in_flight_bytes == 100


async def test_a_request_waits_for_room_and_is_admitted_when_there_is_some() -> None:
    gate = admission()
    await gate.admit(80)
    waiting = asyncio.create_task(gate.admit(40))
    await settle()
    assert (gate.in_flight_bytes, gate.waiting_bytes, waiting.done()) == (80, 40, False)
    gate.release(80)
    await waiting
    assert (gate.in_flight_bytes, gate.waiting_bytes) == (40, 0)


async def test_a_small_request_does_not_overtake_a_waiting_one() -> None:
    gate = admission()
    await gate.admit(80)
    first = asyncio.create_task(gate.admit(40))
    await settle()
    second = asyncio.create_task(gate.admit(10))
    await settle()
    assert not first.done() and not second.done()
    gate.release(80)
    await asyncio.gather(first, second)
    assert gate.in_flight_bytes == 50


async def test_beyond_the_waiting_bytes_a_request_is_refused_at_once() -> None:
    gate = admission()
    await gate.admit(100)
    waiting = asyncio.create_task(gate.admit(50))
    await settle()
    with pytest.raises(Overloaded) as refused:
        await gate.admit(1)
    assert refused.value.reason == "bytes_in_flight"
    gate.release(100)
    await waiting


async def test_a_wait_ends_in_a_refusal_and_takes_nothing() -> None:
    gate = admission(wait_s=0.0)
    await gate.admit(100)
    with pytest.raises(Overloaded):
        await gate.admit(20)
    assert (gate.in_flight_bytes, gate.waiting_bytes) == (100, 0)


async def test_a_sender_with_little_time_left_is_refused_after_half_of_it() -> None:
    gate = admission(wait_s=3600.0)
    await gate.admit(100)
    with pytest.raises(Overloaded):
        await gate.admit(20, remaining_s=0.01)


async def test_the_one_behind_a_large_one_that_gave_up_is_admitted_if_it_fits() -> None:
    gate = admission(waiting=200)
    await gate.admit(80)
    large = asyncio.create_task(gate.admit(90))
    small = asyncio.create_task(gate.admit(10))
    await settle()
    large.cancel()
    await small
    assert gate.in_flight_bytes == 90


@pytest.mark.parametrize("granted", [False, True])
async def test_a_cancelled_wait_gives_back_everything(granted: bool) -> None:
    gate = admission()
    await gate.admit(100)
    waiting = asyncio.create_task(gate.admit(40))
    await settle()
    if granted:
        gate.release(100)
        waiting.cancel()  # granted, but it has not run since
    else:
        waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert (gate.in_flight_bytes, gate.waiting_bytes) == (0 if granted else 100, 0)


async def test_retry_delays_differ_and_stay_in_their_range() -> None:
    gate = admission()
    delays = [gate.retry_after_s() for _ in range(50)]
    assert len(set(delays)) == len(delays)
    assert all(1.0 <= delay <= 5.0 for delay in delays)


async def test_any_interleaving_keeps_the_budget_and_ends_at_zero() -> None:
    rnd = random.Random(3)
    gate = admission(in_flight=100, waiting=300, wait_s=5.0)
    most = 0

    async def sender() -> None:
        nonlocal most
        for _ in range(20):
            size = rnd.randrange(1, 100)
            try:
                await gate.admit(size)
            except Overloaded:
                continue
            most = max(most, gate.in_flight_bytes)
            for _ in range(rnd.randrange(4)):
                await asyncio.sleep(0)
            gate.release(size)

    await asyncio.gather(*(sender() for _ in range(20)))
    assert 0 < most <= 100
    assert (gate.in_flight_bytes, gate.waiting_bytes) == (0, 0)
