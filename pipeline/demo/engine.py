"""Real llama.cpp servers, one per process, that can be slowed, killed and restarted.

Enters: a model file and a port. Leaves: HTTP on 127.0.0.1 (`/v1/completions`, `/completion`,
`/health`, `/metrics`). `Engine` is the parent's handle; `python -m pipeline.demo.engine` is the
child. A child never outlives its parent, and is never left stopped.
"""

import argparse
import ctypes
import http.client
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Self

from pipeline.errors import DependencyLost

HOST = "127.0.0.1"
MODEL_NAME = "tailrace-tiny"  # `model` in every answer
SLOTS = 4  # requests in one batch; more wait and show as requests_deferred
SLOT_CONTEXT = 1024  # tokens of prompt and answer together; a longer prompt gets a 400
# Prompts remembered outside the slots. One MiB holds about a dozen prompts of 200 tokens: few
# enough that a fleet which scatters its prompts loses hits that a prefix-aware one keeps.
PROMPT_CACHE_MIB = 1
LOG_ERRORS = 1  # llama.cpp's own scale; its default writes a dozen lines for every request

PORTS = range(20_000, 32_000)  # Linux takes ports of outgoing connections from 32768 on
READY_TIMEOUT_S = 20.0  # a start takes 0.2 s on an idle core; the rest is for a busy machine
STOP_TIMEOUT_S = 5.0
POLL_S = 0.01
# Short against a scrape, long against the few hundred microseconds that a wake-up may be late.
SLOW_PERIOD_S = 0.04
PR_SET_PDEATHSIG = 1  # linux/prctl.h


