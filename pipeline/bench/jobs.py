"""What the bench asks of its load generator, and what that answers: lines of JSON."""

from typing import Any, Final, Literal

import msgspec

from pipeline.bench.batches import Signal

Compression = Literal["none", "gzip"]
ITEMS_BUILT: Final = 1_048_576
"""A batch of 620 MB of spans, or 240 MB of points, is what a generator may hold."""
MOST_BATCHES: Final = 4096


def distinct(batch: int) -> int:
    """How many different batches are built: at least 1,000 up to 1,000 items, within memory.

    >>> [distinct(batch) for batch in (10, 100, 1000, 8192)]
    [4096, 4096, 1048, 128]
    """
    return max(1, min(MOST_BATCHES, ITEMS_BUILT // batch))


class Build(msgspec.Struct, tag=True, frozen=True):
    """Build the batches that later jobs send."""

    signal: Signal
    batch: int
    batches: int


class Closed(msgspec.Struct, tag=True, frozen=True, kw_only=True):
    """Keep `in_flight` requests open for `warm_s`, then go on for `seconds`, measured."""

    target: str
    pid: int
    """Whose tree's CPU time is measured."""
    compression: Compression = "none"
    connections: int = 1
    in_flight: int = 16
    warm_s: float = 3.0
    seconds: float = 10.0


class Open(msgspec.Struct, tag=True, frozen=True, kw_only=True):
    """Send `requests_per_s` for `seconds` whatever the answers, then hang up."""

    target: str
    pid: int
    compression: Compression = "none"
    connections: int = 8
    requests_per_s: float
    seconds: float
    most_open: int
    """Requests that may wait for their answer; what would be sent beyond is not."""
    timeout_s: float
    refresh: bool = True
    """Compress anew what is stale, before the time begins."""
    trace: bool = False
    """Answer with every request's time and fate."""


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a job; `Build` is answered with its sizes alone."""

    sent: int = 0
    """Requests handed over, warm-up included."""
    not_sent: int = 0
    """Requests that were due while too many were open."""
    answers: dict[str, int] = {}
    """Requests by status."""
    non_retryable: int = 0
    acked_items: int = 0
    """In all, warm-up included."""
    rejected_items: int = 0
    """That answers with partial success spoke of."""
    measured_items: int = 0
    """Acknowledged in the measured time."""
    seconds: float = 0.0
    """The measured time."""
    begun_s: float = 0.0
    """When connecting began, and when the measured time ended, on the generator's clock."""
    ended_s: float = 0.0
    cpu_s: float = 0.0
    client_cpu_s: float = 0.0
    p50_ms: float = 0.0
    p99_ms: float = 0.0
    item_bytes: float = 0.0
    """Mean, uncompressed."""
    sent_item_bytes: float = 0.0
    """Mean, as sent."""
    trace: list[tuple[float, float, bool]] = []
    """(seconds since `begun_s`, latency in ms, acknowledged), in order of answers."""


Job = Build | Closed | Open


def encode(message: Any) -> bytes:
    """One line."""
    return msgspec.json.encode(message) + b"\n"
