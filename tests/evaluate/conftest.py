"""The given parts of the labelled sets, read once; a test skips by the name of an absent one."""

from pathlib import Path

import pytest

from pipeline.evaluate.sets import Curve, read

DETECTION = Path(__file__).parents[2] / ".." / "shared" / "data" / "detection"


def given(name: str) -> list[Curve]:
    if not (DETECTION / name).is_dir():
        pytest.skip(f"needs shared/data/detection/{name}")
    return read(DETECTION, name)


@pytest.fixture(scope="session")
def given_nab() -> list[Curve]:
    return given("nab")


@pytest.fixture(scope="session")
def given_kpi() -> list[Curve]:
    return given("kpi")


@pytest.fixture(scope="session")
def given_services() -> list[Curve]:
    return given("services")


@pytest.fixture(scope="session")
def given_apps() -> list[Curve]:
    return given("apps")
