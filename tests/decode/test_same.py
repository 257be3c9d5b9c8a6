"""The comparer of columns sees every difference that matters, and no other."""

from dataclasses import replace

import numpy as np
import pytest

from pipeline.decode.columns import decode_points
from pipeline.model import PointColumns
from tests.decode import wire
from tests.decode.same import assert_same_columns
from tests.decode.sound import holding


def columns(**changes: object) -> PointColumns:
    key = wire.pair(b"model_name", wire.length(1, b"llama"))
    found = decode_points(holding("gauge", key))
    return replace(found, **changes)  # type: ignore[arg-type]  # whatever the case puts there


def test_equal_columns_are_equal_and_any_nan_is_nan() -> None:
    assert_same_columns(columns(), columns())
    quiet, other = (
        np.array([bits], np.uint64).view(np.float64) for bits in (0x7FF8 << 48, 0x7FF9 << 48)
    )
    assert_same_columns(columns(value=quiet), columns(value=other))


@pytest.mark.parametrize(
    "changes",
    [
        {"value": np.array([-0.0])},
        {"value": np.array([1.0, 1.0])},
        {"value": np.array([1.0], np.float32)},
        {"value": np.array([np.nextafter(1.0, 2.0)])},
        {"series": np.array([[1, 2]], np.uint64)},
        {"dropped": {"no_time": 1}},
        {"rejected": 1},
        {"attributes": replace(columns().attributes, text={})},
        {"strings": replace(columns().strings, data=b"other")},
        {"histograms": replace(columns().histograms, bounds=(np.array([1.0]),))},
    ],
)
def test_one_changed_field_is_a_difference(changes: dict[str, object]) -> None:
    with pytest.raises(AssertionError):
        assert_same_columns(columns(), columns(**changes))


def test_zero_and_minus_zero_differ() -> None:
    zero = columns(value=np.array([0.0]))
    with pytest.raises(AssertionError):
        assert_same_columns(zero, columns(value=np.array([-0.0])))
