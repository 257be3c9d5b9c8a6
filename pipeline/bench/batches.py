"""Distinct, realistic OTLP batches by the thousand: spans of LLM requests, pages of engine metrics.

A span is ~630 bytes: 12 attributes and one event, values spread over 1,200 endpoints, 200 tenants,
8 models, free token counts and a conversation id of its own. Points are half gauges, half
histograms of 16 buckets, ~250 bytes each, in series that keep their order and never fall. Encoded
by hand, since official classes need 40 us a span; tests parse every batch with those.
"""

import struct
import time
from functools import cache
from typing import Final, Literal

import numpy as np

from pipeline.bench.template import Template

Signal = Literal["spans", "points"]

ENDPOINTS: Final = 1200
PORT: Final = 8000
GATEWAYS: Final = 6
RANKS: Final = 8
"""Data-parallel ranks of an engine: label sets of each metric name."""
GAUGES: Final = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")
HISTOGRAMS: Final = (
    "time_to_first_token_seconds",
    "inter_token_latency_seconds",
    "e2e_request_latency_seconds",
)
PAGE: Final = RANKS * (len(GAUGES) + len(HISTOGRAMS))
"""Points of one endpoint."""
BUCKETS: Final = 16
BOUNDS: Final = tuple(0.001 * 2**i for i in range(BUCKETS - 1))
MODELS: Final = tuple(f"meta-llama/Llama-3.{i}-70B-Instruct" for i in range(8))
PATHS: Final = ("/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses")
AGENTS: Final = tuple(f"OpenAI/Python 1.{i}.0 (linux; x86_64)" for i in range(20))
STATUSES: Final = (*(200,) * 97, 400, 429, 503)
STARTED_NS: Final = 3_600 * 10**9
"""Engines count since the last full hour but one."""
MEAN_S: Final = 0.05
"""Mean of every histogram."""
SUM_FROM: Final = 2.0**30
SUM_STEP: Final = 2.0**-22
"""From here to its double, adding one to a double's 64 bits adds this to its value."""
TRACE_AT, SPAN_AT, START_AT, END_AT, EVENT_AT = 10, 20, 29, 38, 49
"""Where a span's words are from its beginning: half a trace id, the span id, three times."""

_BOUNDS_FIELD: Final = b"\x3a\x78" + struct.pack(f"<{BUCKETS - 1}d", *BOUNDS)
_HISTOGRAM_HEAD: Final = struct.Struct("<cQcQcQcdcBB16Q")


def address(endpoint: int) -> str:
    """IP address of synthetic endpoint `endpoint`."""
    return f"10.{endpoint >> 16 & 255}.{endpoint >> 8 & 255}.{endpoint & 255}"


def members() -> list[dict[str, str]]:
    """All endpoints as the members of a static pool."""
    return [{"address": f"{address(endpoint)}:{PORT}"} for endpoint in range(ENDPOINTS)]


def build(signal: Signal, number: int, batch: int, of: int) -> Template:
    """Batch `number` of `of`, with `batch` items; the same arguments give the same batch."""
    return spans(number, batch) if signal == "spans" else points(number, batch, of)


def spans(number: int, count: int) -> Template:
    """Client spans of one gateway towards many endpoints."""
    rng = np.random.default_rng((1, number))
    random_ids = rng.bytes(24 * count)
    columns = [_text_list(key, values) for key, values in _TEXTS.items()]
    columns += [_number_list(key, values) for key, values in _NUMBERS.items()]
    picks = [rng.integers(0, len(column), count).tolist() for column in columns]
    durations_ns = (rng.lognormal(0.3, 0.8, count).clip(0.02, 60) * 1e9).astype(np.int64)
    waits_ns = (durations_ns * rng.uniform(0.05, 0.4, count)).astype(np.int64)
    ends_ns = -(rng.uniform(0, 0.2, count) * 1e9).astype(np.int64)
    waits = [_double(_FIRST_CHUNK, wait_ns / 1e9) for wait_ns in waits_ns.tolist()]
    spans_: list[bytes] = []
    begins, at = [], 0
    for i, row in enumerate(zip(*picks, strict=True)):
        own = random_ids[24 * i : 24 * i + 24]
        attributes = [column[pick] for column, pick in zip(columns, row, strict=True)]
        inner = b"".join((*_fixed_part(own), *attributes, waits[i], _conversation(own)))
        head = b"\x12" + _varint(len(inner))
        spans_ += head, inner
        begins.append(at + len(head))
        at = begins[-1] + len(inner)
    body, shift = _request(_gateway(number % GATEWAYS), b"".join(spans_))
    begin = np.array(begins) + shift
    moments = {
        START_AT: ends_ns - durations_ns,
        END_AT: ends_ns,
        EVENT_AT: ends_ns - durations_ns + waits_ns,
    }
    return Template(
        body,
        count,
        times=[
            pair
            for place, ages in moments.items()
            for pair in zip((begin + place).tolist(), ages.tolist(), strict=True)
        ],
        ids=[*(begin + TRACE_AT).tolist(), *(begin + SPAN_AT).tolist()],
        counters=[],
    )


