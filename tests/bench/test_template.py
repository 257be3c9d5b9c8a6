"""Words of a body that move in place."""

import struct

from hypothesis import given
from hypothesis import strategies as st

from pipeline.bench.template import ID_STEP, Template

MASK = (1 << 64) - 1


@given(st.lists(st.integers(0, 20), min_size=3, max_size=12), st.integers(0, 1 << 62))
def test_words_at_any_offset_are_written_and_nothing_else_changes(
    gaps: list[int], now_ns: int
) -> None:
    """Oracle: the same words written with struct."""
    at, offsets = 0, []
    for gap in gaps:
        offsets.append(at + gap)
        at += gap + 8
    body = bytes(i * 37 % 256 for i in range(at + 3))
    times, ids, counters = offsets[::3], offsets[1::3], offsets[2::3]
    template = Template(
        body,
        1,
        times=[(place, -i) for i, place in enumerate(times)],
        ids=ids,
        counters=[(place, i + 5) for i, place in enumerate(counters)],
    )
    wanted = bytearray(body)
    for sends in (1, 2):
        for i, place in enumerate(times):
            struct.pack_into("<q", wanted, place, now_ns - i)
        for place in ids:
            old = struct.unpack_from("<Q", body, place)[0]
            struct.pack_into("<Q", wanted, place, (old + sends * ID_STEP) & MASK)
        for i, place in enumerate(counters):
            old = struct.unpack_from("<Q", body, place)[0]
            struct.pack_into("<Q", wanted, place, (old + sends * (i + 5)) & MASK)
        assert template.stamped(now_ns) == bytes(wanted)


def test_a_body_that_was_handed_out_does_not_change() -> None:
    template = Template(bytes(8), 1, times=[(0, 0)], ids=[], counters=[])
    first = template.stamped(1)
    template.stamped(2)
    assert first == struct.pack("<Q", 1)
