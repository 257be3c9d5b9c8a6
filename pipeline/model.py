"""Batches and records that cross a stage border; stages share nothing else.

Everything inside is columns: numpy arrays with one entry per span, data point, request or endpoint
slot. Strings are codes into a `Dictionary` that belongs to the batch; whoever keeps a string copies
it into a table of its own. Absent is -1 for codes, NaN for floats, 0 for times.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from enum import IntEnum, IntFlag, StrEnum
from typing import Annotated, Any, Final, Literal, NamedTuple, TypeAlias, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

Bools: TypeAlias = npt.NDArray[np.bool_]
Bytes: TypeAlias = npt.NDArray[np.uint8]
Floats: TypeAlias = npt.NDArray[np.float64]
Int32s: TypeAlias = npt.NDArray[np.int32]
Int64s: TypeAlias = npt.NDArray[np.int64]
UInt32s: TypeAlias = npt.NDArray[np.uint32]
UInt64s: TypeAlias = npt.NDArray[np.uint64]


class OtlpSignal(StrEnum):
    """The four kinds of OTLP export request."""

    TRACES = "traces"
    METRICS = "metrics"
    LOGS = "logs"
    PROFILES = "profiles"


class Encoding(StrEnum):
    """How the bytes of a request are compressed."""

    IDENTITY = "identity"
    GZIP = "gzip"
    DEFLATE = "deflate"
    ZSTD = "zstd"


class Export(NamedTuple):
    """One export request as it came over the wire."""

    signal: OtlpSignal
    body: bytes
    encoding: Encoding = Encoding.IDENTITY
    is_json: bool = False
    """OTLP's JSON encoding instead of protobuf."""
    max_bytes: int = 64 << 20
    """What it may become when inflated: what the receiver has set aside for it."""


class Client(NamedTuple):
    """Who sent a request, as far as the transport knows."""

    peer: str
    """Its address without the port, or the path of a local socket."""
    name: str = ""
    """Of the bearer token or of the client certificate that proved it; "" = nobody asked."""


class Receipt(NamedTuple):
    """What a sender is told after its batch was folded: OTLP's partial success."""

    rejected: int = 0
    message: str = ""


class Rights(IntFlag):
    """What a sender's data may do; everything else of it is counted and left out."""

    NONE = 0
    METRICS = 1
    """Its metrics become signals."""
    REQUESTS = 2
    """Its spans and access logs count as requests, failures included."""
    IDENTITY = 4
    """Its `tailrace.endpoint`, `tailrace.pool` and `tailrace.address` attributes are believed."""


class Sender(NamedTuple):
    """Who sent a batch: the transport peer (without its port) and what it may do."""

    peer: str
    rights: Rights


# decode -> normalise


@dataclass(frozen=True, slots=True, eq=False)
class Dictionary:
    """The distinct strings of one batch: code -> UTF-8 bytes and a stable 64-bit hash (XXH3).

    `data` holds the strings back to back, `offsets` int32[n + 1] their borders, `hashes` uint64[n].
    Equal strings have equal codes within the batch; codes mean nothing outside it.
    """

    data: bytes
    offsets: Int32s
    hashes: UInt64s

    def __len__(self) -> int:
        """How many distinct strings there are."""
        return len(self.hashes)

    def text(self, code: int) -> str:
        """The string behind `code`; "" for -1. Invalid UTF-8 was replaced by the decoder."""
        if code < 0:
            return ""
        return self.data[self.offsets[code] : self.offsets[code + 1]].decode("utf-8", "replace")

    def texts(self) -> list[str]:
        """All strings, by code."""
        return [self.text(code) for code in range(len(self))]


