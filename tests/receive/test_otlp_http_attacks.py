"""Senders that mean harm, or are broken: refused cheaply, and others are served meanwhile."""

import asyncio
import random
from contextlib import suppress
from pathlib import Path

import pytest

from pipeline.model import Export, OtlpSignal
from pipeline.receive import http_protocol
from pipeline.receive.config import MIB
from tests.receive.http_serving import (
    JSON,
    PROTOBUF,
    Connection,
    HttpRunning,
    head,
    http_serving,
)
from tests.receive.serving import eventually

pytestmark = pytest.mark.asyncio

IMPATIENT = {"header_timeout_s": 0.3, "body_timeout_s": 0.3}
CHUNKED = head("POST", "/v1/traces", None, transfer_encoding="chunked")


async def serves_others(running: HttpRunning) -> bool:
    return (await running.post(b"other")).status == 200


async def connect_from(running: HttpRunning, local: str) -> Connection:
    """A connection from another address of this machine."""
    streams = await asyncio.open_connection("127.0.0.1", running.port, local_addr=(local, 0))
    return Connection(*streams)


# slow


async def test_a_connection_that_says_nothing_is_closed() -> None:
    async with http_serving(http=IMPATIENT) as running:
        connection = await running.connect()
        assert await serves_others(running)
        assert await connection.is_closed()
        await eventually(lambda: running.value("http_connections") <= 1)


@pytest.mark.parametrize("start", ["P", "POST /v1/traces HTTP/1.1\r\n", head("POST", "/", 5)[:-2]])
async def test_headers_that_never_end_are_answered_with_408(start: str) -> None:
    async with http_serving(http=IMPATIENT) as running:
        connection = await running.connect()
        await connection.send(start)
        answer = await connection.response()
        assert (answer.status, answer.problem[0], answer.is_open) == (408, 4, False)
        assert await connection.is_closed()


@pytest.mark.parametrize("drip", [b"\r\n", b"x"])
async def test_a_drip_does_not_prolong_the_time_for_headers(drip: bytes) -> None:
    async with http_serving(http=IMPATIENT) as running:
        connection = await running.connect()

        async def dripping() -> None:
            await connection.send("POST /v1/traces HTTP/1.1\r\nx: " if drip == b"x" else "")
            while True:
                await connection.send(drip)
                await asyncio.sleep(0.02)

        task = asyncio.ensure_future(dripping())
        assert (await connection.response()).status == 408
        task.cancel()
        with suppress(asyncio.CancelledError, ConnectionError):
            await task


@pytest.mark.parametrize("media", [PROTOBUF, JSON])
async def test_a_body_that_never_ends_is_408_and_gives_its_room_back(media: str) -> None:
    async with http_serving(http=IMPATIENT) as running:
        for length in (50, None):
            chunked = {} if length else {"transfer_encoding": "chunked"}
            connection = await running.connect()
            await connection.send(
                head("POST", "/v1/traces", length, content_type=media, **chunked), "2\r\nab"
            )
            answer = await connection.response()
            assert (answer.status, answer.problem[0]) == (408, 4)
            assert answer.headers["content-type"] == media
            assert running.value("http_upload_bytes") == 0
        assert running.sink.exports == []
        assert await serves_others(running)


async def test_a_large_upload_that_falls_behind_is_refused_long_before_its_time_is_over() -> None:
    async with http_serving(http={"body_timeout_s": 3600.0}) as running:
        connection = await running.connect()
        await connection.send(head("POST", "/v1/traces", 32 * MIB), b"a few bytes")
        await eventually(lambda: running.value("http_upload_bytes") == 32 * MIB)
        assert (await connection.response()).status == 408
        assert running.value("http_upload_bytes") == 0


async def test_an_idle_connection_is_closed_after_its_time() -> None:
    async with http_serving(http={"idle_timeout_s": 0.3}) as running:
        connection = await running.connect()
        assert (await connection.post(b"x")).status == 200
        assert await connection.is_closed()


async def test_a_body_that_goes_on_after_an_early_answer_is_cut_off() -> None:
    async with http_serving() as running:
        connection = await running.connect()
        await connection.send(head("POST", "/nowhere", 10**12))
        assert (await connection.response()).status == 404
        with pytest.raises(ConnectionError):
            while True:
                await connection.send(bytes(MIB))


