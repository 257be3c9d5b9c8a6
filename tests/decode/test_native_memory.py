"""What a hostile request can make the decoder hold: so much for each of its bytes, not more."""

import gzip
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import pytest

from pipeline.decode.sizes import MAX_ITEMS
from pipeline.keys import LOG_KEYS, POINT_KEYS, RESOURCE_KEYS, SPAN_KEYS, Key
from pipeline.model import OtlpSignal
from tests.decode import wire
from tests.decode.decoding import Decoding
from tests.decode.sound import SOUND

BYTES_PER_BYTE: Final = 600
"""Resident, with as many items as a request may have; the fuzz target counts what is reserved."""

_DECODE: Final = """
import sys
from pathlib import Path
from pipeline.decode.columns import new_decoder
from pipeline.model import OtlpSignal

def held():
    # KiB in use at most so far; ru_maxrss would start with that of the parent process.
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0])


decoder, signal = new_decoder("native"), OtlpSignal(sys.argv[1])
decoder.decode(signal, b"")
body = Path(sys.argv[2]).read_bytes()
before = held()
for _ in range(3):
    decoder.decode(signal, body)
print(held() - before)
"""


def wide(keys: Sequence[Key], path: tuple[int, ...], item: bytes) -> bytes:
    """As many of `item` as allowed, the last of them with an attribute of every key."""
    pairs = (wire.pair(key.name.encode(), wire.length(1, b"1")) for key in keys)
    last = item + b"".join(wire.length(path[-1], pair) for pair in pairs)
    items = wire.length(path[-2], item) * (MAX_ITEMS - 1) + wire.length(path[-2], last)
    return wire.enclosed(items, *path[:-2])


WIDE: Final = {
    "spans": (OtlpSignal.TRACES, SPAN_KEYS, (1, 2, 2, 9), b""),
    "logs": (OtlpSignal.LOGS, LOG_KEYS, (1, 2, 2, 6), b""),
    "points": (OtlpSignal.METRICS, POINT_KEYS, (1, 2, 2, 5, 1, 7), SOUND["NumberDataPoint"]),
    "resources": (OtlpSignal.TRACES, RESOURCE_KEYS, (1, 1, 1), b""),
}


@pytest.mark.parametrize("name", list(WIDE))
def test_memory_is_in_proportion_when_one_of_many_items_has_every_key(
    name: str, native: Decoding, tmp_path: Path
) -> None:
    signal, keys, path, item = WIDE[name]
    body = wide(keys, path, item)
    if name == "resources":  # the resource is a part of the item that repeats
        pairs = (wire.pair(key.name.encode(), wire.length(1, b"1")) for key in keys)
        last = wire.enclosed(b"".join(wire.length(1, pair) for pair in pairs), 1, 1)
        body = wire.length(1, b"") * (MAX_ITEMS - 1) + last
    assert native.decode(signal, body) is not None
    (tmp_path / "body").write_bytes(body)
    command = [sys.executable, "-c", _DECODE, signal.value, str(tmp_path / "body")]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    assert int(done.stdout) << 10 < BYTES_PER_BYTE * len(body)
    assert len(gzip.compress(body, 9)) < len(body) / 100  # so little does it cost to send
