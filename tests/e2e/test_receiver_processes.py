"""Several processes receive, one decides: the same answers, counts and guarantees."""

import os
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from pipeline.config import parse
from pipeline.decode.columns import decode
from pipeline.journal import Batch, read
from pipeline.model import OtlpSignal
from pipeline.receivers import Receivers, share
from tests.e2e.embedded import Running, ports, running, tailrace
from tests.e2e.senders import ADDRESSES, SIGNAL, Senders, eventually, joined_spans, settled
from tests.hand_fleet import HandFleet, static_pool

POOL = static_pool(ADDRESSES)
TWO = "processes: 2"


def receivers(service: Running) -> Receivers:
    front = service.service._front
    assert isinstance(front, Receivers)
    return front


def test_they_answer_as_one_process_does_and_their_counts_add_up() -> None:
    """Guarantees: gRPC and HTTP work on the common ports, and the parent's metrics are sums."""
    with running(POOL, receive=TWO) as service:
        body, n = joined_spans(service, 5)
        tally = Senders(
            service.addresses["otlp"], body, threads=8, requests=5, reconnect=True
        ).join()
        assert tally.acknowledged == 40
        url = f"http://{service.addresses['otlp_http']}/v1/traces"
        request = urllib.request.Request(
            url, body, {"Content-Type": "application/x-protobuf"}, method="POST"
        )
        with urllib.request.urlopen(request, timeout=20) as answer:
            assert answer.status == 200
        assert service.code(b"\xff\xff") == "INVALID_ARGUMENT"
        assert settled(service)["folded"] == 41 * n

        def value(outcome: str) -> float:
            return service.value("received_requests_total", signal=SIGNAL, outcome=outcome)

        eventually(lambda: (value("ok"), value("rejected")) == (41.0, 1.0), "counts do not arrive")
        assert service.value("wire_bytes_total", signal=SIGNAL) == 41 * len(body) + 2
        assert service.dropped()["decode/malformed"] == 1.0


def test_partial_success_reaches_the_sender() -> None:
    from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
        ExportMetricsServiceRequest,
        ExportMetricsServiceResponse,
    )

    request = ExportMetricsServiceRequest()
    metrics = request.resource_metrics.add().scope_metrics.add().metrics
    metrics.add(name="up").gauge.data_points.add(as_double=1.0)  # without a time
    with running(POOL, receive=TWO) as service:
        answer = service.export(request.SerializeToString(), OtlpSignal.METRICS)
    partial = ExportMetricsServiceResponse.FromString(answer).partial_success
    assert partial.rejected_data_points == 1


def test_a_killed_receiver_loses_nothing_acknowledged_and_comes_back() -> None:
    """Scenario: one of two receivers is killed while eight senders go on.

    Guarantees: everything acknowledged was folded; what was folded and not acknowledged belongs to
    senders that got no answer, so delivery is at least once; another receiver is started.
    """
    with running(POOL, receive=TWO) as service:
        body, n = joined_spans(service, 20)
        senders = Senders(service.addresses["otlp"], body)
        eventually(lambda: senders.tally.acknowledged >= 50, "nothing is acknowledged")
        victim = receivers(service).pids()[0]
        os.kill(victim, signal.SIGKILL)
        eventually(lambda: service.value("receiver_restarts_total") == 1.0, "not counted")
        eventually(lambda: service.value("receivers") == 2.0, "no new receiver")
        before = senders.tally.acknowledged
        eventually(lambda: senders.tally.acknowledged > before + 50, "nothing goes on")
        tally = senders.stop()
        folded = settled(service)["folded"] / n
        assert tally.sent == tally.acknowledged + tally.refused + tally.unanswered
        assert tally.acknowledged <= folded <= tally.acknowledged + tally.unanswered
        assert victim not in receivers(service).pids()


def test_on_enqueue_loses_no_more_than_its_bound_with_a_killed_receiver() -> None:
    """Guarantees: acknowledged - folded, in bytes, is within one receiver's max_owed_bytes."""
    owed = 1 << 20
    config = POOL + f"loop: {{acknowledge: on-enqueue, max_owed_bytes: {owed}}}\n"
    with running(config, receive=TWO) as service:
        body, n = joined_spans(service, 200)
        senders = Senders(service.addresses["otlp"], body)
        eventually(lambda: senders.tally.acknowledged >= 50, "nothing is acknowledged")
        os.kill(receivers(service).pids()[0], signal.SIGKILL)
        eventually(lambda: service.value("receivers") == 2.0, "no new receiver")
        tally = senders.stop()
        # Fold what the living receivers still owe before counting.
        eventually(
            lambda: (
                n * tally.acknowledged - settled(service)["folded"] <= n * (owed // 2) / len(body)
            ),
            "more is lost than the bound says",
        )


def test_receivers_end_with_the_deciding_process(tmp_path: Path) -> None:
    config = tmp_path / "tailrace.yaml"
    config.write_text(ports(TWO) + 'state: {folder: ""}\n')
    process = subprocess.Popen([sys.executable, "-m", "pipeline", "serve", "--config", str(config)])
    try:
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")

        def started() -> list[str]:
            found = [
                pid
                for task in Path(f"/proc/{process.pid}/task").iterdir()
                for pid in (task / "children").read_text().split()
            ]
            return found if len(found) == 2 else []

        eventually(lambda: bool(started()), f"no receivers in {children}")
        pids = started()
        command = Path(f"/proc/{pids[0]}/cmdline").read_bytes().decode()
        assert "127.0.0.1" not in command, "configuration on the command line"
    finally:
        process.kill()
        process.wait()
    eventually(lambda: not any(_lives(pid) for pid in pids), "an orphan stays")


def _lives(pid: str) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(") ", 1)[1][0]
    except OSError:
        return False
    return state != "Z"


def test_what_they_receive_is_recorded_redacted(tmp_path: Path) -> None:
    with running(POOL, receive=TWO, record=tmp_path / "journal") as service:
        now = service.service._clock.now()
        fleet = HandFleet(ADDRESSES)
        body = fleet.requests(now, 1, **{"gen_ai.prompt": "secret words"})
        assert b"secret words" in body
        service.export(body)
    batches = [r.entry for r in read(tmp_path / "journal") if isinstance(r.entry, Batch)]
    assert [decode(batch.signal, batch.body).n for batch in batches] == [4]
    assert b"secret words" not in batches[0].body


def test_a_taken_port_is_named_also_when_its_owner_shares_it(tmp_path: Path) -> None:
    config = tmp_path / "tailrace.yaml"
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        other.bind(("127.0.0.1", 0))
        other.listen()
        listen = f"127.0.0.1:{other.getsockname()[1]}"
        config.write_text(ports(TWO).replace('listen: "127.0.0.1:0"', f'listen: "{listen}"', 1))
        done = tailrace("serve", "--config", str(config))
    assert done.returncode == 2
    assert f"receive.listen: {listen} is taken" in done.stderr


def test_a_receiver_that_cannot_use_its_configuration_fails_the_start() -> None:
    with (
        pytest.raises(Exception, match="tokens_file"),
        running(POOL, receive=f"{TWO}\n  tokens_file: /nowhere/tokens.yaml"),
    ):
        raise AssertionError("it started")


@pytest.mark.parametrize("count", [1, 3])
def test_budgets_are_shared_and_each_takes_a_largest_request(count: int) -> None:
    config = parse("receive: {max_bytes_in_flight: 402653184}", "test").receive
    one = share(config, count)
    assert one.max_bytes_in_flight == 402653184 // count
    assert share(config, 64).max_bytes_in_flight == config.max_message_bytes
    assert count * one.max_connections >= config.max_connections
