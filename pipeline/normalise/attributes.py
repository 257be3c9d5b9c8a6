"""Spans and access logs -> finished requests, whoever saw them.

Only spans that are requests count: engines' SERVER spans, proxies' upstream spans and CLIENT spans
towards a known endpoint. Old and new attribute names are coalesced, the new one first. Strings are
judged once per distinct value, rows by whole columns; rows left out are counted by reason.
"""

from typing import Final

import numpy as np
import numpy.typing as npt

from pipeline.clock import NS_PER_S, Instant
from pipeline.model import (
    Bools,
    Bytes,
    Canonical,
    Floats,
    Int32s,
    Int64s,
    LogColumns,
    Observer,
    RequestRows,
    Rights,
    Sender,
    SpanColumns,
)
from pipeline.normalise.batch import Batch, Indices
from pipeline.normalise.joins import (
    HOSTS,
    EndpointFinder,
    by_text,
    fill,
    learn_callers,
    span_slots,
)
from pipeline.normalise.outcomes import (
    Ends,
    Verdict,
    classify,
    error_verdict,
    finish_verdict,
    flags_verdict,
)
from pipeline.normalise.resources import source_hashes
from pipeline.normalise.sampling import sampling_weights

SERVER, CLIENT = 2, 3
"""OTLP span kinds."""

MAX_LATENCY_S: Final = 86_400.0
"""Longer durations are mistakes of unit or clock."""
MAX_TOKENS: Final = 1e7
"""More tokens than any context holds."""

INPUT_TOKENS: Final = ("gen_ai.usage.input_tokens", "gen_ai.usage.prompt_tokens")
OUTPUT_TOKENS: Final = ("gen_ai.usage.output_tokens", "gen_ai.usage.completion_tokens")
CACHED_TOKENS: Final = ("gen_ai.usage.cache_read.input_tokens",)
HTTP_STATUS: Final = ("http.response.status_code", "http.status_code", "status_code")
SPAN_TTFT: Final = ("gen_ai.response.time_to_first_chunk", "gen_ai.latency.time_to_first_token")
LOG_TTFT_MS: Final = (
    "upstream_first_byte_ms",
    "first_upstream_byte",
    "response_duration",
    "upstream_service_time",
)
LOG_DURATION_MS: Final = ("duration_ms", "duration")
PATH: Final = ("url.path", "http.target", "url.full", "http.url", "path")
USER_AGENT: Final = ("user_agent.original", "http.user_agent", "user_agent")
ERROR: Final = ("error.type", "exception.type")
_PROBE_PATHS: Final = frozenset(
    {
        "/health",
        "/healthz",
        "/livez",
        "/readyz",
        "/ready",
        "/live",
        "/ping",
        "/metrics",
        "/version",
        "/v1/health",
        "/v2/health/live",
        "/v2/health/ready",
        "/health_generate",
        "/is_sleeping",
    }
)
_PROBE_AGENTS: Final = (
    "kube-probe/",
    "googlehc/",
    "elb-healthchecker/",
    "envoy/hc",
    "prometheus/",
    "otelcol",
)
_CLIENT, _PROXY = int(Observer.CLIENT), int(Observer.PROXY)
_OBSERVERS: Final = {observer.name.lower(): int(observer) for observer in Observer}


def normalise_spans(
    columns: SpanColumns, identity: EndpointFinder, sender: Sender, now: Instant
) -> Canonical:
    """The requests among n spans, in input order; an empty batch gives none."""
    batch = Batch(columns.attributes, columns.resources, columns.resource, columns.strings)
    counts: dict[str, int] = {}
    observer = _span_observer(columns, batch)
    is_self = batch.is_set("tailrace.self")
    _count(counts, "self", np.count_nonzero(is_self))
    _count(counts, "not_request", np.count_nonzero(~is_self & (observer < 0)))
    at = np.flatnonzero(~is_self & (observer >= 0))
    at = _admit(at, batch, sender, identity, counts)
    slot = span_slots(at, observer, batch, identity, sender, now)
    _count(counts, "unjoined", np.count_nonzero(slot < 0))
    at, slot = at[slot >= 0], slot[slot >= 0]
    at, slot = _drop_nested(at, slot, observer, columns, batch, counts)
    rows = _span_rows(at, slot, observer, columns, batch, counts, now)
    learn_callers(at, rows, batch, identity)
    return _canonical(rows, counts, identity)