def _fixed_part(own: bytes) -> tuple[bytes, ...]:
    """The beginning of every span, of one size: ids, times, event, name, kind and what repeats."""
    ids = b"\x0a\x10" + own[:16] + b"\x12\x08" + own[16:]
    return ids, b"\x39", _WORD, b"\x41", _WORD, _FIXED_FIELDS


def _conversation(own: bytes) -> bytes:
    """An attribute whose values never repeat: nothing of it is worth keeping."""
    return _field(9, _pair("gen_ai.conversation.id", _field(1, own[:16].hex().encode())))


@cache
def _text_list(key: str, values: tuple[str, ...]) -> list[bytes]:
    return [_attribute(9, key, _field(1, value.encode())) for value in values]


@cache
def _number_list(key: str, values: tuple[int, ...]) -> list[bytes]:
    return [_attribute(9, key, b"\x18" + _varint(value)) for value in values]


def points(number: int, count: int, of: int) -> Template:
    """The next `count` points of all pages one after the other, several endpoints in a batch.

    Every series appears once a sweep over all endpoints, with the same steps each time, so its
    counts rise from batch to batch, and from one pass over all `of` batches to the next.
    """
    passes = -(-count * of // (ENDPOINTS * PAGE)) + 1
    low, high = number * count, (number + 1) * count
    # The same for every batch: a series that starts anew in each would be a reset in each.
    started_ns = time.time_ns() // STARTED_NS * STARTED_NS - STARTED_NS
    chunks, times, counters, at = [], [], [], 0
    while low < high:
        sweep, series = divmod(low, ENDPOINTS * PAGE)
        endpoint, place = divmod(series, PAGE)
        take = min(PAGE - place, high - low)
        page, page_times, page_counters = _page(
            endpoint, range(place, place + take), sweep, passes, started_ns
        )
        times += [(at + word, -endpoint * 1000) for word in page_times]
        counters += [(at + word, step) for word, step in page_counters]
        chunks.append(page)
        at += len(page)
        low += take
    return Template(b"".join(chunks), count, times=times, ids=[], counters=counters)


def _page(
    endpoint: int, places: range, sweep: int, passes: int, started_ns: int
) -> tuple[bytes, list[int], list[tuple[int, int]]]:
    """One endpoint's points at `places` of its page; offsets of times and (counters, steps)."""
    rng = np.random.default_rng((2, endpoint))
    steps = rng.integers(1, 4, (PAGE, BUCKETS))
    sums = (steps.sum(1) * MEAN_S).tolist()
    levels = np.random.default_rng((3, endpoint, sweep)).uniform(0, 1, PAGE).tolist()
    counts = (steps * sweep).tolist()
    moves = (steps * passes).tolist()
    names: dict[str, list[int]] = {}
    for place in places:
        names.setdefault(_name_of(place), []).append(place)
    metrics, times, counters, at = [], [], [], 0
    for name, own in names.items():
        is_gauge = name in GAUGES
        rows = [
            _gauge(place, levels[place])
            if is_gauge
            else _histogram(place, counts[place], sums[place] * sweep, started_ns)
            for place in own
        ]
        head = _metric_head(name, rows, is_gauge)
        place_at = at + len(head)
        for place, row in zip(own, rows, strict=True):
            body_at = place_at + 1 + len(_varint(len(row)))
            times.append(body_at + (1 if is_gauge else 10))
            if not is_gauge:
                counters.append((body_at + 19, sum(moves[place])))
                counters.append((body_at + 28, round(sums[place] * passes / SUM_STEP)))
                counters += [
                    (body_at + 39 + 8 * bucket, step) for bucket, step in enumerate(moves[place])
                ]
            place_at = body_at + len(row)
        tail = b"" if is_gauge else b"\x10\x02"  # cumulative
        metric = head + b"".join(b"\x0a" + _varint(len(row)) + row for row in rows) + tail
        metrics.append(metric)
        at += len(metric)
    body, shift = _request(_engine(endpoint), b"".join(metrics))
    return (
        body,
        [shift + word for word in times],
        [(shift + word, step) for word, step in counters],
    )


def _name_of(place: int) -> str:
    """Gauges and histograms in turn, so that any even run of places holds as many of each."""
    kinds = len(GAUGES) + len(HISTOGRAMS)
    half, is_histogram = divmod(place % kinds, 2)
    return HISTOGRAMS[half] if is_histogram else GAUGES[half]


def _gauge(place: int, level: float) -> bytes:
    value = level if _name_of(place) == GAUGES[2] else float(int(level * 64))
    return b"\x19" + bytes(8) + b"\x21" + struct.pack("<d", value) + _labels(place)


def _histogram(place: int, counts: list[int], sum_s: float, started_ns: int) -> bytes:
    head = _HISTOGRAM_HEAD.pack(
        *(b"\x11", started_ns, b"\x19", 0, b"\x21", sum(counts), b"\x29", SUM_FROM + sum_s),
        *(b"\x32", 128, 1, *counts),
    )
    return head + _BOUNDS_FIELD + _labels(place)


def _metric_head(name: str, rows: list[bytes], is_gauge: bool) -> bytes:
    """Everything of a metric in its scope before its first point."""
    size = sum(1 + len(_varint(len(row))) + len(row) for row in rows) + (0 if is_gauge else 2)
    data = (b"\x2a" if is_gauge else b"\x4a") + _varint(size)
    inner = _field(1, f"vllm:{name}".encode()) + data
    return b"\x12" + _varint(len(inner) + size) + inner


@cache
def _labels(place: int) -> bytes:
    rank = place // (len(GAUGES) + len(HISTOGRAMS))
    number = 7 if _name_of(place) in GAUGES else 9
    pairs = {"engine": str(rank), "model_name": MODELS[0]}
    return b"".join(
        _field(number, _pair(key, _field(1, text.encode()))) for key, text in pairs.items()
    )


@cache
def _engine(endpoint: int) -> bytes:
    return _resource(
        {
            "service.name": "vllm",
            "service.instance.id": f"{address(endpoint)}:{PORT}",
            "server.address": address(endpoint),
            "server.port": str(PORT),
            "k8s.node.name": f"node-{endpoint // 8}",
        }
    )


@cache
def _gateway(number: int) -> bytes:
    return _resource(
        {
            "service.name": "llm-gateway",
            "service.namespace": "inference",
            "service.instance.id": f"gateway-{number}",
            "k8s.pod.name": f"llm-gateway-7d9f8b6c5-{number}",
            "telemetry.sdk.language": "python",
        }
    )


def _request(resource: bytes, items: bytes) -> tuple[bytes, int]:
    """One resource, one scope and its items, and where the items begin."""
    scope = _field(1, _field(1, b"tailrace.bench"))
    inner = resource + b"\x12" + _varint(len(scope) + len(items)) + scope
    head = b"\x0a" + _varint(len(inner) + len(items)) + inner
    return head + items, len(head)


def _resource(pairs: dict[str, str]) -> bytes:
    return _field(1, b"".join(_field(1, _pair(k, _field(1, v.encode()))) for k, v in pairs.items()))


def _pair(key: str, value: bytes) -> bytes:
    return _field(1, key.encode()) + _field(2, value)


def _attribute(number: int, key: str, value: bytes) -> bytes:
    return _field(number, _pair(key, value))


def _double(key: str, value: float) -> bytes:
    return _attribute(9, key, b"\x21" + struct.pack("<d", value))


def _field(number: int, value: bytes) -> bytes:
    return bytes((number << 3 | 2,)) + _varint(len(value)) + value


def _varint(value: int) -> bytes:
    """Base-128, low bits first.

    >>> _varint(300).hex()
    'ac02'
    """
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


_WORD: Final = bytes(8)
_FIRST_CHUNK: Final = "gen_ai.response.time_to_first_chunk"
_TEXTS: Final = {
    "server.address": tuple(map(address, range(ENDPOINTS))),
    "url.path": PATHS,
    "gen_ai.request.model": MODELS,
    "user_agent.original": AGENTS,
    "tailrace.tenant": tuple(f"tenant-{i}" for i in range(200)),
}
_NUMBERS: Final = {
    "http.response.status_code": STATUSES,
    "gen_ai.usage.input_tokens": tuple(range(16, 8192)),
    "gen_ai.usage.output_tokens": tuple(range(1, 1024)),
}
_FIXED_FIELDS: Final = b"".join(
    (
        # The event comes first: its time has a fixed place.
        _field(
            11,
            b"\x09"
            + _WORD
            + _field(2, b"gen_ai.first_token")
            + _field(3, _pair("gen_ai.choice.index", b"\x18\x00")),
        ),
        _field(5, b"chat completions"),
        b"\x30\x03",  # kind CLIENT
        _attribute(9, "http.request.method", _field(1, b"POST")),
        _attribute(9, "server.port", b"\x18" + _varint(PORT)),
    )
)
