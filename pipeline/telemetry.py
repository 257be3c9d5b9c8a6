"""What Tailrace says about itself: every own metric, declared once, and structured logs.

Label sets are closed; the comment beside a metric lists them. A `Telemetry` owns its registry, so
two services in one process do not share counters.
"""

import logging
import sys
from collections.abc import Callable
from typing import Final, TextIO

import structlog
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

TICK_BUCKETS_S: Final = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
"""Around the 5 ms budget of a tick and its default period of 100 ms."""


class Telemetry:
    """All own metrics as attributes; `registry` is what `/metrics` serves."""

    def __init__(self) -> None:
        """Declare every metric in a registry of its own."""
        self.registry: Final = CollectorRegistry()

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"tailrace_{name}", text, labels, registry=self.registry)

        def gauge(name: str, text: str, *labels: str) -> Gauge:
            return Gauge(f"tailrace_{name}", text, labels, registry=self.registry)

        # receive
        self.received_requests_total = counter(
            "received_requests_total", "OTLP export requests by answer.", "signal", "outcome"
        )
        """signal: traces metrics logs profiles; outcome: ok rejected overloaded failed."""
        self.received_bytes_total = counter(
            "received_bytes_total", "Bytes of OTLP requests, inflated.", "signal"
        )
        self.wire_bytes_total = counter(
            "wire_bytes_total", "Bytes of admitted OTLP requests as they came.", "signal"
        )
        self.received_items_total = counter(
            "received_items_total", "Decoded spans, data points, log records, profiles.", "signal"
        )
        self._count_transports(counter, gauge)
        self.bytes_in_flight = gauge("bytes_in_flight", "Admitted bytes not yet folded.")
        # every stage
        self.dropped_total = counter(
            "dropped_total", "Items or values left out, by stage and reason.", "stage", "reason"
        )
        """stage: receive decode normalise fingerprint fold; reason: closed per stage."""
        self._count_flow(counter)
        self.decoder = gauge("decoder_active", "1 for the decoder in use.", "decoder")
        """decoder: native reference."""
        # loop
        self.epoch = gauge("epoch", "Newest decided epoch.")
        self.ticks_total = counter("ticks_total", "Epochs decided.", "kind")
        """kind: due early."""
        self.tick_seconds = Histogram(
            "tailrace_tick_seconds",
            "Time to observe, decide and hand over one snapshot.",
            registry=self.registry,
            buckets=TICK_BUCKETS_S,
        )
        self.tick_late_seconds = Histogram(
            "tailrace_tick_late_seconds",
            "How long after it was due a tick began.",
            registry=self.registry,
            buckets=TICK_BUCKETS_S,
        )
        self.endpoints = gauge("endpoints", "Endpoints by published state.", "state")
        """state: unknown healthy degraded open half_open draining."""
        self.unmatched_endpoints = gauge(
            "unmatched_endpoints", "Seen in telemetry but no member: never a target."
        )
        self.no_address_endpoints = gauge(
            "no_address_endpoints", "Members without an address: decided, not published."
        )
        self.events_total = counter("events_total", "Events by kind.", "kind")
        """kind: state override_start override_end authority pool note left_out."""
        # publish
        self.watchers = gauge("watchers", "Open Watch streams.", "view")
        """view: routing full."""
        self.watch_sent_total = counter("watch_sent_total", "Watch messages sent.", "kind")
        """kind: full delta heartbeat."""
        self.watch_bytes_total = counter("watch_bytes_total", "Bytes of Watch messages sent.")
        self._watch_processes(counter, gauge)

    def _watch_processes(
        self, counter: Callable[..., Counter], gauge: Callable[..., Gauge]
    ) -> None:
        """This process and its receiver processes."""
        self.receivers = gauge("receivers", "Receiver processes that serve.")
        self.receiver_restarts_total = counter(
            "receiver_restarts_total", "Receiver processes started again after they had ended."
        )
        self.supervised_failures_total = counter(
            "supervised_failures_total", "Unexpected errors caught by a supervisor.", "task"
        )
        """task: tick entry stop decode receiver files own_spans."""
        self.journal_bytes_total = counter("journal_bytes_total", "Bytes recorded.")
        self.own_spans_total = counter(
            "own_spans_total", "route_decision spans by outcome.", "outcome"
        )
        """outcome: sent dropped."""
        self.state_writes_total = counter(
            "state_writes_total", "State files written, by outcome.", "outcome"
        )
        """outcome: ok failed."""

    def _count_transports(
        self, counter: Callable[..., Counter], gauge: Callable[..., Gauge]
    ) -> None:
        """What happens to requests and connections before they are decoded."""
        self.transport_requests_total = counter(
            "transport_requests_total", "OTLP export requests by transport.", "transport"
        )
        """transport: grpc http."""
        self.http_refusals_total = counter(
            "http_refusals_total", "OTLP/HTTP requests that were no success.", "status"
        )
        """status: 400 401 404 405 408 413 415 429 431 503."""
        self.http_connections = gauge("http_connections", "Open OTLP/HTTP connections.")
        self.http_refused_connections_total = counter(
            "http_refused_connections_total", "OTLP/HTTP connections closed for want of room."
        )
        self.http_upload_bytes = gauge(
            "http_upload_bytes", "Set aside for OTLP/HTTP bodies that are still arriving."
        )
        self.prehandler_failures_total = counter(
            "prehandler_failures_total",
            "gRPC requests that failed before they could be read: unknown encoding, size.",
        )
        self.unreadable_requests_total = counter(
            "unreadable_requests_total", "The same, by kind of sender.", "sender"
        )
        """sender: collector go java python rust other, as told by its user agent."""
        self.unauthenticated_requests_total = counter(
            "unauthenticated_requests_total", "Requests without a valid token.", "reason"
        )
        """reason: missing unknown expired."""
        self.certificate_expiry_seconds = gauge(
            "certificate_expiry_seconds", "Unix time at which the server's certificate expires."
        )
        self.reloads_total = counter(
            "reloads_total", "Changed files that were read again.", "file", "outcome"
        )
        """file: certificate tokens; outcome: ok failed (what was there before stays)."""

    def _count_flow(self, counter: Callable[..., Counter]) -> None:
        """Conservation: acknowledged = rejected + folded + left out, for each signal, exactly."""
        self.acknowledged_items_total = counter(
            "acknowledged_items_total", "Items of batches that were folded to their end.", "signal"
        )
        """Counted when the fold ends: with acknowledge-after-fold nobody is told "ok" before, and
        a sender that left, or whose receiver died, before its answer sends them again."""
        self.rejected_items_total = counter(
            "rejected_items_total", "Of these: told to the sender as rejected.", "signal"
        )
        self.folded_items_total = counter(
            "folded_items_total", "Of these: requests and samples taken into windows.", "signal"
        )
        self.left_out_items_total = counter(
            "left_out_items_total",
            "Of these: not folded; dropped_total has the reasons.",
            "signal",
            "stage",
        )
        """stage: normalise (no request, no known signal, no right, no endpoint, counted already by
        the same observer), fold (late, future, out of order, duplicate, no room)."""
        self.lost_requests_total = counter(
            "lost_requests_total",
            "Requests acknowledged on enqueue that could not be folded afterwards.",
            "signal",
            "reason",
        )
        """reason: as decode's in dropped_total, or failed. Always 0 with acknowledge-after-fold."""


def configure_logs(level: str, stream: TextIO = sys.stderr) -> None:
    """Log `level` and above to `stream`: for people on a terminal, else as JSON lines."""
    person = stream.isatty()
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            structlog.dev.ConsoleRenderer() if person else structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(
            logging.getLevelNamesMapping()[level.upper()]
        ),
        logger_factory=structlog.PrintLoggerFactory(stream),
        cache_logger_on_first_use=False,
    )
