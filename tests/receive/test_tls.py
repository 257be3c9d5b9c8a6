"""TLS and client certificates over both gRPC and plain sockets, with files that change."""

import asyncio
import datetime as dt
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import pytest
import structlog
import trustme

from pipeline.clock import HandClock
from pipeline.errors import ConfigError
from pipeline.model import Client
from pipeline.receive.config import ReceiveConfig, TlsConfig, check_config
from pipeline.receive.tls import ServerTls, name_in
from pipeline.telemetry import Telemetry
from tests.receive.serving import Running, export, serving, write


class Files(NamedTuple):
    """Where the server's files are, and its first authority."""

    config: TlsConfig
    authority: trustme.CA

    def put(self, leaf: trustme.LeafCert, key: trustme.LeafCert | None = None) -> None:
        write(Path(self.config.key_file), (key or leaf).private_key_pem.bytes())
        Path(self.config.key_file).chmod(0o600)
        write(Path(self.config.certificate_file), chain(leaf))


def chain(leaf: trustme.LeafCert) -> bytes:
    return b"".join(pem.bytes() for pem in leaf.cert_chain_pems)


def past(authority: trustme.CA, name: str) -> trustme.LeafCert:
    """A certificate that has expired."""
    day = dt.datetime(2021, 1, 1, tzinfo=dt.UTC)
    return authority.issue_cert(name, not_before=day, not_after=day + dt.timedelta(days=1))


def trusting(
    authority: trustme.CA, client: trustme.LeafCert | None = None
) -> grpc.ChannelCredentials:
    return grpc.ssl_channel_credentials(
        authority.cert_pem.bytes(),
        client.private_key_pem.bytes() if client else None,
        chain(client) if client else None,
    )


@pytest.fixture(name="files")
def tls_files(tmp_path: Path) -> Files:
    authority = trustme.CA()
    names = [str(tmp_path / name) for name in ("cert.pem", "key.pem")]
    files = Files(TlsConfig(certificate_file=names[0], key_file=names[1]), authority)
    files.put(authority.issue_cert("127.0.0.1"))
    return files


@pytest.fixture(name="mutual")
def mutual_files(files: Files, tmp_path: Path) -> Files:
    path = write(tmp_path / "clients.pem", files.authority.cert_pem.bytes())
    config = TlsConfig(
        certificate_file=files.config.certificate_file,
        key_file=files.config.key_file,
        client_ca_file=path,
    )
    return Files(config, files.authority)


@pytest.fixture(name="logs", autouse=True)
def captured_logs() -> Iterator[list[Any]]:
    with structlog.testing.capture_logs() as logs:
        yield logs


async def reaches(running: Running, credentials: grpc.ChannelCredentials | None) -> bool:
    """Whether a new connection with these credentials gets a request through."""
    async with running.connect(credentials) as channel:
        try:
            await export(channel, timeout=3)
        except grpc.aio.AioRpcError as error:
            assert error.code() is grpc.StatusCode.UNAVAILABLE
            return False
        return True


async def test_requests_come_over_tls_and_not_in_plaintext(files: Files) -> None:
    async with serving(trusting(files.authority), tls=files.config) as running:
        assert await running.export(b"x") == b""
        assert running.sink.clients == [Client("127.0.0.1")]
        assert not await reaches(running, None)
        assert not await reaches(running, trusting(trustme.CA()))


async def test_a_new_certificate_is_used_without_a_restart_and_open_connections_stay(
    files: Files,
) -> None:
    clock, other = HandClock(), trustme.CA()
    async with serving(trusting(files.authority), clock, tls=files.config) as running:
        await running.export()
        files.put(other.issue_cert("127.0.0.1"))
        clock.advance(1.0)
        assert await reaches(running, trusting(other))
        assert not await reaches(running, trusting(files.authority))
        await running.export()
        assert running.value("reloads_total", file="certificate", outcome="ok") == 1


def garbage(files: Files) -> None:
    write(Path(files.config.certificate_file), "-----BEGIN CERTIFICATE-----\nAAAA\n")


def gone(files: Files) -> None:
    Path(files.config.key_file).unlink()


def mismatch(files: Files) -> None:
    files.put(files.authority.issue_cert("127.0.0.1"), files.authority.issue_cert("127.0.0.1"))


def expired(files: Files) -> None:
    files.put(past(files.authority, "127.0.0.1"))


