"""The points of a batch that mean something: labels read, values checked, laid out as samples.

Enters: decoded `PointColumns`, and what each of their metrics means (`Matched`). Leaves: `Points`,
columns that every step makes shorter, with a count for what it leaves out, and `SampleRows` at the
end. Labels are read once per distinct value.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

import numpy as np
import xxhash

from pipeline.model import (
    NO_RECORDED_VALUE,
    Attributes,
    Bools,
    Dictionary,
    Floats,
    Int32s,
    PointColumns,
    PointKind,
    SampleRows,
    Temporality,
    UInt64s,
)
from pipeline.normalise.endpoint import is_name
from pipeline.normalise.engines import ANY, ENGINES, RULES, Kind, Rule, component_of
from pipeline.signals import COMPONENTS

Rows: TypeAlias = np.ndarray[tuple[int], np.dtype[np.intp]]

SOURCE_KEYS: Final = (
    *("service.name", "service.namespace", "service.instance.id", "tailrace.endpoint"),
    *("host.name", "host.id", "k8s.cluster.name", "k8s.namespace.name", "k8s.node.name"),
    *("k8s.pod.name", "k8s.pod.uid", "k8s.container.name"),
    *("server.address", "server.port", "net.host.name", "net.host.port"),
)
"""Resource attributes that tell senders apart; ids of processes and containers are not among
them."""
DATA_RANK: Final = ("engine", "dp_rank")
SHARD_RANK: Final = ("tp_rank", "pp_rank", "moe_ep_rank")
GPU_UUID: Final = ("UUID", "uuid", "gpu_uuid")

OTHER: Final = len(ENGINES)
"""Engine number of an endpoint that named itself but is of no engine we know."""
NO_ENGINE: Final = OTHER + 1
_MIX: Final = np.uint64(0x9E3779B97F4A7C15)  # 2^64 / golden ratio
_MIX_2: Final = np.uint64(0xBF58476D1CE4E5B9)  # splitmix64's multiplier

_RULE_KIND: Final = np.array([rule.kind for rule in RULES], np.int8)
_RULE_COMPONENT: Final = np.array([component_of(rule.component) for rule in RULES], np.int32)
_PART_HASH: Final = {
    text: np.uint64(xxhash.xxh3_64_intdigest(text.encode()))
    for rule in RULES
    for text in rule.parts
}
_RULE_ENGINE: Final = [rule.engine for rule in RULES]
_RULE_ENGINE_NUMBER: Final = np.array(
    [ENGINES.index(e) if e in ENGINES else NO_ENGINE for e in _RULE_ENGINE], np.int32
)
_RULE_IS_GUEST: Final = np.isin(_RULE_ENGINE, ("genai", "agent"))
_RULE_IS_NODE: Final = np.isin(_RULE_ENGINE, ("dcgm", "dcgm_exp", "agent"))
_RULE_IS_GPU: Final = np.isin(_RULE_ENGINE, ("dcgm", "dcgm_exp", "triton"))
_COMPONENT_IS_RATIO: Final = np.array([c.unit == "ratio" for c in COMPONENTS])


class Matched(NamedTuple):
    """What the metrics of a batch mean: rule (-1 = nothing to read) and scale of each."""

    rule: Int32s
    scale: Floats
    present: list[int]
    """The rules that occur."""


@dataclass(slots=True)
class Points:
    """The points of a batch that a rule reads; arrays have one entry per such point."""

    at: Rows
    """Their positions in the batch."""
    rule: Int32s
    resource: Int32s
    component: Int32s
    value: Floats
    scale: Floats
    ended: Bools
    count: Floats

    def keep(self, mask: Bools) -> None:
        """Only those in `mask` from here on."""
        for name in self.__slots__:
            setattr(self, name, getattr(self, name)[mask])

    @property
    def is_guest(self) -> Bools:
        """bool[k]: of a metric that comes from beside an engine: GenAI conventions, the agent."""
        return _RULE_IS_GUEST[self.rule]

    @property
    def is_of_node(self) -> Bools:
        """bool[k]: of a metric that is about a node or a GPU, whoever reports it."""
        return _RULE_IS_NODE[self.rule]


def select(columns: PointColumns, matched: Matched) -> Points:
    """The points that a rule reads, with values as sent."""
    rule = matched.rule[columns.metric]
    at = np.flatnonzero(rule >= 0)
    metric = columns.metric[at]
    rule = rule[at]
    is_summary = columns.metrics.kind[metric] == PointKind.SUMMARY
    return Points(
        at=at,
        rule=rule,
        resource=columns.resource[at],
        component=_RULE_COMPONENT[rule],
        value=columns.value[at],
        scale=matched.scale[metric],
        ended=(columns.flags[at] & NO_RECORDED_VALUE) != 0,
        count=np.where(is_summary, columns.count[at], np.nan),
    )


def resolve_labels(
    points: Points, columns: PointColumns, present: list[int], dropped: Counter[str]
) -> None:
    """Components that depend on a label, values that are labels, codes that go along."""
    ended_info = False
    for index in present:
        rule = RULES[index]
        if not (rule.label or rule.product or rule.code):
            continue
        rows = np.flatnonzero(points.rule == index)
        at = points.at[rows]
        if rule.label:
            codes = columns.attributes.codes(rule.label)[at]
            points.component[rows] = _components(rule, columns.strings)[codes]
        if rule.product:
            points.value[rows] = 1.0
            for key in rule.product:
                points.value[rows] *= _label_numbers(columns, key, at)
            ended_info |= bool(points.ended[rows].any())
        if rule.code:
            points.count[rows] = _label_numbers(columns, rule.code, at)
    used = points.component >= 0
    if ended_info:
        # The end of an info series says that its labels changed; the next point has the new ones.
        used &= ~(points.ended & (_RULE_KIND[points.rule] == Kind.INFO))
    if not used.all():
        dropped["unused_metric"] += int((~used).sum())
        points.keep(used)


def _components(rule: Rule, strings: Dictionary) -> Int32s:
    """int32[len(strings) + 1] component by code of the label's value; the last is for code -1."""
    found = np.full(len(strings) + 1, component_of(rule.parts.get(ANY, "")), np.int32)
    for text, component in rule.parts.items():
        for code in np.flatnonzero(strings.hashes == _PART_HASH[text]).tolist():
            if strings.text(code) == text:
                found[code] = component_of(component)
    return found


