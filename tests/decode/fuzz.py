"""Builds and runs the fuzz target of the native decoder, and writes the seeds it starts from.

`make fuzz` runs it for a minute, `make fuzz ARGS=600` for ten. `python -m tests.decode.fuzz seeds`
writes the corpus of the tree anew; what a run finds stays in the build folder.
"""

import gzip
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from pipeline.keys import LOG_KEYS, POINT_KEYS, RESOURCE_KEYS, SPAN_KEYS
from pipeline.model import OtlpSignal
from tests.decode import wire
from tests.decode.sound import PATHS, SOUND, any_values, holding

CRATE: Final = Path(__file__).parents[2] / "pipeline" / "decode" / "native" / "fuzz"
CORPUS: Final = CRATE / "corpus" / "decode"
BUILT: Final = CRATE / "target"
LISTS: Final = {
    "resource": RESOURCE_KEYS,
    "span": SPAN_KEYS,
    "point": POINT_KEYS,
    "log": LOG_KEYS,
}
POINTS: Final = ("HistogramDataPoint", "ExponentialHistogramDataPoint", "SummaryDataPoint")
MAX_LENGTH: Final = 4096
"""Bytes of an input: every limit but that on the number of items is within reach."""

COVERAGE: Final = (
    "-Cpasses=sancov-module",
    "-Cllvm-args=-sanitizer-coverage-level=4",
    "-Cllvm-args=-sanitizer-coverage-inline-8bit-counters",
    "-Cllvm-args=-sanitizer-coverage-pc-table",
    "-Cllvm-args=-sanitizer-coverage-trace-compares",
)
"""What cargo-fuzz passes to rustc."""

# seeds


def seeds() -> Iterator[bytes]:
    """The corpus: the choice of signal and encoding in a byte, and a body."""
    for choice, signal in enumerate(OtlpSignal):
        for seed in range(6):
            rnd = random.Random(f"seed {seed} of {signal}")
            emitter = wire.Emitter(rnd, disorder=0.02, fields=90)
            body = emitter.request(signal)[:MAX_LENGTH]
            yield bytes((choice,)) + body
        yield bytes((choice | 4,)) + gzip.compress(body, mtime=0)
    for place, (signal, _, key) in PATHS.items():
        values = random.Random(place).sample(list(any_values())[:120], 6)
        body = holding(place, *(wire.pair(key.encode(), value) for value in values))
        yield bytes((list(OtlpSignal).index(signal),)) + body
    for field, data in enumerate(POINTS, start=9):
        points = wire.number(2, 2) + wire.length(1, SOUND[data]) * 3
        yield b"\x01" + wire.enclosed(points, 1, 2, 2, field)


def write_seeds() -> None:
    """Replace the corpus of the tree."""
    CORPUS.mkdir(parents=True, exist_ok=True)
    for old in CORPUS.iterdir():
        old.unlink()
    for i, seed in enumerate(seeds()):
        (CORPUS / f"{i:03}").write_bytes(seed)


# building and running


def build() -> Path:
    """The fuzz target, built with coverage and the address sanitizer.

    Stable Rust has all that is needed; RUSTC_BOOTSTRAP lets it take the sanitizer's option.
    """
    told = subprocess.run(["rustc", "-vV"], check=True, capture_output=True, text=True).stdout
    host = next(line.split()[1] for line in told.splitlines() if line.startswith("host: "))
    flags = (*COVERAGE, "-Zsanitizer=address", "--cfg", "fuzzing")
    subprocess.run(
        ["cargo", "build", "--release", "--quiet", "--target", host],
        cwd=CRATE,
        check=True,
        env=os.environ | {"RUSTC_BOOTSTRAP": "1", "RUSTFLAGS": " ".join(flags)},
    )
    return BUILT / host / "release" / "decode"


def _entry(raw: bytes) -> str:
    return '"' + "".join(f"\\x{byte:02x}" for byte in raw) + '"\n'


def fuzz(*limits: str, found: Path = BUILT / "found") -> subprocess.CompletedProcess[str]:
    """Run the target from the corpus and what earlier runs left in `found`, up to `limits`.

    The output is libFuzzer's; a crash leaves its input in `found`'s neighbour `crashes`.
    """
    binary = build()
    crashes = found.with_name("crashes")
    for folder in (found, crashes):
        folder.mkdir(parents=True, exist_ok=True)
    keys, words = BUILT / "keys.txt", BUILT / "words.dict"
    names = [(place, key) for place, listed in LISTS.items() for key in listed]
    keys.write_text("".join(f"{place} {key.kind} {key.name}\n" for place, key in names))
    words.write_text("".join(sorted({_entry(wire.length(1, k.name.encode())) for _, k in names})))
    options = {
        "max_len": MAX_LENGTH,
        "dict": words,
        "artifact_prefix": f"{crashes}/",
        "timeout": 10,
    }
    return subprocess.run(
        [binary, *(f"-{name}={value}" for name, value in options.items()), *limits, found, CORPUS],
        check=False,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"TAILRACE_KEYS": str(keys), "ASAN_OPTIONS": "detect_leaks=0"},
    )


def main(arguments: list[str]) -> int:
    """Write the seeds, or fuzz for some seconds and print what libFuzzer says."""
    if arguments == ["seeds"]:
        write_seeds()
        return 0
    seconds = int(arguments[0]) if arguments else 60
    done = fuzz(f"-max_total_time={seconds}")
    print(done.stderr)  # noqa: T201
    return done.returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
