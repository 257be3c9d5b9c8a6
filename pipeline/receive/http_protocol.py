"""One HTTP/1.1 connection: uvicorn's on httptools, hardened against senders that mean harm.

Bounded here: header bytes and count, the time for a header and for a body, the pace of a body, tiny
chunks, requests sent before the answer to the last one (refused: nobody pipelines POST), and what
is still read after an early answer. Ambiguous framing is refused (RFC 9112, section 6.3).
"""

import asyncio
from collections.abc import Awaitable, Callable
from enum import Enum, auto
from functools import partial
from typing import Any, Final, NamedTuple, TypeAlias

import httptools
from uvicorn import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from pipeline.receive.http_answers import Media, Refusal, refused
from pipeline.receive.http_listener import Slot

MAX_HEAD_BYTES: Final = 32 << 10
"""Request line, headers and trailers of a request; a token is a few KiB at most."""
MAX_HEADERS: Final = 100

MIN_CHUNK_BYTES: Final = 64
"""A body cut into chunks smaller than this on average is refused: each costs a call."""
FREE_CHUNKS: Final = 1024

FIRST_BYTES: Final = 64 << 10
"""Of a body, kept before the application has asked for it; beyond, reading pauses."""

LINGER_S: Final = 2.0
"""How long the rest of a body is read, and thrown away, after an answer that did not wait for it:
closing at once would reset the connection before the sender reads the answer."""
LINGER_BYTES: Final = 4 << 20

PACE_GRACE_S: Final = 1.0
"""Before the pace of a body counts."""

Serve: TypeAlias = Callable[["HttpConnection", Any, Any, Any], Awaitable[None]]
"""An ASGI application that is told its connection first."""


class Times(NamedTuple):
    """How long a sender may take, in seconds."""

    header_s: float
    """For a request's headers from their first byte on, for a connection's first byte, and to take
    an answer."""
    body_s: float
    idle_s: float
    """Between two requests."""
    age_s: float
    """From the accept until it is asked to come back on a new connection."""


class Phase(Enum):
    """What a connection waits for."""

    IDLE = auto()
    """A request."""
    HEAD = auto()
    """The rest of its headers."""
    WORK = auto()
    """Us."""
    BODY = auto()
    """The rest of a body that is wanted."""
    ANSWER = auto()
    """The sender, to take the answer."""
    LINGER = auto()
    """The rest of what is thrown away."""


class _Refused(Exception):
    """Stops the parser; the reason was noted."""


