"""Spans and access logs -> finished requests, whoever saw them.

Only spans that are requests count: engines' SERVER spans, proxies' upstream spans and CLIENT spans
towards a known endpoint. Old and new attribute names are coalesced, the new one first. Strings are
judged once per distinct value, rows by whole columns; rows left out are counted by reason.
"""

from typing import Any, Final

import numpy as np

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
    RequestTraits,
    Rights,
    Sender,
    SpanColumns,
)
from pipeline.normalise.batch import Batch
from pipeline.normalise.joins import (
    HOSTS,
    EndpointFinder,
    Observers,
    by_text,
    fill,
    learn_callers,
    named_slots,
    span_slots,
)
from pipeline.normalise.nesting import CLIENT, GENAI, find_nesting, merged
from pipeline.normalise.outcomes import (
    Ends,
    Verdict,
    classify,
    error_verdict,
    finish_verdict,
    flags_verdict,
)
from pipeline.normalise.probes import PROBES
from pipeline.normalise.resources import source_hashes
from pipeline.normalise.sampling import sampling_weights
from pipeline.normalise.traits import TraitKeys, log_traits, span_traits

SERVER: Final = 2
"""OTLP span kind."""

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
ERROR: Final = ("error.type", "exception.type")
_CALLED: Final = (
    *(host for host, _ in HOSTS),
    "url.full",
    "http.url",
    *GENAI,
    "tailrace.endpoint",
)
"""A CLIENT span with one of them may be a call of an endpoint."""
_DEFAULT_KEYS: Final = TraitKeys()
_OBSERVERS: Final = {observer.name.lower(): int(observer) for observer in Observer}


def normalise_spans(
    columns: SpanColumns,
    identity: EndpointFinder,
    sender: Sender,
    now: Instant,
    keys: TraitKeys = _DEFAULT_KEYS,
) -> Canonical:
    """The requests among n spans, in input order; an empty batch gives none."""
    batch = Batch(columns.attributes, columns.resources, columns.resource, columns.strings)
    counts: dict[str, int] = {}
    observer = _span_observer(columns, batch)
    is_request = _without_self(observer >= 0, batch, counts)
    batch, observer = _keep(is_request, batch, observer)
    batch, observer = _admit(batch, observer, sender, identity, counts)
    slot = span_slots(observer, batch, identity, sender, now)
    batch, observer, slot = _joined(batch, observer, slot, counts)
    rows = _span_rows(columns, slot, observer, batch, counts, now)
    traits = span_traits(columns, batch, keys)
    nesting = find_nesting(columns, observer, slot, batch)
    if nesting is not None:
        _count(counts, "nested", np.count_nonzero(nesting.is_nested))
        rows, traits, kept = merged(rows, traits, nesting)
        batch = batch.only(kept)
    learn_callers(rows, batch, identity)
    return _canonical(rows, traits, counts, identity)


def normalise_logs(
    columns: LogColumns,
    identity: EndpointFinder,
    sender: Sender,
    now: Instant,
    keys: TraitKeys = _DEFAULT_KEYS,
) -> Canonical:
    """The requests among n log records (a proxy's access logs), in input order."""
    batch = Batch(columns.attributes, columns.resources, columns.resource, columns.strings)
    counts: dict[str, int] = {}
    is_request = batch.has_any(("upstream_host", "upstream_address", "response_flags"))
    code = batch.number(("response_code",))
    if code is not None:
        is_request = is_request | ~np.isnan(code)
    is_request = _without_self(is_request, batch, counts)
    observer = np.full(batch.n, Observer.PROXY, np.int8)
    batch, observer = _keep(is_request, batch, observer)
    batch, observer = _admit(batch, observer, sender, identity, counts)
    slot = named_slots(batch, identity, sender, now)
    upstream = batch.first(("upstream_host", "upstream_address"))
    if upstream is not None:
        slot = fill(slot, lambda open_: by_text(upstream[open_], batch, identity))
    batch, observer, slot = _joined(batch, observer, slot, counts)
    rows = _log_rows(columns, slot, observer, batch, counts, now)
    return _canonical(rows, log_traits(batch, keys), counts, identity)


def _canonical(
    rows: RequestRows, traits: RequestTraits, counts: dict[str, int], identity: EndpointFinder
) -> Canonical:
    notes, reasons = identity.take_notes()
    for reason, n in reasons.items():
        _count(counts, reason, n)
    return Canonical(requests=rows, traits=traits, dropped=counts, notes=notes)


def _count(counts: dict[str, int], reason: str, n: int | np.integer) -> None:
    if n:
        counts[reason] = counts.get(reason, 0) + int(n)


