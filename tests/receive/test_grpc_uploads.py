"""gRPC bodies that are still arriving: their time and their room."""

import asyncio
import struct
from contextlib import suppress

from pipeline.receive.config import MIB
from pipeline.receive.grpc_uploads import TOO_SLOW, UPLOADS
from tests.receive.serving import PREFACE, SETTINGS, frame, request_headers, serving


async def stalled(port: int, size: int, sent: int) -> bytes:
    """Begin a body of `size` bytes, send the first `sent`, then only listen; the answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    message = struct.pack(">BI", 0, size) + bytes(sent)
    writer.write(PREFACE + SETTINGS + request_headers() + frame(0, 0, 1, message))
    heard = b""
    async with asyncio.timeout(20):
        while b"grpc-status" not in heard:
            data = await reader.read(4096)
            assert data, "closed without an answer"
            heard += data
    writer.close()
    with suppress(ConnectionError):
        await writer.wait_closed()
    return heard


async def test_a_body_that_takes_too_long_is_told_to_retry() -> None:
    async with serving(max_upload_s=0.2) as running:
        heard = await stalled(running.port, MIB, 100)
        assert b"grpc-status\x0214" in heard
        assert b"retryinfo-bin" in heard
        assert running.value("dropped_total", stage="receive", reason=TOO_SLOW) == 1
        assert running.value("received_requests_total", signal="traces", outcome="overloaded") == 1
        assert running.value("prehandler_failures_total") == 0
        assert await running.export(b"x") == b""


async def test_a_slow_body_is_told_to_retry_when_the_process_grows() -> None:
    async with serving(max_bytes_arriving=MIB) as running:
        answer = asyncio.create_task(stalled(running.port, MIB, 100))
        hoard = []
        while not answer.done():
            hoard.append(b"x" * (8 * MIB))
            await asyncio.sleep(0.02)
        assert b"grpc-status\x0214" in await answer
        assert running.value("dropped_total", stage="receive", reason=UPLOADS) == 1
        del hoard
        assert await running.export(b"x" * 100_000) == b""


async def test_a_sender_that_leaves_while_it_sends_is_no_refusal() -> None:
    async with serving() as running:
        call = asyncio.create_task(stalled(running.port, MIB, 100))
        await asyncio.sleep(0)
        call.cancel()
        with suppress(asyncio.CancelledError):
            await call
        assert await running.export(b"x") == b""
        assert running.value("dropped_total", stage="receive", reason=TOO_SLOW) == 0
