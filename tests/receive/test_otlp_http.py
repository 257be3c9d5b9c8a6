"""OTLP/HTTP on real sockets: every status, both encodings, bodies of every framing."""

import asyncio
import gzip
import http.client
import socket
import struct

import msgspec
import pytest
import structlog
import zstandard
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2

from pipeline.errors import ConfigError, DependencyLost, Overloaded, Rejected
from pipeline.model import Client, Encoding, Export, OtlpSignal, Receipt
from pipeline.receive.config import MIB, HttpConfig, ReceiveConfig
from pipeline.receive.intake import Intake
from pipeline.receive.otlp_http import PATHS, OtlpHttpServer
from pipeline.telemetry import Telemetry
from tests.receive.http_serving import JSON, PROTOBUF, Response, head, http_serving
from tests.receive.serving import Sink, eventually

pytestmark = pytest.mark.asyncio

both_encodings = pytest.mark.parametrize("media", [PROTOBUF, JSON])

# success


@pytest.mark.parametrize(("path", "signal"), PATHS.items())
async def test_every_path_hands_its_signal_over_as_it_came(path: str, signal: OtlpSignal) -> None:
    async with http_serving() as running:
        answer = await running.post(b"body", path)
        assert (answer.status, answer.body) == (200, b"")
        assert answer.headers["content-type"] == PROTOBUF
        assert running.sink.exports == [Export(signal, b"body", max_bytes=4)]
        assert running.sink.clients == [Client("127.0.0.1")]
        assert running.value("transport_requests_total", transport="http") == 1
        assert running.value("received_requests_total", signal=signal.value, outcome="ok") == 1


async def test_json_is_handed_over_as_json_and_answered_in_json() -> None:
    async with http_serving() as running:
        answer = await running.post(b"{}", content_type=JSON)
        assert (answer.status, answer.body) == (200, b"{}")
        assert answer.headers["content-type"] == JSON
        assert running.sink.exports[0].is_json


@pytest.mark.parametrize(
    "media", ["application/json; charset=utf-8", "Application/JSON", " application/json;x=y;z "]
)
async def test_parameters_and_case_of_the_media_type_do_not_matter(media: str) -> None:
    async with http_serving() as running:
        answer = await running.post(b"{}", content_type=media)
        assert (answer.status, answer.headers["content-type"]) == (200, JSON)


@pytest.mark.parametrize(
    ("coding", "encoding"),
    [
        ("", Encoding.IDENTITY),
        ("identity", Encoding.IDENTITY),
        ("GZIP", Encoding.GZIP),
        ("x-gzip", Encoding.GZIP),
        ("deflate", Encoding.DEFLATE),
        ("zstd", Encoding.ZSTD),
    ],
)
async def test_bodies_stay_compressed_as_they_came(coding: str, encoding: Encoding) -> None:
    body = {
        Encoding.GZIP: gzip.compress(bytes(500)),
        Encoding.ZSTD: zstandard.compress(bytes(500)),
    }.get(encoding, b"abc")
    async with http_serving() as running:
        answer = await running.post(body, content_encoding=coding)
        assert answer.status == 200
        assert running.sink.exports[0].body == body
        assert running.sink.exports[0].encoding is encoding


@both_encodings
async def test_an_empty_body_is_an_empty_request(media: str) -> None:
    async with http_serving() as running:
        connection = await running.connect()
        assert (await connection.post(b"", content_type=media)).status == 200
        await connection.send(head("POST", "/v1/logs", None, content_type=media))
        assert (await connection.response()).status == 200
        assert [each.body for each in running.sink.exports] == [b"", b""]


async def test_partial_success_in_protobuf_has_its_exact_count() -> None:
    async with http_serving() as running:
        running.sink.answer = Receipt(300, "no time: 300")
        answer = await running.post(b"x", "/v1/metrics")
        found = metrics_service_pb2.ExportMetricsServiceResponse.FromString(answer.body)
        assert found.partial_success.rejected_data_points == 300
        assert found.partial_success.error_message == "no time: 300"


@pytest.mark.parametrize(
    ("path", "key"),
    [
        ("/v1/traces", "rejectedSpans"),
        ("/v1/metrics", "rejectedDataPoints"),
        ("/v1/logs", "rejectedLogRecords"),
        ("/v1development/profiles", "rejectedProfiles"),
    ],
)
async def test_partial_success_in_json_has_its_count_as_a_string(path: str, key: str) -> None:
    async with http_serving() as running:
        running.sink.answer = Receipt(3, "no time: 3")
        answer = await running.post(b"{}", path, content_type=JSON)
        partial = msgspec.json.decode(answer.body)["partialSuccess"]
        assert partial == {key: "3", "errorMessage": "no time: 3"}


