"""Reads what new series mean from their names and labels, once in a series' life.

Enters: rows of a decoded batch. Leaves: a shape and a group each. Names are matched per distinct
name, labels read once per distinct value.
"""

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import xxhash

from pipeline.model import (
    Attributes,
    Dictionary,
    Floats,
    Int32s,
    Int64s,
    PointColumns,
    PointKind,
    Temporality,
    UInt64s,
)
from pipeline.normalise import units
from pipeline.normalise.endpoint import is_name
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
from pipeline.normalise.points import Rows
from pipeline.normalise.shapes import NO_ENGINE, OTHER, REASONS, Flag
from pipeline.normalise.texts import Texts
from pipeline.signals import COMPONENTS

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

_MIX: Final = np.uint64(0x9E3779B97F4A7C15)  # 2^64 / golden ratio
_UNUSED: Final = REASONS.index("unused_metric")

_RULE_KIND: Final = np.array([rule.kind for rule in RULES], np.int8)
_RULE_COMPONENT: Final = np.array([component_of(rule.component) for rule in RULES], np.int64)
_RULE_ENGINE: Final = [rule.engine for rule in RULES]
_RULE_ENGINE_NUMBER: Final = np.array(
    [ENGINES.index(e) if e in ENGINES else NO_ENGINE for e in _RULE_ENGINE], np.int64
)
_RULE_IS_GUEST: Final = np.isin(_RULE_ENGINE, ("genai", "agent"))
_RULE_IS_NODE: Final = np.isin(_RULE_ENGINE, ("dcgm", "dcgm_exp", "agent"))
_RULE_IS_GPU: Final = np.isin(_RULE_ENGINE, ("dcgm", "dcgm_exp", "triton"))
_RULE_HAS_CODE: Final = np.array([bool(rule.code) for rule in RULES])
_RULE_USED: Final = np.array([bool(rule.component or rule.parts) for rule in RULES])
_PART_HASH: Final = {
    text: np.uint64(xxhash.xxh3_64_intdigest(text.encode()))
    for rule in RULES
    for text in rule.parts
}
_IS_RATIO: Final = np.array([c.unit == "ratio" for c in COMPONENTS])


class Reading(NamedTuple):
    """What a metric name means for one type and unit."""

    rule: int = -1
    scale: float = 1.0
    reason: int = 0
    """Why nothing is read from it, index of `REASONS`."""
    clash: bool = False
    needs_help: bool = False


