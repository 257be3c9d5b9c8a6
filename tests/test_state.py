"""State files survive crashes, damage and full disks."""

from collections.abc import Callable
from pathlib import Path

import pytest

from pipeline import state
from pipeline.errors import ConfigError
from pipeline.state import StateStore


def test_what_was_saved_is_loaded(tmp_path: Path) -> None:
    store = StateStore(tmp_path / "new")
    store.save("decide", {"weights": {"a:1": 1000}, "raw": b"\x00\xff"})
    assert StateStore(tmp_path / "new").load("decide") == {
        "weights": {"a:1": 1000},
        "raw": b"\x00\xff",
    }


def test_nothing_saved_is_none(tmp_path: Path) -> None:
    assert StateStore(tmp_path).load("decide") is None


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[: len(data) // 2],  # a torn write
        lambda data: data[:0],  # a full disk
        lambda data: data[:-1] + bytes([data[-1] ^ 1]),  # a flipped bit
        lambda data: b"XXXX" + data[4:],  # not ours
        lambda data: data[:4] + b"\xff\x00" + data[6:],  # a version from the future
    ],
)
def test_a_bad_file_is_set_aside_and_the_older_generation_is_used(
    tmp_path: Path, damage: Callable[[bytes], bytes]
) -> None:
    store = StateStore(tmp_path)
    store.save("loop", {"epoch": 1})
    store.save("loop", {"epoch": 2})
    newest = tmp_path / "loop.state"
    newest.write_bytes(damage(newest.read_bytes()))
    assert store.load("loop") == {"epoch": 1}
    assert (tmp_path / "loop.state.bad").exists()
    assert not newest.exists()


def test_two_bad_generations_start_afresh(tmp_path: Path) -> None:
    for name in ("loop.state", "loop.state.1"):
        (tmp_path / name).write_bytes(b"garbage that is long enough for a header")
    assert StateStore(tmp_path).load("loop") is None
    assert len(list(tmp_path.glob("*.bad"))) == 2


def test_a_failed_write_leaves_the_old_file_in_place(tmp_path: Path) -> None:
    store = StateStore(tmp_path)
    store.save("loop", {"epoch": 1})
    (tmp_path / "loop.new").mkdir()  # opening it for writing fails
    with pytest.raises(OSError):
        store.save("loop", {"epoch": 2})
    assert store.load("loop") == {"epoch": 1}


def test_files_hold_data_only_never_code() -> None:
    data = state.encode({"a": [1, 2.5, "x", None]})
    assert data.startswith(state.MAGIC)
    assert state.decode(data) == {"a": [1, 2.5, "x", None]}


def test_state_that_its_stage_cannot_use_is_set_aside_for_the_older_generation(
    tmp_path: Path,
) -> None:
    store = StateStore(tmp_path)
    for epoch in (1, 2):
        store.save("loop", {"epoch": epoch})
    assert store.load("loop") == {"epoch": 2}
    assert store.reject("loop", "of another shape") == {"epoch": 1}
    assert store.reject("loop", "of another shape") is None
    assert len(list(tmp_path.glob("*.bad"))) == 2


def test_a_folder_belongs_to_one_service_at_a_time(tmp_path: Path) -> None:
    first, second = StateStore(tmp_path), StateStore(tmp_path)
    first.claim()
    with pytest.raises(ConfigError, match="in use by another service"):
        second.claim()
    first.release()
    second.claim()
    second.release()
    second.release()


def test_a_folder_that_cannot_be_made_stops_nobody(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    store = StateStore(tmp_path / "file" / "state")
    store.claim()
    assert store.load("loop") is None
    store.release()