async def test_a_long_message_of_a_partial_success_is_cut() -> None:
    async with http_serving() as running:
        running.sink.answer = Receipt(1, "x" * 100_000)
        for media in (PROTOBUF, JSON):
            assert len((await running.post(b"", content_type=media)).body) < 2000


async def test_one_connection_carries_many_requests() -> None:
    async with http_serving() as running:
        connection = await running.connect()
        for number in range(20):
            answer = await connection.post(str(number).encode())
            assert answer.status == 200 and answer.is_open
        assert [int(each.body) for each in running.sink.exports] == list(range(20))
        assert running.value("http_connections") == 1


async def test_pythons_own_client_is_served_with_any_framing() -> None:
    def send() -> list[int]:
        client = http.client.HTTPConnection("127.0.0.1", running.port, timeout=20)
        found = []
        for body in (b"plain", iter([b"chunk", b"ed"]), bytes(3 * MIB)):
            client.request("POST", "/v1/traces", body, {"content-type": PROTOBUF})
            with client.getresponse() as response:
                response.read()
                found.append(response.status)
        client.close()
        return found

    async with http_serving() as running:
        assert await asyncio.to_thread(send) == [200, 200, 200]
        bodies = [each.body for each in running.sink.exports]
        assert bodies == [b"plain", b"chunked", bytes(3 * MIB)]


async def test_a_body_in_many_chunks_with_trailers_is_whole() -> None:
    async with http_serving() as running:
        connection = await running.connect()
        await connection.send(head("POST", "/v1/traces", None, transfer_encoding="chunked"))
        for piece in (b"a" * 100_000, b"b", b"c" * 700_000):
            await connection.send(f"{len(piece):x};extension=1\r\n", piece, "\r\n")
        await connection.send("0\r\nx-trailer: authorization\r\n\r\n")
        assert (await connection.response()).status == 200
        assert running.sink.exports[0].body == b"a" * 100_000 + b"b" + b"c" * 700_000
        assert (await connection.post(b"next")).status == 200


async def test_a_body_that_comes_byte_by_byte_is_whole() -> None:
    async with http_serving() as running:
        connection = await running.connect()
        for byte in (head("POST", "/v1/traces", 5) + "12345").encode():
            await connection.send(bytes([byte]))
            await asyncio.sleep(0)
        assert (await connection.response()).status == 200
        assert running.sink.exports[0].body == b"12345"


async def test_expect_continue_is_answered_before_the_body() -> None:
    async with http_serving() as running:
        connection = await running.connect()
        await connection.send(head("POST", "/v1/traces", 3, expect="100-continue"))
        assert (await connection.response()).status == 100
        await connection.send("abc")
        assert (await connection.response()).status == 200


@pytest.mark.parametrize("size", [0, 3, 700_000])
async def test_an_upgrade_that_is_offered_is_ignored_and_the_body_is_whole(size: int) -> None:
    offer = {"connection": "Upgrade, HTTP2-Settings", "upgrade": "h2c"}
    async with http_serving() as running:
        connection = await running.connect()
        for body in (bytes(size), b"next"):
            assert (await connection.post(body, **offer)).status == 200
        await connection.send(head("POST", "/v1/traces", 3, **offer))
        for byte in (b"a", b"b", b"c"):
            await connection.send(byte)
        assert (await connection.response()).status == 200
        bodies = [each.body for each in running.sink.exports]
        assert bodies == [bytes(size), b"next", b"abc"]


async def test_an_answer_has_a_date_and_does_not_say_what_serves_it() -> None:
    async with http_serving() as running:
        answer = await running.post(b"")
        assert answer.headers["date"].endswith(" GMT")
        assert set(answer.headers) == {"date", "content-type", "content-length"}


# refusals


def assert_refused(answer: Response, status: int, code: int, media: str) -> str:
    """The message; status, code and encoding are as they should be."""
    assert (answer.status, answer.headers["content-type"]) == (status, media)
    found, message = answer.problem
    assert found == code
    return message


