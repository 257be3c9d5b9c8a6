"""One request from any transport: who is it, may it, is there room; then decode and fold.

Both transports share one intake, so that budgets, limits and counts hold for all of them. Bytes
count against the budget until the submitted work ends, also when the sender has left before: no
batch is folded by halves, and nothing is held that nobody counts.
"""

import asyncio
import random
from functools import partial
from typing import Final

import structlog

from pipeline.clock import NS_PER_S, Clock, SystemClock
from pipeline.errors import Overloaded, Rejected, Unauthenticated
from pipeline.model import Client, Export, OtlpSignal, Receipt
from pipeline.receive.admission import Admission, Limits
from pipeline.receive.charge import charge
from pipeline.receive.config import ReceiveConfig, Submit, check_config
from pipeline.receive.limits import ClientBounds, ClientLimiter
from pipeline.receive.tls import ServerTls
from pipeline.receive.tokens import Tokens
from pipeline.telemetry import Telemetry

MAX_PEERS_NAMED: Final = 32
"""Peers that are named in a log line for a wrong token; after that they are only counted."""

_MAX_DELAY_S: Final = 60.0
"""Of a client beyond its limits; a sender's own queue would overflow long before."""

log = structlog.get_logger()


class Intake:
    """Who, may it, room; then submit. For one event loop, any number of transports.

    `tls` is what every transport listens with, None for plaintext.
    """

    def __init__(
        self,
        config: ReceiveConfig,
        submit: Submit,
        telemetry: Telemetry,
        *,
        jitter: random.Random | None = None,
        clock: Clock | None = None,
    ) -> None:
        """Check the configuration and read its files (`ConfigError`); nothing runs yet."""
        check_config(config)
        self.config: Final = config
        self.telemetry: Final = telemetry
        self._submit = submit
        self._clock = SystemClock() if clock is None else clock
        self._jitter = random.Random() if jitter is None else jitter  # noqa: S311  # spreads retries
        self._admission = Admission(
            Limits(config.max_bytes_in_flight, config.max_bytes_waiting, config.max_wait_s),
            self._jitter,
        )
        self._limiter = new_limiter(config)
        self._tokens = self._read_tokens()
        self.tls: Final = (
            ServerTls(config.tls, telemetry, self._clock) if config.tls.certificate_file else None
        )
        self._named: set[str] = set()
        self._work: set[asyncio.Future[Receipt]] = set()
        self._declare_counts()

    @property
    def asks_token(self) -> bool:
        """Whether a request without a token is refused."""
        return self._tokens is not None

    @property
    def asks_certificate(self) -> bool:
        """Whether every sender presents a certificate, whose name is then wanted."""
        return self.tls is not None and self.tls.asks_certificate

    @property
    def bytes_in_flight(self) -> int:
        """Admitted bytes that are not folded yet."""
        return self._admission.in_flight_bytes

    @property
    def bytes_held(self) -> int:
        """These, and those of requests that wait for room."""
        return self._admission.in_flight_bytes + self._admission.waiting_bytes

    def retry_after_s(self) -> float:
        """A random delay to ask a refused sender for."""
        return self._admission.retry_after_s()

    def authenticate(self, peer: str, authorization: str, certificate: str) -> Client:
        """Who sends: its address (without port), and the name of its token or its certificate.

        `authorization` is the header's value, `certificate` the name in a verified client
        certificate, both "" where there is none. `Unauthenticated`, counted, when a token is
        asked for and it is missing, unknown or expired. Takes nothing of any budget.
        """
        if self._tokens is None:
            return Client(peer, certificate)
        try:
            return Client(peer, self._tokens.name_of(authorization, self._clock.now()))
        except Unauthenticated as error:
            self._refused(peer, str(error))
            raise

    async def take(
        self,
        export: Export,
        peer: str,
        *,
        authorization: str = "",
        certificate: str = "",
        remaining_s: float | None = None,
        transport: str = "grpc",
    ) -> Receipt:
        """`authenticate`, then `accept`, for transports that have the body at once."""
        client = self.authenticate(peer, authorization, certificate)
        return await self.accept(export, client, remaining_s=remaining_s, transport=transport)

    async def accept(
        self,
        export: Export,
        client: Client,
        *,
        remaining_s: float | None = None,
        transport: str = "grpc",
    ) -> Receipt:
        """What the sender is told, once the batch was submitted and its work has ended.

        `export.max_bytes` is set here. `remaining_s` is the time the sender still waits (None =
        for ever). Raises `Rejected` (permanent; reason `charge.TOO_LARGE` apart), `Overloaded` and
        `DependencyLost` (retryable); anything else is a fault, which the transport answers
        retryably. Each is counted here.
        """
        outcome = "failed"
        self._by_transport[transport].inc()
        try:
            receipt = await self._accept(export, client, remaining_s)
            outcome = "ok"
        except Rejected:
            outcome = "rejected"
            raise
        except Overloaded as error:
            outcome = "overloaded"
            self._drop(error.reason)
            raise
        finally:
            self._answers[export.signal][outcome].inc()
        return receipt

    def refused_unread(self, signal: OtlpSignal, error: Overloaded) -> None:
        """Count a request that was refused before its body was here."""
        self._drop(error.reason)
        self._answers[signal]["overloaded"].inc()

    async def drained(self, grace_s: float) -> None:
        """Wait, at most `grace_s`, for work whose sender may have left."""
        if self._work:
            await asyncio.wait(self._work, timeout=grace_s)

    async def _accept(self, export: Export, client: Client, remaining_s: float | None) -> Receipt:
        if remaining_s is not None and remaining_s <= 0:
            raise Overloaded("deadline", self.retry_after_s())
        try:
            size = charge(export.body, export.encoding, self.config.max_message_bytes)
        except Rejected as error:
            self._drop(error.reason)
            raise
        key = client.name or client.peer
        await self._admit(key, size, remaining_s)
        self._bytes[export.signal].inc(size)
        admitted = Export(export.signal, export.body, export.encoding, export.is_json, size)
        try:
            work = asyncio.ensure_future(self._submit(admitted, client))
        except BaseException:
            self._release(key, size)
            raise
        # Not the work itself: a sender that leaves cancels this wait, and the work goes on.
        answer: asyncio.Future[Receipt] = work.get_loop().create_future()
        self._work.add(work)
        work.add_done_callback(partial(self._worked, key, size, answer))
        try:
            return await answer
        finally:
            del work, answer  # else an error and this frame, with the body, hold each other

    async def _admit(self, key: str, size: int, remaining_s: float | None) -> None:
        if self._limiter is None:
            await self._admission.admit(size, remaining_s)
            return
        wait_s = self._limiter.take(key, size, self._clock.now().mono_ns / NS_PER_S)
        if wait_s is None:
            raise Overloaded("client_limit", self.retry_after_s())
        if wait_s > 0:
            raise Overloaded("client_limit", self._later_s(wait_s))
        try:
            await self._admission.admit(size, remaining_s)
        except BaseException:
            self._limiter.undo(key, size)
            raise

    def _later_s(self, wait_s: float) -> float:
        """A delay of at least `wait_s`, up to half as long again, so that no two are the same."""
        return min(wait_s, _MAX_DELAY_S) * self._jitter.uniform(1.0, 1.5)

    def _worked(
        self,
        key: str,
        size: int,
        answer: "asyncio.Future[Receipt]",
        work: "asyncio.Future[Receipt]",
    ) -> None:
        self._work.discard(work)
        self._release(key, size)
        if answer.done():  # the sender has left
            if not work.cancelled():
                work.exception()  # seen, though nobody asks
        elif work.cancelled():
            answer.cancel()
        elif (error := work.exception()) is not None:
            answer.set_exception(error)
        else:
            answer.set_result(work.result())

    def _release(self, key: str, size: int) -> None:
        self._admission.release(size)
        if self._limiter is not None:
            self._limiter.release(key, size)

    def _drop(self, reason: str) -> None:
        self.telemetry.dropped_total.labels("receive", reason).inc()

    def _refused(self, peer: str, reason: str) -> None:
        self.telemetry.unauthenticated_requests_total.labels(reason).inc()
        if peer not in self._named and len(self._named) < MAX_PEERS_NAMED:
            self._named.add(peer)
            log.warning("a sender has no valid token", peer=peer, reason=reason)

    def _read_tokens(self) -> Tokens | None:
        path = self.config.tokens_file
        if not path:
            return None
        if self.config.plaintext_off_loopback and not self.config.tls.certificate_file:
            log.warning("tokens may cross the network in plain text", file=path)
        reloads = self.telemetry.reloads_total
        return Tokens(
            path, self._clock.now(), lambda outcome: reloads.labels("tokens", outcome).inc()
        )

    def _declare_counts(self) -> None:
        """Look the counters up once: it costs more than counting."""
        telemetry = self.telemetry
        telemetry.bytes_in_flight.set_function(lambda: self._admission.in_flight_bytes)
        self._answers = {
            signal: {
                outcome: telemetry.received_requests_total.labels(signal.value, outcome)
                for outcome in ("ok", "rejected", "overloaded", "failed")
            }
            for signal in OtlpSignal
        }
        self._bytes = {
            signal: telemetry.received_bytes_total.labels(signal.value) for signal in OtlpSignal
        }
        self._by_transport = {
            name: telemetry.transport_requests_total.labels(name) for name in ("grpc", "http")
        }


def new_limiter(config: ReceiveConfig) -> ClientLimiter | None:
    """The limiter of `config.clients`; None when it limits nothing."""
    clients = config.clients
    if not clients.requests_per_s and not clients.bytes_per_s and clients.max_in_flight_ratio == 1:
        return None
    return ClientLimiter(
        ClientBounds(
            clients.requests_per_s,
            clients.bytes_per_s,
            max(clients.bytes_per_s, config.max_message_bytes),
            clients.max_in_flight_ratio * config.max_bytes_in_flight,
        )
    )
