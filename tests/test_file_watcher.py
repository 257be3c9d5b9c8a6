"""Membership and override files that are gone, no files, too large, or not what they should be."""

import os
from pathlib import Path

import pytest

from pipeline.config import parse
from pipeline.errors import ConfigError
from pipeline.file_watcher import Entry, FileWatcher
from pipeline.journal import Members, Note, OverrideFile
from pipeline.normalise.membership import MAX_FILE_BYTES

TWO = "- targets: ['10.0.0.1:8000', '10.0.0.2:8000']\n"


def watcher(
    members: Path | None = None, overrides: Path | None = None
) -> tuple[FileWatcher, list[Entry]]:
    """A watcher of the given files and the list that its entries go to."""
    text = f"pools: [{{name: chat, membership: file, file: '{members}'}}]\n" if members else ""
    text += f"overrides_file: '{overrides}'\n" if overrides else ""
    entries: list[Entry] = []
    return FileWatcher(parse(text, "test"), entries.append), entries


@pytest.mark.parametrize("is_configured", [True, False])
def test_what_an_override_file_said_before_a_restart_ends_with_the_file(
    tmp_path: Path, is_configured: bool
) -> None:
    files, entries = watcher(overrides=tmp_path / "gone.yaml" if is_configured else None)
    files.first_read()
    assert entries == [OverrideFile(())]


def test_a_pipe_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "members.yaml")
    files, _ = watcher(tmp_path / "members.yaml")
    with pytest.raises(ConfigError, match="not a regular file"):
        files.first_read()


def test_a_file_without_end_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "members.yaml"
    with path.open("wb") as file:
        file.truncate(MAX_FILE_BYTES + 1)
    files, _ = watcher(path)
    with pytest.raises(ConfigError, match="larger than"):
        files.first_read()


@pytest.mark.parametrize(
    "text", ["", "# written in a moment\n", "- targets: [2020-13-45]", "- " * 5_000, "a: !!bool x"]
)
def test_a_bad_membership_file_is_told_once_and_changes_nothing(tmp_path: Path, text: str) -> None:
    path = tmp_path / "members.yaml"
    path.write_text(TWO)
    files, entries = watcher(path)
    files.first_read()
    entries.clear()
    path.write_text(text)
    files.look()
    files.look()
    [note] = entries
    assert isinstance(note, Note)
    assert "stays in force" in note.text
    path.write_text("[]")
    files.look()
    assert entries[1:] == [Members("chat", ())]
