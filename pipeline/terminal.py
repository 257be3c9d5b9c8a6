"""What the commands show a person: decisions live, why one endpoint is where it is, overrides.

Everything comes over the decision port, so it works from any machine that may reach it; `replay`
alone reads a folder.
"""

import getpass
import json
import re
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Final

import grpc
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message
from rich import box
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from pipeline.client import View
from pipeline.clock import NS_PER_S
from pipeline.errors import ConfigError, DependencyLost
from pipeline.model import Snapshot
from pipeline.publish.operate import ACTIONS, SCOPES
from pipeline.publish.records import canonical
from pipeline.replay import Digest
from pipeline.replay import replay as replayed
from pipeline.wire import decisions_pb2 as wire
from pipeline.wire.decisions_pb2_grpc import DecisionsStub, OperatorStub

CALL_TIMEOUT_S: Final = 5.0
CHANNEL_OPTIONS: Final = (("grpc.enable_http_proxy", 0),)
"""The decision port is on this machine or in this cluster, never behind a web proxy."""
STATE_STYLES: Final = {
    "HEALTHY": "green",
    "DEGRADED": "yellow",
    "HALF_OPEN": "cyan",
    "OPEN": "red bold",
    "DRAINING": "magenta",
    "UNKNOWN": "dim",
}
DURATION: Final = re.compile(r"(\d+(?:\.\d+)?)([smhd])")
SECONDS_IN: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
MAX_DURATION_S: Final = 10 * 365 * 86_400
SHOWN_EVENTS: Final = 8


async def watch(address: str, *, as_json: bool, pools: list[str], count: int) -> None:
    """Follow the FULL view at `address`: one table kept up to date, or each update in a pipe."""
    view = View()
    console = Console()
    seen = 0
    is_live = console.is_terminal and not as_json
    with Live(console=console, auto_refresh=False) if is_live else nullcontext() as live:
        async for message in _messages(address, pools):
            view.apply(message)
            if not message.full and not message.endpoints and not message.removed:
                continue
            seen += 1
            if as_json:
                print(json.dumps(as_dict(view)), flush=True)
            elif live is None:
                console.print(fleet(view))
            else:
                live.update(fleet(view), refresh=True)
            if seen == count:
                return


async def _messages(address: str, pools: list[str]) -> AsyncIterator[wire.Snapshot]:
    async with grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS) as channel:
        request = wire.WatchRequest(agent_id="tailrace watch", pools=pools, view=wire.VIEW_FULL)
        try:
            async for message in DecisionsStub(channel).Watch(request):
                yield message
        except grpc.aio.AioRpcError as error:
            raise _lost(address, error) from error
    raise DependencyLost(f"{address} has ended the stream: the service stops")


def as_dict(view: View) -> dict[str, Any]:
    """A view as plain data, endpoints by id."""
    return {
        "epoch": view.epoch,
        "endpoints": {name: _as_dict(item) for name, item in sorted(view.endpoints.items())},
        "pools": {name: _as_dict(item) for name, item in sorted(view.pools.items())},
        "unmatched": {name: item.why for name, item in sorted(view.unmatched.items())},
        "events": [_as_dict(event) for event in view.events],
    }


def fleet(view: View) -> Group:
    """All endpoints as a table, pools above, newest events below."""
    table = _table(f"epoch {view.epoch}", expand=True)
    for name in ("endpoint", "state"):
        table.add_column(name)
    for name in ("weight", "confidence"):
        table.add_column(name, justify="right")
    table.add_column("because", ratio=1, no_wrap=True, overflow="ellipsis")
    for _, endpoint in sorted(view.endpoints.items()):
        state = wire.State.Name(endpoint.state).removeprefix("STATE_")
        table.add_row(
            _text(endpoint.id),
            _text(state, style=STATE_STYLES[state]),
            str(endpoint.weight),
            f"{endpoint.confidence:.2f}",
            _text(endpoint.rule or "; ".join(in_short(reason) for reason in endpoint.reasons[:3])),
        )
    notes = [_text(_pool_line(pool)) for _, pool in sorted(view.pools.items())]
    notes += [_text(f"no target: {x.id} ({x.why})", "yellow") for x in view.unmatched.values()]
    events = [
        _text(_event_line(event.time_unix_ns, event.endpoint, event.pool, event.text), "dim")
        for event in list(view.events)[-SHOWN_EVENTS:]
    ]
    return Group(*notes, table, *events)


async def why(address: str, endpoint: str, *, as_json: bool) -> int:
    """Print everything behind one endpoint's weight and state; 1 when there is no such endpoint."""
    async with grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS) as channel:
        snapshot = await _call(
            address, DecisionsStub(channel).Get, wire.GetRequest(view=wire.VIEW_FULL)
        )
    found = [item for item in snapshot.endpoints if endpoint in (item.id, item.address)]
    if not found:
        print(_plain(_not_found(endpoint, snapshot)))
        return 1
    for item in found:
        if as_json:
            print(json.dumps(_as_dict(item)))
        else:
            Console().print(_explained(item, snapshot))
    return 0