@dataclass(frozen=True, slots=True, eq=False)
class Attributes:
    """Known attributes of n items, a column per key that occurs (`pipeline.keys` lists the keys).

    `text[key]` is int32[n] of dictionary codes, `number[key]` float64[n]. A key that no item
    carries has no column. Values are coerced to the kind that the key declares; a duplicate key
    keeps its first value; a value that cannot be coerced is absent and counted `bad_attribute`.
    """

    n: int
    text: Mapping[str, Int32s]
    number: Mapping[str, Floats]

    def codes(self, key: str) -> Int32s:
        """int32[n] of dictionary codes, all -1 when no item carries `key`."""
        column = self.text.get(key)
        return np.full(self.n, -1, np.int32) if column is None else column

    def numbers(self, key: str) -> Floats:
        """float64[n], all NaN when no item carries `key`."""
        column = self.number.get(key)
        return np.full(self.n, np.nan) if column is None else column


@dataclass(frozen=True, slots=True, eq=False)
class SpanColumns:
    """Decoded spans of one export request, in wire order. All arrays have length n.

    Times are int64 ns as sent (0 = missing; values past 2^63 are clamped and counted). Ids are raw
    bytes, all zero where the sender's id is invalid. `resource` indexes rows of `resources`.
    """

    n: int
    strings: Dictionary
    resources: Attributes
    attributes: Attributes
    resource: Int32s
    scope: Int32s
    name: Int32s
    trace_state: Int32s
    kind: Bytes
    status: Bytes
    flags: UInt32s
    start_ns: Int64s
    end_ns: Int64s
    trace_id: Bytes
    """uint8[n, 16]"""
    span_id: Bytes
    """uint8[n, 8]"""
    parent_span_id: Bytes
    """uint8[n, 8]"""
    dropped: Mapping[str, int]
    """Items or values left out while decoding, by reason."""


class PointKind(IntEnum):
    """The data type of a metric, OTLP's oneof."""

    GAUGE = 0
    SUM = 1
    HISTOGRAM = 2
    EXPONENTIAL_HISTOGRAM = 3
    SUMMARY = 4


class Temporality(IntEnum):
    """OTLP's AggregationTemporality."""

    UNSPECIFIED = 0
    DELTA = 1
    CUMULATIVE = 2


NO_RECORDED_VALUE: Final = 1
"""DataPointFlags bit 0: the series ended here."""


@dataclass(frozen=True, slots=True, eq=False)
class MetricTable:
    """The m metrics of a batch: one row per Metric message (arrays of length m)."""

    name: Int32s
    unit: Int32s
    description: Int32s
    kind: Bytes
    """PointKind"""
    temporality: Bytes
    monotonic: Bools


@dataclass(frozen=True, slots=True, eq=False)
class HistogramTable:
    """The h histogram points of a batch, explicit and exponential, in compressed rows.

    Row i has explicit buckets `counts[starts[i]:starts[i + 1]]` (float64, not cumulative) over the
    bounds `bounds[bounds_id[i]]` (len(counts) - 1 upper-inclusive bounds), or, for an exponential
    histogram, `bounds_id[i]` = -1 and the positive buckets there, from index `offset[i]` at
    `scale[i]`, with `zero_count[i]` beside them; negative buckets are dropped and counted.
    """

    starts: Int64s
    counts: Floats
    bounds: tuple[Floats, ...]
    bounds_id: Int32s
    scale: Int32s
    offset: Int32s
    zero_count: Floats
    count: Floats
    sum: Floats
    """NaN where the sender gave none."""


@dataclass(frozen=True, slots=True, eq=False)
class PointColumns:
    """Decoded data points of one export request, in wire order. Arrays have length n.

    `series` uint64[n, 2] is a 128-bit key of resource, scope, metric name, unit, type, temporality,
    monotonicity and all attributes (not only the known ones), whatever their order; it is stable
    across batches, processes and decoders. `value` is the number, or a summary's sum (with the
    count in `count`); NaN for histograms, whose row in `histograms` is `histogram` (-1 = none).
    """

    n: int
    strings: Dictionary
    resources: Attributes
    attributes: Attributes
    metrics: MetricTable
    histograms: HistogramTable
    resource: Int32s
    scope: Int32s
    metric: Int32s
    series: UInt64s
    start_ns: Int64s
    time_ns: Int64s
    value: Floats
    count: Floats
    flags: UInt32s
    histogram: Int32s
    dropped: Mapping[str, int]
    rejected: int
    """Points that the sender is told were rejected (time 0, no value, unspecified temporality)."""


