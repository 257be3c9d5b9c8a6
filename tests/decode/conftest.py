"""Which decoders a test runs for."""

from typing import Literal

import pytest

from pipeline.doctor import why_not_native
from tests.decode.decoding import Decoding
from tests.decode.same import Agreement
from tests.parts import require


def _require_native() -> None:
    why = why_not_native()
    require("native", not why, f"{why}; cargo from https://rustup.rs, then make test")


@pytest.fixture(params=["reference", "native"], scope="session")
def decoding(request: pytest.FixtureRequest) -> Decoding:
    """Each of the decoders in turn."""
    name: Literal["native", "reference"] = request.param
    if name == "native":
        _require_native()
    return Decoding(name)


@pytest.fixture(scope="session")
def native() -> Decoding:
    """The native decoder."""
    _require_native()
    return Decoding("native")


@pytest.fixture
def agree() -> Agreement:
    """Compares both decoders, which keep their caches for the length of a test."""
    _require_native()
    return Agreement()
