"""Real senders at one service for a minute, all at once: nothing of anybody is lost."""

import importlib.util
import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

from pipeline.bench.serving import Page
from pipeline.doctor import why_not_native
from pipeline.model import OtlpSignal
from tests.e2e.embedded import tailrace
from tests.e2e.real_senders import (
    MEMBER,
    SPANS,
    Curl,
    Exporter,
    Sender,
    Served,
    collector_of,
    folded,
    has_curl,
    rotel,
    sdk_over_grpc,
    sdk_over_http,
    service,
)
from tests.e2e.senders import eventually
from tests.otelcol import collector
from tests.parts import require

MINUTE_S: Final = 60.0
ROUND_S: Final = 0.5
AGE_S: Final = 10.0
"""After which connections are asked to come back anew."""
POOL: Final[dict[str, Any]] = {
    "name": "chat",
    "membership": "static",
    "members": [{"address": f"{MEMBER[0]}:{MEMBER[1]}"}],
}
NEEDS: Final = {
    "collector-gzip": "otelcol",
    "collector-none": "otelcol",
    "collector-http": "otelcol",
    "rotel-grpc": "rotel",
    "rotel-http": "rotel",
    "sdk-grpc": "",
    "sdk-http": "",
    "curl-json": "curl",
    "curl-json-gzip": "curl",
}
ESTABLISHED: Final = "01"
SCRAPE: Final = "tailrace"
"""The job of the Collector's scrapes of the service itself."""


def rotel_agent() -> Path | None:
    spec = importlib.util.find_spec("rotel")
    if spec is None or not spec.submodule_search_locations:
        return None
    agent = Path(spec.submodule_search_locations[0]) / "rotel-agent"
    return agent if agent.is_file() else None


PARTS: Final[dict[str, tuple[Callable[[], bool], str]]] = {
    "otelcol": (lambda: collector.collector_path() is not None, collector.HOW),
    "rotel": (lambda: rotel_agent() is not None, "the package rotel of the group test"),
    "curl": (has_curl, "apt-get install curl"),
    "": (lambda: True, ""),
}


@dataclass(frozen=True)
class Minute:
    """What a minute left behind."""

    sent: dict[str, Counter[OtlpSignal]]
    folded: dict[str, Counter[OtlpSignal]]
    page: Page
    connections: int
    """gRPC connections that the service was seen to have had."""
    findings: list[dict[str, Any]]
    """Of `tailrace doctor` at its end."""
    complaints: list[dict[str, Any]]
    """Warnings and errors of its log."""


@pytest.fixture(scope="module")
def minute(tmp_path_factory: pytest.TempPathFactory) -> Minute:
    folder = tmp_path_factory.mktemp("minute")
    settings = {"pools": [POOL]}
    receive = {"max_connection_age_s": AGE_S}
    with service(folder, settings, receive) as served:
        with ExitStack() as stack:
            senders = everybody(stack, folder, served)
            seen = send_for(MINUTE_S, senders, served)
            for sender in senders:
                sender.close()
            sent = {sender.name: sender.sent for sender in senders}
            wanted = sum(sent.values(), Counter())
            eventually(lambda: has_all(served.page(), wanted), f"less than {wanted} arrived")
        page, findings = served.page(), told_by_doctor(served)
    return Minute(sent, folded(served.journal), page, seen, findings, complaints(served))


def told_by_doctor(served: Served) -> list[dict[str, Any]]:
    done = tailrace("doctor", "--connect", served.metrics, "--json")
    findings: list[dict[str, Any]] = json.loads(done.stdout)["findings"]
    assert done.returncode == bool(findings)
    return findings


def complaints(served: Served) -> list[dict[str, Any]]:
    """Warnings and errors of the log, but for the one about a decoder that is not built here."""
    lines = [line for line in served.logged() if line["level"] in ("warning", "error")]
    return [line for line in lines if not line["event"].startswith("the reference decoder")]


def everybody(stack: ExitStack, folder: Path, served: Served) -> list[Sender]:
    """Everyone whose part is here."""
    found: list[Sender] = [sdk_over_grpc(served), sdk_over_http(served)]
    if has_curl():
        found.append(Curl("curl-json", served, is_gzipped=False))
        found.append(Curl("curl-json-gzip", served, is_gzipped=True))
    if (agent := rotel_agent()) is not None:
        for protocol, endpoint in (("grpc", served.otlp), ("http", served.http)):
            name = f"rotel-{protocol}"
            found.append(stack.enter_context(rotel(name, agent, folder / name, endpoint, protocol)))
    if collector.collector_path() is not None:
        exporters = {
            "collector-gzip": Exporter("otlp_grpc"),
            "collector-none": Exporter("otlp_grpc", "none"),
            "collector-http": Exporter("otlp_http"),
        }
        through = stack.enter_context(collector_of(folder, served, exporters, scrapes=True))
        found.extend(through.values())
    return found


def send_for(seconds: float, senders: list[Sender], served: Served) -> int:
    """Everyone sends a round now and again; how many gRPC connections the service had."""
    over = threading.Event()
    failures: list[BaseException] = []

    def run(sender: Sender) -> None:
        try:
            while not over.is_set():
                sender.send()
                over.wait(ROUND_S)
        except BaseException as error:
            failures.append(error)
            raise

    threads = [threading.Thread(target=run, args=(sender,)) for sender in senders]
    for thread in threads:
        thread.start()
    connections: set[str] = set()
    end_s = time.monotonic() + seconds
    while time.monotonic() < end_s and not failures:
        connections.update(peers(served.otlp))
        over.wait(0.5)
    over.set()
    for thread in threads:
        thread.join()
    assert not failures, failures
    return len(connections)


