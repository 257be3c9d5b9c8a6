"""The kinds of failure: permanent or retryable, and nothing else decides what a peer is told.

`ConfigError` happens at start only and names the field. After start a stage never raises on bad
data: it counts the item with its reason and goes on.
"""


class TailraceError(Exception):
    """Root of every error that Tailrace raises on purpose."""


class ConfigError(TailraceError):
    """A configuration that cannot be used; the message names the file and the path of the field."""

    exit_code = 2


class Rejected(TailraceError):
    """Bad input, permanent: the sender must not retry (INVALID_ARGUMENT)."""

    def __init__(self, reason: str, description: str) -> None:
        """`reason` is the label of the drop counter, `description` what the sender reads."""
        super().__init__(description)
        self.reason = reason
        self.description = description


class Unauthenticated(TailraceError):
    """No credentials, or wrong ones (UNAUTHENTICATED); the message never holds any of them."""


class Overloaded(TailraceError):
    """A bound is reached, retryable (UNAVAILABLE with RetryInfo)."""

    def __init__(self, reason: str, retry_after_s: float) -> None:
        """`retry_after_s` is the randomised delay that the sender is asked to wait."""
        super().__init__(reason)
        self.reason = reason
        self.retry_after_s = retry_after_s


class DependencyLost(TailraceError):
    """A peer is gone, retryable: back off with jitter; readiness goes false."""
