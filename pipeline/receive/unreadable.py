"""Counts gRPC requests that began and whose body was never read: nothing else sees them.

gRPC itself refuses what it cannot read (an encoding that it does not know, such as zstd or snappy;
too many bytes; a compressed flag without an encoding), and the sender drops the batch for good. A
sender that leaves while it sends looks the same and is counted too, one whose time is over is not.
"""

import asyncio
from typing import Any, Final

import structlog

from pipeline.telemetry import Telemetry

MAX_NAMED: Final = 32
"""User agents that are named in a log line; after that they are only counted."""
MAX_AGENT_CHARS: Final = 128

KINDS: Final = (
    ("collector", "collector"),
    ("otelcol", "collector"),
    ("python", "python"),
    ("java", "java"),
    ("rust", "rust"),
    ("tonic", "rust"),
    ("rotel", "rust"),
    ("go", "go"),
)
"""Part of a user agent in lower case -> kind of sender; the first that occurs decides."""

log = structlog.get_logger()


class UnreadableSenders:
    """Which requests of one event loop began, until their body is read."""

    def __init__(self, telemetry: Telemetry) -> None:
        """Start with no request seen."""
        self._telemetry = telemetry
        self._began: dict[asyncio.Task[Any], Any] = {}
        self._named: set[str] = set()

    def begins(self, metadata: Any) -> None:
        """The current task serves a request with these headers."""
        task = asyncio.current_task()
        if task is not None:
            self._began[task] = metadata
            task.add_done_callback(self._ended)

    def is_over(self) -> None:
        """The current task's request was read, or is refused before that."""
        task = asyncio.current_task()
        if task is not None:
            self._began.pop(task, None)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        metadata = self._began.pop(task, None)
        if metadata is None:
            return
        agent = user_agent(metadata)
        self._telemetry.prehandler_failures_total.inc()
        self._telemetry.unreadable_requests_total.labels(kind_of(agent)).inc()
        if agent not in self._named and len(self._named) < MAX_NAMED:
            self._named.add(agent)
            log.warning(
                "a sender's request cannot be read",
                user_agent=agent,
                hint="over gRPC, send with compression gzip or none (zstd works over OTLP/HTTP),"
                " below max_message_bytes",
            )


def user_agent(metadata: Any) -> str:
    """The header, cut; "" where there is none."""
    for key, value in metadata:
        if key == "user-agent":
            return str(value)[:MAX_AGENT_CHARS]
    return ""


def kind_of(agent: str) -> str:
    """What kind of sender has that user agent.

    >>> kind_of("OpenTelemetry Collector/0.156.0 (linux/amd64)"), kind_of("curl")
    ('collector', 'other')
    """
    lower = agent.lower()
    return next((kind for part, kind in KINDS if part in lower), "other")
