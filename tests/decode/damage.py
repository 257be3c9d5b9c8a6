"""Ways to damage an encoded message; each gives bodies, the same ones for the same arguments."""

import random
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from tests.decode.wire import LENGTH, padded, varint

SIZES: Final = (0, 1, 127, 128, 2**14, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**63, 2**64 - 1)
BITES: Final = (b"\x00", b"\x7f", b"\x80", b"\xff", b"\xff" * 10, b"\x0a\x00", b"\x0b", b"\x0c")


class Node(NamedTuple):
    """A field with a length: where its length and its payload are, and what holds it."""

    length_at: int
    start: int
    end: int
    parents: tuple["Node", ...]


def nodes(body: bytes) -> list[Node]:
    """The fields with a length, those inside that look like messages included."""
    found: list[Node] = []
    _collect(body, 0, len(body), (), found)
    return found


def _varint(body: bytes, at: int, end: int) -> tuple[int, int]:
    value = shift = 0
    while at < end and shift < 70:
        byte = body[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at
    return -1, end


def _collect(body: bytes, at: int, end: int, parents: tuple[Node, ...], found: list[Node]) -> bool:
    """Whether the bytes read as a message; its fields are added to `found` only then."""
    mine: list[Node] = []
    while at < end:
        tag, at = _varint(body, at, end)
        wire = tag & 7
        if tag < 8 or wire not in {0, 1, LENGTH, 5}:
            return False
        if wire == LENGTH:
            length_at = at
            size, at = _varint(body, at, end)
            if size < 0 or at + size > end:
                return False
            node = Node(length_at, at, at + size, parents)
            mine.append(node)
            inner: list[Node] = []
            if size and _collect(body, at, at + size, (*parents, node), inner):
                mine += inner
            at += size
        else:
            at = _varint(body, at, end)[1] if wire == 0 else at + (8 if wire == 1 else 4)
    if at == end:
        found += mine
    return at == end


def replaced(body: bytes, node: Node, payload: bytes) -> bytes:
    """The body with another payload in `node`, every length around it made to fit."""
    for outer in (node, *reversed(node.parents)):
        whole = varint(len(payload)) + payload
        holder = outer.parents[-1] if outer.parents else None
        low, high = (holder.start, holder.end) if holder else (0, len(body))
        payload = body[low : outer.length_at] + whole + body[outer.end : high]
    return payload


def cuts(body: bytes) -> Iterator[bytes]:
    """Each message inside cut at each byte, all lengths around it right."""
    for node in nodes(body):
        for cut in range(node.start, node.end):
            yield replaced(body, node, body[node.start : cut])


def flips(body: bytes) -> Iterator[bytes]:
    """Each bit flipped."""
    for at in range(len(body)):
        for bit in range(8):
            yield body[:at] + bytes((body[at] ^ 1 << bit,)) + body[at + 1 :]


def lengths(body: bytes) -> Iterator[bytes]:
    """Each length changed, nothing else."""
    for node in nodes(body):
        size = node.end - node.start
        head, tail = body[: node.length_at], body[node.start :]
        for wrong in (size - 1, size + 1, size + 2, *SIZES):
            if wrong >= 0:
                yield head + varint(wrong) + tail
        for pad in (1, 3, 4, 5, 9):
            yield head + padded(varint(size), pad) + tail
            yield replaced(head + padded(varint(size), pad) + tail, node, b"")


def splices(bodies: Sequence[bytes], rnd: random.Random, n: int) -> Iterator[bytes]:
    """n bodies with pieces of others in them, or pieces gone, doubled or overwritten."""
    for _ in range(n):
        body = rnd.choice(bodies)
        other = rnd.choice(bodies)
        places = nodes(body)
        donors = nodes(other)
        node, donor = rnd.choice(places), rnd.choice(donors)
        piece = other[donor.start : donor.end]
        at = rnd.randrange(len(body))
        kind = rnd.randrange(6)
        if kind == 0:  # another message in the place of this one
            yield replaced(body, node, piece)
        elif kind == 1:  # twice the same, merged or repeated
            yield replaced(body, node, body[node.start : node.end] * 2)
        elif kind == 2:
            yield replaced(body, node, body[node.start : node.end] + piece)
        elif kind == 3:
            yield body[:at] + piece + body[at:]
        elif kind == 4:
            yield body[:at] + body[at + rnd.randrange(1, 9) :]
        else:
            bite = rnd.choice(BITES)
            yield body[:at] + bite + body[at + len(bite) :]
