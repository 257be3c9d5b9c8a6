"""Messages between the deciding process and a receiver process, over a pair of local sockets.

A message is a fixed prefix, a msgpack head and a payload. Nothing is pickled; the configuration
goes this way too, so that no command line shows it. Either end sees the other's death as the end
of the stream.
"""

import contextlib
import io
import socket
import struct
import threading
from typing import Final, TypeAlias

import msgspec

from pipeline.columns_wire import CorruptFrame
from pipeline.counter_deltas import Delta
from pipeline.ingest import Acknowledge
from pipeline.model import OtlpSignal
from pipeline.receive.config import ReceiveConfig

SUMMED_GAUGES: Final = ("bytes_in_flight", "http_connections", "http_upload_bytes")
"""Own metrics whose value is the sum over all receivers."""
COMMON_GAUGES: Final = ("certificate_expiry_seconds",)
"""Those that every receiver would tell alike."""
MAX_HEAD_BYTES: Final = 16 << 20
MAX_PAYLOAD_BYTES: Final = 1 << 30
"""Far above the columns of the largest request."""
_PREFIX: Final = struct.Struct("<QQ")
_BUFFER_BYTES: Final = 1 << 16


class Begin(msgspec.Struct, tag=True, frozen=True):
    """To a receiver: what to serve and how."""

    receive: ReceiveConfig
    decode_threads: int
    queue_entries: int
    acknowledge: Acknowledge
    max_owed_bytes: int
    record: bool
    log_level: str


class Ready(msgspec.Struct, tag=True, frozen=True):
    """From a receiver: its ports are open."""

    addresses: dict[str, str]


class Failed(msgspec.Struct, tag=True, frozen=True):
    """From a receiver: the configuration cannot be used; it ends."""

    why: str


class Batch(msgspec.Struct, tag=True, frozen=True):
    """From a receiver: a decoded request; the payload is its columns, then the redacted body."""

    sequence: int
    signal: OtlpSignal
    peer: str
    name: str
    record_bytes: int
    """Of the redacted body; -1 = nothing is recorded."""


class Done(msgspec.Struct, tag=True, frozen=True):
    """To a receiver: what became of a batch."""

    sequence: int
    ok: bool
    rejected: int = 0
    message: str = ""


class Counts(msgspec.Struct, tag=True, frozen=True):
    """From a receiver, each second and at its end: how far its counters moved, its gauges."""

    deltas: list[Delta]
    gauges: dict[str, float]


class Stop(msgspec.Struct, tag=True, frozen=True):
    """To a receiver: refuse new requests, finish the running ones, end."""

    grace_s: float


Message: TypeAlias = Begin | Ready | Failed | Batch | Done | Counts | Stop

_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final = msgspec.msgpack.Decoder(Message)


class Link:
    """One end of the connection. Any thread may send; one receives."""

    def __init__(self, end: socket.socket) -> None:
        """`end` is a connected, blocking stream socket, owned from now on."""
        self._socket = end
        self._reader = io.BufferedReader(end.makefile("rb", 0), _BUFFER_BYTES)
        self._sending = threading.Lock()

    def send(self, message: Message, payload: bytes = b"") -> None:
        """Send all of it, waiting while the other end is slow; `OSError` when it is gone."""
        head = _encoder.encode(message)
        start = _PREFIX.pack(len(head), len(payload)) + head
        with self._sending:
            self._socket.sendall(start)
            if payload:
                self._socket.sendall(payload)

    def receive(self) -> tuple[Message, memoryview] | None:
        """The next message; None when the other end is gone, `CorruptFrame` if it is none."""
        try:
            prefix = self._reader.read(_PREFIX.size)
            if len(prefix) < _PREFIX.size:
                return None
            head_bytes, payload_bytes = _PREFIX.unpack(prefix)
            if head_bytes > MAX_HEAD_BYTES or payload_bytes > MAX_PAYLOAD_BYTES:
                raise CorruptFrame("a message beyond every bound")
            head = self._reader.read(head_bytes)
            payload = bytearray(payload_bytes)
            if len(head) < head_bytes or self._reader.readinto(payload) < payload_bytes:
                return None
        except OSError:
            return None
        try:
            return _decoder.decode(head), memoryview(payload)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise CorruptFrame(str(error)) from error

    def close(self) -> None:
        """End the connection for both ends; safe twice, and while another thread receives."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def release(self) -> None:
        """Close the descriptor, once nobody receives any more."""
        self.close()
        self._reader.close()
        self._socket.close()
