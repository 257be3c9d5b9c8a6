"""Data points of any engine, DCGM exporter or agent -> canonical samples of known endpoints.

Enters: decoded `PointColumns`. Leaves: `SampleRows`, and a count for every point that is left out.
Names are matched per distinct name of the batch, labels through dictionary codes; nothing is done
per point in Python. Which target is an engine is remembered, since a page that is down carries
`up = 0` and nothing else.
"""

from collections import Counter, OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

import numpy as np
import xxhash

from pipeline.clock import Instant
from pipeline.model import (
    NO_RECORDED_VALUE,
    Attributes,
    Bools,
    Canonical,
    Dictionary,
    Floats,
    Int32s,
    Int64s,
    PointColumns,
    PointKind,
    Rights,
    Role,
    SampleRows,
    Sender,
    Temporality,
    UInt64s,
)
from pipeline.normalise import units
from pipeline.normalise.engines import (
    ANY,
    ENGINES,
    RULES,
    Kind,
    Rule,
    choose,
    component_of,
    is_companion,
    match,
)
from pipeline.signals import COMPONENTS

MAX_NAMES: Final = 8192
"""Metric names remembered; a fleet of every engine shows about 400."""
MAX_TARGETS: Final = 16_384
"""Scrape targets remembered as engines; the longest unheard one is forgotten first."""

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
NAMESPACE: Final = ("exported_namespace", "namespace", "pod_namespace")
POD: Final = ("exported_pod", "pod", "pod_name")
NODE: Final = ("Hostname", "hostname")
ROLES: Final = {"prefill": Role.PREFILL, "decode": Role.DECODE}

_OTHER: Final = len(ENGINES)
"""Engine number of an endpoint that named itself but is of no engine we know."""
_NO_ENGINE: Final = _OTHER + 1
_MIX: Final = np.uint64(0x9E3779B97F4A7C15)  # 2^64 / golden ratio
_MIX_2: Final = np.uint64(0xBF58476D1CE4E5B9)  # splitmix64's multiplier

_RULE_ENGINE: Final = [rule.engine for rule in RULES]
_RULE_KIND: Final = np.array([rule.kind for rule in RULES], np.int8)
_RULE_COMPONENT: Final = np.array([component_of(rule.component) for rule in RULES], np.int32)
_RULE_USED: Final = np.array([bool(rule.component or rule.parts) for rule in RULES])
_PART_HASH: Final = {
    text: np.uint64(xxhash.xxh3_64_intdigest(text.encode()))
    for rule in RULES
    for text in rule.parts
}
_RULE_ENGINE_NUMBER: Final = np.array(
    [ENGINES.index(e) if e in ENGINES else _NO_ENGINE for e in _RULE_ENGINE], np.int32
)
_RULE_IS_TARGET: Final = np.isin(_RULE_ENGINE, ("target",))
_RULE_IS_GUEST: Final = np.isin(_RULE_ENGINE, ("genai", "agent"))
_RULE_IS_NODE: Final = np.isin(_RULE_ENGINE, ("dcgm", "dcgm_exp", "agent"))
_RULE_IS_GPU: Final = np.isin(_RULE_ENGINE, ("dcgm", "dcgm_exp", "triton"))
_COMPONENT_IS_RATIO: Final = np.array([c.unit == "ratio" for c in COMPONENTS])


class EndpointResolver(Protocol):
    """Who is behind a resource or a pod: the part of identity that metrics need."""

    def scraped(
        self,
        resources: Attributes,
        strings: Dictionary,
        engine: Sequence[str],
        model: Sequence[str],
        sender: Sender,
        now: Instant,
    ) -> Int32s:
        """Slot of the endpoint behind each resource that is an engine's target, -1 = none."""

    def by_pod_or_node(
        self, namespace: Int32s, pod: Int32s, node: Int32s, strings: Dictionary, now: Instant
    ) -> Int32s:
        """Slot of the endpoint in each pod, else alone on each node, -1 = none."""

    def set_role(self, slot: int, role: Role) -> None:
        """The engine says which role it has."""


class _Target(NamedTuple):
    """What is remembered of an engine's scrape target."""

    engine: str
    model: str
    role: str


@dataclass(slots=True)
class _Points:
    """The points of a batch that a rule reads; arrays have one entry per such point."""

    at: np.ndarray[tuple[int], np.dtype[np.intp]]
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


