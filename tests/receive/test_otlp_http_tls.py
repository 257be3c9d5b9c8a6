"""OTLP/HTTP over TLS: who is let in, by which name, and what a handshake may cost."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import NamedTuple

import pytest
import pytest_asyncio
import trustme

from pipeline.model import Client
from pipeline.receive.config import TlsConfig
from tests.receive.http_serving import HttpRunning, http_serving
from tests.receive.serving import eventually

pytestmark = pytest.mark.asyncio


class Secured(NamedTuple):
    """A server that asks for certificates, and the authority that it believes."""

    running: HttpRunning
    authority: trustme.CA

    def client(self, certificate: trustme.LeafCert | None) -> ssl.SSLContext:
        context = ssl.create_default_context()
        self.authority.configure_trust(context)
        if certificate is not None:
            certificate.configure_cert(context)
        return context


def put(folder: Path, leaf: trustme.LeafCert, authority: trustme.CA) -> TlsConfig:
    leaf.private_key_pem.write_to_path(folder / "key.pem")
    (folder / "key.pem").chmod(0o600)
    chain = b"".join(pem.bytes() for pem in leaf.cert_chain_pems)
    (folder / "cert.pem").write_bytes(chain)
    authority.cert_pem.write_to_path(folder / "ca.pem")
    return TlsConfig(
        certificate_file=str(folder / "cert.pem"),
        key_file=str(folder / "key.pem"),
        client_ca_file=str(folder / "ca.pem"),
    )


@pytest_asyncio.fixture(name="secured")
async def secured_server(tmp_path: Path) -> AsyncIterator[Secured]:
    authority = trustme.CA()
    tls = put(tmp_path, authority.issue_cert("localhost"), authority)
    async with http_serving(http={"header_timeout_s": 0.5}, tls=tls) as running:
        yield Secured(running, authority)


async def refused(secured: Secured, certificate: trustme.LeafCert | None) -> None:
    """With TLS 1.3 a client learns only when it reads that it was not let in."""
    with pytest.raises((ssl.SSLError, ConnectionError, asyncio.IncompleteReadError)):
        connection = await secured.running.connect(secured.client(certificate))
        await connection.post(b"x")


async def test_a_sender_with_a_certificate_is_known_by_its_name(secured: Secured) -> None:
    for certificate, name in (
        (secured.authority.issue_cert("a.fleet", common_name="gateway-eu"), "gateway-eu"),
        (secured.authority.issue_cert("b.fleet"), "b.fleet"),
    ):
        connection = await secured.running.connect(secured.client(certificate))
        for _ in range(2):
            assert (await connection.post(bytes(700_000))).status == 200
        assert secured.running.sink.clients[-1] == Client("127.0.0.1", name)


async def test_without_a_certificate_or_with_a_foreign_one_nobody_is_let_in(
    secured: Secured,
) -> None:
    await refused(secured, None)
    await refused(secured, trustme.CA().issue_cert("a.fleet"))
    good = secured.client(secured.authority.issue_cert("a.fleet"))
    assert (await (await secured.running.connect(good)).post(b"x")).status == 200
    assert len(secured.running.sink.exports) == 1
    await eventually(lambda: secured.running.value("http_connections") == 1)


async def test_a_handshake_that_never_ends_gives_its_place_back(secured: Secured) -> None:
    running = secured.running
    silent = [await asyncio.open_connection("127.0.0.1", running.port) for _ in range(3)]
    await eventually(lambda: running.value("http_connections") == 3)
    for reader, writer in silent:
        assert await reader.read() == b""
        writer.close()
    await eventually(lambda: running.value("http_connections") == 0)


async def test_plaintext_on_the_tls_port_is_closed(secured: Secured) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", secured.running.port)
    writer.write(b"POST /v1/traces HTTP/1.1\r\nhost: x\r\n\r\n")
    with pytest.raises(asyncio.IncompleteReadError):
        await reader.readuntil(b"\r\n\r\n")
    writer.close()


async def test_handshakes_in_progress_end_with_the_server(secured: Secured) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", secured.running.port)
    await eventually(lambda: secured.running.value("http_connections") == 1)
    await secured.running.server.stop(0.0)
    assert await reader.read() == b""
    writer.close()