@dataclass(frozen=True, slots=True, eq=False)
class LogColumns:
    """Decoded log records of one export request. Arrays have length n.

    A log body that is a key-value list (Envoy's access logs) adds its pairs to the attributes.
    """

    n: int
    strings: Dictionary
    resources: Attributes
    attributes: Attributes
    resource: Int32s
    scope: Int32s
    time_ns: Int64s
    observed_ns: Int64s
    severity: Bytes
    trace_id: Bytes
    """uint8[n, 16]"""
    dropped: Mapping[str, int]


@dataclass(frozen=True, slots=True, eq=False)
class ProfileColumns:
    """Profiles of one export request: accepted and counted."""

    n: int
    dropped: Mapping[str, int]


Columns: TypeAlias = SpanColumns | PointColumns | LogColumns | ProfileColumns


# normalise -> fold


class Observer(IntEnum):
    """Who saw a request; windows are kept per observer."""

    PROXY = 0
    ENGINE = 1
    CLIENT = 2
    AGENT = 3


class Outcome(IntEnum):
    """How a request ended."""

    OK = 0
    FAILURE = 1
    """Refused, reset, timeout, 5xx, broken stream."""
    OVERLOAD = 2
    """429, 503 with Retry-After, RESOURCE_EXHAUSTED: pressure, not failure."""
    NEITHER = 3
    """Other 4xx and client aborts."""


@dataclass(frozen=True, slots=True, eq=False)
class RequestRows:
    """Finished requests as one observer saw them, in input order. Arrays have length n.

    `slot` is the endpoint's row in every endpoint array (never -1: unmatched ones are counted by
    the normaliser). Times are event time; a missing duration or TTFT is NaN.
    """

    n: int
    slot: Int32s
    observer: Bytes
    outcome: Bytes
    refused: Bools
    """The connection was refused: hard evidence against the endpoint."""
    end_ns: Int64s
    duration_s: Floats
    ttft_s: Floats
    prompt_tokens: Floats
    cached_tokens: Floats
    output_tokens: Floats
    weight: Floats
    """Sampling correction: how many requests this row stands for."""
    source: UInt64s
    """Hash of the sending resource, for clock offsets."""
    kind: UInt64s
    """Request fingerprint; 0 = none, or more kinds than are kept."""
    tenant: UInt64s
    """Hash of the tenant's name; 0 = none."""
    trace_id: Bytes
    """uint8[n, 16], all zero = none; kept only for exemplars."""

    def part(self, low: int, high: int) -> "RequestRows":
        """Rows `low` to `high`, as views."""
        return _part(self, low, high)

    def only(self, rows: npt.NDArray[np.intp]) -> "RequestRows":
        """Some of the rows, as copies."""
        return _only(self, rows)


@dataclass(frozen=True, slots=True, eq=False)
class RequestTraits:
    """What a batch says of its requests beside figures, row by row of `Canonical.requests`.

    Text columns are int32[n] codes into `strings`, -1 = absent; where nobody says a thing the whole
    column is None, so that nobody works on it.
    """

    n: int
    strings: Dictionary
    is_log: bool = False
    """From access logs, else from spans."""
    method: Int32s | None = None
    route: Int32s | None = None
    """A template that the sender itself made, as `http.route`."""
    path: Int32s | None = None
    """A path or URL as it was requested."""
    rpc_service: Int32s | None = None
    rpc_method: Int32s | None = None
    operation: Int32s | None = None
    """`gen_ai.operation.name`"""
    model: Int32s | None = None
    request_class: Int32s | None = None
    tenant: Int32s | None = None
    conversation: Int32s | None = None
    prefix: Int32s | None = None
    """A hash of the prompt's leading blocks, made by the application or the node agent."""
    adapter: Int32s | None = None
    cache_salt: Int32s | None = None
    request_id: Int32s | None = None
    body_bytes: Floats | None = None
    """Size of the request body, NaN = unknown."""
    span_id: UInt64s | None = None
    """0 = none, here and below; None for logs, and for parents where no row has one."""
    parent_span_id: UInt64s | None = None

    def only(self, rows: npt.NDArray[np.intp]) -> "RequestTraits":
        """Some of the rows, as copies."""
        return _only(self, rows)


