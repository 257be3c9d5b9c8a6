"""The real OpenTelemetry Collector: where build.sh left it, and how to run it for a test."""

import hashlib
import os
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

HERE: Final = Path(__file__).parent
ROOT: Final = HERE.parents[1]
CACHE: Final = ROOT / ".cache/otelcol"
HOW: Final = "tests/otelcol/build.sh builds it (needs go, takes minutes once)"

START_WITHIN_S: Final = 30.0  # it starts in well under a second; a loaded two-core machine is slow
STOP_WITHIN_S: Final = 10.0  # a Collector flushes its queues first
POLL_EVERY_S: Final = 0.05


def collector_path() -> Path | None:
    """The built Collector, or None while it is missing or older than its manifest."""
    binary, stamp = CACHE / "otelcol", CACHE / "otelcol.sha256"
    if not (os.access(binary, os.X_OK) and stamp.is_file()):
        return None
    source = (HERE / "manifest.yaml").read_bytes() + (HERE / "build.sh").read_bytes()
    return binary if stamp.read_text().strip() == hashlib.sha256(source).hexdigest() else None


@contextmanager
def running(
    config: Path | str, *, env: Mapping[str, str], ready_url: str | None, log: Path
) -> Iterator[subprocess.Popen[bytes]]:
    """Run the Collector on `config`, a path or a URI such as `yaml:...`, and stop it at the end.

    The process sees exactly `env`, so that settings of the machine change nothing. With
    `ready_url`, its health_check endpoint, the body starts once that answers 200. Output goes to
    `log`. Raises RuntimeError with the end of the log when the Collector does not get ready.
    """
    binary = collector_path()
    if binary is None:
        raise RuntimeError(f"no Collector: {HOW}")
    with log.open("wb") as output:
        process = subprocess.Popen(
            [binary, f"--config={config}"], env=dict(env), stdout=output, stderr=output
        )
    try:
        if ready_url is not None:
            _wait_ready(process, ready_url, log)
        yield process
    finally:
        _stop(process)


def _wait_ready(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    deadline = time.monotonic() + START_WITHIN_S
    while not _answers(url):
        if process.poll() is not None:
            raise RuntimeError(f"the Collector exited with {process.returncode}:\n{_tail(log)}")
        if time.monotonic() > deadline:
            raise RuntimeError(f"{url} is not ready in {START_WITHIN_S} s:\n{_tail(log)}")
        time.sleep(POLL_EVERY_S)


def _answers(url: str) -> bool:
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with direct.open(url, timeout=1.0) as reply:
            return bool(reply.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(STOP_WITHIN_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _tail(log: Path) -> str:
    return log.read_text(errors="replace")[-2_000:]
