"""A budget of bytes for request bodies that are still arriving, taken before they are read.

What has arrived is handed to the intake, which counts it from then on. No peer may hold more than
half of the budget while another could want it; its first upload it may always have.
"""

import random
from typing import Final

from pipeline.errors import Overloaded
from pipeline.receive.admission import Admission, Limits

UPLOAD_SHARE: Final = "upload_share"
"""`Overloaded.reason` of a peer that holds its share already; UPLOADS when there is no room."""
UPLOADS: Final = "uploads"

_SHARE_RATIO: Final = 0.5


class Uploads:
    """Bytes of bodies on their way, by peer. For one event loop."""

    def __init__(self, max_bytes: int, wait_s: float, jitter: random.Random) -> None:
        """`wait_s` is how long an upload waits for room before it is refused."""
        self._share_bytes = int(max_bytes * _SHARE_RATIO)
        self._admission = Admission(Limits(max_bytes, max_bytes, wait_s), jitter)
        self._held: dict[str, int] = {}

    @property
    def held_bytes(self) -> int:
        """Bytes set aside at the moment."""
        return self._admission.in_flight_bytes

    def upload(self, peer: str) -> "Upload":
        """A new upload that holds nothing yet; `release` it in the end."""
        return Upload(self, peer)

    async def take(self, peer: str, size: int) -> None:
        """Set `size` more bytes aside; `Overloaded` when there is no room."""
        held = self._held.get(peer, 0)
        if held and held + size > self._share_bytes:
            raise Overloaded(UPLOAD_SHARE, self._admission.retry_after_s())
        self._held[peer] = held + size
        try:
            await self._admission.admit(size)
        except Overloaded as error:
            self._forget(peer, size)
            raise Overloaded(UPLOADS, error.retry_after_s) from None
        except BaseException:
            self._forget(peer, size)
            raise

    def give_back(self, peer: str, size: int) -> None:
        """Release `size` bytes that were taken."""
        self._forget(peer, size)
        self._admission.release(size)

    def _forget(self, peer: str, size: int) -> None:
        left = self._held[peer] - size
        if left:
            self._held[peer] = left
        else:
            del self._held[peer]


class Upload:
    """What one body holds of the budget; grows, and is released once."""

    def __init__(self, uploads: Uploads, peer: str) -> None:
        """Hold nothing yet."""
        self._uploads = uploads
        self._peer = peer
        self.size = 0
        """Bytes set aside."""

    async def grow(self, size: int) -> None:
        """Hold at least `size` bytes; `Overloaded` when there is no room."""
        more = size - self.size
        if more > 0:
            await self._uploads.take(self._peer, more)
            self.size = size

    def release(self) -> None:
        """Hold nothing any more. Safe twice."""
        size, self.size = self.size, 0
        if size:
            self._uploads.give_back(self._peer, size)