async def test_an_early_answer_whose_body_never_comes_does_not_keep_the_connection() -> None:
    async with http_serving() as running:
        connection = await running.connect()
        await connection.send(head("POST", "/nowhere", 100))
        assert (await connection.response()).status == 404
        assert await connection.is_closed()


# floods


@pytest.mark.parametrize(
    "flood",
    [
        "POST /v1/traces HTTP/1.1\r\n" + "a: b\r\n" * (http_protocol.MAX_HEADERS + 1) + "\r\n",
        "POST /v1/traces HTTP/1.1\r\n" + f"a: {'b' * 1000}\r\n" * 40 + "\r\n",
        "POST /v1/traces HTTP/1.1\r\nhost: x\r\na: " + "b" * 200_000,
        "POST /v1/traces HTTP/1.1\r\n" + "b" * 200_000,
        "POST /" + "b" * 200_000,
        "\r\n" * 100_000,
    ],
    ids=["many", "large", "endless value", "endless name", "endless target", "empty lines"],
)
async def test_a_flood_of_headers_is_431_and_the_connection_ends(flood: str) -> None:
    async with http_serving() as running:
        connection = await running.connect()
        with suppress(ConnectionError):
            await connection.send(flood)
        answer = await connection.response()
        assert (answer.status, answer.problem[0], answer.is_open) == (431, 8, False)
        assert running.value("http_refusals_total", status="431") == 1
        assert await serves_others(running)


async def test_headers_within_the_bounds_pass() -> None:
    async with http_serving() as running:
        many = {f"x-{number}": "y" for number in range(http_protocol.MAX_HEADERS - 3)}
        assert (await running.post(b"", **many)).status == 200
        large = "x" * (http_protocol.MAX_HEAD_BYTES - 1000)
        assert (await running.post(b"", authorization=large)).status == 200


async def test_a_flood_of_trailers_is_refused() -> None:
    async with http_serving() as running:
        connection = await running.connect()
        await connection.send(CHUNKED, "1\r\nx\r\n0\r\n", f"a: {'b' * 900}\r\n" * 50, "\r\n")
        assert (await connection.response()).status == 431
        assert running.sink.exports == []


async def test_chunks_without_end_stop_at_the_limit() -> None:
    async with http_serving(max_message_bytes=MIB) as running:
        connection = await running.connect()
        await connection.send(CHUNKED)
        with suppress(ConnectionError):
            for _ in range(20):
                await connection.send("40000\r\n", bytes(0x40000), "\r\n")
        assert (await connection.response()).status == 413
        assert running.value("http_upload_bytes") == 0


async def test_a_body_cut_into_tiny_chunks_is_refused() -> None:
    async with http_serving() as running:
        connection = await running.connect()
        with suppress(ConnectionError):
            await connection.send(CHUNKED, "1\r\nx\r\n" * 100_000)
        answer = await connection.response()
        assert (answer.status, answer.problem[1]) == (400, "the body comes in too small chunks")


@pytest.mark.parametrize(
    ("length", "status"),
    [
        ("1000000000000000000", 413),
        ("18446744073709551615", 413),
        ("18446744073709551616", 400),
        ("9" * 100, 400),
        ("-1", 400),
        ("+5", 400),
        ("0x5", 400),
        ("5, 5", 400),
        ("5 5", 400),
    ],
)
async def test_an_absurd_length_is_refused_without_setting_anything_aside(
    length: str, status: int
) -> None:
    async with http_serving() as running:
        connection = await running.connect()
        await connection.send(head("POST", "/v1/traces", None, content_length=length))
        assert (await connection.response()).status == status
        assert running.value("http_upload_bytes") == 0


# two readers, two requests