def _keep(mask: Bools, batch: Batch, *columns: Any) -> tuple[Any, ...]:
    """The batch and its columns where the mask holds; the same objects where it always does."""
    if np.count_nonzero(mask) == len(mask):
        return batch, *columns
    rows = mask.nonzero()[0]
    return batch.only(rows), *(column[rows] for column in columns)


def _without_self(is_request: Bools, batch: Batch, counts: dict[str, int]) -> Bools:
    """Leave out our own telemetry, and count it and what is no request."""
    is_self = batch.is_set("tailrace.self")
    if is_self is None:
        _count(counts, "not_request", batch.n - np.count_nonzero(is_request))
        return is_request
    _count(counts, "self", np.count_nonzero(is_self))
    _count(counts, "not_request", np.count_nonzero(~is_self & ~is_request))
    return is_request & ~is_self


def _joined(
    batch: Batch, observer: Observers, slot: Int32s, counts: dict[str, int]
) -> tuple[Any, ...]:
    joined = slot >= 0
    _count(counts, "unjoined", len(slot) - np.count_nonzero(joined))
    return _keep(joined, batch, observer, slot)


# which spans are requests


def _span_observer(columns: SpanColumns, batch: Batch) -> Observers:
    """int8[n]: who saw the request, -1 = the span is none."""
    is_server, is_client = columns.kind == SERVER, columns.kind == CLIENT
    observer = np.full(columns.n, -1, np.int8)
    if np.count_nonzero(is_client):
        observer[is_client & batch.has_any(_CALLED)] = Observer.CLIENT
    if np.count_nonzero(is_server):
        observer[is_server & _is_engine(columns, batch)] = Observer.ENGINE
    is_proxy = _is_proxy(batch)
    if is_proxy is not None:
        is_either = is_server | is_client
        observer[is_proxy & is_either] = -1
        upstream = is_client | batch.has_any(("upstream_host",))
        observer[is_proxy & upstream & is_either] = Observer.PROXY
    stated = batch.judge(batch.code("tailrace.observer"), _stated_observer)
    if stated is not None:
        observer = np.where(stated > 0, stated.astype(np.int8) - np.int8(1), observer)
    return observer


def _is_engine(columns: SpanColumns, batch: Batch) -> Bools:
    """Whether a SERVER span is an engine's: by its name, or because it knows tokens or phases."""
    named = batch.judge(columns.name, lambda text: text == "llm_request")
    is_engine = np.zeros(columns.n, np.bool_) if named is None else named > 0
    for key, column in columns.attributes.number.items():
        if key.startswith(("gen_ai.latency.", "gen_ai.usage.")) and not is_engine.all():
            is_engine |= ~np.isnan(column)
    return is_engine


def _is_proxy(batch: Batch) -> Bools | None:
    """Whether a span is a proxy's; None when none is."""
    component = batch.judge(batch.code("component"), lambda text: text == "proxy")
    upstream = batch.code("upstream_host")
    if upstream is None:
        return None if component is None else component > 0
    return upstream >= 0 if component is None else (component > 0) | (upstream >= 0)


def _stated_observer(text: str) -> int:
    return _OBSERVERS.get(text.lower(), -1) + 1


def _admit(
    batch: Batch,
    observer: Observers,
    sender: Sender,
    identity: EndpointFinder,
    counts: dict[str, int],
) -> tuple[Any, ...]:
    """Drop probes, and everything of a sender whose requests do not count."""
    for keys, is_probe in PROBES:
        probe = batch.judge(batch.first(keys), is_probe)
        if probe is not None:
            _count(counts, "probe", np.count_nonzero(probe))
            batch, observer = _keep(probe == 0, batch, observer)
    if sender.rights & Rights.REQUESTS or not batch.n:
        return batch, observer
    _count(counts, "sender_rights", batch.n)
    identity.tell(
        f"{sender.peer} sends requests without the right to; they are left out",
        "sender_rights",
        sender.peer,
    )
    return batch.only(np.zeros(0, np.intp)), observer[:0]


# what is known of each request


def _span_rows(
    columns: SpanColumns,
    slot: Int32s,
    observer: Observers,
    batch: Batch,
    counts: dict[str, int],
    now: Instant,
) -> RequestRows:
    start, end = batch.cut(columns.start_ns), batch.cut(columns.end_ns)
    duration_s, end_ns = _span_times(start, end, counts, now)
    ends = Ends(
        status=batch.number(HTTP_STATUS),
        grpc_status=batch.number(("rpc.grpc.status_code",)),
        retry_after=batch.number(("retry_after",)),
        error=batch.judge(batch.first(ERROR), error_verdict, Verdict.FAILURE),
        flags=batch.judge(batch.first(("response_flags", "response_flag")), flags_verdict),
        finish=batch.judge(batch.code("gen_ai.response.finish_reasons"), finish_verdict),
        is_error=batch.cut(columns.status) == 2,
    )
    return _rows(
        slot=slot,
        observer=observer,
        ends=ends,
        end_ns=end_ns,
        duration_s=duration_s,
        ttft_s=batch.number(SPAN_TTFT),
        weight=sampling_weights(batch.cut(columns.trace_state), batch),
        trace_id=batch.cut(columns.trace_id),
        batch=batch,
        counts=counts,
    )


