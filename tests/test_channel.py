"""The one ordered queue."""

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.channel import Channel
from pipeline.errors import Overloaded


@given(st.permutations(range(8)), st.sets(st.integers(0, 7)))
def test_entries_come_out_in_the_order_of_their_places_however_they_are_filled(
    order: list[int], abandoned: set[int]
) -> None:
    channel = Channel[int](capacity=8)
    places = [channel.reserve() for _ in range(8)]
    for i in order:
        if i in abandoned:
            channel.abandon(places[i])
        else:
            channel.fill(places[i], i)
    taken = [channel.take(0.0) for _ in range(8 - len(abandoned))]
    assert taken == [i for i in range(8) if i not in abandoned]
    assert channel.take(0.0) is None


def test_an_unfilled_place_holds_back_what_is_behind_it() -> None:
    channel = Channel[str](capacity=2)
    first = channel.reserve()
    channel.put("second")
    assert channel.take(0.0) is None
    channel.fill(first, "first")
    assert [channel.take(0.0), channel.take(0.0)] == ["first", "second"]


def test_a_full_queue_asks_the_producer_to_retry() -> None:
    channel = Channel[int](capacity=1, retry_after_s=2.5)
    channel.fill(channel.reserve(), 1)
    with pytest.raises(Overloaded) as refused:
        channel.reserve()
    assert (refused.value.reason, refused.value.retry_after_s) == ("queue_full", 2.5)
    channel.take(0.0)
    channel.fill(channel.reserve(), 3)
    assert channel.take(0.0) == 3


def test_what_cannot_be_refused_is_queued_in_order_however_full_it_is() -> None:
    channel = Channel[str](capacity=1)
    channel.fill(channel.reserve(), "batch")
    channel.put("off")
    assert [channel.take(0.0), channel.take(0.0)] == ["batch", "off"]


def test_wake_ends_a_wait_for_an_entry() -> None:
    channel = Channel[int](capacity=1)
    taken: list[int | None] = []
    waiter = threading.Thread(target=lambda: taken.append(channel.take(30.0)))
    waiter.start()
    channel.wake()
    waiter.join(10.0)
    assert taken == [None]


def test_an_entry_that_was_taken_is_held_by_nobody() -> None:
    """Whoever keeps a place, such as the one that waits for an answer, keeps no batch with it."""
    channel = Channel[str](capacity=1)
    place = channel.reserve()
    channel.fill(place, "a batch")
    assert channel.take(0.0) == "a batch"
    assert place.entry is None
