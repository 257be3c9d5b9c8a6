"""The operator's requests on the wire -> operations for the loop, and overrides back.

Everything that a request can get wrong is refused here with a sentence that names the field, so
that an operation which reaches the loop is valid in form.
"""

from collections.abc import Sequence
from typing import Final, cast

import msgspec

from pipeline.errors import Rejected
from pipeline.journal import Operation
from pipeline.model import Override
from pipeline.wire import decisions_pb2 as wire

MAX_TEXT: Final = 512
"""Characters of a target, owner or reason; the longest DNS name is 253."""
MAX_VALUE: Final = 10_000
MAX_TIME_NS: Final = (1 << 63) - 1

SCOPES: Final = {1: "endpoint", 2: "node", 3: "pool", 4: "all"}
ACTIONS: Final = {
    1: "pin",
    2: "cap",
    3: "drain",
    4: "exclude",
    5: "hold",
    6: "neutral",
    7: "off",
}
WITH_VALUE: Final = ("pin", "cap")


def set_operation(request: wire.SetOverrideRequest, now_ns: int) -> Operation:
    """The override to set; `Rejected` says what is wrong. `now_ns` (wall) judges its expiry."""
    if not request.HasField("override"):
        raise _invalid("override: missing")
    sent = request.override
    scope, target = _scope(sent.scope, sent.target, "override.")
    action = ACTIONS.get(sent.action)
    if action is None:
        raise _invalid(f"override.action: must be one of {', '.join(ACTIONS.values())}")
    _check_value(action, sent.value)
    for name in ("owner", "reason"):
        _check_text(f"override.{name}", getattr(sent, name))
    if not sent.owner.strip():
        raise _invalid("override.owner: must name who is responsible")
    if sent.expires_unix_ns > MAX_TIME_NS:
        raise _invalid("override.expires_unix_ns: beyond the year 2262")
    if 0 < sent.expires_unix_ns <= now_ns:
        raise _invalid("override.expires_unix_ns: lies in the past (0 = never)")
    if sent.source not in ("", "operator"):
        raise _invalid("override.source: only operator can be set here")
    fields = {
        "scope": scope,
        "target": target,
        "action": action,
        "value": sent.value,
        "owner": sent.owner,
        "reason": sent.reason,
        "expires_ns": sent.expires_unix_ns,
    }
    return Operation(set=msgspec.convert(fields, Override))


def remove_operation(request: wire.RemoveOverrideRequest) -> Operation:
    """The (scope, target) to remove the override from; `Rejected` says what is wrong."""
    return Operation(remove=_scope(request.scope, request.target, ""))


def overrides_on_wire(overrides: Sequence[Override]) -> list[wire.Override]:
    """Overrides as messages, in the given order."""
    scopes = {name: number for number, name in SCOPES.items()}
    actions = {name: number for number, name in ACTIONS.items()}
    return [
        wire.Override(
            scope=cast("wire.Override.Scope", scopes[override.scope]),
            target=override.target,
            action=cast("wire.Override.Action", actions[override.action]),
            value=override.value,
            owner=override.owner,
            reason=override.reason,
            expires_unix_ns=max(override.expires_ns, 0),
            source=override.source,
        )
        for override in overrides
    ]


def was_removed(
    key: tuple[str, str], before: Sequence[Override], after: Sequence[Override]
) -> bool:
    """Whether an operator's override on `key` (scope, target) was in `before` but not in `after`.

    One from the watched file stays in force until the file changes.
    """
    there, still = (
        any((item.scope, item.target, item.source) == (*key, "operator") for item in overrides)
        for overrides in (before, after)
    )
    return there and not still


def _scope(number: int, target: str, path: str) -> tuple[str, str]:
    scope = SCOPES.get(number)
    if scope is None:
        raise _invalid(f"{path}scope: must be one of {', '.join(SCOPES.values())}")
    _check_text(f"{path}target", target)
    if scope == "all" and target:
        raise _invalid(f"{path}target: scope all takes none")
    if scope != "all" and not target.strip():
        raise _invalid(f"{path}target: scope {scope} needs one")
    return scope, target


def _check_value(action: str, value: int) -> None:
    if action in WITH_VALUE and not 1 <= value <= MAX_VALUE:
        raise _invalid(f"override.value: {action} takes a weight from 1 to {MAX_VALUE}")
    if action not in WITH_VALUE and value:
        raise _invalid(f"override.value: {action} takes none")


def _check_text(path: str, text: str) -> None:
    if len(text) > MAX_TEXT:
        raise _invalid(f"{path}: longer than {MAX_TEXT} characters")
    if not text.isprintable():
        raise _invalid(f"{path}: holds control characters")


def _invalid(description: str) -> Rejected:
    return Rejected("invalid_override", description)
