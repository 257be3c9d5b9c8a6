"""Request traits from plain texts, without a decoder: for tests of what is made of them."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pipeline.model import Dictionary, RequestRows, RequestTraits
from pipeline.symbols import hash64
from tests.builders import requests

Texts = Sequence[str | None]


def dictionary(texts: Sequence[str]) -> Dictionary:
    """The texts by code."""
    encoded = [text.encode() for text in texts]
    offsets = np.cumsum([0, *map(len, encoded)]).astype(np.int32)
    hashes = np.array([hash64(each) for each in encoded], np.uint64)
    return Dictionary(b"".join(encoded), offsets, hashes)


def traits(n: int, is_log: bool = False, **columns: Texts) -> RequestTraits:
    """Traits of n rows; a column is a text a row, None = absent."""
    codes: dict[str, int] = {}
    made: dict[str, Any] = {}
    for name, texts in columns.items():
        assert len(texts) == n
        made[name] = np.array(
            [-1 if text is None else codes.setdefault(text, len(codes)) for text in texts], np.int32
        )
    return RequestTraits(n, dictionary(list(codes)), is_log, **made)


def batch(rows: Sequence[Mapping[str, Any]]) -> tuple[RequestRows, RequestTraits]:
    """Rows and traits: text fields of `RequestTraits` become traits, others figures."""
    words = sorted({key for row in rows for key, value in row.items() if isinstance(value, str)})
    figures = [{k: v for k, v in row.items() if not isinstance(v, str)} for row in rows]
    columns: dict[str, Any] = {word: [row.get(word) for row in rows] for word in words}
    return requests(figures), traits(len(rows), **columns)
