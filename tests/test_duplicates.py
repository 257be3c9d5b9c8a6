"""Delivery is at least once: what a batch does that comes again because its answer got lost."""

from pipeline.model import OtlpSignal, Sender
from pipeline.publish.records import canonical
from tests.hand_fleet import GATEWAY, HandFleet, published

ADDRESSES = [f"10.0.0.{i}:8000" for i in range(1, 5)]


class Twice(HandFleet):
    """Every request of one signal comes twice."""

    again: OtlpSignal

    def send(self, signal: OtlpSignal, body: bytes, sender: Sender = GATEWAY) -> None:
        super().send(signal, body, sender)
        if signal is self.again:
            super().send(signal, body, sender)


def calls(fleet: HandFleet) -> float:
    return float(fleet.loop.request_fold.window(10, fleet.clock.now()).calls.sum())


def test_points_that_come_again_are_counted_and_change_nothing() -> None:
    once, twice = HandFleet(ADDRESSES), Twice(ADDRESSES)
    twice.again = OtlpSignal.METRICS
    assert canonical(once.run(6.0)) == canonical(twice.run(6.0))
    assert once.dropped == {}
    assert set(twice.dropped) == {"fold/duplicate"}


def test_requests_that_come_again_count_again_and_move_no_share() -> None:
    """Nothing remembers single spans: after a lost answer a batch weighs twice, once."""
    once, twice = HandFleet(ADDRESSES), Twice(ADDRESSES)
    twice.again = OtlpSignal.TRACES
    assert published(once.run(6.0)) == published(twice.run(6.0))
    assert calls(twice) == 2 * calls(once)
    assert twice.dropped == {}
