"""Encodings and sizes: what is handed over, what is refused, what nothing else would tell."""

import asyncio
import gzip
import resource
import struct
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
import structlog

from pipeline.model import Encoding, OtlpSignal
from pipeline.receive.config import MIB
from pipeline.receive.google_rpc import RETRY_INFO
from pipeline.receive.otlp_grpc import SERVICES
from tests.receive.serving import (
    PREFACE,
    SETTINGS,
    Running,
    eventually,
    frame,
    raw_export,
    request_headers,
    serving,
    trailers,
)

OK, RESOURCE_EXHAUSTED, INTERNAL = 0, 8, 13


INFLATE: dict[Encoding, Callable[[bytes], bytes]] = {
    Encoding.IDENTITY: bytes,
    Encoding.DEFLATE: zlib.decompress,
    Encoding.GZIP: gzip.decompress,
}


@pytest.mark.parametrize(
    ("compression", "encoding"),
    [
        (grpc.Compression.NoCompression, Encoding.IDENTITY),
        (grpc.Compression.Deflate, Encoding.DEFLATE),
        (grpc.Compression.Gzip, Encoding.GZIP),
    ],
)
async def test_what_grpc_compresses_is_handed_over_compressed(
    compression: grpc.Compression, encoding: Encoding
) -> None:
    content = b"\x0a\x03abc" * 5000
    async with serving() as running:
        await running.export(content, compression=compression)
        export = running.sink.exports[0]
        assert export.encoding is encoding
        assert INFLATE[encoding](export.body) == content
        assert (len(export.body) < len(content)) is (encoding is not Encoding.IDENTITY)
        assert export.max_bytes >= len(content)
        assert encoding is Encoding.DEFLATE or export.max_bytes == len(content)
        assert running.value("prehandler_failures_total") == 0


@pytest.mark.parametrize(
    ("encoding", "is_compressed"),
    [("zstd", True), ("snappy", True), ("zstd", False), ("", True), ("identity", True)],
)
async def test_what_grpc_cannot_read_is_counted_and_its_sender_named_with_advice(
    encoding: str, is_compressed: bool
) -> None:
    async with serving() as running:
        with structlog.testing.capture_logs() as logs:
            for _ in range(2):
                status = await raw_export(
                    running.port, encoding, b"\x28\xb5\x2f\xfd", is_compressed=is_compressed
                )
                assert status == INTERNAL
            await eventually(lambda: running.value("prehandler_failures_total") == 2)
        assert running.value("unreadable_requests_total", sender="collector") == 2
        assert running.sink.exports == []
        assert [entry["event"] for entry in logs] == ["a sender's request cannot be read"]
        assert logs[0]["user_agent"].startswith("OpenTelemetry Collector/")
        assert "gzip or none" in logs[0]["hint"] and "OTLP/HTTP" in logs[0]["hint"]
        await running.export(b"x")  # others are served


@pytest.mark.parametrize("encoding", ["", "identity", "gzip", "deflate"])
async def test_every_readable_header_lets_uncompressed_messages_through(encoding: str) -> None:
    async with serving() as running:
        assert await raw_export(running.port, encoding, b"\x0a\x00", is_compressed=False) == OK
        assert running.sink.exports[0].encoding is Encoding.IDENTITY


async def test_a_gzip_that_cannot_be_whole_is_invalid_argument() -> None:
    async with serving() as running:
        for body in (b"\x1f\x8bxx", gzip.compress(b"x")[:-4] + b"\xff\xff\x00\x00"):
            error = await running.refused(body)
            assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert running.sink.exports == []
        assert running.value("dropped_total", stage="receive", reason="corrupt_encoding") == 2
        assert running.value("received_requests_total", signal="traces", outcome="rejected") == 2


