"""What an operator sets about publishing."""

from typing import Annotated

import msgspec

from pipeline.model import Config


class PublishConfig(Config, frozen=True, kw_only=True):
    """The decision port."""

    listen: str = "127.0.0.1:4320"
    """host:port of Decisions and Operator; port 0 takes a free one."""
    heartbeat_s: Annotated[float, msgspec.Meta(gt=0.0, le=60.0)] = 2.0
    """Longest silence on a Watch stream."""
    valid_for_s: Annotated[float, msgspec.Meta(gt=0.0, le=3600.0)] = 10.0
    """After this long without a message an agent fails static; several heartbeats."""
    max_watchers: Annotated[int, msgspec.Meta(ge=1, le=100_000)] = 1_000
    """Watch streams at a time; more are told to retry."""
    plaintext_off_loopback: bool = False
    """Allow a listen address that other machines reach, without TLS: anyone there may override."""

    def __post_init__(self) -> None:
        """Refuse a validity that a single late heartbeat would break."""
        if self.valid_for_s < 2 * self.heartbeat_s:
            raise ValueError("valid_for_s must be at least twice heartbeat_s")