class HttpConnection(HttpToolsProtocol):
    """Calls `serve` for each request; `check` is called a few times a second."""

    def __init__(
        self,
        config: Config,
        state: ServerState,
        serve: Serve,
        times: Times,
        peer: str,
        slot: Slot,
        count: Callable[[int], None],
    ) -> None:
        """`count` is told the status of what is answered here, in the application's place."""
        super().__init__(config, state, {}, asyncio.get_running_loop())
        self.app = partial(serve, self)
        self.peer: Final = peer
        self.failure: Refusal | None = None
        """Why the body will never be whole; only the end of the connection follows."""
        self._slot = slot
        self._times = times
        self._count = count
        self._opened_s = self.loop.time()
        self._has_served = False
        self._is_deaf = False
        self._refusal: Refusal | None = None
        self._parts: list[bytes] = []
        self._enter(Phase.IDLE)
        self._start_request()

    @property
    def ssl_object(self) -> Any:
        """The connection's TLS, None for plaintext."""
        return self.transport.get_extra_info("ssl_object")

    async def read(self, room_bytes: int, expected_bytes: int = 0) -> bytes | None:
        """The whole body, or None when more than `room_bytes` of it are there: call again then.

        `expected_bytes` is what the sender announced, 0 = nothing. `Refusal` when the body will
        never be whole, or comes too slowly.
        """
        self._room_bytes = room_bytes
        self._expected_bytes = expected_bytes
        cycle = self.cycle
        if cycle.waiting_for_100_continue:
            cycle.waiting_for_100_continue = False
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        if cycle.more_body and self._phase is Phase.WORK:
            self._enter(Phase.BODY)
        while cycle.more_body and self.failure is None and not cycle.disconnected:
            if self._body_bytes > room_bytes:
                return None
            cycle.message_event.clear()
            self.flow.resume_reading()
            await cycle.message_event.wait()
        if self.failure is not None:
            raise self.failure
        if cycle.disconnected:
            raise Refusal(408, "the sender left")  # nobody hears it
        parts, self._parts = self._parts, []
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def answers(self) -> bool:
        """The application begins to answer, maybe before the body was read.

        True when it is the connection's last answer.
        """
        # What is left of a body has to be read, or the answer could be lost: `check` closes then.
        if self.cycle.more_body:
            self.cycle.keep_alive = True
            self._parts.clear()
        self._enter(Phase.ANSWER)
        is_old = self.loop.time() - self._opened_s > self._times.age_s
        return is_old or not self.cycle.keep_alive

    def check(self, now_s: float) -> None:
        """Act when the phase lasts too long; `now_s` is the loop's time."""
        lasted_s = now_s - self._since_s
        match self._phase:
            case Phase.IDLE if lasted_s > self._idle_s():
                self.transport.close()
            case Phase.HEAD if lasted_s > self._times.header_s:
                self._refuse(Refusal(408, "the headers took too long"))
            case Phase.BODY if self._is_slow(lasted_s):
                self._fail(Refusal(408, "the body took too long"))
            case Phase.ANSWER if lasted_s > self._times.header_s:
                self.transport.abort()
            case Phase.LINGER if lasted_s > LINGER_S:
                self.transport.abort()

    # what uvicorn calls, or asyncio, or the parser

    def connection_lost(self, exc: Exception | None) -> None:
        """Make room for another connection."""
        super().connection_lost(exc)
        self._unset_keepalive_if_required()
        self._parts = []  # this object is in reference cycles, and lives on for a while
        self._slot.release()

    def data_received(self, data: bytes) -> None:
        """Parse, unless only the end of the connection is awaited."""
        if self._phase is Phase.IDLE:
            self._enter(Phase.HEAD)
        if self._phase is Phase.LINGER:
            self._discarded_bytes += len(data)
            if self._discarded_bytes > LINGER_BYTES:
                self.transport.abort()
                return
        if self._is_deaf:
            return
        in_head = self._phase is Phase.HEAD
        self._unset_keepalive_if_required()
        self._feed(data)
        if in_head and self._phase is Phase.HEAD and not self._is_deaf:
            self._wire_bytes += len(data)
            if self._wire_bytes > MAX_HEAD_BYTES:
                self._refuse(Refusal(431, "the headers are too large"))

    def on_message_begin(self) -> None:
        """A request's first byte."""
        if self.cycle is not None and not self.cycle.response_complete:
            raise _Refused
        self._start_request()
        if self._phase is Phase.IDLE:
            self._enter(Phase.HEAD)
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        """A piece of the target."""
        self._count_head(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header, or a trailer, which is counted and otherwise ignored."""
        self._headers += 1
        self._count_head(len(name) + len(value))
        if not self._has_head:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Refuse what could be read in two ways, then start the application."""
        self._has_head = True
        why = ambiguity(self.headers, self.parser.get_http_version())
        if self.parser.should_upgrade():
            headers = dict(self.headers)
            why = why or ("chunked and an upgrade" if b"transfer-encoding" in headers else "")
            self._unparsed_bytes = int(headers.get(b"content-length", b"0"))
        if why:
            self._refusal = Refusal(400, why)
            raise _Refused
        self._enter(Phase.WORK)
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """A piece of the body, thrown away when the answer is out already.

        Kept here and not by uvicorn, whose application is woken and copies for every piece.
        """
        self._pieces += 1
        self._body_bytes += len(body)
        if self._pieces > FREE_CHUNKS + self._body_bytes // MIN_CHUNK_BYTES:
            self._refusal = Refusal(400, "the body comes in too small chunks")
            raise _Refused
        if self.cycle.response_started:
            return
        self._parts.append(body)
        if self._body_bytes > self._room_bytes:
            self.flow.pause_reading()
            self.cycle.message_event.set()

    def on_message_complete(self) -> None:
        """The request is whole, unless its body comes behind an upgrade."""
        if self._unparsed_bytes:
            return
        super().on_message_complete()
        self.cycle.more_body = False
        if self._phase is Phase.BODY:
            self._enter(Phase.WORK)
        elif self._phase is Phase.LINGER:
            self._end_request()

    def on_response_complete(self) -> None:
        """The answer is out."""
        super().on_response_complete()
        if self.cycle.more_body:
            self._enter(Phase.LINGER)
        else:
            self._end_request()

    def _feed(self, data: bytes) -> None:
        """Parse; the body of a request that offers an upgrade (h2c) the parser leaves to us."""
        try:
            if self._unparsed_bytes:
                piece, data = data[: self._unparsed_bytes], data[self._unparsed_bytes :]
                self._unparsed_bytes -= len(piece)
                self.on_body(piece)
                if not self._unparsed_bytes:
                    self.on_message_complete()
            if data:
                self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            rest = data[upgrade.args[0] :]
            if rest:
                self._feed(rest)
        except (httptools.HttpParserError, _Refused):
            self._stopped()

    def _stopped(self) -> None:
        """The parser stopped, at what we refused or at what is no HTTP."""
        refusal = self._refusal or Refusal(400, "not valid HTTP/1.1")
        cycle = self.cycle
        if cycle is None or cycle.response_complete:
            self._refuse(refusal)
        elif cycle.more_body:
            self._fail(refusal)
        else:  # more came before the answer: it goes out, and the connection ends
            cycle.keep_alive = False
            self._is_deaf = True

    def _start_request(self) -> None:
        self._refusal = None
        self._has_head = False
        self._headers = self._head_bytes = self._wire_bytes = 0
        self._pieces = self._body_bytes = self._expected_bytes = 0
        self._discarded_bytes = self._unparsed_bytes = 0
        self._room_bytes = FIRST_BYTES
        self._parts = []

    def _end_request(self) -> None:
        self._has_served = True
        self._enter(Phase.IDLE)
        self._start_request()

    def _enter(self, phase: Phase) -> None:
        self._phase = phase
        self._since_s = self.loop.time()

    def _idle_s(self) -> float:
        return self._times.idle_s if self._has_served else self._times.header_s

    def _is_slow(self, lasted_s: float) -> bool:
        if lasted_s > self._times.body_s:
            return True
        share = (lasted_s - PACE_GRACE_S) / self._times.body_s
        return self._body_bytes < share * self._expected_bytes

    def _count_head(self, size: int) -> None:
        self._head_bytes += size
        if self._head_bytes > MAX_HEAD_BYTES or self._headers > MAX_HEADERS:
            self._refusal = Refusal(431, "the headers are too large")
            raise _Refused

    def _fail(self, refusal: Refusal) -> None:
        """Let the application answer that the body will not become whole."""
        self._is_deaf = True
        self._parts = []
        self.failure = refusal
        self.cycle.message_event.set()

    def _refuse(self, refusal: Refusal) -> None:
        """Answer in the application's place; nothing else is read on this connection."""
        self._count(refusal.status)
        self._is_deaf = True
        self.transport.write(refused(refusal, Media.JSON).raw())
        if self.transport.can_write_eof():  # over TLS the sender waits for the end of the linger
            self.transport.write_eof()
        self._enter(Phase.LINGER)


def ambiguity(headers: list[tuple[bytes, bytes]], version: str) -> str:
    """Why two readers could see two different requests here; "" when they cannot.

    >>> ambiguity([(b"transfer-encoding", b"gzip, chunked"), (b"host", b"x")], "1.1")
    'transfer-encoding other than chunked'
    """
    if version not in {"1.0", "1.1"}:
        return "neither HTTP/1.1 nor HTTP/1.0"
    names = [name for name, _ in headers]
    codings = [value.strip().lower() for name, value in headers if name == b"transfer-encoding"]
    if codings and b"content-length" in names:
        return "both content-length and transfer-encoding"
    if codings and (codings != [b"chunked"] or version != "1.1"):
        return "transfer-encoding other than chunked"
    if names.count(b"content-length") > 1:
        return "more than one content-length"
    if version == "1.1" and names.count(b"host") != 1:
        return "not exactly one host"
    return ""