@pytest.mark.parametrize("compression", [grpc.Compression.NoCompression, grpc.Compression.Gzip])
async def test_4_mib_and_more_is_accepted_and_more_than_64_mib_refused_for_good(
    compression: grpc.Compression,
) -> None:
    async with serving() as running:
        content = bytes(4 * MIB + 1)
        await running.export(content, compression=compression)
        export = running.sink.exports[0]
        assert INFLATE[export.encoding](export.body) == content
        await running.export(bytes(64 * MIB), compression=compression)
        error = await running.refused(bytes(64 * MIB + 1), compression=compression)
        assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert RETRY_INFO not in trailers(error)
        is_raw = compression is grpc.Compression.NoCompression
        await eventually(lambda: running.value("prehandler_failures_total") == is_raw)
        too_large = running.value("dropped_total", stage="receive", reason="too_large")
        assert too_large == (not is_raw)
        assert len(running.sink.exports) == 2


BOMB = """
import gzip, sys, grpc
with grpc.insecure_channel(sys.argv[1]) as channel:
    call = channel.unary_unary(sys.argv[2])
    body = gzip.compress(bytes(200 << 20))
    for lie in (None, 0, 1 << 20):
        sent = body if lie is None else body[:-4] + lie.to_bytes(4, "little")
        try:
            call(sent, timeout=60)
            print("OK")
        except grpc.RpcError as error:
            print(error.code().name)
"""


async def test_a_bomb_is_refused_or_capped_at_its_own_lie_and_never_inflated_here() -> None:
    async with serving(max_message_bytes=4 * MIB) as running:
        await running.export(b"warm")
        before = resident_bytes()
        sender = await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            BOMB,
            running.address,
            f"/{SERVICES[OtlpSignal.TRACES]}/Export",
            stdout=asyncio.subprocess.PIPE,
        )
        output, _ = await sender.communicate()
        assert output.decode().split() == ["RESOURCE_EXHAUSTED", "OK", "OK"]
        assert resident_bytes() - before < 30 * MIB
        caps = [export.max_bytes for export in running.sink.exports[1:]]
        assert caps == [len(running.sink.exports[1].body), MIB]


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


async def open_call(running: Running, *, timeout: float | None = None) -> grpc.aio.StreamUnaryCall:
    """A request of which the headers have gone out and the body has not."""
    method: Any = running.channel.stream_unary(f"/{SERVICES[OtlpSignal.TRACES]}/Export")
    call = method(timeout=timeout)
    await call.wait_for_connection()
    return call


async def test_a_sender_whose_time_ends_while_it_sends_is_late_and_not_unreadable() -> None:
    async with serving() as running:
        call = await open_call(running, timeout=0.2)
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await call
        assert error.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        late = {"stage": "receive", "reason": "deadline"}
        await eventually(lambda: running.value("dropped_total", **late) == 1)
        assert running.value("prehandler_failures_total") == 0


async def test_a_request_without_a_message_is_invalid_argument() -> None:
    async with serving() as running:
        call = await open_call(running)
        await call.done_writing()
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await call
        assert error.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert running.sink.exports == []
        assert running.value("prehandler_failures_total") == 1


async def test_a_sender_that_leaves_while_it_sends_holds_nothing() -> None:
    async with serving() as running:
        call = await open_call(running)
        await asyncio.sleep(0.05)  # its headers arrive
        call.cancel()
        await eventually(lambda: running.value("prehandler_failures_total") == 1)
        assert running.intake.bytes_in_flight == 0
        assert running.sink.exports == []


async def test_a_flood_of_headers_is_refused_and_others_are_served() -> None:
    async with serving() as running:
        flood = [(f"x-{i}", "a" * 100) for i in range(1000)]
        assert await raw_export(running.port, "", b"", more=flood) == RESOURCE_EXHAUSTED
        await running.export(b"x")
        assert [export.body for export in running.sink.exports] == [b"x"]


async def test_half_a_message_holds_up_nobody() -> None:
    async with serving() as running:
        _, writer = await asyncio.open_connection("127.0.0.1", running.port)
        writer.write(PREFACE + SETTINGS + request_headers())
        writer.write(frame(0, 0, 1, struct.pack(">BI", 0, 1000) + b"half"))
        await running.export(b"y")
        assert [export.body for export in running.sink.exports] == [b"y"]
        assert running.intake.bytes_in_flight == 0
        writer.close()
