"""The metrics page of a running service in, what is wrong with it in plain words out.

Counters count since the service started, and so does what is said of them. Pure but for `fetch`.
"""

import http.client
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from typing import Final, NamedTuple

from prometheus_client.parser import text_string_to_metric_families

from pipeline.errors import DependencyLost

TIMEOUT_S: Final = 10.0
EXPIRES_SOON_S: Final = 14 * 86_400.0
"""Certificates are renewed at two thirds of their life or later: of a 90-day one at 30 days."""
OVERLOADED_RATIO: Final = 0.01
"""Of all requests; senders repeat them, so that fewer are a busy moment and no fault."""

UNREADABLE_HINT: Final = (
    "their batches are lost: let them send with compression gzip or none, or zstd over OTLP/HTTP,"
    " and below receive.max_message_bytes; the service's log has their user agents"
)
SENDERS: Final = {
    "collector": "an OpenTelemetry Collector",
    "go": "a sender in Go",
    "java": "a sender in Java",
    "python": "a sender in Python",
    "rust": "a sender in Rust",
}
UNAUTHENTICATED: Final = {
    "missing": "without a token",
    "unknown": "with a token that is not in receive.tokens_file",
    "expired": "with a token that has expired",
}
HTTP_REFUSALS: Final = {
    "404": "for a path that is not OTLP's: senders want /v1/traces, /v1/metrics or /v1/logs",
    "405": "that were no POST",
    "408": "that came too slowly",
    "413": "larger than receive.max_message_bytes: let the sender make smaller batches",
    "415": "of a media type or with a compression that is not known (gzip, zstd, deflate are)",
    "431": "with too many or too long headers",
}
"""The refusals that no other counter has; the rest are told with both transports together."""


class Finding(NamedTuple):
    """Something that is wrong."""

    kind: str
    """Which of the checks found it: a word for programs."""
    text: str
    """What it is, and what helps."""
    times: float = 0.0
    """How often since the service started; 0 = it is a state."""


class Page:
    """A metrics page; what is not on it is 0."""

    def __init__(self, text: str) -> None:
        """`ValueError` when `text` is no metrics page.

        >>> Page('tailrace_a_total{b="1",c="2"} 3').by("a_total", "b")
        {'1': 3.0}
        """
        self._samples = [
            (sample.name, sample.labels, sample.value)
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        ]

    @property
    def is_tailraces(self) -> bool:
        """Whether a Tailrace wrote it."""
        return any(name == "tailrace_epoch" for name, _, _ in self._samples)

    def get(self, name: str, **labels: str) -> float:
        """The sum of the samples of `tailrace_<name>` that have those labels."""
        return sum(value for _, value in self._found(name, labels))

    def by(self, name: str, label: str) -> dict[str, float]:
        """The samples of `tailrace_<name>` that are not 0, added up by the values of `label`."""
        found: dict[str, float] = {}
        for labels, value in self._found(name, {}):
            if value:
                key = labels.get(label, "")
                found[key] = found.get(key, 0.0) + value
        return found

    def _found(
        self, name: str, wanted: Mapping[str, str]
    ) -> Iterator[tuple[Mapping[str, str], float]]:
        for full_name, labels, value in self._samples:
            if full_name == f"tailrace_{name}" and wanted.items() <= labels.items():
                yield labels, value


def fetch(address: str) -> Page:
    """The page of the service whose metrics are at `address`; `DependencyLost` says why not."""
    host = address.removeprefix("http://").removesuffix("/").removesuffix("/metrics")
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with direct.open(f"http://{host}/metrics", timeout=TIMEOUT_S) as answer:
            page = Page(answer.read().decode("utf-8", errors="replace"))
    except (OSError, http.client.HTTPException, ValueError) as error:
        reason = error.reason if isinstance(error, urllib.error.URLError) else error
        raise DependencyLost(
            f"no metrics at {address}: {reason} (wanted: host:port of telemetry.metrics_listen)"
        ) from error
    if not page.is_tailraces:
        raise DependencyLost(f"what answers at {address} is no Tailrace")
    return page


def diagnose(page: Page, now_s: float) -> list[Finding]:
    """Everything that is wrong, what loses data first; `now_s` is Unix time."""
    found = [finding for check in CHECKS for finding in check(page)]
    return [*found, *_certificate(page, now_s)]


def summary(page: Page) -> dict[str, float]:
    """What came so far: items by signal, those without any left out."""
    return page.by("acknowledged_items_total", "signal")


def _unreadable(page: Page) -> Iterator[Finding]:
    for sender, count in page.by("unreadable_requests_total", "sender").items():
        who = SENDERS.get(sender, "a sender of an unknown kind")
        yield Finding(
            f"unreadable.{sender}",
            f"{count:.0f} gRPC requests of {who} could not be read, {UNREADABLE_HINT}",
            count,
        )


