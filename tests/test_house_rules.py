"""The tools that keep the house in order run as tests, so `make test` is all there is to run."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def run_tool(*command: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", *command], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}{done.stderr}"


def test_ruff_finds_nothing() -> None:
    run_tool("ruff", "check", ".")


def test_every_file_is_formatted() -> None:
    run_tool("ruff", "format", "--check", ".")


@pytest.mark.timeout(300)
def test_types_hold_in_strict_mode() -> None:
    run_tool("mypy", "pipeline", "tests")


def test_no_import_points_upwards_and_no_stage_imports_another() -> None:
    bin_folder = Path(sys.executable).parent
    done = subprocess.run(
        [str(bin_folder / "lint-imports"), "--no-cache"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_source_is_ascii() -> None:
    tracked = subprocess.run(
        ["git", "ls-files", "*.py", "*.toml", "*.yaml", "*.proto", "*.md", "*.sh", "Makefile"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    present = [name for name in tracked if (ROOT / name).exists()]
    not_ascii = [name for name in present if not (ROOT / name).read_bytes().isascii()]
    assert not_ascii == []
