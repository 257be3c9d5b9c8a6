"""What operators set about receiving: addresses, sizes, who may send and how much.

One section for both transports: the limits hold for gRPC and HTTP together.
"""

from collections.abc import Awaitable, Callable
from typing import Annotated, Final, TypeAlias

import msgspec

from pipeline.address import is_loopback, split_listen
from pipeline.errors import ConfigError
from pipeline.model import Client, Config, Export, Receipt

Submit: TypeAlias = Callable[[Export, Client], Awaitable[Receipt]]
"""(request, who sent it) -> what the sender is told, once the batch is decoded and folded."""

MIB: Final = 1 << 20

_Seconds: TypeAlias = Annotated[float, msgspec.Meta(ge=1)]
_Rate: TypeAlias = Annotated[float, msgspec.Meta(ge=0)]


class HttpConfig(Config, frozen=True, kw_only=True):
    """OTLP/HTTP: where to listen and how long a sender may take."""

    listen: str = "127.0.0.1:4318"
    """host:port; port 0 picks a free one; "" = no OTLP/HTTP."""
    max_connections: Annotated[int, msgspec.Meta(ge=1)] = 1000
    """Open connections; one beyond is closed at once."""
    max_connections_per_peer: Annotated[int, msgspec.Meta(ge=1)] = 500
    """Of these, from one address."""
    max_bytes_uploading: Annotated[int, msgspec.Meta(ge=MIB)] = 64 * MIB
    """Bytes of bodies that are still arriving, half of them from one address; not below
    max_message_bytes. What comes on top waits as max_wait_s says, then is told to retry."""
    header_timeout_s: Annotated[float, msgspec.Meta(ge=0.1)] = 5.0
    """From connecting to a first byte, from there to the end of the headers; TLS handshake too."""
    body_timeout_s: Annotated[float, msgspec.Meta(ge=0.1)] = 10.0
    """For a whole body; one that falls behind that pace is refused earlier."""
    idle_timeout_s: Annotated[float, msgspec.Meta(ge=0.1)] = 120.0
    """Between two requests; longer than senders keep idle connections, so that they close first."""


class TlsConfig(Config, frozen=True, kw_only=True):
    """TLS of both transports; files that change are read again, without a restart."""

    certificate_file: str = ""
    """PEM, the server's certificate and what leads to its authority; "" = no TLS."""
    key_file: str = ""
    """PEM, the certificate's private key, without a password."""
    client_ca_file: str = ""
    """PEM, authorities; set, every sender has to present a certificate that one of them signed."""


class ClientsConfig(Config, frozen=True, kw_only=True):
    """What one client may use, be it one name (token, certificate) or one address."""

    requests_per_s: _Rate = 0.0
    """Requests, with bursts of one second; 0 = no limit."""
    bytes_per_s: _Rate = 0.0
    """Inflated bytes, with bursts of one second or one largest request; 0 = no limit."""
    max_in_flight_ratio: Annotated[float, msgspec.Meta(gt=0, le=1)] = 1.0
    """Share of max_bytes_in_flight that one client may hold; one request it may always have."""


