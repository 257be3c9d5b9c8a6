"""What `tailrace doctor --connect` finds on a metrics page, and what it says when there is none."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from wsgiref.simple_server import WSGIRequestHandler, make_server

import pytest
from prometheus_client import generate_latest

from pipeline.diagnose import HTTP_REFUSALS, Page, diagnose, fetch, summary
from pipeline.errors import DependencyLost
from pipeline.telemetry import Telemetry
from tests.e2e.embedded import tailrace
from tests.e2e.real_senders import service

NOW_S = 1_800_000_000.0
DAY_S = 86_400.0


def page(change: Callable[[Telemetry], object] = lambda _: None) -> Page:
    """Of a service that took in 10 spans in 10 requests, after `change`."""
    telemetry = Telemetry()
    telemetry.acknowledged_items_total.labels("traces").inc(10)
    telemetry.received_requests_total.labels("traces", "ok").inc(10)
    telemetry.decoder.labels("native").set(1)
    change(telemetry)
    return Page(generate_latest(telemetry.registry).decode())


def test_a_service_that_is_well_has_no_finding() -> None:
    assert page().is_tailraces
    assert diagnose(page(), NOW_S) == []
    assert summary(page()) == {"traces": 10.0}


def overloaded(count: int) -> Callable[[Telemetry], object]:
    return lambda t: t.received_requests_total.labels("logs", "overloaded").inc(count)


def decoded_by_the_reference(telemetry: Telemetry) -> None:
    telemetry.decoder.clear()
    telemetry.decoder.labels("reference").set(1)


WRONG: dict[str, tuple[Callable[[Telemetry], object], float, str]] = {
    # kind: (what happened, how often, what is said of it)
    "unreadable.collector": (
        lambda t: t.unreadable_requests_total.labels("collector").inc(7),
        7,
        "7 gRPC requests of an OpenTelemetry Collector could not be read, their batches are lost:"
        " let them send with compression gzip or none, or zstd over OTLP/HTTP",
    ),
    "unreadable.other": (
        lambda t: t.unreadable_requests_total.labels("other").inc(),
        1,
        "a sender of an unknown kind",
    ),
    "lost.malformed": (
        lambda t: t.lost_requests_total.labels("traces", "malformed").inc(2),
        2,
        "2 requests were acknowledged on enqueue and then not folded (malformed)",
    ),
    "rejected": (
        lambda t: t.received_requests_total.labels("traces", "rejected").inc(3),
        3,
        "3 requests were malformed or too large and refused for good",
    ),
    "failed": (
        lambda t: t.received_requests_total.labels("traces", "failed").inc(),
        1,
        "1 requests failed inside the service",
    ),
    "overloaded": (overloaded(10), 10, "50 % of all requests were told to come again"),
    "unauthenticated.unknown": (
        lambda t: t.unauthenticated_requests_total.labels("unknown").inc(4),
        4,
        "4 requests with a token that is not in receive.tokens_file were turned away",
    ),
    "unauthenticated.missing": (
        lambda t: t.unauthenticated_requests_total.labels("missing").inc(),
        1,
        "without a token",
    ),
    "unauthenticated.expired": (
        lambda t: t.unauthenticated_requests_total.labels("expired").inc(),
        1,
        "with a token that has expired",
    ),
    "http.415": (
        lambda t: t.http_refusals_total.labels("415").inc(5),
        5,
        "5 OTLP/HTTP requests of a media type or with a compression that is not known",
    ),
    "http.connections": (
        lambda t: t.http_refused_connections_total.inc(6),
        6,
        "receive.http.max_connections",
    ),
    "rights": (
        lambda t: t.dropped_total.labels("normalise", "sender_rights").inc(8),
        8,
        "8 items came from senders without the right for them",
    ),
    "receivers": (
        lambda t: t.receiver_restarts_total.inc(2),
        2,
        "receiver processes ended and were started again 2 times",
    ),
    "failure.decode": (
        lambda t: t.supervised_failures_total.labels("decode").inc(),
        1,
        "1 unexpected errors in the task decode",
    ),
    "reload.certificate": (
        lambda t: t.reloads_total.labels("certificate", "failed").inc(),
        1,
        "a changed file of certificate could not be used 1 times",
    ),
    "state": (lambda t: t.state_writes_total.labels("failed").inc(), 1, "1 state files"),
    "decoder": (
        decoded_by_the_reference,
        0,
        "the reference decoder serves",
    ),
    "no_data": (lambda t: t.acknowledged_items_total.clear(), 0, "no telemetry was taken in"),
    "certificate": (
        lambda t: t.certificate_expiry_seconds.set(NOW_S + 3 * DAY_S),
        0,
        "the server's certificate expires in 3.0 days",
    ),
}


@pytest.mark.parametrize("kind", WRONG)
def test_what_is_wrong_is_the_one_finding_and_said_in_plain_words(kind: str) -> None:
    change, times, said = WRONG[kind]
    (finding,) = diagnose(page(change), NOW_S)
    assert (finding.kind, finding.times) == (kind, times)
    assert said in finding.text


def test_several_things_that_are_wrong_are_all_told() -> None:
    def change(telemetry: Telemetry) -> None:
        for happen, _, _ in WRONG.values():
            happen(telemetry)

    assert {finding.kind for finding in diagnose(page(change), NOW_S)} == WRONG.keys()


@pytest.mark.parametrize("status", HTTP_REFUSALS)
def test_every_refusal_of_http_has_its_words(status: str) -> None:
    (finding,) = diagnose(page(lambda t: t.http_refusals_total.labels(status).inc()), NOW_S)
    assert f"({status})" in finding.text


@pytest.mark.parametrize(
    "change",
    [
        lambda t: t.received_requests_total.labels("traces", "ok").inc(990),
        lambda t: t.http_refusals_total.labels("503").inc(),  # told as overloaded
        lambda t: t.reloads_total.labels("tokens", "ok").inc(),
        lambda t: t.dropped_total.labels("normalise", "unjoined").inc(),
        lambda t: t.certificate_expiry_seconds.set(NOW_S + 15 * DAY_S),
        overloaded(0),
    ],
)
def test_what_is_ordinary_is_no_finding(change: Callable[[Telemetry], object]) -> None:
    assert diagnose(page(change), NOW_S) == []


def test_a_moment_of_overload_is_no_finding_and_a_hundredth_of_all_requests_is() -> None:
    def of_a_thousand(count: int) -> Callable[[Telemetry], object]:
        def change(telemetry: Telemetry) -> None:
            telemetry.received_requests_total.labels("traces", "ok").inc(990 - count)
            telemetry.received_requests_total.labels("traces", "overloaded").inc(count)

        return change

    assert diagnose(page(of_a_thousand(9)), NOW_S) == []
    (finding,) = diagnose(page(of_a_thousand(10)), NOW_S)
    assert finding.kind == "overloaded"


def test_an_expired_certificate_has_expired() -> None:
    (finding,) = diagnose(page(lambda t: t.certificate_expiry_seconds.set(NOW_S - 1)), NOW_S)
    assert "has expired" in finding.text


@contextmanager
def serving(body: str) -> Iterator[str]:
    """The address of something that answers with `body`."""

    class Quiet(WSGIRequestHandler):
        def log_request(self, *_: object) -> None:
            """Nowhere."""

    def answer(_environ: object, start: Callable[..., object]) -> list[bytes]:
        start("200 OK", [("content-type", "text/plain")])
        return [body.encode()]

    with make_server("127.0.0.1", 0, answer, handler_class=Quiet) as server:
        thread = Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize("body", ["", "up 1\n", "<html>nothing of the kind</html>", "\x00{{{"])
def test_what_is_no_tailrace_is_an_error_in_plain_words(body: str) -> None:
    with serving(body) as address, pytest.raises(DependencyLost, match=f"at {address}"):
        fetch(address)


@pytest.mark.parametrize("written", ["{}", "http://{}", "http://{}/metrics"])
def test_the_address_may_be_written_as_a_url(written: str) -> None:
    with serving("tailrace_epoch 1\n") as address:
        assert fetch(written.format(address)).is_tailraces


def test_nobody_there_is_one_line_and_exit_code_1() -> None:
    for address in ("127.0.0.1:1", "no address at all", ""):
        done = tailrace("doctor", f"--connect={address or ':'}", "--json")
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr.startswith("tailrace: no metrics at ")
        assert done.stderr.count("\n") == 1


def test_doctor_asks_about_the_machine_or_about_a_service_and_not_both() -> None:
    done = tailrace("doctor", "--connect", "127.0.0.1:1", "--require", "all")
    assert done.returncode == 2
    assert "--require asks about this machine" in done.stderr


def test_a_service_that_hears_nothing_is_told_so_to_people_and_programs(tmp_path: Path) -> None:
    with service(tmp_path, {}, {}) as served:
        told = tailrace("doctor", "--connect", served.metrics, "--json")
        person = tailrace("doctor", "--connect", served.metrics)
    kinds = {finding["kind"] for finding in json.loads(told.stdout)["findings"]}
    assert kinds - {"decoder"} == {"no_data"}
    assert "no telemetry was taken in: nobody sends here, or nobody gets in" in person.stdout
    assert told.returncode == person.returncode == 1