def _lost(page: Page) -> Iterator[Finding]:
    for reason, count in page.by("lost_requests_total", "reason").items():
        yield Finding(
            f"lost.{reason}",
            f"{count:.0f} requests were acknowledged on enqueue and then not folded ({reason});"
            " loop.acknowledge: after-fold tells their senders instead",
            count,
        )


def _refused(page: Page) -> Iterator[Finding]:
    outcomes = page.by("received_requests_total", "outcome")
    if count := outcomes.get("rejected", 0.0):
        yield Finding(
            "rejected",
            f"{count:.0f} requests were malformed or too large and refused for good;"
            " dropped_total of the stages receive and decode has the reasons",
            count,
        )
    if count := outcomes.get("failed", 0.0):
        yield Finding(
            "failed",
            f"{count:.0f} requests failed inside the service and their senders were told to"
            " retry; its log says why",
            count,
        )
    count, total = outcomes.get("overloaded", 0.0), sum(outcomes.values())
    if total and count / total >= OVERLOADED_RATIO:
        yield Finding(
            "overloaded",
            f"{100 * count / total:.0f} % of all requests were told to come again for want of"
            " room; give it another core (receive.processes), larger batches or fewer senders",
            count,
        )


def _unauthenticated(page: Page) -> Iterator[Finding]:
    for reason, count in page.by("unauthenticated_requests_total", "reason").items():
        how = UNAUTHENTICATED.get(reason, reason)
        yield Finding(
            f"unauthenticated.{reason}", f"{count:.0f} requests {how} were turned away", count
        )


def _http(page: Page) -> Iterator[Finding]:
    for status, count in page.by("http_refusals_total", "status").items():
        if status in HTTP_REFUSALS:
            yield Finding(
                f"http.{status}",
                f"{count:.0f} OTLP/HTTP requests {HTTP_REFUSALS[status]} ({status})",
                count,
            )
    if count := page.get("http_refused_connections_total"):
        yield Finding(
            "http.connections",
            f"{count:.0f} OTLP/HTTP connections were closed for want of room;"
            " see receive.http.max_connections and max_connections_per_peer",
            count,
        )


def _rights(page: Page) -> Iterator[Finding]:
    if count := page.get("dropped_total", stage="normalise", reason="sender_rights"):
        yield Finding(
            "rights",
            f"{count:.0f} items came from senders without the right for them and were left out;"
            " the list senders gives rights",
            count,
        )


def _nothing(page: Page) -> Iterator[Finding]:
    if not summary(page):
        yield Finding("no_data", "no telemetry was taken in: nobody sends here, or nobody gets in")


def _processes(page: Page) -> Iterator[Finding]:
    if count := page.get("receiver_restarts_total"):
        yield Finding(
            "receivers",
            f"receiver processes ended and were started again {count:.0f} times; the log has"
            " their exit codes",
            count,
        )
    for task, count in page.by("supervised_failures_total", "task").items():
        yield Finding(
            f"failure.{task}",
            f"{count:.0f} unexpected errors in the task {task}; the log has their tracebacks",
            count,
        )
    if page.get("decoder_active", decoder="reference"):
        yield Finding(
            "decoder",
            "the reference decoder serves, several times slower than the native one;"
            " tailrace doctor on that machine says why",
        )


def _files(page: Page) -> Iterator[Finding]:
    for file in page.by("reloads_total", "file"):
        if count := page.get("reloads_total", file=file, outcome="failed"):
            yield Finding(
                f"reload.{file}",
                f"a changed file of {file} could not be used {count:.0f} times; what was there"
                " before stays in use, and the log says why",
                count,
            )
    if count := page.get("state_writes_total", outcome="failed"):
        yield Finding(
            "state", f"{count:.0f} state files could not be written; the log says why", count
        )


def _certificate(page: Page, now_s: float) -> Iterator[Finding]:
    expires_s = page.get("certificate_expiry_seconds")
    if not expires_s or expires_s - now_s > EXPIRES_SOON_S:
        return
    days = (expires_s - now_s) / 86_400.0
    when = "has expired" if days <= 0 else f"expires in {days:.1f} days"
    yield Finding(
        "certificate",
        f"the server's certificate {when}; a new one in its place is taken without a restart",
    )


CHECKS: Final[tuple[Callable[[Page], Iterator[Finding]], ...]] = (
    _unreadable,
    _lost,
    _refused,
    _unauthenticated,
    _http,
    _rights,
    _nothing,
    _processes,
    _files,
)
