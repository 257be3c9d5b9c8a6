"""Accepts connections up to a number, in all and of one peer; the rest is closed at once.

Counted from the accept on, so that connections which never finish their TLS handshake count too. A
peer that is refused costs an accept and a close, and finds a closed connection: it retries.
"""

import asyncio
import socket
import ssl
from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple, TypeAlias

from pipeline.address import canonical_host, split_listen
from pipeline.errors import ConfigError

BACKLOG: Final = 4096
ACCEPTED_TOGETHER: Final = 256
"""Connections taken in a row, before what else the event loop has to do."""
_NO_FILES_PAUSE_S: Final = 0.5
"""After an accept that failed for want of files or memory."""

_TLS_CLOSE_S: Final = 2.0
"""For a peer to agree to the end of a connection that we close."""

Factory: TypeAlias = Callable[[str, "Slot"], asyncio.Protocol]
"""(peer, its slot) -> the protocol of a connection; it releases the slot when it is lost."""


class Bounds(NamedTuple):
    """How many connections there may be."""

    total: int
    per_peer: int
    handshake_s: float


class Slot:
    """One connection's place; released once."""

    def __init__(self, slots: "Slots", peer: str) -> None:
        """Taken already."""
        self._slots = slots
        self._peer = peer
        self._is_held = True

    def release(self) -> None:
        """Make room for another. Safe twice."""
        if self._is_held:
            self._is_held = False
            self._slots.give_back(self._peer)


class Slots:
    """How many connections there are, by peer."""

    def __init__(self, bounds: Bounds) -> None:
        """None yet."""
        self._bounds = bounds
        self._by_peer: dict[str, int] = {}
        self.total = 0

    def take(self, peer: str) -> Slot | None:
        """A slot for a connection of `peer`; None when there is no room."""
        count = self._by_peer.get(peer, 0)
        if self.total >= self._bounds.total or count >= self._bounds.per_peer:
            return None
        self._by_peer[peer] = count + 1
        self.total += 1
        return Slot(self, peer)

    def give_back(self, peer: str) -> None:
        """One connection of `peer` less."""
        self.total -= 1
        if self._by_peer[peer] == 1:
            del self._by_peer[peer]
        else:
            self._by_peer[peer] -= 1


class Listener:
    """One listening socket and its accept loop. `close` is safe twice."""

    def __init__(
        self,
        bounds: Bounds,
        factory: Factory,
        tls: ssl.SSLContext | None,
        refused: Callable[[], None],
    ) -> None:
        """`refused` is called for each connection that is closed for want of room."""
        self._bounds = bounds
        self._factory = factory
        self._tls = tls
        self._refused = refused
        self._slots = Slots(bounds)
        self._handshakes: set[asyncio.Task[None]] = set()
        self._accepting: asyncio.Task[None] | None = None
        self._socket: socket.socket | None = None

    @property
    def connections(self) -> int:
        """Open connections, those in their handshake included."""
        return self._slots.total

    def open(self, field: str, listen: str, reuse_port: bool) -> str:
        """Listen and accept; the bound address. `ConfigError` naming `field` when it cannot."""
        host, _ = split_listen(field, listen)
        self._socket = bind(field, listen, reuse_port)
        self._accepting = asyncio.get_running_loop().create_task(self._accept(self._socket))
        return f"{host}:{self._socket.getsockname()[1]}"

    async def close(self) -> None:
        """Accept no more; what is in its handshake is dropped, the rest stays open."""
        tasks = {*self._handshakes, *({self._accepting} if self._accepting else ())}
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        self._accepting = None
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    async def _accept(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                self._take(*await loop.sock_accept(listening))
                # More may wait: the kernel's queue is short, and what it drops comes back late.
                for _ in range(ACCEPTED_TOGETHER):
                    connection, address = listening.accept()
                    connection.setblocking(False)
                    self._take(connection, address)
            except BlockingIOError:
                continue  # nobody else waits
            except ConnectionError:
                continue  # the peer was faster
            except OSError:
                await asyncio.sleep(_NO_FILES_PAUSE_S)

    def _take(self, connection: socket.socket, address: tuple[str, int]) -> None:
        """Serve a connection if there is room for it, else close it."""
        peer = canonical_host(str(address[0]))
        slot = self._slots.take(peer)
        if slot is None:
            connection.close()
            self._refused()
            return
        task = asyncio.get_running_loop().create_task(self._connect(connection, peer, slot))
        self._handshakes.add(task)
        task.add_done_callback(partial(self._shaken, connection, slot))

    async def _connect(self, connection: socket.socket, peer: str, slot: Slot) -> None:
        loop = asyncio.get_running_loop()
        protocol = self._factory(peer, slot)
        try:
            await loop.connect_accepted_socket(
                lambda: protocol,
                connection,
                ssl=self._tls,
                ssl_handshake_timeout=self._bounds.handshake_s if self._tls else None,
                ssl_shutdown_timeout=_TLS_CLOSE_S if self._tls else None,
            )
        except OSError:  # a failed or late handshake (ssl.SSLError, TimeoutError); nobody to tell
            slot.release()

    def _shaken(self, connection: socket.socket, slot: Slot, task: asyncio.Task[None]) -> None:
        self._handshakes.discard(task)
        if task.cancelled():
            connection.close()
            slot.release()


def bind(field: str, listen: str, reuse_port: bool) -> socket.socket:
    """A socket that listens on `host:port`; `ConfigError` naming `field` when it cannot be had."""
    host, port = split_listen(field, listen)
    try:
        family, kind, proto, _, address = socket.getaddrinfo(
            host.strip("[]"), int(port), type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listening = socket.socket(family, kind, proto)
    except OSError as error:
        raise ConfigError(f"{field}: {listen} is not an address of this machine") from error
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if reuse_port:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listening.setblocking(False)
        listening.bind(address)
        listening.listen(BACKLOG)
    except OSError as error:
        listening.close()
        raise ConfigError(f"{field}: {listen} is taken or not ours") from error
    return listening
