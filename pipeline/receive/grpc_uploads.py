"""Bounds gRPC bodies that are still arriving, which gRPC itself keeps and tells nobody about.

Once a body is asked for, gRPC takes all of it, however large and however slowly it comes, on every
stream of every connection. So bodies have a time, and together they may make the process grow only
so far: then those that take longest are told to come again. Who sends fast is never among them.
"""

import asyncio
from itertools import takewhile
from typing import Any, Final

from pipeline.errors import Overloaded
from pipeline.receive.allocator import give_back, resident_bytes
from pipeline.receive.intake import Intake

TOO_SLOW: Final = "upload_time"
"""`Overloaded.reason` of a body that takes too long; UPLOADS where there is no room for it."""
UPLOADS: Final = "uploads"

CHECK_EVERY_S: Final = 0.05
"""One fast connection brings 50 MB in that time."""
SLOW_S: Final = 0.05
"""A body that takes longer may be told to come again when there is no room."""
GIVE_BACK_EVERY_S: Final = 10.0
"""Giving memory back takes the whole process some milliseconds a 10 MB."""
GIVE_BACK_BYTES: Final = 32 << 20
"""Growth at rest that is worth looking into: freed memory, or what the stages hold."""


class GrpcUploads:
    """Which bodies are being read, and since when. For one event loop; `check` keeps the bounds."""

    def __init__(self, intake: Intake) -> None:
        """Nothing is arriving yet."""
        self._intake = intake
        self._config = intake.config
        self._since_s: dict[asyncio.Task[Any], float] = {}
        """Oldest first."""
        self._ended: dict[asyncio.Task[Any], str] = {}
        self._at_rest_bytes = resident_bytes()
        self._gave_back_s = 0.0

    async def read(self, context: Any) -> Any:
        """What `context.read()` returns; `Overloaded` when the body takes too long or too much."""
        task = asyncio.current_task()
        assert task is not None
        self._since_s[task] = task.get_loop().time()
        try:
            return await context.read()
        except asyncio.CancelledError:
            reason = self._ended.pop(task, None)
            if reason is None:
                raise  # the sender has left
            task.uncancel()
            raise Overloaded(reason, self._intake.retry_after_s()) from None
        finally:
            del self._since_s[task]

    async def watch(self) -> None:
        """`check`, until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            self.check(loop.time())
            await asyncio.sleep(CHECK_EVERY_S)

    def check(self, now_s: float) -> None:
        """End the bodies that are over their time, and the oldest when there is no room."""
        since_s = self._since_s
        slow = list(takewhile(lambda task: since_s[task] < now_s - SLOW_S, since_s))
        slow = [task for task in slow if task not in self._ended]
        resident = resident_bytes()
        if not slow:
            self._rest(resident, now_s)
            return
        over_s = now_s - self._config.max_upload_s
        for task in takewhile(lambda task: since_s[task] < over_s, slow):
            self._end(task, TOO_SLOW)
        arriving = resident - self._at_rest_bytes - self._intake.bytes_held
        if arriving > self._config.max_bytes_arriving:
            for task in slow[: (len(slow) + 1) // 2]:
                self._end(task, UPLOADS)

    def _end(self, task: "asyncio.Task[Any]", reason: str) -> None:
        if task not in self._ended:
            self._ended[task] = reason
            task.cancel()

    def _rest(self, resident: int, now_s: float) -> None:
        """Learn what the process holds while nothing is on its way for long."""
        if resident > self._at_rest_bytes + GIVE_BACK_BYTES:
            if now_s - self._gave_back_s < GIVE_BACK_EVERY_S:
                return
            self._gave_back_s = now_s
            give_back()
            resident = resident_bytes()
            self._at_rest_bytes = resident
        self._at_rest_bytes = min(self._at_rest_bytes, resident)
