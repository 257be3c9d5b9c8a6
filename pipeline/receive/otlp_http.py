"""OTLP over HTTP/1.1: protobuf and JSON on one port; bodies stay compressed, nothing is decoded.

Who sends and how much is asked before a body is read, so that uploads, slow ones too, hold no
memory that is not counted. 400, 401, 404, 405, 413, 415 are for good; what a retry can cure is 429
or 503 with Retry-After, never 500, and no text of an exception leaves the process. Browsers are not
served: there is no CORS.
"""

import asyncio
import logging
import random
from collections.abc import Mapping
from email.utils import formatdate
from typing import Any, Final, NamedTuple

import structlog
from uvicorn import Config
from uvicorn.server import ServerState

from pipeline.errors import DependencyLost, Overloaded, Rejected, Unauthenticated
from pipeline.model import Client, Encoding, Export, OtlpSignal, Receipt
from pipeline.receive.charge import TOO_LARGE
from pipeline.receive.config import ReceiveConfig
from pipeline.receive.http_answers import Answer, Media, Refusal, accepted, refused
from pipeline.receive.http_listener import Bounds, Listener, Slot
from pipeline.receive.http_protocol import HttpConnection, Times
from pipeline.receive.http_uploads import UPLOAD_SHARE, Upload, Uploads
from pipeline.receive.intake import Intake
from pipeline.receive.tls import name_in
from pipeline.telemetry import Telemetry

PATHS: Final[Mapping[str, OtlpSignal]] = {
    "/v1/traces": OtlpSignal.TRACES,
    "/v1/metrics": OtlpSignal.METRICS,
    "/v1/logs": OtlpSignal.LOGS,
    "/v1development/profiles": OtlpSignal.PROFILES,
    "/v1/profiles": OtlpSignal.PROFILES,
}

CODINGS: Final[Mapping[bytes, Encoding]] = {
    b"": Encoding.IDENTITY,
    b"identity": Encoding.IDENTITY,
    b"gzip": Encoding.GZIP,
    b"x-gzip": Encoding.GZIP,  # RFC 9110: the same
    b"deflate": Encoding.DEFLATE,
    b"zstd": Encoding.ZSTD,
}

MEDIA: Final[Mapping[bytes, Media]] = {media.value.encode(): media for media in Media}

CHUNKED_STEP_BYTES: Final = 256 << 10
"""Set aside at a time for a body that does not say how long it is."""

_FIELD: Final = "receive.http.listen"
_CHECK_EVERY_S: Final = 0.25
_CLIENT_LIMITS: Final = frozenset({"client_limit", UPLOAD_SHARE})
"""Reasons of `Overloaded` that are about one client (429), not about us (503)."""
_AGE_SPREAD: Final = 0.1
"""Connections do not all grow old together."""

log = structlog.get_logger()


class _Head(NamedTuple):
    """What the headers of an export request say."""

    signal: OtlpSignal
    media: Media
    encoding: Encoding
    length: int | None
    """None = chunked."""