@dataclass(frozen=True, slots=True, eq=False)
class SampleRows:
    """Canonical metric samples of one batch. Arrays have length n.

    `component` indexes `signals.COMPONENTS`, whose kind holds whatever type the sender gave.
    `value` is scaled to the component's unit. `group` and `shard` tell siblings apart: series of
    one group that differ in shard (tensor-parallel ranks) report the same thing, groups
    (data-parallel ranks, GPUs) add up. `histogram` indexes `histograms`; the fold applies `scale`
    to its bounds and sum. A summary is a histogram of its sum (`value`) and `count` alone.
    """

    n: int
    slot: Int32s
    component: Int32s
    series: UInt64s
    start_ns: Int64s
    time_ns: Int64s
    value: Floats
    delta: Bools
    """The point is a delta, to be added, not differenced."""
    ended: Bools
    """NO_RECORDED_VALUE: the series ended."""
    group: UInt64s
    """Hash of the data-parallel rank or of the GPU; 0 = none."""
    shard: UInt64s
    """Hash of the tensor-, pipeline- or expert-parallel rank; 0 = none."""
    count: Floats
    """A summary's count, the code of an XID counter; else NaN."""
    histogram: Int32s
    scale: Floats
    """Factor from the sender's unit to the component's (histogram bounds and sums)."""
    histograms: HistogramTable
    source: UInt64s
    """Hash of the sending resource, for clock offsets."""
    hint: Int64s
    """A small number that stands for `series`, mostly the same in every batch; -1 = none. Whoever
    keeps series by it compares `series` all the same."""

    def part(self, low: int, high: int) -> "SampleRows":
        """Rows `low` to `high`, as views; `histograms` stays whole."""
        return _part(self, low, high)


_Rows = TypeVar("_Rows", RequestRows, SampleRows)
_ByRow = TypeVar("_ByRow", RequestRows, RequestTraits)


def _part(rows: _Rows, low: int, high: int) -> _Rows:
    if low == 0 and high >= rows.n:
        return rows
    columns = {
        f.name: getattr(rows, f.name)[low:high]
        for f in fields(rows)
        if f.name not in ("n", "histograms")
    }
    return replace(rows, n=len(range(rows.n)[low:high]), **columns)


def _only(rows: _ByRow, picked: npt.NDArray[np.intp]) -> _ByRow:
    columns = {f.name: getattr(rows, f.name) for f in fields(rows)}
    arrays: dict[str, Any] = {
        name: c[picked] for name, c in columns.items() if isinstance(c, np.ndarray)
    }
    return replace(rows, n=len(picked), **arrays)


@dataclass(frozen=True, slots=True, eq=False)
class Canonical:
    """One normalised batch: what the fold takes."""

    requests: RequestRows | None = None
    traits: RequestTraits | None = None
    """Of `requests`, row by row; None where they are None."""
    samples: SampleRows | None = None
    dropped: Mapping[str, int] = field(default_factory=dict)
    """Rows left out, by reason."""
    notes: tuple[str, ...] = ()
    """Sentences for a person, one for each new conflict or refusal (bounded, deduplicated)."""


# configuration that several stages read