SHAPES = {
    "both": "content-length: 5\r\ntransfer-encoding: chunked\r\n",
    "both, other order": "transfer-encoding: chunked\r\ncontent-length: 5\r\n",
    "two lengths": "content-length: 5\r\ncontent-length: 6\r\n",
    "the same length twice": "content-length: 5\r\ncontent-length: 5\r\n",
    "chunked is not last": "transfer-encoding: chunked, identity\r\n",
    "not chunked": "transfer-encoding: gzip\r\n",
    "chunked twice": "transfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n",
    "a coding before": "transfer-encoding: gzip, chunked\r\n",
    "a coding with a tab": "transfer-encoding: \x0bchunked\r\n",
    "space before the colon": "content-length : 5\r\n",
    "space in front": " content-length: 5\r\n",
    "a folded line": "x: y\r\n  z\r\ncontent-length: 5\r\n",
    "a bare return": "x: y\rcontent-length: 5\r\n\r\n",
    "a null": "x: a\x00b\r\ncontent-length: 5\r\n",
    "chunked and an upgrade": (
        "transfer-encoding: chunked\r\nconnection: upgrade\r\nupgrade: h2c\r\n"
    ),
    "two hosts": "host: y\r\ncontent-length: 5\r\n",
}


@pytest.mark.parametrize("shape", SHAPES)
async def test_framing_that_could_be_read_in_two_ways_is_refused(shape: str) -> None:
    async with http_serving() as running:
        connection = await running.connect()
        start = f"POST /v1/traces HTTP/1.1\r\nhost: x\r\ncontent-type: {PROTOBUF}\r\n"
        await connection.send(start, SHAPES[shape], "\r\n0\r\n\r\nPOST /v1/logs HTTP/1.1\r\n\r\n")
        answer = await connection.response()
        assert (answer.status, answer.problem[0]) == (400, 3)
        assert await connection.is_closed()
        assert running.sink.exports == []


@pytest.mark.parametrize(
    "start",
    [
        "POST /v1/traces HTTP/1.1\r\ncontent-length: 0\r\n\r\n",
        "POST /v1/traces HTTP/1.0\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        "POST /v1/traces HTTP/2.0\r\nhost: x\r\n\r\n",
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + "\x00" * 500,
        "NONSENSE / HTTP/1.1\r\nhost: x\r\n\r\n",
    ],
    ids=["no host", "HTTP/1.0 chunked", "version", "HTTP/2", "TLS", "method"],
)
async def test_what_is_no_http_is_400_and_the_connection_ends(start: str) -> None:
    async with http_serving() as running:
        connection = await running.connect()
        await connection.send(start.encode("latin-1"))
        answer = await connection.response()
        assert (answer.status, answer.problem[0], answer.is_open) == (400, 3, False)
        assert await connection.is_closed()


@pytest.mark.parametrize(
    "chunk", ["x\r\n", "-1\r\n", "5\r\nabcdeX", "5;a=\x00\r\nabcde\r\n", "f" * 17 + "\r\n", "\r\n"]
)
async def test_a_broken_chunk_is_400_in_the_encoding_of_the_request(chunk: str) -> None:
    async with http_serving() as running:
        connection = await running.connect()
        await connection.send(CHUNKED, "1\r\na\r\n", chunk, "\r\n")
        answer = await connection.response()
        assert (answer.status, answer.headers["content-type"]) == (400, PROTOBUF)
        assert running.sink.exports == []


async def test_a_request_sent_before_the_answer_to_the_last_one_is_not_served() -> None:
    """Guarantees: the first is answered, the second is not executed, the connection ends."""
    async with http_serving() as running:
        connection = await running.connect()
        one = head("POST", "/v1/traces", 3)
        await connection.send((one + "abc") * 50)
        answer = await connection.response()
        assert (answer.status, answer.is_open) == (200, False)
        assert await connection.is_closed()
        assert running.sink.exports == [Export(OtlpSignal.TRACES, b"abc", max_bytes=3)]


async def test_random_damage_never_ends_the_server() -> None:
    source = random.Random(7)
    whole = (head("POST", "/v1/traces", 20) + "x" * 20).encode()
    async with http_serving(http=IMPATIENT) as running:
        for _ in range(150):
            damaged = bytearray(whole)
            for _ in range(source.randrange(1, 6)):
                damaged[source.randrange(len(damaged))] = source.randrange(256)
            connection = await running.connect()
            await connection.send(bytes(damaged))
            connection.writer.write_eof()
        assert await serves_others(running)
        await eventually(lambda: running.value("http_upload_bytes") == 0)