class ReceiveConfig(Config, frozen=True, kw_only=True):
    """OTLP: where to listen and what a sender may use."""

    listen: str = "127.0.0.1:4317"
    """OTLP/gRPC: host:port, or unix:/path; port 0 picks a free one."""
    http: HttpConfig = HttpConfig()
    tls: TlsConfig = TlsConfig()
    plaintext_off_loopback: bool = False
    """Listen without TLS on an address that other machines reach."""
    tokens_file: str = ""
    """YAML list of bearer tokens, re-read when it changes: {name, token or sha256, expires};
    set, every request has to carry one of them."""
    clients: ClientsConfig = ClientsConfig()
    processes: Annotated[int, msgspec.Meta(ge=0, le=64)] = 0
    """Receiver processes beside the deciding one, for machines where one core cannot receive and
    decode it all; 0 = the deciding process receives. They share the ports, and equally the bounds
    on bytes and connections (each takes at least one largest request); limits of one client hold
    in each."""
    max_message_bytes: Annotated[int, msgspec.Meta(ge=MIB)] = 64 * MIB
    """Largest request, inflated; a larger one is refused for good (RESOURCE_EXHAUSTED, 413)."""
    max_bytes_in_flight: Annotated[int, msgspec.Meta(ge=MIB)] = 64 * MIB
    """Inflated bytes of requests that are being decoded and folded; not below max_message_bytes.
    More of them only wait longer: under overload this is what an acknowledgement takes."""
    max_bytes_waiting: Annotated[int, msgspec.Meta(ge=0)] = 32 * MIB
    """Bytes of requests that may wait for room; what comes on top is told to retry."""
    max_wait_s: Annotated[float, msgspec.Meta(ge=0, le=4)] = 0.5
    """How long a request waits for room before it is told to retry; senders give up after 5 s."""
    max_bytes_arriving: Annotated[int, msgspec.Meta(ge=MIB)] = 96 * MIB
    """How much the process may grow by gRPC bodies that are still arriving; then those that take
    longest are told to retry."""
    max_upload_s: Annotated[float, msgspec.Meta(ge=0.1)] = 10.0
    """For a whole gRPC body, from its headers on; then its sender is told to retry."""
    max_connections: Annotated[int, msgspec.Meta(ge=1)] = 2000
    """Open gRPC connections; a sender beyond sees UNAVAILABLE."""
    max_streams_per_connection: Annotated[int, msgspec.Meta(ge=1)] = 32
    """Concurrent requests of one connection; more queue at the sender."""
    min_ping_interval_s: Annotated[float, msgspec.Meta(ge=0.1)] = 5.0
    """A sender that sends keepalive pings faster than this is disconnected."""
    keepalive_interval_s: _Seconds = 60.0
    """An idle connection is pinged this often, to find peers that are gone."""
    keepalive_timeout_s: _Seconds = 20.0
    """A ping not answered in this time closes the connection."""
    max_connection_idle_s: _Seconds = 900.0
    """A connection without requests is closed after this."""
    max_connection_age_s: _Seconds = 600.0
    """A connection is asked to reconnect after this (+-10 %), so that new replicas get traffic."""
    max_connection_age_grace_s: _Seconds = 30.0
    """Time that its running requests then still have."""


def check_config(config: ReceiveConfig) -> None:
    """`ConfigError` for what field types cannot say; no file is read."""
    if not config.listen.startswith("unix:"):
        split_listen("receive.listen", config.listen)
    _check_plaintext("receive.listen", config.listen, config)
    if config.http.listen:
        split_listen("receive.http.listen", config.http.listen)
        _check_plaintext("receive.http.listen", config.http.listen, config)
    if config.processes and config.listen.startswith("unix:"):
        raise ConfigError("receive.listen: receiver processes cannot share a unix: socket")
    tls = config.tls
    if bool(tls.certificate_file) != bool(tls.key_file):
        raise ConfigError("receive.tls: certificate_file and key_file belong together")
    if tls.client_ca_file and not tls.certificate_file:
        raise ConfigError("receive.tls.client_ca_file: needs certificate_file and key_file")
    if config.max_bytes_in_flight < config.max_message_bytes:
        raise ConfigError(
            "receive.max_bytes_in_flight: below receive.max_message_bytes,"
            " so that the largest request could never be taken"
        )
    if config.http.listen and config.http.max_bytes_uploading < config.max_message_bytes:
        raise ConfigError(
            "receive.http.max_bytes_uploading: below receive.max_message_bytes,"
            " so that the largest request could never be taken"
        )


def _check_plaintext(field: str, listen: str, config: ReceiveConfig) -> None:
    if config.tls.certificate_file or config.plaintext_off_loopback or is_loopback(listen):
        return
    raise ConfigError(
        f"{field}: {listen} is reachable from other machines without TLS; set receive.tls,"
        " or receive.plaintext_off_loopback: true to accept that"
    )