def peers(address: str) -> Iterator[str]:
    """The far ends of connections to a port of this machine, as the kernel writes them."""
    port = f":{int(address.rpartition(':')[2]):04X}"
    for table in ("tcp", "tcp6"):
        for line in Path("/proc/net", table).read_text().splitlines()[1:]:
            _, local, remote, state = line.split()[:4]
            if local.endswith(port) and state == ESTABLISHED:
                yield remote


def has_all(page: Page, wanted: Counter[OtlpSignal]) -> bool:
    return all(
        page.get("tailrace_acknowledged_items_total", signal=signal.value) >= n
        for signal, n in wanted.items()
    )


@pytest.mark.timeout(240)
@pytest.mark.parametrize("sender", NEEDS)
def test_a_real_sender_loses_nothing_in_a_minute(minute: Minute, sender: str) -> None:
    """Scenario: everyone sends spans, points and log records to one service, twice a second, while
    connections are asked every ten seconds to come back anew.

    Guarantees: of every sender, exactly what it was given has been folded.
    """
    is_here, how = PARTS[NEEDS[sender]]
    require(NEEDS[sender], is_here(), how)
    assert minute.sent[sender][OtlpSignal.TRACES] > 10 * SPANS
    assert minute.folded[sender] == minute.sent[sender]


@pytest.mark.timeout(240)
def test_what_the_service_says_of_that_minute_is_what_its_senders_say(minute: Minute) -> None:
    """Guarantees: no request is refused, failed or unreadable; every item is accounted for."""
    page = minute.page
    outcomes = page.by("tailrace_received_requests_total", "outcome")
    assert outcomes.keys() == {"ok"}, outcomes
    assert page.by("tailrace_http_refusals_total", "status") == {}
    assert page.get("tailrace_prehandler_failures_total") == 0
    stages = page.by("tailrace_dropped_total", "stage")
    assert not {"receive", "decode"} & stages.keys(), stages
    names = minute.sent.keys() | {SCRAPE}
    assert minute.folded.keys() <= names
    for signal in (OtlpSignal.TRACES, OtlpSignal.METRICS, OtlpSignal.LOGS):
        label = {"signal": signal.value}
        items = page.get("tailrace_acknowledged_items_total", **label)
        ended = page.get("tailrace_folded_items_total", **label)
        ended += page.get("tailrace_rejected_items_total", **label)
        ended += page.get("tailrace_left_out_items_total", **label)
        assert items == ended == page.get("tailrace_received_items_total", **label)
        sent = sum(each[signal] for each in minute.sent.values())
        scraped = minute.folded.get(SCRAPE, Counter())[signal]
        assert sent <= items <= sent + scraped
    joined = page.get("tailrace_folded_items_total", signal="traces")
    assert joined == sum(each[OtlpSignal.TRACES] for each in minute.sent.values())
    assert minute.complaints == []


@pytest.mark.timeout(240)
def test_senders_came_back_on_new_connections_all_the_time(minute: Minute) -> None:
    over_grpc = sum(name.endswith(("-grpc", "-gzip", "-none")) for name in minute.sent)
    assert minute.connections >= 3 * over_grpc


@pytest.mark.timeout(240)
def test_the_native_decoder_served_that_minute(minute: Minute) -> None:
    require("native", not why_not_native(), f"{why_not_native()}; make test")
    assert minute.page.by("tailrace_decoder_active", "decoder") == {"native": 1.0}
    assert minute.findings == []


UNREADABLE: Final = {
    "zstd": Exporter("otlp_grpc", "zstd"),
    "snappy": Exporter("otlp_grpc", "snappy"),
    "over-http": Exporter("otlp_http", "zstd"),
}


def test_a_collector_with_zstd_or_snappy_over_grpc_is_counted_named_and_found_by_doctor(
    tmp_path: Path,
) -> None:
    """Scenario: the real Collector exports with zstd and snappy over gRPC, and with zstd over HTTP.

    Guarantees: of the first two nothing arrives, every request is counted and their sender is told
    by name in the log and by `doctor`, with what helps; of the third everything arrives.
    """
    require("otelcol", collector.collector_path() is not None, collector.HOW)
    with service(tmp_path, {}, {}) as served:
        with collector_of(tmp_path, served, UNREADABLE) as senders:
            for _ in range(3):
                for sender in senders.values():
                    sender.send()
            for sender in senders.values():
                sender.close()
            lost = 3 * 3 * 2  # rounds, signals, exporters: the Collector drops what is INTERNAL
            eventually(
                lambda: (
                    served.page().get("tailrace_prehandler_failures_total") >= lost
                    and has_all(served.page(), senders["over-http"].sent)
                ),
                "not all arrived",
            )
        page = served.page()
        assert page.by("tailrace_unreadable_requests_total", "sender") == {"collector": lost}
        assert page.get("tailrace_prehandler_failures_total") == lost
        (told,) = complaints(served)
        assert told["event"] == "a sender's request cannot be read"
        assert "Collector" in told["user_agent"]
        assert "gzip or none" in told["hint"]
        (finding,) = [each for each in told_by_doctor(served) if each["kind"] != "decoder"]
        assert (finding["kind"], finding["times"]) == ("unreadable.collector", lost)
        person = tailrace("doctor", "--connect", served.metrics)
        assert person.returncode == 1
        assert (
            f"{lost} gRPC requests of an OpenTelemetry Collector could not be read" in person.stdout
        )
        assert "compression gzip or none, or zstd over OTLP/HTTP" in person.stdout
    assert folded(served.journal) == {"over-http": senders["over-http"].sent}
