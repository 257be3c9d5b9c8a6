"""TLS of both transports from one set of files, read again when they change.

A file is looked at once a second at most, during a handshake. New files that do not fit together,
that cannot be read or that have expired leave the old ones in use: counted, logged once. Open
connections keep the certificate that they began with.
"""

import ssl
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import grpc
import structlog

from pipeline.clock import NS_PER_S, Clock
from pipeline.errors import ConfigError
from pipeline.receive.config import TlsConfig
from pipeline.telemetry import Telemetry

CHECK_EVERY_NS: Final = NS_PER_S
MAX_NAME_CHARS: Final = 128
"""Of a client's name from its certificate; a longer one is cut."""

_FIELD: Final = "receive.tls"
_HANDSHAKE_STEPS: Final = 4
"""Turns of each side of a TLS 1.3 handshake, with one to spare."""

log = structlog.get_logger()


class _Loaded(NamedTuple):
    """One consistent set of files."""

    stamp: tuple[int, ...]
    grpc: grpc.ServerCertificateConfiguration
    context: ssl.SSLContext
    expires_s: float
    """Unix time."""


class ServerTls:
    """The server's certificate, and whom it believes. Safe in any thread."""

    def __init__(self, config: TlsConfig, telemetry: Telemetry, clock: Clock) -> None:
        """Read the files; `ConfigError` when they cannot be used."""
        self._files = tuple(
            Path(name).expanduser()
            for name in (config.certificate_file, config.key_file, config.client_ca_file)
            if name
        )
        self.asks_certificate: Final = bool(config.client_ca_file)
        """Whether every sender presents a certificate."""
        self._telemetry = telemetry
        self._clock = clock
        self._lock = threading.Lock()
        self._checked_ns = clock.now().mono_ns
        self._refused: tuple[int, ...] = ()
        self._loaded = self._load()
        self._warn_of_key()

    def grpc_credentials(self) -> grpc.ServerCredentials:
        """Credentials whose certificate follows the files, for one server."""
        given = self._current()

        def changed() -> grpc.ServerCertificateConfiguration | None:
            nonlocal given
            newest = self._current()
            if newest is given:
                return None
            given = newest
            return newest.grpc

        return grpc.dynamic_ssl_server_credentials(given.grpc, changed, self.asks_certificate)

    def ssl_context(self) -> ssl.SSLContext:
        """A server's context whose certificate and authorities follow the files."""
        context = self._new_context()

        def follow(handshake: ssl.SSLObject, _name: str | None, _context: ssl.SSLContext) -> None:
            handshake.context = self._current().context

        context.sni_callback = follow
        return context

    def _current(self) -> _Loaded:
        """What to use now, after a look at the files if the last one is a while ago."""
        with self._lock:
            now = self._clock.now()
            if now.mono_ns - self._checked_ns >= CHECK_EVERY_NS:
                self._checked_ns = now.mono_ns
                self._refresh()
            return self._loaded

    def _refresh(self) -> None:
        stamp = _stamp(self._files)
        if stamp == self._loaded.stamp:
            return
        try:
            self._loaded = self._load()
        except ConfigError as error:
            if stamp != self._refused:  # tried again each time, told once
                self._refused = stamp
                self._telemetry.reloads_total.labels("certificate", "failed").inc()
                log.error("new TLS files cannot be used; the old ones stay", why=str(error))
        else:
            self._telemetry.reloads_total.labels("certificate", "ok").inc()
            log.info("TLS files read again")
            self._warn_of_key()

    def _load(self) -> _Loaded:
        stamp = _stamp(self._files)  # first: what changes meanwhile is seen the next time
        certificate, key, *authorities = (_read(file) for file in self._files)
        expires_s = _expires_s(_context(*self._files[:2]), self._files[0])
        context = self._new_context()
        found = grpc.ssl_server_certificate_configuration(
            [(key, certificate)], authorities[0] if authorities else None
        )
        self._telemetry.certificate_expiry_seconds.set(expires_s)
        return _Loaded(stamp, found, context, expires_s)

    def _new_context(self) -> ssl.SSLContext:
        certificate, key, *authorities = self._files
        context = _context(certificate, key)
        for file in authorities:
            try:
                context.load_verify_locations(cafile=file)
            except (OSError, ValueError) as error:
                raise ConfigError(f"{_FIELD}.client_ca_file: {file}: {_why(error)}") from None
            context.verify_mode = ssl.CERT_REQUIRED
        return context

    def _warn_of_key(self) -> None:
        key = self._files[1]
        try:
            mode = key.stat().st_mode
        except OSError:  # replaced just now
            return
        if mode & 0o004:
            log.warning("everybody on this machine can read the TLS key", file=str(key))


