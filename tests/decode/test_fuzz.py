"""The fuzz target, for as long as a test may take; `make fuzz` runs it longer."""

import shutil
from pathlib import Path

import pytest

from pipeline.model import OtlpSignal
from tests.decode.fuzz import CORPUS, fuzz
from tests.decode.same import Agreement
from tests.parts import require

RUNS = 12_000


@pytest.mark.timeout(1200)
def test_the_fuzzer_finds_no_panic_no_excess_of_memory_and_no_unsound_column(
    tmp_path: Path,
) -> None:
    compilers = shutil.which("cargo") and shutil.which("c++")
    require("native", bool(compilers), "cargo from https://rustup.rs, and a C++ compiler")
    done = fuzz(f"-runs={RUNS}", "-seed=1", found=tmp_path / "found")
    assert done.returncode == 0, done.stderr[-6000:]
    assert f"Done {RUNS} runs" in done.stderr


def test_the_corpus_decodes_alike(agree: Agreement) -> None:
    seeds = sorted(CORPUS.iterdir())
    outcomes = []
    for seed in seeds:
        choice, *body = seed.read_bytes()
        if choice < 4:
            outcomes.append(agree(list(OtlpSignal)[choice], bytes(body)))
    assert sum(not isinstance(outcome, str) for outcome in outcomes) > 30
    assert sum(seed.stat().st_size for seed in seeds) < 100_000
