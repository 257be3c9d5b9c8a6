"""Both decoders for tests: `decoding` of conftest.py gives one after the other."""

from typing import Literal, NamedTuple

from pipeline.decode.columns import Decoder, new_decoder
from pipeline.model import (
    Columns,
    LogColumns,
    OtlpSignal,
    PointColumns,
    ProfileColumns,
    SpanColumns,
)


class Decoding(NamedTuple):
    """One of the decoders; each call starts with empty caches."""

    name: Literal["native", "reference"]

    def new(self) -> Decoder:
        return new_decoder(self.name)

    def decode(self, signal: OtlpSignal, body: bytes) -> Columns:
        return self.new().decode(signal, body)

    def spans(self, body: bytes) -> SpanColumns:
        columns = self.decode(OtlpSignal.TRACES, body)
        assert isinstance(columns, SpanColumns)
        return columns

    def points(self, body: bytes) -> PointColumns:
        columns = self.decode(OtlpSignal.METRICS, body)
        assert isinstance(columns, PointColumns)
        return columns

    def logs(self, body: bytes) -> LogColumns:
        columns = self.decode(OtlpSignal.LOGS, body)
        assert isinstance(columns, LogColumns)
        return columns

    def profiles(self, body: bytes) -> ProfileColumns:
        columns = self.decode(OtlpSignal.PROFILES, body)
        assert isinstance(columns, ProfileColumns)
        return columns