def _span_times(
    start: Int64s, end: Int64s, counts: dict[str, int], now: Instant
) -> tuple[Floats, Int64s]:
    """Durations, NaN where a time is missing, and ends, now where missing."""
    length = end - start
    if int(start.min(initial=1)) > 0 and int(length.min(initial=0)) >= 0:
        return length / NS_PER_S, end
    timed = (start > 0) & (end > 0)
    _count(counts, "no_time", np.count_nonzero(~timed))
    _count(counts, "end_before_start", np.count_nonzero(timed & (end < start)))
    duration_s = np.where(timed, np.maximum(length, 0) / NS_PER_S, np.nan)
    return duration_s, np.where(end > 0, end, now.wall_ns)


def _log_rows(
    columns: LogColumns,
    slot: Int32s,
    observer: Observers,
    batch: Batch,
    counts: dict[str, int],
    now: Instant,
) -> RequestRows:
    """Envoy stamps a record with the request's start; its end is that plus the duration."""
    duration_s = _bounded(_seconds(batch.number(LOG_DURATION_MS)), MAX_LATENCY_S, counts)
    start = batch.cut(columns.time_ns)
    known = start
    if duration_s is not None:
        known = start + (np.nan_to_num(duration_s) * NS_PER_S).astype(np.int64)
    known = np.where(start > 0, known, batch.cut(columns.observed_ns))
    _count(counts, "no_time", np.count_nonzero(known <= 0))
    ends = Ends(
        status=batch.number(("response_code", "http.response.status_code")),
        retry_after=batch.number(("retry_after",)),
        error=batch.judge(batch.code("error.type"), error_verdict, Verdict.FAILURE),
        flags=batch.judge(batch.code("response_flags"), flags_verdict),
        is_error=np.zeros(batch.n, np.bool_),
    )
    return _rows(
        slot=slot,
        observer=observer,
        ends=ends,
        end_ns=np.where(known > 0, known, now.wall_ns),
        duration_s=duration_s,
        ttft_s=_seconds(batch.number(LOG_TTFT_MS)),
        weight=np.ones(batch.n),
        trace_id=batch.cut(columns.trace_id),
        batch=batch,
        counts=counts,
    )


def _seconds(milliseconds: Floats | None) -> Floats | None:
    return None if milliseconds is None else milliseconds / 1e3


def _rows(
    *,
    slot: Int32s,
    observer: Observers,
    ends: Ends,
    end_ns: Int64s,
    duration_s: Floats | None,
    ttft_s: Floats | None,
    weight: Floats,
    trace_id: Bytes,
    batch: Batch,
    counts: dict[str, int],
) -> RequestRows:
    outcome, refused = classify(ends)
    sources = source_hashes(batch.resources, batch.strings)
    unknown = np.full(batch.n, np.nan)

    def known(values: Floats | None, limit: float) -> Floats:
        bounded = _bounded(values, limit, counts)
        return unknown if bounded is None else bounded

    return RequestRows(
        n=batch.n,
        slot=slot,
        observer=observer.view(np.uint8),
        outcome=outcome,
        refused=refused,
        end_ns=end_ns,
        duration_s=known(duration_s, MAX_LATENCY_S),
        ttft_s=known(ttft_s, MAX_LATENCY_S),
        prompt_tokens=known(batch.number(INPUT_TOKENS), MAX_TOKENS),
        cached_tokens=known(batch.number(CACHED_TOKENS), MAX_TOKENS),
        output_tokens=known(batch.number(OUTPUT_TOKENS), MAX_TOKENS),
        weight=weight,
        source=sources.take(batch.resource) if batch.n else np.zeros(0, np.uint64),
        kind=np.zeros(batch.n, np.uint64),
        tenant=np.zeros(batch.n, np.uint64),
        trace_id=trace_id,
    )


def _bounded(values: Floats | None, limit: float, counts: dict[str, int]) -> Floats | None:
    """Negative, infinite and absurd values are no values."""
    if values is None:
        return None
    bad = (values < 0) | (values > limit)
    if np.count_nonzero(bad):
        _count(counts, "bad_value", np.count_nonzero(bad))
        values = np.where(bad, np.nan, values)
    return values