class OtlpHttpServer:
    """`start` once; `stop` is safe twice, and without `start`. For one event loop."""

    def __init__(
        self,
        config: ReceiveConfig,
        intake: Intake,
        telemetry: Telemetry,
        *,
        reuse_port: bool = False,
        jitter: random.Random | None = None,
    ) -> None:
        """Nothing is opened yet. `reuse_port`: other processes may listen on the same port."""
        self._config = config
        self._intake = intake
        self._telemetry = telemetry
        self._reuse_port = reuse_port
        self._jitter = random.Random() if jitter is None else jitter  # noqa: S311  # spreads retries
        self._uploads = Uploads(config.http.max_bytes_uploading, config.max_wait_s, self._jitter)
        self._state = ServerState()
        self._listener: Listener | None = None
        self._checking: asyncio.Task[None] | None = None
        telemetry.http_connections.set_function(lambda: self.connections)
        telemetry.http_upload_bytes.set_function(lambda: self._uploads.held_bytes)

    @property
    def connections(self) -> int:
        """Open connections, those in their handshake included."""
        return 0 if self._listener is None else self._listener.connections

    async def start(self) -> str:
        """Open the port and serve; the bound address. `ConfigError` when it cannot be had."""
        http = self._config.http
        protocol = _protocol_config(http.idle_timeout_s)
        refusals = self._telemetry.http_refused_connections_total

        def connect(peer: str, slot: Slot) -> HttpConnection:
            times = self._times()
            return HttpConnection(
                protocol, self._state, self._serve, times, peer, slot, self._count
            )

        bounds = Bounds(http.max_connections, http.max_connections_per_peer, http.header_timeout_s)
        tls = None if self._intake.tls is None else self._intake.tls.ssl_context()
        listener = Listener(bounds, connect, tls, refusals.inc)
        address = listener.open(_FIELD, http.listen, self._reuse_port)
        self._listener = listener
        self._checking = asyncio.get_running_loop().create_task(self._check())
        return address

    async def stop(self, grace_s: float) -> None:
        """Accept no more, finish running requests for at most `grace_s`, then close."""
        if self._listener is None:
            return
        listener, self._listener = self._listener, None
        await listener.close()
        for connection in list(self._state.connections):
            connection.shutdown()
        if self._state.tasks:
            await asyncio.wait(self._state.tasks, timeout=grace_s)
        for task in list(self._state.tasks):
            task.cancel()
        if self._state.tasks:
            await asyncio.wait(self._state.tasks)
        for connection in list(self._state.connections):
            if not connection.transport.is_closing():
                connection.transport.abort()
        if self._checking is not None:
            self._checking.cancel()
            await asyncio.wait({self._checking})

    async def _check(self) -> None:
        """Look at every connection's time, and tell the date, a few times a second."""
        loop = asyncio.get_running_loop()
        while True:
            self._state.default_headers = [(b"date", formatdate(usegmt=True).encode())]
            now_s = loop.time()
            for connection in list(self._state.connections):
                assert isinstance(connection, HttpConnection)
                connection.check(now_s)
            await asyncio.sleep(_CHECK_EVERY_S)

    def _times(self) -> Times:
        http = self._config.http
        spread = self._jitter.uniform(1 - _AGE_SPREAD, 1 + _AGE_SPREAD)
        age_s = self._config.max_connection_age_s * spread
        return Times(http.header_timeout_s, http.body_timeout_s, http.idle_timeout_s, age_s)

    def _count(self, status: int) -> None:
        self._telemetry.http_refusals_total.labels(str(status)).inc()

    async def _serve(
        self, connection: HttpConnection, scope: Any, _receive: Any, send: Any
    ) -> None:
        """One request, as an ASGI application."""
        headers: dict[bytes, bytes] = dict(scope["headers"])
        media = MEDIA.get(_bare(headers.get(b"content-type", b"")), Media.JSON)
        answer = await self._answer(connection, scope, headers, media)
        if connection.answers():
            answer.headers.append((b"connection", b"close"))
        start = {"type": "http.response.start", "status": answer.status, "headers": answer.headers}
        await send(start)
        await send({"type": "http.response.body", "body": answer.body})

    async def _answer(
        self,
        connection: HttpConnection,
        scope: Any,
        headers: Mapping[bytes, bytes],
        media: Media,
    ) -> Answer:
        signal = PATHS.get(scope["path"])
        try:
            head = self._head(signal, scope["method"], headers)
            receipt = await self._export(connection, head, headers)
            return accepted(head.signal, head.media, receipt)
        except Refusal as refusal:
            return self._refused(refusal, media)
        except Unauthenticated:
            challenge = [(b"www-authenticate", b"Bearer")]
            return self._refused(Refusal(401, "no valid token", headers=challenge), media)
        except Rejected as error:
            code = 413 if error.reason == TOO_LARGE else 400
            return self._refused(Refusal(code, error.description), media)
        except Overloaded as error:
            code = 429 if error.reason in _CLIENT_LIMITS else 503
            return self._refused(
                _later(code, "overloaded, retry later", error.retry_after_s), media
            )
        except DependencyLost:
            why = "not ready, retry later"
        except asyncio.CancelledError:
            why = "stopping, retry later"
        except Exception:  # an unknown fault must not lose the batch
            log.exception("request failed", signal=signal and signal.value)
            why = "internal fault, retry later"
        return self._refused(_later(503, why, self._intake.retry_after_s()), media)

    def _refused(self, refusal: Refusal, media: Media) -> Answer:
        self._count(refusal.status)
        return refused(refusal, media)

    def _head(
        self, signal: OtlpSignal | None, method: str, headers: Mapping[bytes, bytes]
    ) -> _Head:
        """What the headers say; `Refusal` when it is no export that can be read."""
        if signal is None:
            raise Refusal(404, "no such path; OTLP is at /v1/traces and the like")
        if method != "POST":
            allow = [(b"allow", b"POST")]
            raise Refusal(405, "only POST", headers=allow)
        media = MEDIA.get(_bare(headers.get(b"content-type", b"")))
        if media is None:
            known = " or ".join(Media)
            raise Refusal(415, f"the content-type is not {known}")
        encoding = CODINGS.get(headers.get(b"content-encoding", b"").strip().lower())
        if encoding is None:
            known_codings = [(b"accept-encoding", b"gzip, deflate, zstd")]
            why = "the content-encoding is not gzip, deflate, zstd or identity"
            raise Refusal(415, why, headers=known_codings)
        length = None if b"transfer-encoding" in headers else _length(headers)
        return _Head(signal, media, encoding, length)

    async def _export(
        self,
        connection: HttpConnection,
        head: _Head,
        headers: Mapping[bytes, bytes],
    ) -> Receipt:
        client = self._client(connection, headers)
        if head.length is not None and head.length > self._config.max_message_bytes:
            raise self._too_large(head.signal)
        upload = self._uploads.upload(client.peer)
        try:
            body = await self._read(connection, head, upload)
        except Overloaded as error:
            self._telemetry.dropped_total.labels("receive", error.reason).inc()
            self._telemetry.received_requests_total.labels(head.signal.value, "overloaded").inc()
            raise
        finally:
            upload.release()  # from here on the intake counts the bytes, without a gap
        export = Export(head.signal, body, head.encoding, head.media is Media.JSON)
        return await self._intake.accept(export, client, transport="http")

    def _client(self, connection: HttpConnection, headers: Mapping[bytes, bytes]) -> Client:
        authorization = headers.get(b"authorization", b"").decode("latin-1")
        certificate = ""
        if self._intake.asks_certificate:
            certificate = name_in(connection.ssl_object.getpeercert())
        return self._intake.authenticate(connection.peer, authorization, certificate)

    async def _read(self, connection: HttpConnection, head: _Head, upload: Upload) -> bytes:
        """The whole body; bytes are set aside before they are read."""
        if head.length is not None:
            await upload.grow(head.length)
            body = await connection.read(head.length, head.length)
            assert body is not None  # the parser ends it there
            return body
        most = self._config.max_message_bytes
        while upload.size < most:
            await upload.grow(min(upload.size + CHUNKED_STEP_BYTES, most))
            body = await connection.read(upload.size)
            if body is None:
                continue
            if len(body) > most:
                break
            return body
        raise self._too_large(head.signal)

    def _too_large(self, signal: OtlpSignal) -> Refusal:
        self._telemetry.dropped_total.labels("receive", TOO_LARGE).inc()
        self._telemetry.received_requests_total.labels(signal.value, "rejected").inc()
        return Refusal(413, f"larger than {self._config.max_message_bytes} bytes")


def _later(status: int, message: str, retry_after_s: float) -> Refusal:
    return Refusal(status, message, retry_after_s=retry_after_s)


def _bare(content_type: bytes) -> bytes:
    """A media type without its parameters."""
    return content_type.partition(b";")[0].strip().lower()


def _length(headers: Mapping[bytes, bytes]) -> int:
    return int(headers.get(b"content-length", b"0"))


def _protocol_config(idle_s: float) -> Config:
    """What uvicorn's protocol asks for: no lifespan, web sockets, logs or server header."""

    async def never(scope: Any, receive: Any, send: Any) -> None:
        """Each connection has an application of its own."""

    config = Config(
        never,
        interface="asgi3",
        http=HttpConnection,
        ws="none",
        lifespan="off",
        loop="none",
        log_config=None,
        log_level=logging.CRITICAL,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        date_header=False,
        timeout_keep_alive=int(idle_s) + 1,
    )
    config.load()
    return config
