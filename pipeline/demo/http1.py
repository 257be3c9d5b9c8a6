"""The little HTTP/1.1 that the demo speaks: one request a connection, whole or chunked answers.

Enters: an address, a path and perhaps a body. Leaves: the status and the body in parts as they
arrive. A connection that ends too early raises OSError, as one that was never made does.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from http import HTTPStatus

LINE_END = b"\r\n"


class Answer:
    """An answer whose head has arrived."""

    def __init__(self, status: int, headers: dict[bytes, bytes], body: asyncio.StreamReader):
        """`headers` by lower-case name."""
        self.status = status
        self._headers = headers
        self._body = body

    async def parts(self) -> AsyncIterator[bytes]:
        """The body as it arrives: a part is a chunk as the server wrote it, or all of it."""
        try:
            if self._headers.get(b"transfer-encoding", b"").lower() == b"chunked":
                while length := int(await self._body.readline(), 16):
                    yield await self._body.readexactly(length)
                    await self._body.readexactly(len(LINE_END))
            else:
                yield await self._body.readexactly(int(self._headers[b"content-length"]))
        except (asyncio.IncompleteReadError, ValueError, KeyError) as error:
            raise ConnectionResetError("the answer ended too early") from error

    async def read(self) -> bytes:
        """The whole body."""
        return b"".join([part async for part in self.parts()])


@asynccontextmanager
async def send(address: str, path: str, body: bytes | None = None) -> AsyncIterator[Answer]:
    """GET `path`, or POST a JSON `body`, on a connection that is closed at the end of the block.

    Raises OSError for a connection that is refused or that ends before the answer does.
    """
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        writer.write(_head(address, path, body) + (body or b""))
        status = await reader.readline()
        if len(words := status.split()) < 2:
            raise ConnectionResetError("the connection ended before the answer")
        yield Answer(int(words[1]), await _headers(reader), reader)
    finally:
        writer.close()


async def is_healthy(address: str, path: str = "/health", timeout_s: float = 1.0) -> bool:
    """Whether `path` answers 200 in time."""
    try:
        async with asyncio.timeout(timeout_s), send(address, path) as answer:
            return answer.status == HTTPStatus.OK
    except OSError:  # TimeoutError is one
        return False


def _head(address: str, path: str, body: bytes | None) -> bytes:
    lines = [f"{'GET' if body is None else 'POST'} {path} HTTP/1.1", f"Host: {address}"]
    if body is not None:
        lines += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
    return "\r\n".join([*lines, "Connection: close", "", ""]).encode()


async def _headers(reader: asyncio.StreamReader) -> dict[bytes, bytes]:
    headers = {}
    while (line := await reader.readline()).strip():
        name, _, value = line.partition(b":")
        headers[name.strip().lower()] = value.strip()
    return headers
