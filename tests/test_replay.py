"""Replay takes what the loop thread took, refused operations and full files included."""

from pathlib import Path

import msgspec
import pytest

from pipeline.clock import NS_PER_S, Instant
from pipeline.config import TailraceConfig, parse
from pipeline.decode.columns import DECODER
from pipeline.journal import (
    Entry,
    JournalError,
    JournalWriter,
    Operation,
    OverrideFile,
    Start,
    Tick,
)
from pipeline.model import Override
from pipeline.replay import replay

ONE_OVERRIDE = parse("decide: {max_overrides: 1}", "test")


def pin(target: str) -> Override:
    return Override(scope="endpoint", target=target, action="pin", value=5, owner="ops")


def record(folder: Path, *entries: Entry, state: object = None) -> None:
    config = msgspec.json.encode(ONE_OVERRIDE)
    journal = JournalWriter(folder, segment_bytes=1 << 20, max_bytes=1 << 20)
    start = Start(1, config, {} if state is None else {"decide": state}, DECODER)
    for i, entry in enumerate((start, *entries)):
        journal.append(Instant(i * NS_PER_S, i * NS_PER_S), entry)
    journal.close()


def test_an_operation_that_was_refused_is_refused_again_and_ends_nothing(tmp_path: Path) -> None:
    record(tmp_path, Operation(set=pin("a")), Operation(set=pin("b")), Tick(0))
    [snapshot] = replay(tmp_path)
    assert [event.text for event in snapshot.events] == [
        "begins: override pin 5 (endpoint a) by ops"
    ]


def test_an_override_file_with_too_many_is_a_note_and_changes_nothing(tmp_path: Path) -> None:
    record(tmp_path, OverrideFile((pin("a"),)), OverrideFile((pin("b"), pin("c"))), Tick(0))
    [snapshot] = replay(tmp_path)
    begins, note = (event.text for event in snapshot.events)
    assert begins == "begins: override pin 5 (endpoint a) by ops"
    assert note == (
        "override file: 1 overrides are in force already; what it said before stays in force"
    )


def test_a_start_state_that_does_not_fit_is_an_error_that_names_its_stage(tmp_path: Path) -> None:
    record(tmp_path, Tick(0), state={"version": 99})
    with pytest.raises(JournalError, match="start state does not fit: decide"):
        next(replay(tmp_path))


def test_the_default_configuration_is_recorded_whole() -> None:
    config = TailraceConfig()
    assert msgspec.json.decode(msgspec.json.encode(config), type=TailraceConfig) == config