def normalise_logs(
    columns: LogColumns, identity: EndpointFinder, sender: Sender, now: Instant
) -> Canonical:
    """The requests among n log records (a proxy's access logs), in input order."""
    batch = Batch(columns.attributes, columns.resources, columns.resource, columns.strings)
    counts: dict[str, int] = {}
    is_request = (batch.first(("upstream_host", "upstream_address", "response_flags")) >= 0) | (
        ~np.isnan(batch.number(("response_code",)))
    )
    is_self = batch.is_set("tailrace.self")
    _count(counts, "self", np.count_nonzero(is_self))
    _count(counts, "not_request", np.count_nonzero(~is_self & ~is_request))
    at = _admit(np.flatnonzero(is_request & ~is_self), batch, sender, identity, counts)
    slot = identity.named(batch.code("tailrace.endpoint")[at], batch.strings, sender, now)
    upstream = batch.first(("upstream_host", "upstream_address"))[at]
    slot = fill(slot, lambda open_: by_text(upstream[open_], batch, identity))
    _count(counts, "unjoined", np.count_nonzero(slot < 0))
    at, slot = at[slot >= 0], slot[slot >= 0]
    return _canonical(_log_rows(at, slot, columns, batch, counts, now), counts, identity)


def _canonical(rows: RequestRows, counts: dict[str, int], identity: EndpointFinder) -> Canonical:
    notes, reasons = identity.take_notes()
    for reason, n in reasons.items():
        _count(counts, reason, n)
    return Canonical(requests=rows, dropped=counts, notes=notes)


def _count(counts: dict[str, int], reason: str, n: int | np.integer) -> None:
    if n:
        counts[reason] = counts.get(reason, 0) + int(n)


# which spans are requests


def _span_observer(columns: SpanColumns, batch: Batch) -> Int32s:
    """int32[n]: who saw the request, -1 = the span is none."""
    attributes = columns.attributes
    is_server, is_client = columns.kind == SERVER, columns.kind == CLIENT
    is_proxy = (batch.judge(batch.code("component"), lambda text: text == "proxy") > 0) | (
        batch.code("upstream_host") >= 0
    )
    is_engine = batch.judge(columns.name, lambda text: text == "llm_request") > 0
    for key in attributes.number:
        if key.startswith(("gen_ai.latency.", "gen_ai.usage.")):
            is_engine |= ~np.isnan(attributes.number[key])
    is_call = batch.first((*(host for host, _ in HOSTS), "url.full", "http.url")) >= 0
    is_call |= _is_genai(batch) | (batch.code("tailrace.endpoint") >= 0)
    upstream = is_client | (batch.code("upstream_host") >= 0)
    observer = np.full(columns.n, -1, np.int32)
    observer[is_client & is_call] = Observer.CLIENT
    observer[is_server & is_engine] = Observer.ENGINE
    observer[is_proxy & (is_server | is_client)] = -1
    observer[is_proxy & upstream & (is_server | is_client)] = Observer.PROXY
    stated = batch.code("tailrace.observer")
    if (stated >= 0).any():
        named = batch.judge(stated, lambda text: _OBSERVERS.get(text.lower(), -1) + 1)
        observer = np.where(named > 0, named.astype(np.int32) - 1, observer)
    return observer


def _is_genai(batch: Batch) -> Bools:
    return batch.first(("gen_ai.operation.name", "gen_ai.provider.name", "gen_ai.system")) >= 0


def _admit(
    at: Indices,
    batch: Batch,
    sender: Sender,
    identity: EndpointFinder,
    counts: dict[str, int],
) -> Indices:
    """Drop probes, and everything of a sender whose requests do not count."""
    probe = batch.judge(batch.first(PATH)[at], _is_probe_path) > 0
    probe |= batch.judge(batch.first(USER_AGENT)[at], _is_probe_agent) > 0
    _count(counts, "probe", np.count_nonzero(probe))
    at = at[~probe]
    if sender.rights & Rights.REQUESTS or not len(at):
        return at
    _count(counts, "sender_rights", len(at))
    identity.tell(
        f"{sender.peer} sends requests without the right to; they are left out",
        "sender_rights",
        sender.peer,
    )
    return at[:0]


def _is_probe_path(text: str) -> bool:
    _, scheme, rest = text.partition("://")
    path = rest[rest.find("/") :] if scheme and "/" in rest else text
    return path.partition("?")[0].rstrip("/") in _PROBE_PATHS


def _is_probe_agent(text: str) -> bool:
    return text.lower().startswith(_PROBE_AGENTS)


def _drop_nested(
    at: Indices,
    slot: Int32s,
    observer: Int32s,
    columns: SpanColumns,
    batch: Batch,
    counts: dict[str, int],
) -> tuple[Indices, Int32s]:
    """Leave one span a request and observer.

    An SDK's call holds the HTTP call it makes: the outer one counts. A proxy's downstream span
    holds its upstream attempts: those count.
    """
    parent = _ids(columns.parent_span_id[at])
    if not parent.any():
        return at, slot
    span, kind = _ids(columns.span_id[at]), columns.kind[at]
    is_client, is_proxy = observer[at] == _CLIENT, observer[at] == _PROXY
    outer = is_client & _is_genai(batch)[at] & (span != 0)
    attempts = is_proxy & (kind == CLIENT) & (parent != 0)
    nested = np.zeros(len(at), np.bool_)
    if outer.any():
        nested = is_client & (parent != 0) & np.isin(parent, span[outer])
    if attempts.any():
        nested |= is_proxy & (kind == SERVER) & np.isin(span, parent[attempts])
    _count(counts, "nested", np.count_nonzero(nested))
    return at[~nested], slot[~nested]