class PointNormaliser:
    """Keeps what outlives a batch: matched names and which targets are engines."""

    def __init__(self, max_names: int = MAX_NAMES, max_targets: int = MAX_TARGETS) -> None:
        """Remember at most so many names and targets."""
        self._max_names = max_names
        self._max_targets = max_targets
        self._names: dict[tuple[str, str, int], _Reading] = {}
        self._targets: OrderedDict[int, _Target] = OrderedDict()

    def normalise_points(
        self, columns: PointColumns, identity: EndpointResolver, sender: Sender, now: Instant
    ) -> Canonical:
        """Samples of known endpoints; `dropped` accounts for every other point of `columns`."""
        if not columns.n:
            return Canonical()
        if not sender.rights & Rights.METRICS:
            return Canonical(dropped={"sender_rights": columns.n})
        dropped: Counter[str] = Counter()
        matched = self._match(columns, dropped)
        points = _select(columns, matched)
        if not len(points.at):
            return Canonical(dropped=+dropped)
        _resolve_labels(points, columns, matched.present, dropped)
        _check_values(points, columns, dropped)
        _drop_priorities(points, columns, dropped)
        source = resource_hashes(columns.resources, columns.strings)
        slot = self._slots(points, columns, source, identity, sender, now)
        known = slot >= 0
        if not known.all():
            dropped["no_endpoint"] += int((~known).sum())
            points.keep(known)
        return Canonical(samples=_samples(points, columns, slot[known], source), dropped=+dropped)

    def _match(self, columns: PointColumns, dropped: Counter[str]) -> "_Matched":
        """What every metric of the batch means."""
        metrics = columns.metrics
        # Codes stay below 2^28: a batch holds at most 64 MiB of text.
        packed = (metrics.name.astype(np.int64) << 34) | (metrics.unit.astype(np.int64) + 1) << 5
        packed |= (metrics.temporality << 3) | metrics.kind
        _, first, inverse = np.unique(packed, return_index=True, return_inverse=True)
        readings = [self._read(columns, row, packed) for row in first.tolist()]
        rule = np.array([reading.rule for reading in readings], np.int32)[inverse]
        scale = np.array([reading.scale for reading in readings])[inverse]
        present = {reading.rule for reading in readings}
        # Metrics that share a name, unit and type may still be told apart by their help text.
        for k, reading in enumerate(readings):
            if reading.needs_help:
                for row in np.flatnonzero(inverse == k).tolist():
                    rule[row], scale[row] = self._with_help(columns, row)
                    present.add(int(rule[row]))
        points = np.bincount(columns.metric, minlength=len(rule))
        points = np.bincount(inverse, points, len(readings)).astype(np.int64)
        for reading, count in zip(readings, points.tolist(), strict=True):
            if reading.reason:
                dropped[reading.reason] += count
            if reading.clash:
                dropped["unit_mismatch"] += count
        return _Matched(rule, scale, sorted(present - {-1}))

    def _read(self, columns: PointColumns, row: int, packed: Int64s) -> "_Reading":
        """What a metric means by its name, type and unit; remembered."""
        metrics, text = columns.metrics, columns.strings.text
        name, unit = text(int(metrics.name[row])), text(int(metrics.unit[row]))
        key = (name, unit, int(packed[row]) & 31)
        known = self._names.get(key)
        if known is None:
            if len(self._names) >= self._max_names:
                self._names.clear()
            is_delta = metrics.temporality[row] == Temporality.DELTA
            known = _reading(name, unit, int(metrics.kind[row]), bool(is_delta), "")
            self._names[key] = known
        return known

    def _with_help(self, columns: PointColumns, row: int) -> tuple[int, float]:
        metrics, text = columns.metrics, columns.strings.text
        name, unit = text(int(metrics.name[row])), text(int(metrics.unit[row]))
        help_text = text(int(metrics.description[row]))
        is_delta = metrics.temporality[row] == Temporality.DELTA
        reading = _reading(name, unit, int(metrics.kind[row]), bool(is_delta), help_text)
        return reading.rule, reading.scale

    def _slots(
        self,
        points: _Points,
        columns: PointColumns,
        source: UInt64s,
        identity: EndpointResolver,
        sender: Sender,
        now: Instant,
    ) -> Int32s:
        """int32 slot of every point, -1 = of no endpoint."""
        engine = _engine_numbers(points, columns.resources)
        targets = self._remember(points, columns, engine, source)
        by_resource = identity.scraped(
            columns.resources,
            columns.strings,
            [target.engine for target in targets],
            [target.model for target in targets],
            sender,
            now,
        )
        for slot, target in zip(by_resource.tolist(), targets, strict=True):
            if slot >= 0 and target.role in ROLES:
                identity.set_role(slot, ROLES[target.role])
        slot = by_resource[points.resource]
        # The resource of a DCGM point is its exporter, whose own pod is never the endpoint.
        is_target = np.array([bool(target.engine) for target in targets], np.bool_)
        of_node = np.flatnonzero(_RULE_IS_NODE[points.rule] & ~is_target[points.resource])
        if len(of_node):
            slot[of_node] = _node_slots(points, of_node, columns, identity, now)
        return slot

    def _remember(
        self, points: _Points, columns: PointColumns, engine: Int32s, source: UInt64s
    ) -> list[_Target]:
        """What each resource is: as this batch shows it, else as an earlier one did."""
        models = _first_text(points, columns, engine, ("model_name", "model"))
        roles = _first_text(points, columns, engine, ("engine_type",))
        names = (*ENGINES, "other", "")
        targets = []
        for r, key in enumerate(source.tolist()):
            old = self._targets.get(key, _Target("", "", ""))
            number = int(engine[r])
            if number == _NO_ENGINE:
                targets.append(old)
                continue
            target = _Target(names[number], models[r] or old.model, roles[r] or old.role)
            self._targets[key] = target
            self._targets.move_to_end(key)
            targets.append(target)
        while len(self._targets) > self._max_targets:
            self._targets.popitem(last=False)
        return targets


