"""A service process that is attacked, an honest sender beside, and what both say afterwards."""

import contextlib
import resource
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import yaml

from pipeline.bench.machine import tree_memory_mb
from pipeline.bench.serving import Page, scrape
from pipeline.demo.engine import free_port
from tests.builders import span_request
from tests.e2e.senders import EXPORT, eventually
from tests.receive.serving import PREFACE, SETTINGS, frame, request_headers

HOST = "127.0.0.1"
EVERY_S = 0.1
TRIES = 10
"""Of one honest request; a sender retries what it is told to retry, and a broken connection."""
RETRYABLE = {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED}
BODY = span_request(({"service.name": "s"}, [{}])).SerializeToString()


class Target:
    """A started service: its ports, its log, what it holds."""

    def __init__(self, process: "subprocess.Popen[bytes]", ports: dict[str, int], log: Path):
        self.process = process
        self.grpc = ports["grpc"]
        self.http = ports["http"]
        self._metrics = ports["metrics"]
        self._log = log

    def page(self) -> Page:
        return scrape(f"{HOST}:{self._metrics}")

    def log(self) -> str:
        return self._log.read_text(encoding="utf-8")

    def memory_mb(self) -> float:
        return tree_memory_mb(self.process.pid)

    def descriptors(self) -> int:
        return len(list(Path(f"/proc/{self.process.pid}/fd").iterdir()))

    def stop(self) -> int:
        """SIGTERM; the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(60)


@contextlib.contextmanager
def target(folder: Path, receive: dict[str, Any] | None = None, **more: Any) -> Iterator[Target]:
    """A service that logs everything; `receive` and `more` are sections of its configuration."""
    ports = {name: free_port() for name in ("grpc", "http", "metrics", "decisions")}
    receive = dict(receive or {})
    http = {"listen": f"{HOST}:{ports['http']}", **receive.pop("http", {})}
    tree = {
        "receive": {"listen": f"{HOST}:{ports['grpc']}", "http": http, **receive},
        "publish": {"listen": f"{HOST}:{ports['decisions']}"},
        "telemetry": {"metrics_listen": f"{HOST}:{ports['metrics']}", "log_level": "debug"},
        "state": {"folder": ""},
        **more,
    }
    config, log = folder / "tailrace.yaml", folder / "log"
    config.write_text(yaml.safe_dump(tree), encoding="utf-8")
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "pipeline", "serve", "--config", str(config)], stderr=output
        )
    found = Target(process, ports, log)
    try:
        eventually(lambda: '"serving"' in found.log() or process.poll() is not None, "no start")
        assert process.poll() is None, found.log()
        yield found
    finally:
        process.kill()
        process.wait()


class Honest:
    """Sends a request ten times a second over a connection of its own, and retries as told."""

    def __init__(
        self, found: Target, token: str = "", credentials: grpc.ChannelCredentials | None = None
    ) -> None:
        self.acknowledged = 0
        self.failed: list[str] = []
        self._stop = threading.Event()
        options = [
            ("grpc.use_local_subchannel_pool", 1),
            ("grpc.initial_reconnect_backoff_ms", 50),
            ("grpc.max_reconnect_backoff_ms", 200),
        ]
        address = f"{HOST}:{found.grpc}"
        if credentials is None:
            self._channel = grpc.insecure_channel(address, options=options)
        else:
            self._channel = grpc.secure_channel(address, credentials, options=options)
        self._metadata = (("authorization", f"Bearer {token}"),) if token else None
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()
        self._channel.close()

    def _run(self) -> None:
        call = self._channel.unary_unary(EXPORT)
        while not self._stop.wait(EVERY_S):
            self._send(call)

    def _send(self, call: grpc.UnaryUnaryMultiCallable) -> None:
        for tried in range(TRIES):
            try:
                call(BODY, timeout=30, metadata=self._metadata)
            except grpc.RpcError as error:
                if error.code() not in RETRYABLE or tried == TRIES - 1:
                    self.failed.append(str(error))
                    return
                time.sleep(EVERY_S)
            else:
                self.acknowledged += 1
                return


@contextlib.contextmanager
def honest(
    found: Target, token: str = "", credentials: grpc.ChannelCredentials | None = None
) -> Iterator[Honest]:
    """An honest sender beside the block, all of whose requests have to be acknowledged.

    Nothing of the block may stay behind: neither descriptors nor unexpected errors.
    """
    sender = Honest(found, token, credentials)
    eventually(lambda: sender.acknowledged > 0 or bool(sender.failed), "nothing is acknowledged")
    descriptors = found.descriptors()
    try:
        yield sender
        sender_had = sender.acknowledged
        eventually(lambda: sender.acknowledged > sender_had or bool(sender.failed), "it is stuck")
    finally:
        sender.stop()
    assert not sender.failed
    page = found.page()
    assert page.get("tailrace_received_requests_total", outcome="ok") >= sender.acknowledged
    assert page.get("tailrace_supervised_failures_total") == 0
    eventually(lambda: found.descriptors() <= descriptors + 3, "descriptors are left open")


_FIRST_ROOM = 65_535
_HEADERS, _RESET, _SETTINGS, _PING, _WINDOW_UPDATE = 1, 3, 4, 6, 8
_INITIAL_WINDOW = 4


def connect(port: int) -> socket.socket:
    return socket.create_connection((HOST, port), timeout=10)


def http2(port: int, *frames: bytes) -> socket.socket:
    """A connection that has said what an HTTP/2 client says first, and `frames`."""
    connection = connect(port)
    connection.sendall(PREFACE + SETTINGS + b"".join(frames))
    return connection


def stream(number: int, *more: tuple[str, str]) -> bytes:
    """The headers of an export on stream `number`, which stays open."""
    first = request_headers(more=more)
    return frame(1, 4, number, first[9:])


def drained(connection: socket.socket) -> bool:
    """Read what is there; whether the other end has closed."""
    connection.setblocking(False)
    try:
        while connection.recv(1 << 16):
            pass
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


def all_closed(connections: list[socket.socket]) -> bool:
    return sum(map(drained, connections)) == len(connections)  # each is read


def close(connections: list[socket.socket]) -> None:
    for connection in connections:
        connection.close()


def together(count: int, run: Callable[[], None]) -> None:
    """`run` in so many threads at once."""
    threads = [threading.Thread(target=run) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


class Peak:
    """The most memory that a service takes during the block, in MB."""

    def __init__(self, found: Target) -> None:
        self.most_mb = 0.0
        self._found = found
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> "Peak":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(0.02):
            self.most_mb = max(self.most_mb, self._found.memory_mb())


class Stalled:
    """Streams of one connection that send a body without its last byte, as far as they may."""

    def __init__(self, port: int, count: int, size: int) -> None:
        self._connection = http2(port)
        self._connection.settimeout(1.0)
        begin = struct.pack(">BI", 0, size)
        self._left = {1 + 2 * i: size - 1 for i in range(count)}
        self._initial = _FIRST_ROOM
        self._rooms = dict.fromkeys(self._left, _FIRST_ROOM - len(begin))
        self._rooms[0] = _FIRST_ROOM - count * len(begin)
        """By stream; 0 = of all together."""
        self._connection.sendall(
            b"".join(stream(number) + frame(0, 0, number, begin) for number in self._left)
        )

    def run(self) -> None:
        """Until every stream was refused, or nothing is heard for a second."""
        heard = b""
        try:
            while self._left:
                self._send()
                data = self._connection.recv(1 << 16)
                if not data:
                    break
                heard = self._hear(heard + data)
        except OSError:
            pass
        self._connection.close()

    def _send(self) -> None:
        rooms, left = self._rooms, self._left
        for number in left:
            while (n := min(16_384, rooms[number], rooms[0], left[number])) > 0:
                self._connection.sendall(frame(0, 0, number, bytes(n)))
                rooms[number] -= n
                rooms[0] -= n
                left[number] -= n

    def _hear(self, heard: bytes) -> bytes:
        """Take whole frames; what is left."""
        while len(heard) >= 9 + (length := int.from_bytes(heard[:3], "big")):
            kind, is_ack, number = heard[3], heard[4] & 1, int.from_bytes(heard[5:9], "big")
            self._take(kind, is_ack, number, heard[9 : 9 + length])
            heard = heard[9 + length :]
        return heard

    def _take(self, kind: int, is_ack: int, number: int, payload: bytes) -> None:
        if kind in (_HEADERS, _RESET):  # refused
            self._left.pop(number, None)
        elif kind == _WINDOW_UPDATE:
            self._rooms[number] += int.from_bytes(payload, "big")
        elif kind == _PING and not is_ack:
            self._connection.sendall(frame(_PING, 1, 0, payload))
        elif kind == _SETTINGS and not is_ack:
            self._connection.sendall(frame(_SETTINGS, 1, 0, b""))
            for at in range(0, len(payload), 6):
                key, value = struct.unpack_from(">HI", payload, at)
                if key == _INITIAL_WINDOW:
                    self._resize(value)

    def _resize(self, initial: int) -> None:
        for number in self._left:
            self._rooms[number] += initial - self._initial
        self._initial = initial


def files_left(most: int) -> int:
    """How many of `most` descriptors this process may still open."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    used = len(list(Path("/proc/self/fd").iterdir()))
    return min(most, hard - used - 100)