class Engine:
    """One engine process, from the parent's side. Not for use from two threads at once.

    Order: `start`, `wait_ready`, then anything; `stop` is safe twice and without `start`. Linux
    ends a child with the *thread* that started it, so start engines from a thread that lives on.
    """

    def __init__(self, model: Path, log: Path, *, port: int | None = None) -> None:
        """`log` receives what the process prints, appended; without `port` a free one is taken."""
        self._model = model
        self._log = log
        self._port = free_port() if port is None else port
        self._process: subprocess.Popen[bytes] | None = None
        self._slowdown: _Slowdown | None = None

    @property
    def address(self) -> str:
        """Where it listens, "127.0.0.1:port", the same for its whole life."""
        return f"{HOST}:{self._port}"

    @property
    def pid(self) -> int | None:
        """The process id while it runs, a new one after each start."""
        return self._process.pid if self._process and self.is_alive() else None

    def is_alive(self) -> bool:
        """Whether the process exists; it may be loading, or stopped for an instant by `slow`."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start the process and return at once; does nothing while it runs.

        Raises DependencyLost when something else listens on the address: it would answer instead.
        """
        if self.is_alive():
            return
        try:
            _probe(self._port)
        except OSError as error:
            raise DependencyLost(f"{self.address} is in use") from error
        command = [sys.executable, "-m", "pipeline.demo.engine", "--parent", str(os.getpid())]
        command += ["--model", str(self._model), "--port", str(self._port)]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                process_group=0,  # Ctrl-C reaches the parent alone, which stops things in order
            )

    def wait_ready(self, timeout_s: float = READY_TIMEOUT_S) -> None:
        """Return when `/health` says that the model is loaded.

        Raises DependencyLost when the process ends, or after `timeout_s`.
        """
        deadline_s = time.monotonic() + timeout_s
        while not self._is_healthy():
            if not self.is_alive():
                raise DependencyLost(f"the engine on {self.address} ended; see {self._log}")
            if time.monotonic() > deadline_s:
                raise DependencyLost(
                    f"the engine on {self.address} is not ready after {timeout_s:g} s; "
                    f"see {self._log}"
                )
            time.sleep(POLL_S)

    def stop(self) -> None:
        """End the process: politely, after `STOP_TIMEOUT_S` by force."""
        self.unslow()
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        """End the process as a crash would: SIGKILL, connections cut, nothing said."""
        self.unslow()
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def restart(self) -> None:
        """A fresh process on the same address, at full speed, with empty caches and counters."""
        self.stop()
        self.start()

    def slow(self, factor: float) -> None:
        """Let it run 1/`factor` of the time (factor > 1) until `unslow`; replaces an earlier one.

        Raises DependencyLost when the process does not run.
        """
        if factor <= 1:
            raise ValueError(f"a slowdown by {factor:g} is none: the factor must be above 1")
        self.unslow()
        if self._process is None or not self.is_alive():
            raise DependencyLost(f"the engine on {self.address} does not run")
        self._slowdown = _Slowdown(self._process, factor)

    def unslow(self) -> None:
        """Full speed again; on return the process is not stopped."""
        if self._slowdown is not None:
            self._slowdown.end()
            self._slowdown = None

    def __enter__(self) -> Self:
        """Start it and wait until it is ready."""
        with ExitStack() as undo:
            undo.callback(self.kill)  # the caller has no handle yet
            self.start()
            self.wait_ready()
            undo.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop it."""
        self.stop()

    def _is_healthy(self) -> bool:
        connection = http.client.HTTPConnection(HOST, self._port, timeout=1)
        with closing(connection):
            try:
                connection.request("GET", "/health")
                return connection.getresponse().status == http.HTTPStatus.OK
            except (OSError, http.client.HTTPException):
                return False


class _Slowdown:
    """Stops and continues a process in turn, from a thread of its own, until `end`.

    The edges lie on a fixed grid, so a late wake-up moves one edge and not the share.
    """

    def __init__(self, process: subprocess.Popen[bytes], factor: float) -> None:
        self._process = process
        self._stop_s = SLOW_PERIOD_S * (1 - 1 / factor)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._cycle, name="engine-slowdown", daemon=True)
        self._thread.start()

    def end(self) -> None:
        self._ended.set()
        self._thread.join()

    def _cycle(self) -> None:
        edge_s = time.monotonic()
        try:
            while self._process.poll() is None:
                self._process.send_signal(signal.SIGSTOP)
                if self._ends_before(edge_s + self._stop_s):
                    return
                self._process.send_signal(signal.SIGCONT)
                edge_s = max(edge_s + SLOW_PERIOD_S, time.monotonic())
                if self._ends_before(edge_s):
                    return
        finally:
            self._process.send_signal(signal.SIGCONT)

    def _ends_before(self, moment_s: float) -> bool:
        return self._ended.wait(max(0.0, moment_s - time.monotonic()))


def free_port() -> int:
    """A TCP port that nothing listens on at this moment.

    Outside of the range from which the system takes ports for outgoing connections: it would give
    one of those away again before a server binds it.
    """
    for port in random.sample(PORTS, len(PORTS)):  # tests in parallel must not meet
        with suppress(OSError):
            return _probe(port)
    raise DependencyLost(f"no free port between {PORTS.start} and {PORTS.stop}")


def _probe(port: int) -> int:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # closed connections linger
        probe.bind((HOST, port))
        bound: int = probe.getsockname()[1]
        return bound


def serve(model: Path, port: int) -> None:
    """Serve `model` until SIGTERM or SIGINT, then end the process; requests under way are cut."""
    import xllamacpp  # noqa: PLC0415 - 100 MB of shared library that only the child needs

    # Blocked before the server's threads exist, which inherit it: the server installs handlers
    # of its own, and they would end its loop but not the process.
    ends = {signal.SIGTERM, signal.SIGINT}
    signal.pthread_sigmask(signal.SIG_BLOCK, ends)
    params = xllamacpp.CommonParams()
    params.model.path = str(model)
    params.model_alias = {MODEL_NAME}
    params.hostnames = [HOST]
    params.port = port
    params.endpoint_metrics = True
    params.n_parallel = SLOTS
    params.n_ctx = SLOTS * SLOT_CONTEXT
    params.cache_ram_mib = PROMPT_CACHE_MIB
    params.cpuparams.n_threads = 1
    params.cpuparams_batch.n_threads = 1
    params.n_gpu_layers = 0
    params.fit_params = False  # nothing to fit: it would load the model twice to measure it
    params.warmup = False
    params.verbosity = LOG_ERRORS
    server = xllamacpp.Server(params)  # returns when it serves, from threads of its own
    sys.stderr.write(f"serving {model} on {server.listening_address}\n")
    signal.sigwait(ends)
    # Its own shutdown waits for good when a request is under way, and there is nothing to save.
    os._exit(0)


def die_with(parent: int) -> None:
    """Have the kernel kill this process when its parent ends (Linux; elsewhere `stop` must)."""
    if sys.platform == "linux":
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL):
            raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != parent:  # it ended before the call above
        raise SystemExit("the parent is gone")


def main() -> None:
    """Parse the command line and serve."""
    parser = argparse.ArgumentParser(description=serve.__doc__)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--parent", type=int, help="process id to end with")
    arguments = parser.parse_args()
    if arguments.parent is not None:
        die_with(arguments.parent)
    serve(arguments.model, arguments.port)


if __name__ == "__main__":
    main()