BREAK = [garbage, gone, mismatch, expired]


@pytest.mark.parametrize("break_files", BREAK)
async def test_broken_new_files_leave_the_old_ones_in_use_and_are_told_once(
    files: Files, break_files: Callable[[Files], None], logs: list[Any]
) -> None:
    clock = HandClock()
    async with serving(trusting(files.authority), clock, tls=files.config) as running:
        break_files(files)
        for _ in range(3):
            clock.advance(1.0)
            assert await reaches(running, trusting(files.authority))
        assert running.value("reloads_total", file="certificate", outcome="failed") == 1
        assert [entry["log_level"] for entry in logs] == ["error"]
        assert "PRIVATE" not in repr(logs)
        other = trustme.CA()
        files.put(other.issue_cert("127.0.0.1"))
        clock.advance(1.0)
        assert await reaches(running, trusting(other))


@pytest.mark.parametrize("break_files", BREAK)
def test_broken_files_at_the_start_are_a_config_error_that_names_them(
    files: Files, break_files: Callable[[Files], None]
) -> None:
    break_files(files)
    with pytest.raises(ConfigError, match=r"receive\.tls.*\.pem"):
        ServerTls(files.config, Telemetry(), HandClock())


def test_a_key_with_a_password_is_refused_instead_of_asked_for(files: Files) -> None:
    from cryptography.hazmat.primitives import serialization

    leaf = files.authority.issue_cert("127.0.0.1")
    key = serialization.load_pem_private_key(leaf.private_key_pem.bytes(), None)
    sealed = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(b"word"),
    )
    files.put(leaf)
    write(Path(files.config.key_file), sealed)
    with pytest.raises(ConfigError, match=r"receive\.tls"):
        ServerTls(files.config, Telemetry(), HandClock())


async def test_the_expiry_is_exported(files: Files) -> None:
    ends = dt.datetime(2099, 1, 1, tzinfo=dt.UTC)
    files.put(files.authority.issue_cert("127.0.0.1", not_after=ends))
    async with serving(trusting(files.authority), tls=files.config) as running:
        assert running.value("certificate_expiry_seconds") == ends.timestamp()


async def test_a_key_that_everybody_can_read_is_warned_about(files: Files, logs: list[Any]) -> None:
    Path(files.config.key_file).chmod(0o644)
    ServerTls(files.config, Telemetry(), HandClock())
    assert [entry["log_level"] for entry in logs] == ["warning"]


async def test_a_client_certificate_names_its_sender(mutual: Files) -> None:
    client = mutual.authority.issue_cert("node.example.org", common_name="gateway-eu")
    async with serving(trusting(mutual.authority, client), tls=mutual.config) as running:
        await running.export(b"x")
        assert running.sink.clients == [Client("127.0.0.1", "gateway-eu")]


async def test_a_missing_foreign_or_expired_client_certificate_is_turned_away(
    mutual: Files,
) -> None:
    ours, foreign = mutual.authority, trustme.CA()
    async with serving(trusting(ours, ours.issue_cert("a")), tls=mutual.config) as running:
        assert not await reaches(running, trusting(ours))
        assert not await reaches(running, trusting(ours, foreign.issue_cert("a")))
        assert not await reaches(running, trusting(ours, past(ours, "a")))
        assert running.sink.exports == []
        await running.export()  # others are not disturbed


async def test_new_client_authorities_are_believed_without_a_restart(mutual: Files) -> None:
    clock, ours, new = HandClock(), mutual.authority, trustme.CA()
    async with serving(trusting(ours, ours.issue_cert("a")), clock, tls=mutual.config) as running:
        assert not await reaches(running, trusting(ours, new.issue_cert("b")))
        write(Path(mutual.config.client_ca_file), new.cert_pem.bytes())
        clock.advance(1.0)
        assert await reaches(running, trusting(ours, new.issue_cert("b")))
        assert not await reaches(running, trusting(ours, ours.issue_cert("a")))


async def test_a_token_is_the_name_where_both_are_asked_for(mutual: Files, tmp_path: Path) -> None:
    tokens = write(tmp_path / "tokens", "- {name: by-token, token: 0123456789abcdef}")
    client = mutual.authority.issue_cert("a", common_name="by-certificate")
    async with serving(
        trusting(mutual.authority, client), tls=mutual.config, tokens_file=tokens
    ) as running:
        await running.export(metadata=(("authorization", "Bearer 0123456789abcdef"),))
        assert running.sink.clients == [Client("127.0.0.1", "by-token")]