@both_encodings
async def test_a_path_that_is_not_otlps_is_404(media: str) -> None:
    async with http_serving() as running:
        for path in ("/", "/v1/traces/", "/v1/TRACES", "/v1/%2e%2e/traces", "*"):
            answer = await running.post(b"", path, content_type=media)
            assert_refused(answer, 404, 12, media)
        assert running.value("http_refusals_total", status="404") == 5


@both_encodings
@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "OPTIONS", "PATCH"])
async def test_any_other_method_is_405_and_says_what_is_allowed(method: str, media: str) -> None:
    async with http_serving() as running:
        connection = await running.connect()
        await connection.send(head(method, "/v1/traces", 0, content_type=media))
        answer = await connection.response()
        assert_refused(answer, 405, 12, media)
        assert answer.headers["allow"] == "POST"


@pytest.mark.parametrize(
    "media", ["", "text/plain", "application/grpc", "application/x-json", "*/*"]
)
async def test_another_media_type_is_415(media: str) -> None:
    async with http_serving() as running:
        answer = await running.post(b"x", content_type=media)
        assert PROTOBUF in assert_refused(answer, 415, 3, JSON)
        assert running.sink.exports == []


@both_encodings
@pytest.mark.parametrize("coding", ["br", "snappy", "gzip, gzip", "none"])
async def test_another_encoding_is_415_and_says_which_are_known(coding: str, media: str) -> None:
    async with http_serving() as running:
        answer = await running.post(b"x", content_encoding=coding, content_type=media)
        assert_refused(answer, 415, 3, media)
        assert answer.headers["accept-encoding"] == "gzip, deflate, zstd"


@both_encodings
async def test_bad_data_is_400_with_what_is_wrong(media: str) -> None:
    async with http_serving() as running:
        running.sink.answer = Rejected("malformed", "not a valid OTLP traces request")
        answer = await running.post(b"x", content_type=media)
        assert assert_refused(answer, 400, 3, media) == "not a valid OTLP traces request"
        assert "retry-after" not in answer.headers


@both_encodings
async def test_a_body_that_inflates_too_far_is_413(media: str) -> None:
    async with http_serving() as running:
        running.sink.answer = Rejected("too_large", "the request inflates too far")
        assert_refused(await running.post(b"x", content_type=media), 413, 8, media)


@both_encodings
async def test_a_body_over_the_limit_is_413_before_it_is_read(media: str) -> None:
    async with http_serving(max_message_bytes=MIB) as running:
        connection = await running.connect()
        await connection.send(head("POST", "/v1/traces", MIB + 1, content_type=media))
        assert_refused(await connection.response(), 413, 8, media)
        answer = await running.post(bytes(MIB), content_type=media)
        assert answer.status == 200
        assert running.value("dropped_total", stage="receive", reason="too_large") == 1
        assert running.value("received_requests_total", signal="traces", outcome="rejected") == 1


async def test_a_chunked_body_over_the_limit_is_413_and_one_at_the_limit_is_not() -> None:
    async with http_serving(max_message_bytes=MIB) as running:
        for size, status in ((MIB, 200), (MIB + 1, 413), (3 * MIB, 413)):
            connection = await running.connect()
            await connection.send(head("POST", "/v1/traces", None, transfer_encoding="chunked"))
            await connection.send(f"{size:x}\r\n", bytes(size), "\r\n0\r\n\r\n")
            assert (await connection.response()).status == status
        assert [len(each.body) for each in running.sink.exports] == [MIB]
        assert running.value("http_upload_bytes") == 0


@both_encodings
@pytest.mark.parametrize(
    ("fault", "status", "code", "seconds"),
    [
        (Overloaded("bytes_in_flight", 2.1), 503, 14, {3}),
        (Overloaded("queue", 0.2), 503, 14, {1}),
        (Overloaded("client_limit", 4.0), 429, 8, {4}),
        (DependencyLost("secret detail"), 503, 14, set(range(1, 6))),
        (RuntimeError("secret detail"), 503, 14, set(range(1, 6))),
    ],
)
async def test_what_a_retry_can_cure_says_when(
    fault: Exception, status: int, code: int, seconds: set[int], media: str
) -> None:
    async with http_serving() as running:
        running.sink.answer = fault
        with structlog.testing.capture_logs() as logs:
            answer = await running.post(b"x", content_type=media)
        message = assert_refused(answer, status, code, media)
        assert int(answer.headers["retry-after"]) in seconds
        assert "secret" not in message
        assert len(logs) == isinstance(fault, RuntimeError)
        assert answer.is_open  # a storm of reconnections would make it worse