def _not_found(endpoint: str, snapshot: wire.Snapshot) -> str:
    for item in snapshot.unmatched:
        if item.id == endpoint or item.id.endswith(f"/{endpoint}"):
            return f"{item.id} reports, but is no target: {item.why}"
    known = ", ".join(item.id for item in snapshot.endpoints[:20]) or "none"
    return f"no endpoint {endpoint!r}; known: {known}"


def _explained(endpoint: wire.Endpoint, snapshot: wire.Snapshot) -> Group:
    state = wire.State.Name(endpoint.state).removeprefix("STATE_")
    decided = wire.State.Name(endpoint.decided_state).removeprefix("STATE_")
    lines = [
        Text.assemble(
            (f"{_plain(endpoint.id)} ", "bold"),
            (state, STATE_STYLES[state]),
            f"  weight {endpoint.weight} (neutral 1000)  confidence {endpoint.confidence:.2f}",
        ),
        _text(_place(endpoint)),
    ]
    if endpoint.rule:
        lines.append(_text(f"held by: {endpoint.rule}"))
    if (decided, endpoint.decided_weight) != (state, endpoint.weight):
        acts = any(
            pool.name == endpoint.pool and pool.authority == wire.AUTHORITY_ACT
            for pool in snapshot.pools
        )
        case = "left to itself" if acts else "with authority act"
        lines.append(_text(f"{case} it would be {decided}, weight {endpoint.decided_weight}"))
    lines += [_text(_pool_line(pool)) for pool in snapshot.pools if pool.name == endpoint.pool]
    table = _table("reasons")
    for name in ("signal", "value", "peer median", "points", "observer"):
        table.add_column(name, justify="left" if name in ("signal", "observer") else "right")
    for reason in endpoint.reasons:
        table.add_row(
            reason.signal,
            f"{reason.value:.4g}",
            f"{reason.peer_median:.4g}",
            f"{reason.points:+.4g}",
            reason.observer,
        )
    events = [
        _text(f"{_clock(event.time_unix_ns)} {event.text}", "dim")
        for event in snapshot.events
        if event.endpoint == endpoint.id
    ]
    return Group(*lines, table, *events[-SHOWN_EVENTS:])


def _place(endpoint: wire.Endpoint) -> str:
    parts = [
        f"pool {endpoint.pool}",
        f"engine {endpoint.engine or '?'}",
        f"at {endpoint.address or '?'}",
    ]
    for name, value in (("node", endpoint.node), ("zone", endpoint.zone)):
        parts += [f"{name} {value}"] if value else []
    return ", ".join(parts)


async def override(
    address: str,
    action: str,
    *,
    target: str,
    scope: str,
    value: int,
    reason: str,
    owner: str,
    expires: str,
    as_json: bool,
) -> int:
    """Set, remove or list overrides and print those in force afterwards; 1 when nothing changed."""
    if scope not in SCOPES.values():
        raise ConfigError(f"--scope: {scope!r} is none of {', '.join(SCOPES.values())}")
    for name, text in (("target", target), ("--reason", reason), ("--owner", owner)):
        if not text.isprintable():
            raise ConfigError(f"{name}: holds control characters, or is not UTF-8")
    number: Any = {name: key for key, name in SCOPES.items()}[scope]  # an enum's, to the stubs
    async with grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS) as channel:
        stub = OperatorStub(channel)
        changed = True
        if action == "list":
            answer = await _call(address, stub.ListOverrides, wire.ListOverridesRequest())
        elif action == "remove":
            answer = await _call(
                address,
                stub.RemoveOverride,
                wire.RemoveOverrideRequest(scope=number, target=target),
            )
            changed = answer.removed
        else:
            wanted = wire.Override(
                scope=number,
                target=target,
                action=_action(action),
                value=value,
                owner=owner or _user(),
                reason=reason,
                expires_unix_ns=_expiry_ns(expires, time.time_ns()),
            )
            request = wire.SetOverrideRequest(override=wanted)
            answer = await _call(address, stub.SetOverride, request)
    _print_overrides(answer.overrides, as_json=as_json)
    if not changed:
        print(f"no override by an operator on {scope} {target!r}")
        if any(
            (item.source, item.scope, item.target) == ("file", number, target)
            for item in answer.overrides
        ):
            print("the one listed comes from the overrides file: take it out there")
    return 0 if changed else 1


def _print_overrides(overrides: Iterable[wire.Override], *, as_json: bool) -> None:
    if as_json:
        print(json.dumps([_as_dict(item) for item in overrides]))
        return
    table = _table("overrides in force")
    for name in ("scope", "target", "action", "owner: reason", "until", "source"):
        table.add_column(name, no_wrap=name != "owner: reason", overflow="fold")
    for item in overrides:
        until = _until(item.expires_unix_ns, time.time_ns())
        action = ACTIONS[item.action]
        table.add_row(
            SCOPES[item.scope],
            _text(item.target),
            f"{action} {item.value or ''}",
            _text(": ".join(part for part in (item.owner, item.reason) if part)),
            until,
            item.source,
        )
    Console().print(table)