def _ids(raw: Bytes) -> npt.NDArray[np.uint64]:
    return np.ascontiguousarray(raw).view(np.uint64).reshape(-1)


# what is known of each request


def _span_rows(
    at: Indices,
    slot: Int32s,
    observer: Int32s,
    columns: SpanColumns,
    batch: Batch,
    counts: dict[str, int],
    now: Instant,
) -> RequestRows:
    start, end = columns.start_ns[at], columns.end_ns[at]
    timed = (start > 0) & (end > 0)
    _count(counts, "no_time", np.count_nonzero(~timed))
    _count(counts, "end_before_start", np.count_nonzero(timed & (end < start)))
    duration_s = np.where(timed, np.maximum(end - start, 0) / NS_PER_S, np.nan)
    ends = Ends(
        status=batch.number(HTTP_STATUS)[at],
        grpc_status=batch.number(("rpc.grpc.status_code",))[at],
        retry_after=batch.number(("retry_after",))[at],
        error=batch.judge(batch.first(ERROR)[at], error_verdict, Verdict.FAILURE),
        flags=batch.judge(batch.first(("response_flags", "response_flag"))[at], flags_verdict),
        finish=batch.judge(batch.code("gen_ai.response.finish_reasons")[at], finish_verdict),
        is_error=columns.status[at] == 2,
    )
    return _rows(
        at=at,
        slot=slot,
        observer=observer[at].astype(np.uint8),
        ends=ends,
        end_ns=np.where(end > 0, end, now.wall_ns),
        duration_s=duration_s,
        ttft_s=batch.number(SPAN_TTFT)[at],
        weight=sampling_weights(columns.trace_state[at], batch),
        batch=batch,
        counts=counts,
    )


def _log_rows(
    at: Indices,
    slot: Int32s,
    columns: LogColumns,
    batch: Batch,
    counts: dict[str, int],
    now: Instant,
) -> RequestRows:
    """Envoy stamps a record with the request's start; its end is that plus the duration."""
    duration_s = _bounded(batch.number(LOG_DURATION_MS)[at] / 1e3, MAX_LATENCY_S, counts)
    start = columns.time_ns[at]
    length_ns = (np.nan_to_num(duration_s) * NS_PER_S).astype(np.int64)
    known = np.where(start > 0, start + length_ns, columns.observed_ns[at])
    _count(counts, "no_time", np.count_nonzero(known <= 0))
    n = len(at)
    ends = Ends(
        status=batch.number(("response_code", "http.response.status_code"))[at],
        grpc_status=np.full(n, np.nan),
        retry_after=batch.number(("retry_after",))[at],
        error=batch.judge(batch.first(("error.type",))[at], error_verdict, Verdict.FAILURE),
        flags=batch.judge(batch.code("response_flags")[at], flags_verdict),
        finish=np.zeros(n, np.uint8),
        is_error=np.zeros(n, np.bool_),
    )
    return _rows(
        at=at,
        slot=slot,
        observer=np.full(n, Observer.PROXY, np.uint8),
        ends=ends,
        end_ns=np.where(known > 0, known, now.wall_ns),
        duration_s=duration_s,
        ttft_s=batch.number(LOG_TTFT_MS)[at] / 1e3,
        weight=np.ones(n),
        batch=batch,
        counts=counts,
    )


def _rows(
    *,
    at: Indices,
    slot: Int32s,
    observer: Bytes,
    ends: Ends,
    end_ns: Int64s,
    duration_s: Floats,
    ttft_s: Floats,
    weight: Floats,
    batch: Batch,
    counts: dict[str, int],
) -> RequestRows:
    outcome, refused = classify(ends)
    sources = source_hashes(batch.resources, batch.strings)
    return RequestRows(
        n=len(at),
        slot=slot.astype(np.int32),
        observer=observer,
        outcome=outcome,
        refused=refused,
        end_ns=end_ns,
        duration_s=_bounded(duration_s, MAX_LATENCY_S, counts),
        ttft_s=_bounded(ttft_s, MAX_LATENCY_S, counts),
        prompt_tokens=_bounded(batch.number(INPUT_TOKENS)[at], MAX_TOKENS, counts),
        cached_tokens=_bounded(batch.number(CACHED_TOKENS)[at], MAX_TOKENS, counts),
        output_tokens=_bounded(batch.number(OUTPUT_TOKENS)[at], MAX_TOKENS, counts),
        weight=weight,
        source=sources[batch.resource[at]] if len(at) else np.zeros(0, np.uint64),
    )


def _bounded(values: Floats, limit: float, counts: dict[str, int]) -> Floats:
    """Negative, infinite and absurd values are no values."""
    bad = (values < 0) | (values > limit)
    if bad.any():
        _count(counts, "bad_value", np.count_nonzero(bad))
        values = np.where(bad, np.nan, values)
    return values