class Labels:
    """Reads series; keeps the meaning of names."""

    def __init__(self, max_names: int, texts: Texts) -> None:
        """Remember at most so many names; models and roles are numbered in `texts`."""
        self._max_names = max_names
        self._texts = texts
        self._names: dict[tuple[str, str, int], Reading] = {}

    def __len__(self) -> int:
        """How many names are remembered."""
        return len(self._names)

    def read(self, columns: PointColumns, rows: Rows) -> tuple[dict[str, Any], UInt64s]:
        """(columns of `shapes.COLUMNS`, hash of the data-parallel rank or GPU) of `rows`."""
        matched = self._match(columns, columns.metric[rows])
        rule, used = matched.rule, matched.rule >= 0
        any_rule = np.maximum(rule, 0)
        read = {
            "reason": matched.reason,
            "component": np.where(used, _RULE_COMPONENT[any_rule], -1),
            "scale": matched.scale,
            "value": np.full(len(rows), np.nan),
            "code": np.full(len(rows), np.nan),
            "shard": _mixed(columns.attributes, columns.strings, SHARD_RANK, rows),
            "help": matched.help,
        }
        for index in np.unique(rule[used]).tolist():
            if RULES[index].label or RULES[index].product or RULES[index].code:
                _read_labels(RULES[index], np.flatnonzero(rule == index), rows, columns, read)
        read["reason"] = np.where(used & (read["component"] < 0), _UNUSED, read["reason"])
        read |= self._engines(columns, rows, any_rule, used)
        read["flags"] = _flags(columns, rows, matched, read)
        group = _mixed(columns.attributes, columns.strings, DATA_RANK, rows)
        gpu = np.flatnonzero(used & _RULE_IS_GPU[any_rule])
        if len(gpu):
            group[gpu] ^= _gpu_hashes(columns, rows[gpu])
        return read, group

    def _engines(
        self, columns: PointColumns, rows: Rows, rule: Int32s, used: np.ndarray[Any, Any]
    ) -> dict[str, Int64s]:
        """What each series says about the engine of its resource."""
        engine = np.where(used, _RULE_ENGINE_NUMBER[rule], NO_ENGINE)
        named = columns.resources.codes("tailrace.endpoint")[columns.resource[rows]] >= 0
        guest = used & _RULE_IS_GUEST[rule] & named
        of_engine = engine < OTHER
        texts = {}
        for column, keys in (("model", ("model_name", "model")), ("role", ("engine_type",))):
            codes = first_code(columns.attributes, keys, rows)
            texts[column] = self._numbers(np.where(of_engine, codes, -1), columns.strings)
        return {"engine": np.where(guest, OTHER, engine), **texts}

    def _numbers(self, codes: Int32s, strings: Dictionary) -> Int64s:
        """Numbers of the texts behind `codes`; 0 for -1."""
        distinct, inverse = np.unique(codes, return_inverse=True)
        texts = [strings.text(code) for code in distinct.tolist()]
        numbers = [
            self._texts.number(text if is_name(text) else "") if code >= 0 else 0
            for code, text in zip(distinct.tolist(), texts, strict=True)
        ]
        return np.array(numbers, np.int64)[inverse]

    def _match(self, columns: PointColumns, metric: Int32s) -> "_Matched":
        """What the metric of each row means."""
        metrics = columns.metrics
        here, of_row = np.unique(metric, return_inverse=True)
        readings = [self._reading(columns, row) for row in here.tolist()]
        needs_help = np.array([reading.needs_help for reading in readings])
        help_hash = np.where(needs_help, help_hashes(columns, here), np.uint64(0))
        is_clash = np.array([reading.clash for reading in readings])
        for i in np.flatnonzero(needs_help).tolist():
            readings[i] = self._with_help(columns, int(here[i]))
        delta = metrics.temporality[here] == Temporality.DELTA
        return _Matched(
            np.array([reading.rule for reading in readings], np.int64)[of_row],
            np.array([reading.scale for reading in readings])[of_row],
            np.array([reading.reason for reading in readings], np.int64)[of_row],
            (
                is_clash * Flag.CLASH
                | needs_help * Flag.HELP
                | delta * Flag.DELTA
                | (metrics.kind[here] == PointKind.SUMMARY) * Flag.SUMMARY
            )[of_row],
            help_hash[of_row],
        )

    def _reading(self, columns: PointColumns, row: int) -> Reading:
        """What a metric means by its name, type and unit; remembered."""
        metrics, text = columns.metrics, columns.strings.text
        name, unit = text(int(metrics.name[row])), text(int(metrics.unit[row]))
        kind, temporality = int(metrics.kind[row]), int(metrics.temporality[row])
        key = (name, unit, temporality << 3 | kind)
        known = self._names.get(key)
        if known is None:
            if len(self._names) >= self._max_names:
                self._names.clear()
            known = reading_of(name, unit, kind, temporality == Temporality.DELTA, "")
            self._names[key] = known
        return known

    def _with_help(self, columns: PointColumns, row: int) -> Reading:
        metrics, text = columns.metrics, columns.strings.text
        name, unit = text(int(metrics.name[row])), text(int(metrics.unit[row]))
        is_delta = bool(metrics.temporality[row] == Temporality.DELTA)
        help_text = text(int(metrics.description[row]))
        return reading_of(name, unit, int(metrics.kind[row]), is_delta, help_text)


class _Matched(NamedTuple):
    """What the metrics of some rows mean: rule (-1 = nothing to read), scale, and so on."""

    rule: Int64s
    scale: Floats
    reason: Int64s
    flags: Int64s
    help: UInt64s