def replay(folder: Path, *, as_json: bool) -> None:
    """Feed a journal to the loop and print what it decides, with a digest of all snapshots."""
    digest = Digest()
    for snapshot in replayed(folder):
        one = digest.add(canonical(snapshot))
        if as_json:
            print(json.dumps({"epoch": snapshot.epoch, "digest": one, **_decided(snapshot)}))
        else:
            for event in snapshot.events:
                print(_plain(_event_line(event.time_ns, event.endpoint, event.pool, event.text)))
    summary = {"epochs": digest.epochs, "digest": digest.hexdigest()}
    print(json.dumps(summary) if as_json else f"{digest.epochs} epochs, {digest.hexdigest()}")


def _decided(snapshot: Snapshot) -> dict[str, Any]:
    directory = snapshot.directory
    slots = directory.slots().tolist()
    return {
        "endpoints": {
            directory.id[i]: [int(snapshot.weight[i]), int(snapshot.state[i])] for i in slots
        },
        "events": [[event.kind, event.endpoint, event.text] for event in snapshot.events],
    }


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError) as error:
        raise ConfigError("--owner: this user has no name; say who is responsible") from error


def _action(name: str) -> Any:
    for number, known in ACTIONS.items():
        if known == name:
            return number
    raise ConfigError(f"action: {name!r} is none of {', '.join(ACTIONS.values())}, remove, list")


def _expiry_ns(text: str, now_ns: int) -> int:
    """Wall time at which a duration ends; 0 for "".

    >>> _expiry_ns("90s", 0), _expiry_ns("1h30m", 0), _expiry_ns("", 5)
    (90000000000, 5400000000000, 0)
    """
    if not text:
        return 0
    if not re.fullmatch(f"({DURATION.pattern})+", text):
        raise ConfigError(f"--expires: {text!r} is no duration such as 30m, 2h or 1h30m")
    seconds = sum(float(n) * SECONDS_IN[unit] for n, unit in DURATION.findall(text))
    if seconds > MAX_DURATION_S:
        raise ConfigError(f'--expires: {text!r} is beyond ten years; "" is until removed')
    return now_ns + round(seconds * NS_PER_S)


async def _call(address: str, method: Any, request: Message) -> Any:
    try:
        return await method(request, timeout=CALL_TIMEOUT_S)
    except grpc.aio.AioRpcError as error:
        raise _lost(address, error) from error


def _lost(address: str, error: grpc.aio.AioRpcError) -> Exception:
    if error.code() == grpc.StatusCode.INVALID_ARGUMENT:
        return ConfigError(error.details() or "refused")
    first_line = (error.details() or "").strip().split("\n")[0].rpartition("last error: ")[2]
    told = f"no answer from {address}: {error.code().name}: {first_line}"
    if error.code() == grpc.StatusCode.UNAVAILABLE:
        told += "; is `tailrace serve` running there?"
    return DependencyLost(told)


def _as_dict(message: Message) -> dict[str, Any]:
    return MessageToDict(
        message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )


def _plain(text: str) -> str:
    """`text` for a terminal: names come from senders, and escape sequences stay out."""
    return "".join(char if char.isprintable() else "?" for char in text)


def _text(text: str, style: str = "") -> Text:
    return Text(_plain(text), style)


def in_short(reason: wire.Reason) -> str:
    """A reason in a few words."""
    return f"{reason.signal} {reason.value:.3g} (peers {reason.peer_median:.3g})"


def _table(title: str, *, expand: bool = False) -> Table:
    """Lines cost columns, and ids are long."""
    return Table(
        title=title,
        title_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        padding=(0, 1, 0, 0),
        expand=expand,
    )


def _event_line(time_ns: int, endpoint: str, pool: str, text: str) -> str:
    about = endpoint or (f"pool {pool}:" if pool else "")
    return " ".join(part for part in (_clock(time_ns), about, text) if part)


def _pool_line(pool: wire.Pool) -> str:
    authority = wire.Authority.Name(pool.authority).removeprefix("AUTHORITY_").lower()
    flags = [name for name, is_set in (("frozen", pool.frozen), ("off", pool.off)) if is_set]
    return " - ".join(
        part for part in (f"pool {pool.name}: authority {authority}", *flags, pool.note) if part
    )


def _clock(time_ns: int) -> str:
    return time.strftime("%H:%M:%S", time.localtime(time_ns / NS_PER_S))


def _until(expires_ns: int, now_ns: int) -> str:
    """When an override ends; with the date unless that is within a day.

    >>> _until(0, 0), len(_until(2 * 86_400 * NS_PER_S, 0)), len(_until(NS_PER_S, 0))
    ('removed', 10, 8)
    """
    if not expires_ns:
        return "removed"
    if expires_ns - now_ns < SECONDS_IN["d"] * NS_PER_S:
        return _clock(expires_ns)
    return time.strftime("%Y-%m-%d", time.localtime(expires_ns / NS_PER_S))
