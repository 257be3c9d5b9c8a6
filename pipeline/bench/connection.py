"""One gRPC connection that exports bodies as cheaply as Python can.

It hands whole requests to gRPC's C core and takes whole answers from it: no task, no thread and no
future a request. It is also the only way to send a body that is compressed already, which the
public classes of grpcio do not offer; the core's own interface is therefore used here.
"""

import time
from typing import Any, Final, NamedTuple

import grpc
from grpc._cython import cygrpc

METHODS: Final = {
    "spans": b"/opentelemetry.proto.collector.trace.v1.TraceService/Export",
    "points": b"/opentelemetry.proto.collector.metrics.v1.MetricsService/Export",
}
IS_COMPRESSED: Final = -(1 << 31)
"""Write flag of the C core: the message is compressed already, mark it so."""
GZIP: Final = ((cygrpc.GRPC_COMPRESSION_REQUEST_ALGORITHM_MD_KEY, "gzip"),)
RETRYABLE: Final = frozenset(
    {"CANCELLED", "DEADLINE_EXCEEDED", "ABORTED", "OUT_OF_RANGE", "UNAVAILABLE", "DATA_LOSS"}
)
RETRY_DETAILS: Final = "google.rpc.retryinfo-bin"
CODES: Final = {code.value[0]: code.name for code in grpc.StatusCode}
OPTIONS: Final = (
    ("grpc.use_local_subchannel_pool", 1),  # else two channels share one connection
    ("grpc.max_send_message_length", -1),
    ("grpc.enable_http_proxy", 0),
    ("grpc.enable_retries", 0),
)


class Answer(NamedTuple):
    """How one request ended."""

    tag: Any
    """What the sender gave with it."""
    code: str
    """Name of the gRPC status."""
    is_retryable: bool
    """As senders decide: by code, and RESOURCE_EXHAUSTED only with a delay."""
    message: bytes
    """Empty unless the answer says more than yes."""


class Connection:
    """`send` from any thread; `answer` from one; every request has exactly one answer."""

    def __init__(self, target: str, signal: str, *, is_gzip: bool = False) -> None:
        """Connect to `target` (host:port) when the first request is sent."""
        self._channel = grpc.insecure_channel(target, options=OPTIONS)
        self._core: Any = self._channel._channel
        self._method = METHODS[signal]
        self._metadata = GZIP if is_gzip else None
        self._flags = IS_COMPRESSED if is_gzip else 0
        self._context = cygrpc.build_census_context()

    def send(self, body: bytes, tag: object, timeout_s: float, *, wait: bool = False) -> None:
        """Hand a request over; `wait` for the connection instead of failing without one."""
        wait_flag = cygrpc.InitialMetadataFlags.wait_for_ready if wait else 0
        operations = (
            cygrpc.SendInitialMetadataOperation(self._metadata, wait_flag),
            cygrpc.SendMessageOperation(body, self._flags if body else 0),
            cygrpc.SendCloseFromClientOperation(0),
            cygrpc.ReceiveInitialMetadataOperation(0),
            cygrpc.ReceiveMessageOperation(0),
            cygrpc.ReceiveStatusOnClientOperation(0),
        )
        self._core.integrated_call(
            *(cygrpc.PropagationConstants.GRPC_PROPAGATE_DEFAULTS, self._method, None),
            *(time.time() + timeout_s, None, None, ((operations, tag),), self._context, None),
        )

    def answer(self) -> Answer:
        """Wait for the next answer; call it only while requests are open."""
        event = self._core.next_call_event()
        message, status = event.batch_operations[4:6]
        code = CODES[status.code()]
        is_retryable = code in RETRYABLE
        if code == "RESOURCE_EXHAUSTED":
            is_retryable = RETRY_DETAILS in {key for key, _ in status.trailing_metadata() or ()}
        return Answer(event.tag, code, is_retryable, message.message() or b"")

    def ready(self, timeout_s: float) -> bool:
        """Whether an empty request is answered in time; before any other request."""
        self.send(b"", None, timeout_s, wait=True)
        return self.answer().code == "OK"

    def close(self) -> None:
        """Hang up; open requests are answered CANCELLED."""
        self._channel.close()