# too many


async def test_connections_beyond_the_bound_are_closed_and_room_is_made_by_those_that_leave() -> (
    None
):
    async with http_serving(http={"max_connections": 5}) as running:
        held = [await running.connect() for _ in range(5)]
        for connection in held:
            assert (await connection.post(b"x")).status == 200
        for _ in range(20):
            assert await (await running.connect()).is_closed()
        assert running.value("http_refused_connections_total") == 20
        assert (await held[0].post(b"still served")).status == 200
        await held[1].close()
        await eventually(lambda: running.value("http_connections") == 4)
        assert await serves_others(running)


async def test_one_address_cannot_take_all_connections() -> None:
    async with http_serving(http={"max_connections_per_peer": 3}) as running:
        for _ in range(3):
            assert (await (await running.connect()).post(b"x")).status == 200
        assert await (await running.connect()).is_closed()
        other = await connect_from(running, "127.0.0.2")
        assert (await other.post(b"x")).status == 200
        await other.close()


async def test_one_address_cannot_take_all_room_for_uploads() -> None:
    """Guarantees: it is told to slow down (429), and another address uploads."""
    bounds = {"max_bytes_uploading": 2 * MIB}
    async with http_serving(http=bounds, max_message_bytes=MIB, max_wait_s=0.0) as running:
        first = await running.connect()
        await first.send(head("POST", "/v1/traces", MIB))
        await eventually(lambda: running.value("http_upload_bytes") == MIB)
        refused = await running.post(b"small")
        assert refused.status == 429 and "retry-after" in refused.headers
        other = await connect_from(running, "127.0.0.2")
        assert (await other.post(bytes(MIB))).status == 200
        await other.close()
        await first.send(bytes(MIB))
        assert (await first.response()).status == 200
        assert running.value("http_upload_bytes") == 0
        assert running.value("dropped_total", stage="receive", reason="upload_share") == 1


async def test_without_room_for_an_upload_it_is_refused_before_it_is_read() -> None:
    bounds = {"max_bytes_uploading": MIB}
    async with http_serving(http=bounds, max_message_bytes=MIB, max_wait_s=0.0) as running:
        first = await running.connect()
        await first.send(head("POST", "/v1/traces", MIB))
        await eventually(lambda: running.value("http_upload_bytes") == MIB)
        other = await connect_from(running, "127.0.0.2")
        await other.send(head("POST", "/v1/traces", 500_000, content_type=JSON))
        answer = await other.response()
        assert (answer.status, answer.problem[0]) == (503, 14)
        assert 1 <= int(answer.headers["retry-after"]) <= 5
        assert running.value("dropped_total", stage="receive", reason="uploads") == 1
        await other.close()


async def test_refused_senders_are_not_all_told_the_same_delay() -> None:
    bounds = {"max_bytes_uploading": MIB}
    async with http_serving(http=bounds, max_message_bytes=MIB, max_wait_s=0.0) as running:
        first = await running.connect()
        await first.send(head("POST", "/v1/traces", MIB))
        await eventually(lambda: running.value("http_upload_bytes") == MIB)
        delays = {(await running.post(b"x")).headers["retry-after"] for _ in range(20)}
        assert len(delays) > 1


async def test_a_body_without_a_valid_token_is_never_read(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens.yaml"
    tokens.write_text("[{name: gateway, token: a-long-enough-secret-token}]")
    tokens.chmod(0o600)
    async with http_serving(tokens_file=str(tokens)) as running:
        for authorization in ("", "Bearer wrong", "Basic YTpi", "Bearer", "\xfc"):
            connection = await running.connect()
            await connection.send(
                head("POST", "/v1/traces", MIB, authorization=authorization).encode("latin-1")
            )
            answer = await connection.response()
            assert (answer.status, answer.problem[0]) == (401, 16)
            assert answer.headers["www-authenticate"] == "Bearer"
            assert running.value("http_upload_bytes") == 0
        good = await running.post(b"x", authorization="Bearer a-long-enough-secret-token")
        assert good.status == 200
        assert running.sink.clients[0].name == "gateway"
