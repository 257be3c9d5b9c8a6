"""Recorded telemetry of real runs decides exactly what it decided when the expectation was taken.

A difference is not a bug by itself: `make golden` renews the expectation, and the diff shows what a
change does to decisions.
"""

import json

import pytest

from tests.golden.expect import HERE, RECORDINGS, expectation, path

MAX_BYTES = 1_000_000


@pytest.mark.parametrize("recording", RECORDINGS)
def test_a_recording_decides_what_it_decided_before(recording: str) -> None:
    expected = json.loads(path(recording).read_text(encoding="utf-8"))
    found = json.loads(json.dumps(expectation(recording)))
    assert found["events"] == expected["events"]
    for row, other in zip(found["rows"], expected["rows"], strict=False):
        assert row == other
    assert found["epochs"] == expected["epochs"]
    assert len(found["rows"]) == len(expected["rows"])


@pytest.mark.parametrize("recording", RECORDINGS)
def test_a_recording_stays_small(recording: str) -> None:
    assert sum(each.stat().st_size for each in (HERE / recording).iterdir()) < MAX_BYTES


def test_the_collector_run_opens_the_killed_server_and_no_other() -> None:
    events = json.loads(path("collector-run").read_text(encoding="utf-8"))["events"]
    opened = {endpoint for _, _, endpoint, text in events if text.startswith("opened")}
    assert len(opened) == 1