def reading_of(name: str, unit: str, kind: int, is_delta: bool, help_text: str) -> Reading:
    """What a metric means."""
    found = match(name)
    if not found.rules:
        is_foreign = found.engine in ("", "agent") or is_companion(name)
        return Reading(reason=REASONS.index("foreign_metric" if is_foreign else "unknown_metric"))
    index = choose(found.rules, kind, help_text)
    rule = RULES[max(index, 0)]
    if index < 0 or (is_delta and rule.kind in (Kind.GAUGE, Kind.INFO)):
        return Reading(reason=REASONS.index("type_mismatch"))
    if not _RULE_USED[index]:
        return Reading(reason=_UNUSED)
    named = units.of_help(rule.unit, help_text) if rule.help_unit else rule.unit
    believed, clash = units.believed(named, unit)
    needs_help = rule.help_unit or len(found.rules) > 1
    return Reading(index, _scale(index, believed), 0, clash, needs_help)


def _scale(index: int, unit: str) -> float:
    """Factor from `unit` to the unit of the rule's component."""
    rule = RULES[index]
    name = rule.component or next(c for c in rule.parts.values() if c)
    wanted = COMPONENTS[component_of(name)].unit
    return units.factor(unit, wanted)


def help_hashes(columns: PointColumns, metric: Int64s | Int32s) -> UInt64s:
    """uint64[k]: hashes of the help texts of metrics; 0 = none."""
    code = columns.metrics.description[metric]
    if not len(columns.strings):
        return np.zeros(len(code), np.uint64)
    return np.where(code >= 0, columns.strings.hashes[np.maximum(code, 0)], np.uint64(0))


def _flags(columns: PointColumns, rows: Rows, matched: _Matched, read: dict[str, Any]) -> Int64s:
    used, rule = read["reason"] == 0, np.maximum(matched.rule, 0)
    flags: Int64s = matched.flags | np.where(used, 0, Flag.UNUSED)
    priority = columns.attributes.codes("priority")[rows] >= 0
    for flag, has in (
        (Flag.RATIO, _IS_RATIO[read["component"]]),
        (Flag.INFO, _RULE_KIND[rule] == Kind.INFO),
        (Flag.NODE, _RULE_IS_NODE[rule]),
        (Flag.GUEST, _RULE_IS_GUEST[rule]),
        (Flag.PRIORITY, priority),
        (Flag.MODEL_NAME, columns.attributes.codes("model_name")[rows] >= 0),
        (Flag.CODE, _RULE_HAS_CODE[rule]),
    ):
        flags |= np.where(used & has, flag, 0)
    return flags


def _read_labels(
    rule: Rule, at: Rows, rows: Rows, columns: PointColumns, read: dict[str, Any]
) -> None:
    """Components that depend on a label, values that are labels, codes that go along."""
    if rule.label:
        codes = columns.attributes.codes(rule.label)[rows[at]]
        read["component"][at] = _components(rule, columns.strings)[codes]
    if rule.product:
        read["value"][at] = 1.0
        for key in rule.product:
            read["value"][at] *= _label_numbers(columns, key, rows[at])
    if rule.code:
        read["code"][at] = _label_numbers(columns, rule.code, rows[at])


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


def first_code(attributes: Attributes, keys: Sequence[str], at: Rows) -> Int32s:
    """int32 codes of the first of `keys` that each item `at` has."""
    found = np.full(len(at), -1, np.int32)
    for key in keys:
        column = attributes.text.get(key)
        if column is not None:
            found = np.where(found < 0, column[at], found)
    return found


def _gpu_hashes(columns: PointColumns, at: Rows) -> UInt64s:
    """uint64 hash of the GPU, or slice of one, that each point is about; 0 = none."""
    attributes, strings = columns.attributes, columns.strings
    code = first_code(attributes, GPU_UUID, at)
    code = np.where(code < 0, first_code(attributes, ("pci_bus_id", "gpu", "device"), at), code)
    gpu = np.where(code >= 0, strings.hashes[np.maximum(code, 0)], np.uint64(0))
    return gpu ^ _mixed(attributes, strings, ("GPU_I_ID",), at)


def resource_hashes(resources: Attributes, strings: Dictionary) -> UInt64s:
    """uint64[n resources] hash of what tells a sender apart, equal in every batch."""
    return _mixed(resources, strings, SOURCE_KEYS, np.arange(resources.n))


def _mixed(attributes: Attributes, strings: Dictionary, keys: Sequence[str], at: Rows) -> UInt64s:
    """uint64 hash of the values of `keys` for the items `at`; 0 where none of them is present."""
    mixed = np.zeros(len(at), np.uint64)
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
