"""A service process under attack: who means harm is refused, who means well is not affected."""

import datetime as dt
import gzip
import http.client
import socket
import ssl
import struct
import zlib
from pathlib import Path
from typing import NamedTuple

import grpc
import pytest
import trustme
import zstandard

from tests.e2e.hostile import (
    BODY,
    HOST,
    Peak,
    Stalled,
    Target,
    all_closed,
    close,
    connect,
    files_left,
    honest,
    http2,
    stream,
    target,
    together,
)
from tests.e2e.senders import EXPORT, eventually
from tests.receive.serving import PING, SETTINGS, frame, header

MIB = 1 << 20
MOST_MB = 512
TOKEN = "honest-token-0123456789-secret"
EXPIRED = "expired-token-0123456789-secret"
WRONG = "wrong-token-0123456789-secret"
TOKENS = f"""
- {{name: honest, token: {TOKEN}}}
- {{name: old, token: {EXPIRED}, expires: "2020-01-01T00:00:00Z"}}
"""
HEAD = f"POST /v1/traces HTTP/1.1\r\nhost: {HOST}\r\ncontent-type: application/x-protobuf\r\n"
CANCEL = struct.pack(">I", 8)
PLAIN_BOMB_BYTES = 63 * MIB


def post(found: Target, body: bytes, **headers: str) -> int:
    """One request over HTTP; its status."""
    connection = http.client.HTTPConnection(HOST, found.http, timeout=60)
    more = {name.replace("_", "-"): value for name, value in headers.items()}
    connection.request(
        "POST", "/v1/traces", body, {"content-type": "application/x-protobuf", **more}
    )
    status = connection.getresponse().status
    connection.close()
    return status


def export(found: Target, body: bytes, token: str = "") -> str:
    """One request over gRPC, on a connection of its own; the name of its status."""
    options = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_send_message_length", -1)]
    with grpc.insecure_channel(f"{HOST}:{found.grpc}", options=options) as channel:
        metadata = (("authorization", f"Bearer {token}"),) if token else None
        try:
            channel.unary_unary(EXPORT)(body, timeout=60, metadata=metadata)
        except grpc.RpcError as error:
            return str(error.code().name)
        return "OK"