async def test_a_refusal_before_the_body_was_read_leaves_the_connection_usable() -> None:
    async with http_serving(max_message_bytes=MIB, max_bytes_in_flight=MIB) as running:
        connection = await running.connect()
        await connection.send(head("POST", "/nowhere", 300_000))
        assert (await connection.response()).status == 404
        await connection.send(bytes(300_000))
        assert (await connection.post(b"next")).status == 200


# shutdown and start


async def test_stop_finishes_what_runs_and_refuses_what_is_new() -> None:
    async with http_serving() as running:
        running.sink.gate = asyncio.Event()
        idle, busy = await running.connect(), await running.connect()
        answer = asyncio.ensure_future(busy.post(b"x"))
        await running.sink.entered.wait()
        stopping = asyncio.ensure_future(running.server.stop(10.0))
        assert await idle.is_closed()
        with pytest.raises(ConnectionRefusedError):
            await running.connect()
        running.sink.gate.set()
        found = await answer
        assert found.status == 200 and not found.is_open
        await stopping
        assert await busy.is_closed()


async def test_stop_tells_those_that_outlast_the_grace_to_retry() -> None:
    async with http_serving() as running:
        running.sink.gate = asyncio.Event()
        connection = await running.connect()
        answer = asyncio.ensure_future(connection.post(b"x"))
        await running.sink.entered.wait()
        await running.server.stop(0.0)
        found = await answer
        assert found.status == 503 and "retry-after" in found.headers


async def test_stop_is_safe_twice_and_without_start() -> None:
    async with http_serving() as running:
        await running.server.stop(1.0)
        await running.server.stop(1.0)
    config = ReceiveConfig()
    never = OtlpHttpServer(config, Intake(config, Sink().submit, Telemetry()), Telemetry())
    await never.stop(1.0)


async def test_a_taken_port_is_a_configuration_error_that_names_it() -> None:
    async with http_serving() as running:
        config = ReceiveConfig(http=HttpConfig(listen=running.address))
        second = OtlpHttpServer(config, Intake(config, Sink().submit, Telemetry()), Telemetry())
        with pytest.raises(ConfigError, match=rf"receive\.http\.listen: {running.address}"):
            await second.start()


async def test_two_servers_share_a_port_only_when_told() -> None:
    config = ReceiveConfig(http=HttpConfig(listen="127.0.0.1:0"))

    def server(listen: str) -> OtlpHttpServer:
        own = ReceiveConfig(http=HttpConfig(listen=listen))
        intake = Intake(own, Sink().submit, Telemetry())
        return OtlpHttpServer(own, intake, Telemetry(), reuse_port=True)

    first = server(config.http.listen)
    address = await first.start()
    second = server(address)
    assert await second.start() == address
    await first.stop(0.0)
    await second.stop(0.0)


async def test_ipv6_is_served_and_peers_are_named_alike() -> None:
    async with http_serving(http={"listen": "[::1]:0"}) as running:
        reader, writer = await asyncio.open_connection("::1", running.port)
        writer.write(head("POST", "/v1/traces", 0).encode())
        assert b" 200 " in await reader.readline()
        writer.close()
        assert running.sink.clients == [Client("::1")]


async def test_an_old_connection_is_asked_to_come_back_on_a_new_one() -> None:
    async with http_serving(max_connection_age_s=1.0) as running:
        connection = await running.connect()
        answer = await connection.post(b"x")
        while answer.is_open:
            answer = await connection.post(b"x")
        assert answer.status == 200
        assert await connection.is_closed()


async def test_a_sender_that_resets_while_it_is_served_leaves_nothing_behind() -> None:
    async with http_serving() as running:
        running.sink.gate = asyncio.Event()
        connection = await running.connect()
        await connection.send(head("POST", "/v1/traces", 1), "x")
        await running.sink.entered.wait()
        raw = connection.writer.get_extra_info("socket")
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.writer.transport.abort()
        await eventually(lambda: running.value("http_connections") == 0)
        assert running.intake.bytes_in_flight == 1  # it is folded all the same
        running.sink.gate.set()
        await eventually(
            lambda: running.value("received_requests_total", signal="traces", outcome="ok") == 1
        )
        assert running.intake.bytes_in_flight == 0