def _label_numbers(columns: PointColumns, key: str, at: Rows) -> Floats:
    """The numbers that label `key` spells; NaN where it is absent or no number."""
    codes = columns.attributes.codes(key)[at]
    distinct, inverse = np.unique(codes, return_inverse=True)
    return np.array([_number(columns.strings.text(code)) for code in distinct.tolist()])[inverse]


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return np.nan


def check_values(points: Points, columns: PointColumns, dropped: Counter[str]) -> None:
    """Scale numbers; leave out what is no number, infinite or negative. None of ours is below 0."""
    is_histogram = columns.histogram[points.at] >= 0
    points.value = points.value * points.scale
    good = is_histogram | points.ended | (np.isfinite(points.value) & (points.value >= 0.0))
    if not good.all():
        bad_label = ~good & (_RULE_KIND[points.rule] == Kind.INFO)
        dropped["bad_label"] += int(bad_label.sum())
        dropped["bad_value"] += int((~good & ~bad_label).sum())
        points.keep(good)
    over = _COMPONENT_IS_RATIO[points.component] & (points.value > 1.0)
    if over.any():
        dropped["ratio_clamped"] += int(over.sum())
        points.value[over] = 1.0


def drop_priorities(points: Points, columns: PointColumns, dropped: Counter[str]) -> None:
    """Series per priority stand beside their total: drop them where the total is there too."""
    priority = columns.attributes.text.get("priority")
    if priority is None:
        return
    has = priority[points.at] >= 0
    metric = columns.metric[points.at]
    has_total = np.zeros(len(columns.metrics.name), np.bool_)
    has_total[metric[~has]] = True
    extra = has & has_total[metric]
    if extra.any():
        dropped["part_of_total"] += int(extra.sum())
        points.keep(~extra)


def engine_numbers(points: Points, resources: Attributes) -> Int32s:
    """int32[n resources]: index in `ENGINES`, `OTHER`, or `NO_ENGINE`."""
    engine = np.full(resources.n, NO_ENGINE, np.int32)
    np.minimum.at(engine, points.resource, _RULE_ENGINE_NUMBER[points.rule])
    is_guest = np.zeros(resources.n, np.bool_)
    is_guest[points.resource[points.is_guest]] = True
    named = resources.codes("tailrace.endpoint") >= 0
    return np.where(is_guest & named & (engine == NO_ENGINE), np.int32(OTHER), engine)


