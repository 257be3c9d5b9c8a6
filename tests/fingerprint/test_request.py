import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.clock import NS_PER_S
from pipeline.errors import ConfigError
from pipeline.fingerprint.config import FingerprintConfig, check_fingerprint
from pipeline.fingerprint.request import OTHER, Kind, KindTable, printable

FIELDS = st.text(max_size=6)
KINDS = st.builds(Kind, *[FIELDS] * 6)
HOUR_NS = 3600 * NS_PER_S


def table(**limits: Any) -> KindTable:
    return KindTable(FingerprintConfig(**limits))


@given(KINDS, KINDS)
def test_equal_kinds_and_only_those_have_equal_fingerprints(left: Kind, right: Kind) -> None:
    assert (left == right) == (left.fingerprint == right.fingerprint)


def test_words_do_not_run_into_each_other() -> None:
    assert Kind("p", "a", "bc").fingerprint != Kind("p", "ab", "c").fingerprint
    assert Kind("p", "", "x").fingerprint != Kind("p", "x", "").fingerprint


def test_another_process_finds_the_same_fingerprint() -> None:
    kind = Kind("chat", "POST", "/v1/completions", "llama", "batch", "<=512")
    script = (
        f"from pipeline.fingerprint.request import Kind; print(Kind(*{tuple(kind)}).fingerprint)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert int(done.stdout) == kind.fingerprint


@given(st.text())
def test_whatever_a_sender_writes_can_be_shown(text: str) -> None:
    shown = printable(text)
    assert shown.isprintable()
    assert len(shown) <= 128
    assert printable(shown) == shown


def test_a_full_pool_refuses_new_kinds_and_keeps_those_it_has() -> None:
    kinds = table(max_kinds_per_pool=3, max_kinds=5)
    kept = [kinds.id_of(Kind("p", length=str(i)), 0) for i in range(3)]
    assert kept == [1, 2, 3]
    assert kinds.id_of(Kind("p", length="3"), 0) == 0
    assert [kinds.id_of(Kind("p", length=str(i)), 0) for i in range(3)] == kept
    assert [kinds.id_of(Kind("q", length=str(i)), 0) for i in range(3)] == [4, 5, 0]
    assert len(kinds) == 5


@pytest.mark.parametrize("field", ["route", "model", "request_class"])
def test_too_many_values_of_a_field_are_one_other_kind(field: str) -> None:
    kinds = table(max_routes=2, max_models=2, max_classes=2)
    places = [kinds.id_of(Kind("p", **{field: name}), 0) for name in "abcdb"]
    assert places == [1, 2, 3, 3, 2]
    assert [getattr(kind, field) for kind in kinds.kinds().values()] == ["a", "b", OTHER]


def test_what_has_no_requests_for_long_makes_room() -> None:
    kinds = table(max_kinds_per_pool=2, max_models=1)
    old, new = Kind("p", model="a"), Kind("p", model="b")
    kinds.id_of(old, 0)
    assert kinds.expire(HOUR_NS) == []
    assert kinds.expire(HOUR_NS + 1) == [old]
    assert kinds.kind(old.fingerprint) is None
    assert not kinds.has_pool("p")
    place = kinds.id_of(new, HOUR_NS)
    assert kinds.kind(new.fingerprint) == new
    assert place == 1


def test_restored_kinds_live_on_from_the_first_moment_that_is_told() -> None:
    kinds, restored = table(), table()
    kind = Kind("p", "POST", "/v1/completions")
    kinds.id_of(kind, 0)
    restored.restore(kinds.export_state())
    assert restored.kind(kind.fingerprint) == kind
    assert restored.expire(50 * HOUR_NS) == []
    assert restored.expire(51 * HOUR_NS + 1) == [kind]


@pytest.mark.parametrize(
    ("config", "told"),
    [
        (FingerprintConfig(class_attributes=("x.y",)), "fingerprint.class_attributes: 'x.y'"),
        (FingerprintConfig(tenant_attributes=("server.port2",)), "fingerprint.tenant_attributes"),
        (FingerprintConfig(length_bounds=(10, 10)), "fingerprint.length_bounds"),
        (FingerprintConfig(length_bounds=tuple(range(1, 30))), "fingerprint.length_bounds"),
    ],
)
def test_settings_that_cannot_work_are_refused(config: FingerprintConfig, told: str) -> None:
    with pytest.raises(ConfigError, match=told.replace(".", r"\.")):
        check_fingerprint(config)


def test_the_defaults_and_resource_attributes_are_accepted() -> None:
    check_fingerprint(FingerprintConfig())
    check_fingerprint(FingerprintConfig(tenant_attributes=("service.namespace",)))
