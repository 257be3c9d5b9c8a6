"""Nothing acknowledged is lost: sent = acknowledged + refused, acknowledged = folded + left out.

Counts, never times: real senders over gRPC, and the service's own counters or its journal.
"""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.decode.columns import decode
from pipeline.demo.engine import free_port
from pipeline.journal import Batch, read
from tests.e2e.embedded import running
from tests.e2e.senders import ADDRESSES, Senders, eventually, joined_spans, settled
from tests.hand_fleet import HandFleet, static_pool

POOL = static_pool(ADDRESSES)
TIGHT = "max_message_bytes: 1048576\n  max_bytes_in_flight: 1048576\n  max_bytes_waiting: 0"


def test_overload_refuses_and_loses_nothing() -> None:
    """Scenario: sixteen senders, a budget of a few requests, a queue of four.

    Guarantees: every request is acknowledged or refused; the acknowledged ones are folded, all.
    """
    with running(POOL + "loop: {queue_entries: 4}\n", receive=TIGHT) as service:
        body, n = joined_spans(service, 300)
        senders = Senders(service.addresses["otlp"], body, threads=16, requests=12)
        tally = senders.join()
        counts = settled(service)
        assert tally.sent == 16 * 12 == tally.acknowledged + tally.refused
        assert tally.acknowledged
        assert tally.refused
        assert counts["acknowledged"] == counts["folded"] == n * tally.acknowledged
        assert service.service.telemetry.bytes_in_flight.collect()


def test_senders_that_reconnect_for_every_request_lose_nothing() -> None:
    with running(POOL) as service:
        body, n = joined_spans(service, 5)
        senders = Senders(service.addresses["otlp"], body, threads=8, requests=10, reconnect=True)
        tally = senders.join()
        assert tally.acknowledged == tally.sent == 80
        assert settled(service)["folded"] == n * 80


def test_senders_that_give_up_find_their_batch_folded_whole_or_not_at_all() -> None:
    """Scenario: deadlines so short that many pass while the batch is decoded or folded.

    Guarantees: whole batches only; at least those acknowledged, at most those sent.
    """
    with running(POOL) as service:
        body, n = joined_spans(service, 500)
        senders = Senders(service.addresses["otlp"], body, threads=8, requests=10, timeout_s=0.03)
        tally = senders.join()
        folded = settled(service)["folded"]
        assert tally.sent == tally.acknowledged + tally.refused + tally.unanswered
        assert tally.unanswered
        assert folded % n == 0
        assert tally.acknowledged <= folded / n <= tally.acknowledged + tally.unanswered


def test_late_and_unknown_spans_are_acknowledged_and_counted_as_left_out() -> None:
    with running(POOL) as service:
        now = service.service._clock.now()
        fleet = HandFleet(ADDRESSES)
        service.export(fleet.requests(now))
        service.export(fleet.requests(now.plus_s(-600.0)))
        service.export(HandFleet(["10.9.9.9:1"], POOL).requests(now))
        counts = settled(service)
        assert counts["acknowledged"] == 18
        assert counts["normalise"] == 2
        assert counts["folded"] + counts["fold"] == 16


def test_a_sender_without_rights_is_acknowledged_and_left_out() -> None:
    with running(POOL + "senders: []\n") as service:
        body, n = joined_spans(service, 2)
        service.export(body)
        assert settled(service)["normalise"] == n
        assert service.dropped()["normalise/sender_rights"] == n


@pytest.mark.parametrize("acknowledge", ["after-fold", "on-enqueue"])
@pytest.mark.parametrize("processes", [0, 2])
def test_sigterm_under_load_loses_nothing_that_was_acknowledged(
    tmp_path: Path, acknowledge: str, processes: int
) -> None:
    """Scenario: a service process that records is told to end while eight senders go on.

    Guarantees: the journal, which holds what was folded, has every batch that was acknowledged,
    and none that was not sent.
    """
    journal = tmp_path / "journal"
    otlp = f"127.0.0.1:{free_port()}"
    config = tmp_path / "tailrace.yaml"
    config.write_text(
        f"receive: {{listen: '{otlp}', http: {{listen: ''}}, processes: {processes}}}\n"
        "publish: {listen: '127.0.0.1:0'}\ntelemetry: {metrics_listen: '', log_level: error}\n"
        f"state: {{folder: ''}}\nloop: {{acknowledge: {acknowledge}}}\n{POOL}"
    )
    command = ["serve", "--config", str(config), "--record", str(journal)]
    process = subprocess.Popen([sys.executable, "-m", "pipeline", *command])
    try:
        fleet = HandFleet(ADDRESSES)
        body = fleet.requests(fleet.clock.now(), 20)
        senders = Senders(otlp, body)
        eventually(lambda: senders.tally.acknowledged >= 100, "nothing is acknowledged")
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
        tally = senders.stop()
    finally:
        process.kill()
        process.wait()
    batches = [r.entry for r in read(journal) if isinstance(r.entry, Batch)]
    assert {decode(batch.signal, batch.body).n for batch in batches} == {80}
    assert tally.acknowledged <= len(batches) <= tally.acknowledged + tally.unanswered