# the same for transports on ssl


async def peer_of(
    server: ssl.SSLContext, authority: trustme.CA, client: trustme.LeafCert | None = None
) -> dict[str, Any] | None:
    """The client's certificate as a server with that context sees it; an error if turned away."""
    seen: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.set_result(writer.get_extra_info("peercert"))
        writer.write(b"x")
        writer.close()

    context = ssl.create_default_context(cadata=authority.cert_pem.bytes().decode())
    if client is not None:
        client.configure_cert(context)
    listener = await asyncio.start_server(accept, "127.0.0.1", 0, ssl=server)
    async with listener:
        port = listener.sockets[0].getsockname()[1]
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
        try:
            if await reader.read(1) != b"x":
                raise ConnectionError("turned away")
        finally:
            writer.close()
    found: dict[str, Any] | None = await seen
    return found


async def test_a_context_follows_its_files_too(mutual: Files) -> None:
    clock, ours, new = HandClock(), mutual.authority, trustme.CA()
    context = ServerTls(mutual.config, Telemetry(), clock).ssl_context()
    assert await peer_of(context, ours, ours.issue_cert("a"))
    mutual.put(new.issue_cert("127.0.0.1"))
    write(Path(mutual.config.client_ca_file), new.cert_pem.bytes())
    clock.advance(1.0)
    assert await peer_of(context, new, new.issue_cert("a"))
    with pytest.raises(ssl.SSLError):
        await peer_of(context, ours, new.issue_cert("a"))
    with pytest.raises((ssl.SSLError, ConnectionError)):
        await peer_of(context, new, ours.issue_cert("a"))


@pytest.mark.parametrize("client", ["none", "foreign", "expired"])
async def test_a_context_turns_away_who_has_no_valid_certificate(
    mutual: Files, client: str
) -> None:
    leaf = {
        "none": None,
        "foreign": trustme.CA().issue_cert("a"),
        "expired": past(mutual.authority, "a"),
    }[client]
    context = ServerTls(mutual.config, Telemetry(), HandClock()).ssl_context()
    with pytest.raises((ssl.SSLError, ConnectionError)):
        await peer_of(context, mutual.authority, leaf)


@pytest.mark.parametrize(
    ("identities", "common_name", "name"),
    [
        (["a.example.org"], "gateway", "gateway"),
        (["a.example.org", "b.example.org"], None, "a.example.org"),
        (["me@example.org"], None, "me@example.org"),
    ],
)
async def test_both_transports_find_the_same_name(
    mutual: Files, identities: list[str], common_name: str | None, name: str
) -> None:
    leaf = mutual.authority.issue_cert(*identities, common_name=common_name)
    context = ServerTls(mutual.config, Telemetry(), HandClock()).ssl_context()
    assert name_in(await peer_of(context, mutual.authority, leaf)) == name
    async with serving(trusting(mutual.authority, leaf), tls=mutual.config) as running:
        await running.export()
        assert running.sink.clients[0].name == name


def test_a_spiffe_id_beats_every_other_name_and_nothing_is_no_name() -> None:
    uri = "spiffe://example.org/gateway"
    subject = ((("commonName", "cn"),),)
    certificate = {"subject": subject, "subjectAltName": (("DNS", "a"), ("URI", uri))}
    assert name_in(certificate) == uri
    assert name_in(None) == name_in({}) == ""


@pytest.mark.parametrize(
    ("tls", "field"),
    [
        (TlsConfig(certificate_file="x"), r"receive\.tls:"),
        (TlsConfig(key_file="x"), r"receive\.tls:"),
        (TlsConfig(client_ca_file="x"), r"receive\.tls\.client_ca_file:"),
    ],
)
def test_files_that_belong_together_are_asked_for(tls: TlsConfig, field: str) -> None:
    with pytest.raises(ConfigError, match=field):
        check_config(ReceiveConfig(tls=tls))


def test_off_loopback_tls_needs_no_further_choice() -> None:
    tls = TlsConfig(certificate_file="x", key_file="y")
    check_config(ReceiveConfig(listen="0.0.0.0:4317", tls=tls))
