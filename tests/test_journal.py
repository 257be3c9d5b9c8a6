"""The journal keeps what the loop thread took, whole or not at all."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.clock import Instant
from pipeline.journal import (
    Batch,
    Entry,
    JournalError,
    JournalWriter,
    Members,
    Note,
    Operation,
    OverrideFile,
    Record,
    Start,
    Tick,
    read,
    segments,
)
from pipeline.model import Member, OtlpSignal, Override

ENTRIES: list[Entry] = [
    Start(1, b"{}", {"loop": {"epoch": 3}}, "reference"),
    Members("chat", (Member(address="10.0.0.1:8000", role="prefill"),)),
    Batch(OtlpSignal.TRACES, b"\x00\x01", "10.0.0.9", 3),
    Tick(2),
    Operation(set=Override(scope="endpoint", target="a", action="pin", value=5)),
    Operation(remove=("pool", "chat")),
    OverrideFile((Override(scope="all", action="off", source="file"),)),
    Note("a file could not be read"),
]


def write(
    folder: Path, count: int = 1, segment_bytes: int = 1 << 20, max_bytes: int = 1 << 20
) -> None:
    writer = JournalWriter(folder, segment_bytes=segment_bytes, max_bytes=max_bytes)
    for i in range(count):
        for entry in ENTRIES:
            writer.append(Instant(i, i + 1), entry)
    writer.close()


def test_every_kind_of_entry_is_read_as_it_was_written(tmp_path: Path) -> None:
    write(tmp_path)
    assert list(read(tmp_path)) == [Record(0, 1, entry) for entry in ENTRIES]


def test_segments_are_rotated_and_read_in_order(tmp_path: Path) -> None:
    write(tmp_path, count=20, segment_bytes=500)
    assert len(segments(tmp_path)) > 5
    assert [record.mono_ns for record in read(tmp_path)] == [i for i in range(20) for _ in ENTRIES]


def test_a_full_folder_ends_the_recording_and_keeps_what_is_there(tmp_path: Path) -> None:
    write(tmp_path, count=50, max_bytes=2_000)
    assert sum(path.stat().st_size for path in segments(tmp_path)) <= 2_000
    assert len(list(read(tmp_path))) > len(ENTRIES)


def test_a_folder_with_a_journal_is_not_written_over(tmp_path: Path) -> None:
    write(tmp_path)
    with pytest.raises(JournalError, match="already holds a journal"):
        write(tmp_path)


@given(cut=st.integers(1, 200))
def test_a_torn_last_record_ends_the_journal_quietly(
    tmp_path_factory: pytest.TempPathFactory, cut: int
) -> None:
    folder = tmp_path_factory.mktemp("journal")
    write(folder)
    [path] = segments(folder)
    data = path.read_bytes()
    path.write_bytes(data[: max(len(data) - cut, 0)])
    records = list(read(folder))
    assert [record.entry for record in records] == ENTRIES[: len(records)]
    assert len(records) < len(ENTRIES)


def test_a_flipped_bit_is_an_error_that_says_where(tmp_path: Path) -> None:
    write(tmp_path)
    [path] = segments(tmp_path)
    data = bytearray(path.read_bytes())
    data[20] ^= 1
    path.write_bytes(data)
    with pytest.raises(JournalError, match="at byte 0"):
        list(read(tmp_path))


def test_an_empty_folder_is_an_error_in_plain_words(tmp_path: Path) -> None:
    with pytest.raises(JournalError, match="holds no journal"):
        list(read(tmp_path))


def test_a_full_disk_ends_the_recording_and_nothing_else(tmp_path: Path) -> None:
    writer = JournalWriter(tmp_path, segment_bytes=1, max_bytes=1 << 20)
    writer.append(Instant(0, 1), ENTRIES[0])
    (tmp_path / "000002.journal").symlink_to("/dev/full")
    for entry in ENTRIES[1:]:
        writer.append(Instant(0, 1), entry)
    writer.append(Instant(0, 1), Note("x" * 100_000))  # more than is buffered
    writer.append(Instant(0, 1), ENTRIES[1])
    writer.close()
    (tmp_path / "000002.journal").unlink()
    assert [record.entry for record in read(tmp_path)] == ENTRIES[:1]


def test_a_folder_that_cannot_be_made_is_an_error_in_plain_words(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(JournalError, match="cannot be recorded into"):
        write(tmp_path / "file" / "journal")
