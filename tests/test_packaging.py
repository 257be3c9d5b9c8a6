"""The extension: optional at install, for release, loud where it is missing though it could be."""

import json
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any, Final

import pytest

from pipeline.decode.columns import new_decoder
from pipeline.doctor import why_not_native
from pipeline.model import OtlpSignal
from tests.parts import require

ROOT: Final = Path(__file__).parents[1]
CRATE: Final = ROOT / "pipeline" / "decode" / "native"
PYPROJECT: Final = tomllib.loads((ROOT / "pyproject.toml").read_text())


def doctor(prelude: str, *require: str) -> tuple[int, dict[str, Any]]:
    """Exit code and JSON of `doctor --require` in a process that runs `prelude` first."""
    script = f"{prelude}\nimport sys\nfrom pipeline.doctor import run\n"
    script += f"sys.exit(run({list(require)}, as_json=True))"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False, cwd=ROOT
    )
    assert done.stdout, done.stderr
    told: dict[str, Any] = json.loads(done.stdout)
    return done.returncode, told


ABSENT: Final = "import sys; sys.modules['pipeline.decode._native'] = None"


def test_without_the_extension_the_reference_decoder_serves_and_doctor_says_why() -> None:
    code, told = doctor(ABSENT)
    assert code == 0
    assert told["decoder"] == "reference"
    assert not told["parts"]["native"]
    assert told["why_not_native"].startswith("not built (cargo is ")
    code, told = doctor(ABSENT, "native")
    assert (code, told["unmet"]) == (1, ["native"])


def test_an_extension_that_does_not_load_is_told_with_the_error_of_its_import(
    tmp_path: Path,
) -> None:
    (tmp_path / "_native.abi3.so").write_bytes(b"no library at all")
    broken = f"import pipeline.decode; pipeline.decode.__path__.insert(0, {str(tmp_path)!r})"
    code, told = doctor(broken, "native")
    assert code == 1
    assert told["decoder"] == "reference"
    assert told["why_not_native"].startswith("does not load: ")
    assert "_native.abi3.so" in told["why_not_native"]


def test_the_native_decoder_serves_where_it_is_built() -> None:
    require("native", not why_not_native(), f"{why_not_native()}; make test")
    code, told = doctor("import os; os.environ.pop('TAILRACE_DECODER', None)", "native")
    assert (code, told["decoder"], told["why_not_native"]) == (0, "native", "")


@pytest.mark.parametrize("signal", list(OtlpSignal))
def test_the_reference_decoder_can_be_had_beside_the_native_one(signal: OtlpSignal) -> None:
    assert new_decoder("reference").decode(signal, b"").n == 0


def test_the_extension_is_optional_and_built_for_release() -> None:
    """A debug build, the default of an editable install, is slower than the reference decoder."""
    (extension,) = PYPROJECT["tool"]["setuptools-rust"]["ext-modules"]
    assert extension["optional"] is True
    assert extension["debug"] is False
    assert (ROOT / extension["path"]).exists()


def test_crates_are_pinned_exactly_and_the_oldest_rust_is_named() -> None:
    for manifest in (CRATE / "Cargo.toml", CRATE / "fuzz" / "Cargo.toml"):
        for name, wanted in tomllib.loads(manifest.read_text())["dependencies"].items():
            pinned = wanted if isinstance(wanted, str) else wanted.get("version", "")
            assert pinned.startswith("=") or "path" in wanted, f"{manifest}: {name}"
    crate = tomllib.loads((CRATE / "Cargo.toml").read_text())["package"]
    assert "rust-version" in crate


def test_the_folders_of_the_crate_are_no_packages() -> None:
    assert PYPROJECT["tool"]["setuptools"]["packages"]["find"]["namespaces"] is False
    assert not list(CRATE.rglob("__init__.py"))


def test_nothing_that_is_built_is_tracked() -> None:
    tracked = subprocess.run(
        ["git", "ls-files", "*.so", "*Cargo.lock", "*/target/*"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert tracked == ""