def test_a_storm_of_wrong_tokens_is_turned_away_and_no_token_is_in_the_log(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens.yaml"
    tokens.write_text(TOKENS, encoding="utf-8")
    with target(tmp_path, {"tokens_file": str(tokens)}) as found, honest(found, TOKEN):
        for token in (WRONG, EXPIRED, ""):
            for _ in range(20):
                assert export(found, BODY, token) == "UNAUTHENTICATED"
                headers = {"authorization": f"Bearer {token}"} if token else {}
                assert post(found, BODY, **headers) == 401
        assert found.page().by("tailrace_unauthenticated_requests_total", "reason") == {
            "unknown": 40.0,
            "expired": 40.0,
            "missing": 40.0,
        }
        log = found.log()
        assert "secret" not in log
        assert log.count("no valid token") == 1  # one peer, named once


class Keys(NamedTuple):
    """A server's files, and certificates of those who want in."""

    receive: dict[str, object]
    authority: trustme.CA
    folder: Path

    def credentials(self) -> grpc.ChannelCredentials:
        leaf = self.authority.issue_cert("honest")
        return grpc.ssl_channel_credentials(
            self.authority.cert_pem.bytes(), leaf.private_key_pem.bytes(), chain(leaf)
        )

    def context(self, leaf: trustme.LeafCert | None) -> ssl.SSLContext:
        context = ssl.create_default_context()
        self.authority.configure_trust(context)
        if leaf is not None:
            leaf.configure_cert(context)
        return context


def chain(leaf: trustme.LeafCert) -> bytes:
    return b"".join(pem.bytes() for pem in leaf.cert_chain_pems)


@pytest.fixture(name="keys")
def tls_keys(tmp_path: Path) -> Keys:
    authority = trustme.CA()
    leaf = authority.issue_cert(HOST)
    files = {name: tmp_path / f"{name}.pem" for name in ("certificate", "key", "client_ca")}
    files["certificate"].write_bytes(chain(leaf))
    files["key"].write_bytes(leaf.private_key_pem.bytes())
    files["key"].chmod(0o600)
    files["client_ca"].write_bytes(authority.cert_pem.bytes())
    tls = {f"{name}_file": str(path) for name, path in files.items()}
    return Keys({"tls": tls, "http": {"header_timeout_s": 1.0}}, authority, tmp_path)


def test_a_storm_of_missing_foreign_and_expired_certificates_is_turned_away(keys: Keys) -> None:
    day = dt.datetime(2021, 1, 1, tzinfo=dt.UTC)
    expired = keys.authority.issue_cert("old", not_before=day, not_after=day + dt.timedelta(days=1))
    strangers = (None, trustme.CA().issue_cert("evil"), expired)
    with (
        target(keys.folder, keys.receive) as found,
        honest(found, credentials=keys.credentials()),
    ):
        for port in (found.grpc, found.http):
            for stranger in strangers:
                context = keys.context(stranger)
                for _ in range(20):
                    assert not lets_in(port, context)
        waiting = [connect(port) for port in (found.grpc, found.http) for _ in range(100)]
        eventually(lambda: all_closed(waiting), "a handshake that never comes is waited for")
        close(waiting)
        assert "PRIVATE" not in found.log()


def lets_in(port: int, context: ssl.SSLContext) -> bool:
    """Whether anything is heard; with TLS 1.3 a refusal comes after the client's handshake."""
    try:
        with (
            connect(port) as plain,
            context.wrap_socket(plain, server_hostname=HOST) as secured,
        ):
            return bool(secured.recv(1))
    except OSError:
        return False


@pytest.mark.parametrize("port", ["grpc", "http"])
def test_ten_thousand_connections_leave_an_open_one_alone(tmp_path: Path, port: str) -> None:
    """As many as this process may open; 8,000 at least, or it would prove little."""
    count = files_left(10_000)
    if count < 8000:
        pytest.skip("open files are limited to less than 8,000")
    with target(tmp_path) as found, honest(found):
        crowd = []
        for _ in range(count):
            one = socket.socket()
            one.setblocking(False)
            one.connect_ex((HOST, getattr(found, port)))
            crowd.append(one)
        assert found.descriptors() < 2200
        eventually(lambda: all_closed(crowd), "connections that say nothing stay open")
        close(crowd)
        assert export(found, BODY) == "OK"


@pytest.mark.parametrize(
    ("start", "drip"),
    [
        (HEAD, "x-a: b\r\n"),
        (f"{HEAD}content-length: 1000000\r\n\r\n", "\0"),
        (f"{HEAD}transfer-encoding: chunked\r\n\r\n", "1\r\na\r\n"),
    ],
    ids=["headers", "body", "chunks"],
)
def test_slow_http_senders_are_cut_off(tmp_path: Path, start: str, drip: str) -> None:
    times = {"header_timeout_s": 0.5, "body_timeout_s": 0.5}
    with target(tmp_path, {"http": times}) as found, honest(found):
        crowd = [connect(found.http) for _ in range(300)]
        for one in crowd:
            one.sendall(start.encode())

        def are_cut_off() -> bool:
            for one in crowd:
                try:
                    one.send(drip.encode())
                except OSError:
                    continue
            return all_closed(crowd)

        eventually(are_cut_off, "slow senders stay")
        close(crowd)


def test_grpc_requests_without_a_body_are_told_to_retry_after_their_time(tmp_path: Path) -> None:
    with target(tmp_path, {"max_upload_s": 0.5}) as found, honest(found):
        headers = b"".join(stream(1 + 2 * i) for i in range(30))
        crowd = [http2(found.grpc, headers) for _ in range(30)]

        def refused() -> bool:
            reasons = found.page().by("tailrace_dropped_total", "reason")
            return reasons.get("upload_time", 0) > 0

        eventually(refused, "requests without a body are waited for")
        close(crowd)


def test_grpc_bodies_that_never_end_take_bounded_memory(tmp_path: Path) -> None:
    """Guarantees: 1.3 GB offered in bodies that all lack their last byte take a bounded part."""
    with target(tmp_path) as found, honest(found), Peak(found) as peak:
        together(4, lambda: Stalled(found.grpc, 20, 16 * MIB).run())
        assert found.page().get("tailrace_dropped_total", reason="uploads") > 0
    assert peak.most_mb < MOST_MB


FLOODS = {
    "rapid reset": b"".join(stream(1 + 2 * i) + frame(3, 0, 1 + 2 * i, CANCEL) for i in range(500)),
    "pings": PING * 20_000,
    "settings": SETTINGS * 20_000,
    "window updates": frame(8, 0, 0, struct.pack(">I", 1)) * 20_000,
    "empty data": stream(1) + frame(0, 0, 1, b"") * 20_000,
    "continuations": frame(1, 0, 1, header("x", "y"))
    + frame(9, 0, 1, header("x-y", "z" * 100) * 100) * 200,
    "empty continuations": frame(1, 0, 1, header("x", "y")) + frame(9, 0, 1, b"") * 20_000,
    "preface alone": b"",
}


def test_floods_of_http2_frames_do_not_reach_others(tmp_path: Path) -> None:
    with target(tmp_path) as found, honest(found), Peak(found) as peak:
        for flood in FLOODS.values():
            together(4, lambda flood=flood: flooded(found.grpc, flood))  # type: ignore[misc]
    assert peak.most_mb < MOST_MB


def flooded(port: int, flood: bytes) -> None:
    """Send it on some connections; the server may hang up."""
    for _ in range(3):
        connection = http2(port)
        try:
            connection.sendall(flood)
            connection.settimeout(0.2)
            connection.recv(1 << 16)
        except OSError:
            continue
        finally:
            connection.close()


def bombs() -> dict[str, tuple[str, bytes]]:
    """(content-encoding, body) of requests that become 63 MiB."""
    zeros = bytes(PLAIN_BOMB_BYTES)
    sizeless = zstandard.ZstdCompressor(write_content_size=False).compressobj()
    gzipped = gzip.compress(zeros, 6)
    return {
        "gzip": ("gzip", gzipped),
        "gzip that lies": ("gzip", gzipped[:-4] + struct.pack("<I", 1000)),
        "items in gzip": ("gzip", gzip.compress(b"\x0a\x00" * (PLAIN_BOMB_BYTES // 2), 6)),
        "deflate": ("deflate", zlib.compress(zeros, 6)),
        "zstd": ("zstd", zstandard.compress(zeros)),
        "zstd without size": ("zstd", sizeless.compress(zeros) + sizeless.flush()),
    }


def test_bombs_are_refused_within_bounded_memory(tmp_path: Path) -> None:
    """Guarantees: 96 requests that become 6 GB take no more than a few at a time would."""
    seen: set[int] = set()
    with target(tmp_path) as found, honest(found), Peak(found) as peak:
        for encoding, bomb in bombs().values():

            def explode(encoding: str = encoding, bomb: bytes = bomb) -> None:
                seen.add(post(found, bomb, content_encoding=encoding))

            together(16, explode)
    assert peak.most_mb < MOST_MB
    assert seen <= {400, 413, 503}
    assert 400 in seen


def test_bodies_of_tiny_items_are_folded_or_refused_within_bounded_memory(tmp_path: Path) -> None:
    """Guarantees: 200,000 spans of two bytes are a request like another, one too many is none."""
    many = delimited(10, delimited(18, b"\x12\x00" * 200_000))
    beyond = delimited(10, delimited(18, b"\x12\x00" * 262_145))
    codes: list[str] = []
    with target(tmp_path) as found, honest(found), Peak(found) as peak:
        together(8, lambda: codes.append(export(found, many)))
        together(8, lambda: codes.append(export(found, beyond)))
    assert peak.most_mb < MOST_MB
    assert codes == ["OK"] * 8 + ["INVALID_ARGUMENT"] * 8


def delimited(tag: int, content: bytes) -> bytes:
    length, size = b"", len(content)
    while size > 127:
        length += bytes([size & 127 | 128])
        size >>= 7
    return bytes([tag]) + length + bytes([size]) + content


def test_senders_that_leave_in_the_middle_leave_nothing_behind(tmp_path: Path) -> None:
    half = struct.pack(">BI", 0, MIB) + bytes(10_000)
    with target(tmp_path) as found, honest(found):
        for _ in range(500):
            http2(found.grpc, stream(1), frame(0, 0, 1, half)).close()
            one = connect(found.http)
            one.sendall(f"{HEAD}content-length: 1000000\r\n\r\n".encode() + bytes(10_000))
            one.close()

        def rest() -> bool:
            page = found.page()
            names = ("bytes_in_flight", "http_connections", "http_upload_bytes")
            return not any(page.get(f"tailrace_{name}") for name in names)

        eventually(rest, "something is held for senders that have left")


def test_malformed_bodies_acknowledged_on_enqueue_are_counted_as_lost(tmp_path: Path) -> None:
    loop = {"acknowledge": "on-enqueue"}
    with target(tmp_path, loop=loop) as found, honest(found):
        for _ in range(50):
            assert export(found, b"\x0a\xff\xff") == "OK"

        def lost() -> bool:
            reasons = found.page().by("tailrace_lost_requests_total", "signal", "reason")
            return reasons == {"traces malformed": 50.0}

        eventually(lost, "what was acknowledged and lost is not counted")


def test_sigterm_in_the_middle_of_attacks_ends_in_order(tmp_path: Path) -> None:
    with target(tmp_path) as found:
        crowd = [http2(found.grpc, b"".join(stream(1 + 2 * i) for i in range(20)))]
        crowd += [connect(found.http) for _ in range(50)]
        for one in crowd[1:]:
            one.sendall(f"{HEAD}content-length: 1000000\r\n\r\nx".encode())
        assert export(found, BODY) == "OK"
        assert found.stop() == 0
        assert '"stopped"' in found.log()
        close(crowd)
