"""Bytes in a process -> folded state, without a transport: what decoding and folding cost alone.

`python -m pipeline.bench.in_process` measures once and prints one line of JSON: level A decodes,
level B also joins, folds and settles in the same loop that the service drives, without ticks.
"""

import itertools
import json
import resource
import statistics
import subprocess
import sys
import time
from collections import Counter
from typing import Any, Final

import yaml

from pipeline.bench import batches
from pipeline.bench.engines import tailrace_settings
from pipeline.bench.figures import per_core, spread
from pipeline.bench.jobs import Build
from pipeline.bench.machine import pinned
from pipeline.bench.template import Template
from pipeline.clock import SystemClock
from pipeline.config import parse
from pipeline.decode.columns import new_decoder
from pipeline.errors import DependencyLost
from pipeline.loop import Loop
from pipeline.model import OtlpSignal, Rights, Sender

LEVELS: Final = ("A", "B")


class InProcess:
    """The rounds of one batch size, each in a process of its own."""

    def __init__(self, build: Build, seconds: float, core: int | None) -> None:
        """Measure those batches for `seconds` a level, on `core`."""
        self._build = build
        self._seconds = seconds
        self._core = core
        self._figures: dict[str, list[float]] = {level: [] for level in LEVELS}
        self._last: dict[str, Any] = {}

    def measure(self) -> str:
        """One more round; a line about it."""
        build = self._build
        command = [sys.executable, "-m", "pipeline.bench.in_process", build.signal]
        command += [str(build.batch), str(build.batches), str(self._seconds)]
        with pinned(self._core):
            done = subprocess.run(command, stdout=subprocess.PIPE, check=False)  # noqa: S603
        if done.returncode:
            raise DependencyLost("the measurement in a process failed; it says why above")
        self._last = json.loads(done.stdout)
        for level in LEVELS:
            self._figures[level].append(self._last[level])
        texts = ", ".join(f"{level} {self._last[level]:,.0f}" for level in LEVELS)
        return f"in process, {build.signal}, {build.batch}: {texts} items/s/core"

    def rows(self) -> list[dict[str, Any]]:
        """One row a level."""
        return [
            {
                "engine": "tailrace",
                "variant": "",
                "signal": self._build.signal,
                "level": level,
                "batch": self._build.batch,
                "compression": "none",
                "transport": "in-process",
                "items_per_core_s": round(statistics.median(figures)),
                "spread": round(spread(figures), 3),
                "rss_mb": self._last["rss_mb"],
                "ack_p99_ms": None,
                "rounds": len(figures),
                "distinct_batches": self._last["distinct_batches"],
            }
            for level, figures in self._figures.items()
        ]


def main(arguments: list[str]) -> None:
    """Build, warm up, measure both levels, print one line."""
    signal, batch, count, seconds = arguments
    templates = [
        batches.build(_signal(signal), number, int(batch), int(count))
        for number in range(int(count))
    ]
    work = _Work(_signal(signal), templates)
    work.run(float(seconds) / 2)  # every endpoint and most strings are known then
    decode, both = work.run(float(seconds))
    usage_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    figures = {
        "A": decode,
        "B": both,
        "rss_mb": round(usage_kib * 1024 / 1e6, 1),
        "distinct_batches": len(templates),
    }
    if work.left_out:
        raise SystemExit(f"left out: {work.left_out}")
    sys.stdout.write(json.dumps(figures) + "\n")


def _signal(text: str) -> batches.Signal:
    return "spans" if text == "spans" else "points"


class _Work:
    """Decodes and folds one batch after the other, and keeps time of both."""

    def __init__(self, signal: batches.Signal, templates: list[Template]) -> None:
        tree = parse(yaml.safe_dump(tailrace_settings("B")), "bench")
        self._decoder = new_decoder()
        self._loop = Loop(tree, self._dropped)
        self._templates = itertools.cycle(templates)
        self._kind = OtlpSignal.TRACES if signal == "spans" else OtlpSignal.METRICS
        self._clock = SystemClock()
        self.left_out: Counter[str] = Counter()

    def _dropped(self, stage: str, reason: str, count: int) -> None:
        self.left_out[f"{stage} {reason}"] += count

    def run(self, seconds: float) -> tuple[float, float]:
        """Items for a CPU second: decoded; decoded and folded."""
        sender = Sender("127.0.0.1", Rights.METRICS | Rights.REQUESTS)
        decode_s = fold_s = 0.0
        items = 0
        until_s = time.monotonic() + seconds
        while time.monotonic() < until_s:
            template = next(self._templates)
            body = template.stamped(time.time_ns())
            begun_s = time.process_time()
            columns = self._decoder.decode(self._kind, body)
            decoded_s = time.process_time()
            self._loop.fold_all(self._loop.begin(columns, sender, self._clock.now()))
            fold_s += time.process_time() - decoded_s
            decode_s += decoded_s - begun_s
            items += template.items
        return per_core(items, decode_s), per_core(items, decode_s + fold_s)


if __name__ == "__main__":
    main(sys.argv[1:])