class Config(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Root of every configuration type: frozen, strict, keywords only."""


class Member(Config, frozen=True, kw_only=True):
    """One statically configured endpoint."""

    address: str
    """ip:port; a host name is refused, since receivers refuse it too."""
    id: str = ""
    """Defaults to the address."""
    node: str = ""
    """The machine it runs on; overrides and peers can refer to it."""
    zone: str = ""
    """Availability zone, handed on to agents."""
    role: Literal["both", "prefill", "decode"] = "both"
    """What it serves; peers and scores are per (pool, role)."""
    draining: bool = False
    """Finishes what it has and takes no new requests."""


class PoolMatch(Config, frozen=True, kw_only=True):
    """Which endpoints belong to a pool; every given field must match (shell-style patterns)."""

    service_name: str = ""
    """Pattern for `service.name` (of a scraped engine: the scrape job)."""
    model_name: str = ""
    """Pattern for the model that the engine itself reports (llama.cpp reports none)."""
    namespace: str = ""
    """Pattern for the Kubernetes namespace."""
    cluster: str = ""
    """Pattern for the Kubernetes cluster."""
    address: str = ""
    """Pattern for ip:port."""


Port: TypeAlias = Annotated[int, msgspec.Meta(ge=1, le=65535)]
AuthorityName: TypeAlias = Literal["observe", "veto", "weigh", "act"]
ProfileName: TypeAlias = Literal["expected-wait", "hardware"]
MembershipKind: TypeAlias = Literal["static", "file", "telemetry"]


class PoolConfig(Config, frozen=True, kw_only=True):
    """One pool as the operator describes it.

    `name: "*"` holds the defaults of unlisted pools. Without that entry, what reports in an
    unlisted pool is a member only if no pool is listed at all.
    """

    name: str
    """What everyone calls it."""
    match: PoolMatch = PoolMatch()
    """Which endpoints belong to it, beside its members."""
    membership: MembershipKind = "telemetry"
    """Who may receive requests: static (`members`), file (`file`), telemetry (all that report)."""
    members: tuple[Member, ...] = ()
    """The members of a static pool."""
    file: str = ""
    """Prometheus file_sd, JSON or YAML, re-read when it changes; labels as in `members[]`."""
    serving_port: Port | None = None
    """Where its endpoints take requests, if that is not the port that is scraped."""
    authority: AuthorityName = "observe"
    """How far decisions reach receivers: observe, veto (exclude only), weigh (lower only), act."""
    profile: ProfileName = "expected-wait"
    """How endpoints are scored."""
    max_shift: Annotated[float, msgspec.Meta(gt=0.0, le=1.0)] = 0.2
    """Authority `weigh`: the share of the pool's traffic that may move in ten minutes."""


class Override(Config, frozen=True, kw_only=True):
    """An operator's word; beats every decision except "never all excluded"."""

    scope: Literal["endpoint", "node", "pool", "all"]
    target: str = ""
    """Endpoint id or address, node or pool; "" for all."""
    action: Literal["pin", "cap", "drain", "exclude", "hold", "neutral", "off"]
    value: Annotated[int, msgspec.Meta(ge=0, le=10_000)] = 0
    """Weight for pin and cap."""
    owner: str = ""
    reason: str = ""
    expires_ns: int = 0
    """Wall time; 0 = never."""
    source: Literal["operator", "file"] = "operator"


# endpoints


class Role(IntEnum):
    """What an endpoint serves; peers and scores are per (pool, role)."""

    BOTH = 0
    PREFILL = 1
    DECODE = 2


class Authority(IntEnum):
    """How far decisions reach receivers, per pool."""

    OBSERVE = 0
    VETO = 1
    WEIGH = 2
    ACT = 3


class State(IntEnum):
    """The circuit's view of an endpoint, as published."""

    UNKNOWN = 0
    HEALTHY = 1
    DEGRADED = 2
    OPEN = 3
    HALF_OPEN = 4
    DRAINING = 5


@dataclass(frozen=True, slots=True, eq=False)
class Directory:
    """Who the endpoints are: a column per fact, indexed by slot. Rebuilt only when `version` moves.

    Every endpoint array of every stage has the length of `id`, which grows in steps. A slot is in
    use where `known`; a slot is reused only after `retired` announced it, an id never within one
    process. `pool` indexes `pools`; -1 = no pool.
    """

    version: int
    id: tuple[str, ...]
    address: tuple[str, ...]
    """`ip:port` to send requests to; "" = none, so never published as a target."""
    node: tuple[str, ...]
    engine: tuple[str, ...]
    zone: tuple[str, ...]
    models: tuple[tuple[str, ...], ...]
    pools: tuple[str, ...]
    pool: Int32s
    role: Bytes
    known: Bools
    member: Bools
    """The membership source says that it may receive requests."""
    draining: Bools

    @property
    def n(self) -> int:
        """The number of slots."""
        return len(self.id)

    def slots(self) -> npt.NDArray[np.intp]:
        """The slots in use, in id order."""
        used = np.flatnonzero(self.known)
        return used[np.argsort(np.array([self.id[i] for i in used]), kind="stable")]


# fold -> decide


@dataclass(frozen=True, slots=True, eq=False)
class SignalMatrix:
    """The endpoint signal matrix at one tick: float64[len(SIGNALS), n slots] each.

    `value` NaN = never seen or ended. `age_s` counts from the newest sample behind the value (inf =
    never). `interval_s` is the observed gap between samples (NaN = fewer than two seen).
    """

    value: Floats
    age_s: Floats
    interval_s: Floats


@dataclass(frozen=True, slots=True, eq=False)
class RequestWindow:
    """Requests per endpoint in the newest window, one column a slot, one observer an endpoint.

    Each count comes from the best observer there is for it; `*_observer` int8[n] says which
    (-1 = none). Medians are over the window, NaN without samples.
    """

    seconds: float
    calls: Floats
    failures: Floats
    overloads: Floats
    failure_calls: Floats
    """Calls as counted by the observer of failures (the ratio's denominator)."""
    refused: Floats
    prompt_tokens: Floats
    output_tokens: Floats
    ttft_p50_s: Floats
    ttft_n: Floats
    duration_p50_s: Floats
    duration_n: Floats
    calls_observer: npt.NDArray[np.int8]
    failures_observer: npt.NDArray[np.int8]
    ttft_observer: npt.NDArray[np.int8]


@dataclass(frozen=True, slots=True, eq=False)
class Observation:
    """Everything that a tick decides from.

    `windows` are keyed by length in seconds. `heard_age_s` counts from the last sign of life of any
    kind, `down_samples` is the number of `up = 0` in a row, `up_samples` of `up = 1` (both int32),
    `refused_recent` the refused connections of the last 3 s, `catching_up` slots whose source
    replays old data and moves no decision.
    """

    directory: Directory
    signals: SignalMatrix
    windows: Mapping[int, RequestWindow]
    heard_age_s: Floats
    report_interval_s: Floats
    """The fastest observed interval of any of the endpoint's sources; NaN = not known yet."""
    down_samples: Int32s
    up_samples: Int32s
    refused_recent: Floats
    catching_up: Bools


# decide -> publish

MAX_REASONS: Final = 8


@dataclass(frozen=True, slots=True, eq=False)
class PoolDecision:
    """What holds for a whole pool."""

    name: str
    authority: Authority
    frozen: bool
    off: bool
    note: str
    """Plain-language reason when the pool is not in its normal course; "" otherwise."""


@dataclass(frozen=True, slots=True, eq=False)
class Event:
    """Something that a person wants to know: a state change, an override, a conflict."""

    time_ns: int
    kind: str
    endpoint: str
    pool: str
    text: str


@dataclass(frozen=True, slots=True, eq=False)
class Snapshot:
    """Everything decided at one tick. Columns have the directory's length; read where `known`.

    `weight` and `state` are what receivers are told after authority and overrides;
    `decided_weight` and `decided_state` what Tailrace would do with authority `act`. `reason_*` are
    [n, MAX_REASONS], strongest first, `reason_signal` indexing `signals.SIGNALS` (-1 = none).
    """

    epoch: int
    time_ns: int
    directory: Directory
    target: Bools
    weight: UInt32s
    state: Bytes
    admission: Floats
    confidence: Floats
    decided_weight: UInt32s
    decided_state: Bytes
    score: Floats
    reason_signal: Int32s
    reason_value: Floats
    reason_peer: Floats
    reason_points: Floats
    reason_observer: Int32s
    rule: tuple[str, ...]
    pools: tuple[PoolDecision, ...]
    events: tuple[Event, ...]
