"""Real parts that a test needs: missing ones skip by name, or fail where they are required."""

import os

import pytest


def require(part: str, found: bool, how: str) -> None:
    """Skip the test unless `part` is `found`; `how` says how to install it.

    The environment variable TAILRACE_REQUIRE is `all`, or a comma list of parts, whose absence is
    a failure instead.
    """
    if found:
        return
    reason = f"needs {part}: {how}"
    required = {name.strip() for name in os.environ.get("TAILRACE_REQUIRE", "").split(",")}
    if required & {"all", part}:
        pytest.fail(reason)
    pytest.skip(reason)