class _Reading(NamedTuple):
    """What a metric name means for one type and unit."""

    rule: int = -1
    scale: float = 1.0
    reason: str = ""
    """Why nothing is read from it."""
    clash: bool = False
    needs_help: bool = False


class _Matched(NamedTuple):
    """What the metrics of a batch mean: rule (-1 = nothing to read) and scale of each."""

    rule: Int32s
    scale: Floats
    present: list[int]
    """The rules that occur."""


def _reading(name: str, unit: str, kind: int, is_delta: bool, help_text: str) -> _Reading:
    found = match(name)
    if not found.rules:
        is_foreign = found.engine in ("", "agent") or is_companion(name)
        return _Reading(reason="foreign_metric" if is_foreign else "unknown_metric")
    index = choose(found.rules, kind, help_text)
    rule = RULES[max(index, 0)]
    if index < 0 or (is_delta and rule.kind in (Kind.GAUGE, Kind.INFO)):
        return _Reading(reason="type_mismatch")
    if not _RULE_USED[index]:
        return _Reading(reason="unused_metric")
    named = units.of_help(rule.unit, help_text) if rule.help_unit else rule.unit
    believed, clash = units.believed(named, unit)
    needs_help = rule.help_unit or len(found.rules) > 1
    return _Reading(index, _scale(index, believed), "", clash, needs_help)


def resource_hashes(resources: Attributes, strings: Dictionary) -> UInt64s:
    """uint64[n resources] hash of what tells a sender apart, equal in every batch."""
    return _mixed(resources, strings, SOURCE_KEYS, slice(None))