def name_in(certificate: Mapping[str, Any] | None) -> str:
    """Who a verified client certificate, as `SSLSocket.getpeercert` tells it, was issued to.

    The first URI (SPIFFE), else the common name, else the first other alternative name, else "".
    """
    if not certificate:
        return ""
    others = [value for _, value in certificate.get("subjectAltName", ())]
    uris = [value for kind, value in certificate.get("subjectAltName", ()) if kind == "URI"]
    subject = [pair for part in certificate.get("subject", ()) for pair in part]
    return _first(uris, [value for kind, value in subject if kind == "commonName"], others)


def name_in_grpc(auth_context: Mapping[str, Any]) -> str:
    """The same of a gRPC call's `auth_context`."""

    def texts(key: str) -> list[str]:
        return [value.decode("utf-8", "replace") for value in auth_context.get(key, ())]

    others = texts("x509_subject_alternative_name")
    return _first([name for name in others if "://" in name], texts("x509_common_name"), others)


def _first(*groups: list[str]) -> str:
    for group in groups:
        for name in group:
            if name:
                return name[:MAX_NAME_CHARS]
    return ""


def _context(certificate: Path, key: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.num_tickets = 0  # a resumed session would outlive a change of authorities
    context.options |= ssl.OP_NO_TICKET
    try:
        context.load_cert_chain(certificate, key, password=_no_password)
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        raise ConfigError(f"{_FIELD}: {certificate} and {key}: {_why(error)}") from None
    return context


def _no_password() -> str:
    """For keys with a password: without this OpenSSL asks at the terminal."""
    return ""


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{_FIELD}: {path}: cannot be read: {error.strerror}") from None


def _stamp(files: tuple[Path, ...]) -> tuple[int, ...]:
    stamp: list[int] = []
    for file in files:
        try:
            found = file.stat()
        except OSError:
            stamp.append(0)
        else:
            stamp.extend((found.st_mtime_ns, found.st_size, found.st_ino))
    return tuple(stamp)


def _why(error: OSError | ValueError) -> str:
    """What is wrong, in OpenSSL's words without its place in OpenSSL."""
    if isinstance(error, ssl.SSLError):
        return (error.reason or "not usable").replace("_", " ").lower()
    return getattr(error, "strerror", None) or str(error)


def _expires_s(server: ssl.SSLContext, certificate: Path) -> float:
    """When the certificate expires: from a handshake in memory that trusts it and nothing else.

    That proves, too, that the key belongs to it and that it holds today and for servers.
    """
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    client.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    try:
        client.load_verify_locations(cafile=certificate)
        near = client.wrap_bio(to_client, to_server)
        far = server.wrap_bio(to_server, to_client, server_side=True)
        for step in [near.do_handshake, far.do_handshake] * _HANDSHAKE_STEPS:
            _try(step)
    except ssl.SSLCertVerificationError as error:
        why = error.verify_message
        raise ConfigError(f"{_FIELD}.certificate_file: {certificate}: {why}") from None
    except OSError as error:  # ssl.SSLError is one
        raise ConfigError(f"{_FIELD}: {certificate}: {_why(error)}") from None
    found = near.getpeercert() or {}
    return float(ssl.cert_time_to_seconds(str(found["notAfter"])))


def _try(step: Callable[[], None]) -> None:
    try:
        step()
    except ssl.SSLWantReadError:
        return