def first_text(
    points: Points, columns: PointColumns, engine: Int32s, keys: Sequence[str]
) -> list[str]:
    """Per resource, the first value of the first of `keys` that one of its engine points has.

    "" where it is none that may name something.
    """
    found = np.full(columns.resources.n, -1, np.int32)
    of_engine = (engine < OTHER)[points.resource] & (_RULE_ENGINE_NUMBER[points.rule] < OTHER)
    for key in reversed(keys):
        column = columns.attributes.text.get(key)
        if column is None:
            continue
        codes = column[points.at]
        rows = np.flatnonzero(of_engine & (codes >= 0))[::-1]
        found[points.resource[rows]] = codes[rows]  # the last write, the first in the batch, wins
    texts = [columns.strings.text(code) for code in found.tolist()]
    return [text if is_name(text) else "" for text in texts]


def first_code(attributes: Attributes, keys: Sequence[str], at: Rows) -> Int32s:
    """int32 codes of the first of `keys` that each item `at` has."""
    found = np.full(len(at), -1, np.int32)
    for key in keys:
        column = attributes.text.get(key)
        if column is not None:
            found = np.where(found < 0, column[at], found)
    return found


def samples(points: Points, columns: PointColumns, slot: Int32s, source: UInt64s) -> SampleRows:
    """The samples of `points`, of endpoints `slot` int32[k]; `source` uint64[n resources]."""
    at, attributes, strings = points.at, columns.attributes, columns.strings
    group = _mixed(attributes, strings, DATA_RANK, at)
    gpu = np.flatnonzero(_RULE_IS_GPU[points.rule])
    if len(gpu):
        group[gpu] ^= _gpu_hashes(columns, at[gpu])
    shard = _mixed(attributes, strings, SHARD_RANK, at)
    own_source = source[points.resource]
    series = columns.series[at]
    info = np.flatnonzero(_RULE_KIND[points.rule] == Kind.INFO)
    if len(info):  # one series whatever the labels say, so that a new value replaces the old
        part = points.component[info].astype(np.uint64) * _MIX_2
        series[info, 0] = own_source[info] * _MIX_2
        series[info, 1] = (group[info] ^ (shard[info] * _MIX)) + part
    metric = columns.metric[at]
    delta = columns.metrics.temporality[metric] == Temporality.DELTA
    return SampleRows(
        n=len(at),
        slot=slot.astype(np.int32),
        component=points.component,
        series=series,
        start_ns=columns.start_ns[at],
        time_ns=columns.time_ns[at],
        value=points.value,
        delta=delta,
        ended=points.ended,
        group=group,
        shard=shard,
        count=points.count,
        histogram=columns.histogram[at],
        scale=points.scale,
        histograms=columns.histograms,
        source=own_source,
    )


def _gpu_hashes(columns: PointColumns, at: Rows) -> UInt64s:
    """uint64 hash of the GPU, or slice of one, that each point is about; 0 = none."""
    attributes, strings = columns.attributes, columns.strings
    hashes = strings.hashes
    code = first_code(attributes, GPU_UUID, at)
    code = np.where(code < 0, first_code(attributes, ("pci_bus_id", "gpu", "device"), at), code)
    gpu = np.where(code >= 0, hashes[np.maximum(code, 0)], np.uint64(0))
    return gpu ^ _mixed(attributes, strings, ("GPU_I_ID",), at)


def resource_hashes(resources: Attributes, strings: Dictionary) -> UInt64s:
    """uint64[n resources] hash of what tells a sender apart, equal in every batch."""
    return _mixed(resources, strings, SOURCE_KEYS, slice(None))


def _mixed(
    attributes: Attributes,
    strings: Dictionary,
    keys: Sequence[str],
    at: slice | Rows,
) -> UInt64s:
    """uint64 hash of the values of `keys` for the items `at`; 0 where none of them is present."""
    mixed = np.zeros(len(range(attributes.n)[at]) if isinstance(at, slice) else len(at), np.uint64)
    if not len(strings):
        return mixed
    for place, key in enumerate(keys, 1):
        column = attributes.text.get(key)
        if column is None:
            continue
        codes = column[at]
        hashed = (strings.hashes[np.maximum(codes, 0)] + np.uint64(place)) * _MIX
        mixed ^= np.where(codes >= 0, hashed ^ (hashed >> np.uint64(29)), np.uint64(0))
    return mixed