def _mixed(
    attributes: Attributes,
    strings: Dictionary,
    keys: Sequence[str],
    at: slice | np.ndarray[tuple[int], np.dtype[np.intp]],
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


def _select(columns: PointColumns, matched: _Matched) -> _Points:
    rule = matched.rule[columns.metric]
    at = np.flatnonzero(rule >= 0)
    metric = columns.metric[at]
    rule = rule[at]
    is_summary = columns.metrics.kind[metric] == PointKind.SUMMARY
    return _Points(
        at=at,
        rule=rule,
        resource=columns.resource[at],
        component=_RULE_COMPONENT[rule],
        value=columns.value[at],
        scale=matched.scale[metric],
        ended=(columns.flags[at] & NO_RECORDED_VALUE) != 0,
        count=np.where(is_summary, columns.count[at], np.nan),
    )


def _scale(index: int, unit: str) -> float:
    """Factor from `unit` to the unit of the rule's component."""
    rule = RULES[index]
    name = rule.component or next(c for c in rule.parts.values() if c)
    wanted = COMPONENTS[component_of(name)].unit
    return units.factor(unit, wanted)


def _resolve_labels(
    points: _Points, columns: PointColumns, present: list[int], dropped: Counter[str]
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


def _label_numbers(
    columns: PointColumns, key: str, at: np.ndarray[tuple[int], np.dtype[np.intp]]
) -> Floats:
    """The numbers that label `key` spells; NaN where it is absent or no number."""
    codes = columns.attributes.codes(key)[at]
    distinct, inverse = np.unique(codes, return_inverse=True)
    return np.array([_number(columns.strings.text(code)) for code in distinct.tolist()])[inverse]


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return np.nan


def _check_values(points: _Points, columns: PointColumns, dropped: Counter[str]) -> None:
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


def _drop_priorities(points: _Points, columns: PointColumns, dropped: Counter[str]) -> None:
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


def _engine_numbers(points: _Points, resources: Attributes) -> Int32s:
    """int32[n resources]: index in `ENGINES`, `_OTHER`, or `_NO_ENGINE`."""
    engine = np.full(resources.n, _NO_ENGINE, np.int32)
    np.minimum.at(engine, points.resource, _RULE_ENGINE_NUMBER[points.rule])
    is_guest = np.zeros(resources.n, np.bool_)
    is_guest[points.resource[_RULE_IS_GUEST[points.rule]]] = True
    named = resources.codes("tailrace.endpoint") >= 0
    return np.where(is_guest & named & (engine == _NO_ENGINE), np.int32(_OTHER), engine)


def _first_text(
    points: _Points, columns: PointColumns, engine: Int32s, keys: Sequence[str]
) -> list[str]:
    """Per resource, the first value of the first of `keys` that one of its engine points has."""
    found = np.full(columns.resources.n, -1, np.int32)
    of_engine = (engine < _OTHER)[points.resource] & (_RULE_ENGINE_NUMBER[points.rule] < _OTHER)
    for key in reversed(keys):
        column = columns.attributes.text.get(key)
        if column is None:
            continue
        codes = column[points.at]
        rows = np.flatnonzero(of_engine & (codes >= 0))[::-1]
        found[points.resource[rows]] = codes[rows]  # the last write, the first in the batch, wins
    return [columns.strings.text(code) for code in found.tolist()]


def _first_code(
    attributes: Attributes, keys: Sequence[str], at: np.ndarray[tuple[int], np.dtype[np.intp]]
) -> Int32s:
    """int32 codes of the first of `keys` that each item `at` has."""
    found = np.full(len(at), -1, np.int32)
    for key in keys:
        column = attributes.text.get(key)
        if column is not None:
            found = np.where(found < 0, column[at], found)
    return found


def _node_slots(
    points: _Points,
    rows: np.ndarray[tuple[int], np.dtype[np.intp]],
    columns: PointColumns,
    identity: EndpointResolver,
    now: Instant,
) -> Int32s:
    """Slots of points that name a pod or a node instead of an endpoint.

    The exporter's own pod, in its resource, is never the endpoint; an agent's resource is.
    """
    at, resource = points.at[rows], points.resource[rows].astype(np.intp)
    is_agent = _RULE_IS_GUEST[points.rule[rows]]
    namespace = _first_code(columns.attributes, NAMESPACE, at)
    pod = _first_code(columns.attributes, POD, at)
    own = is_agent & (pod < 0)
    pod = np.where(own, columns.resources.codes("k8s.pod.name")[resource], pod)
    namespace = np.where(own, columns.resources.codes("k8s.namespace.name")[resource], namespace)
    node = _first_code(columns.attributes, NODE, at)
    of_resource = _first_code(columns.resources, ("k8s.node.name", "host.name"), resource)
    node = np.where(node < 0, of_resource, node)
    where = np.stack([namespace, pod, node], axis=1)
    distinct, inverse = np.unique(where, axis=0, return_inverse=True)
    slots = identity.by_pod_or_node(
        distinct[:, 0], distinct[:, 1], distinct[:, 2], columns.strings, now
    )
    return slots[inverse.reshape(-1)]


def _samples(points: _Points, columns: PointColumns, slot: Int32s, source: UInt64s) -> SampleRows:
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


def _gpu_hashes(columns: PointColumns, at: np.ndarray[tuple[int], np.dtype[np.intp]]) -> UInt64s:
    """uint64 hash of the GPU, or slice of one, that each point is about; 0 = none."""
    attributes, strings = columns.attributes, columns.strings
    hashes = strings.hashes
    code = _first_code(attributes, GPU_UUID, at)
    code = np.where(code < 0, _first_code(attributes, ("pci_bus_id", "gpu", "device"), at), code)
    gpu = np.where(code >= 0, hashes[np.maximum(code, 0)], np.uint64(0))
    return gpu ^ _mixed(attributes, strings, ("GPU_I_ID",), at)
