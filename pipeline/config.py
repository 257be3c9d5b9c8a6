"""One YAML file -> one frozen tree, assembled from each stage's own configuration type.

Strict: an unknown key, a wrong type or a value out of range is one line with the path of the field.
Every field has a default that works on a laptop, so an empty file is valid.
"""

import ast
import fnmatch
import functools
import inspect
import ipaddress
import operator
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Final, Literal, NamedTuple

import msgspec
import yaml

from pipeline.address import is_loopback, parse_address, split_listen
from pipeline.decide.config import DecideConfig
from pipeline.errors import ConfigError
from pipeline.fingerprint.config import FingerprintConfig, check_fingerprint
from pipeline.fold.breakdown import BreakdownConfig
from pipeline.fold.endpoints import FoldConfig
from pipeline.fold.requests import RequestConfig
from pipeline.ingest import Acknowledge
from pipeline.model import Client, Config, PoolConfig, Rights, Sender
from pipeline.normalise.endpoint import MAX_NAME, is_name
from pipeline.normalise.identity import IdentityConfig
from pipeline.normalise.membership import check_members
from pipeline.publish.config import PublishConfig
from pipeline.receive.config import ReceiveConfig, check_config
from pipeline.yaml_text import parse_yaml

Seconds = Annotated[float, msgspec.Meta(gt=0.0)]
Count = Annotated[int, msgspec.Meta(ge=1)]
Right = Literal["metrics", "requests", "identity"]

RIGHTS: Final = {
    "metrics": Rights.METRICS,
    "requests": Rights.REQUESTS,
    "identity": Rights.IDENTITY,
}
_CLIENTS_REMEMBERED: Final = 4096
"""Whose rights are looked up only once."""


class LoopConfig(Config, frozen=True, kw_only=True):
    """The loop thread and its queue."""

    tick_s: Annotated[float, msgspec.Meta(ge=0.02, le=60.0)] = 0.1
    """Period of decisions."""
    queue_entries: Count = 4096
    """Places in the one ordered queue; beyond it senders are asked to retry."""
    decode_threads: Annotated[int, msgspec.Meta(ge=1, le=64)] = 1
    """Workers that decode; more than one pays only with a decoder that releases the GIL."""
    acknowledge: Acknowledge = "after-fold"
    """When senders are told "ok". after-fold: what was acknowledged is in the windows, and nothing
    of it is lost with the process. on-enqueue: as soon as a request is admitted, before it is
    decoded; a process that is killed loses what it had acknowledged and not folded, at most
    max_owed_bytes (at SIGTERM nothing), and a request that turns out to be malformed is counted in
    lost_requests_total instead of refused."""
    max_owed_bytes: Annotated[int, msgspec.Meta(ge=0)] = 32 << 20
    """on-enqueue: bytes of requests, as they came, that may be acknowledged and not yet folded;
    requests beyond are acknowledged after their fold. Receiver processes share it equally."""


class SenderConfig(Config, frozen=True, kw_only=True):
    """What the data of some senders may do; the first entry that matches decides."""

    network: str = ""
    """CIDR that they send from, such as 10.0.0.0/8 or ::1/128; "" = any."""
    name: str = ""
    """Shell pattern of the name of their token or client certificate, such as gateway-*; "" = any,
    those without a name too."""
    rights: tuple[Right, ...]
    """metrics: become signals; requests: spans and access logs count, failures included;
    identity: `tailrace.endpoint`, `tailrace.pool`, `tailrace.address` are believed."""


class StateConfig(Config, frozen=True, kw_only=True):
    """State across restarts."""

    folder: str = "~/.local/state/tailrace"
    """Where state files live; "" keeps nothing across restarts."""
    save_every_s: Seconds = 60.0
    """How often they are written, beside once at stop."""


class RecordConfig(Config, frozen=True, kw_only=True):
    """The journal (`serve --record DIR`)."""

    segment_bytes: Annotated[int, msgspec.Meta(ge=1 << 20)] = 64 << 20
    """A new segment file is begun past this size."""
    max_bytes: Annotated[int, msgspec.Meta(ge=1 << 20)] = 1 << 30
    """Recording ends, with a log line, when the folder holds this much."""


class TelemetryConfig(Config, frozen=True, kw_only=True):
    """What the service says about itself."""

    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """Least level that is logged, to standard error."""
    metrics_listen: str = "127.0.0.1:9464"
    """Where `/metrics` is served for Prometheus; "" = nowhere."""
    plaintext_off_loopback: bool = False
    """Allow a `metrics_listen` that other machines reach, without TLS or authentication."""
    traces_endpoint: str = ""
    """OTLP/gRPC address that gets the service's own `route_decision` spans; "" = nobody."""


class TailraceConfig(Config, frozen=True, kw_only=True):
    """The whole tree; sections are named after the stage that reads them."""

    receive: ReceiveConfig = ReceiveConfig()
    senders: tuple[SenderConfig, ...] = (
        SenderConfig(network="0.0.0.0/0", rights=("metrics", "requests")),
        SenderConfig(network="::/0", rights=("metrics", "requests")),
    )
    """Who may do what, the first match decides; a sender that matches nothing is accepted, counted
    and otherwise ignored. Without this list everyone has metrics and requests."""
    identity: IdentityConfig = IdentityConfig()
    pools: tuple[PoolConfig, ...] = ()
    """Known pools; the one named "*" holds the defaults of unlisted pools."""
    fingerprint: FingerprintConfig = FingerprintConfig()
    fold: FoldConfig = FoldConfig()
    requests: RequestConfig = RequestConfig()
    breakdown: BreakdownConfig = BreakdownConfig()
    decide: DecideConfig = DecideConfig()
    publish: PublishConfig = PublishConfig()
    loop: LoopConfig = LoopConfig()
    overrides_file: str = ""
    """YAML list of overrides, re-read when it changes; "" = none."""
    state: StateConfig = StateConfig()
    record: RecordConfig = RecordConfig()
    telemetry: TelemetryConfig = TelemetryConfig()


def load(path: Path | None) -> TailraceConfig:
    """The tree of a file (None = all defaults); `ConfigError` names the file and the field."""
    if path is None:
        return parse("", "defaults")
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from error
    return parse(text, str(path))


def parse(text: str, name: str) -> TailraceConfig:
    """The tree of YAML `text`; `name` is what errors call it.

    >>> parse("loop: {tick_s: 0.5}", "example").loop.tick_s
    0.5
    """
    try:
        tree = parse_yaml(text)
        config = msgspec.convert({} if tree is None else tree, TailraceConfig)
        _validate(config)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{name}: {_with_path_first(str(error))}") from error
    except ConfigError as error:
        raise ConfigError(f"{name}: {error}") from error
    return config


def dump(config: TailraceConfig) -> str:
    """The resolved tree as YAML, every default spelled out."""
    return yaml.safe_dump(msgspec.to_builtins(config), sort_keys=False)


class Senders:
    """What senders may do, by the network that they come from and the name that they proved."""

    def __init__(self, entries: tuple[SenderConfig, ...]) -> None:
        """The first entry that matches decides."""
        self._entries = [
            (
                ipaddress.ip_network(entry.network) if entry.network else None,
                entry.name,
                functools.reduce(operator.or_, map(RIGHTS.__getitem__, entry.rights), Rights.NONE),
            )
            for entry in entries
        ]
        self.of: Final = functools.lru_cache(_CLIENTS_REMEMBERED)(self._of)
        """Client -> Sender: the rights of a client; its peer is an IP address or a local socket."""

    def _of(self, client: Client) -> Sender:
        try:
            address = ipaddress.ip_address(client.peer)
        except ValueError:
            address = ipaddress.ip_address("127.0.0.1")  # a local socket
        for network, name, rights in self._entries:
            if network is not None and address not in network:
                continue
            if not name or (client.name and fnmatch.fnmatchcase(client.name, name)):
                return Sender(client.peer, rights)
        return Sender(client.peer, Rights.NONE)


def _with_path_first(message: str) -> str:
    """Msgspec's "... - at `$.a.b`" with the path in front."""
    text, _, path = message.partition(" - at `$")
    return f"{path.rstrip('`').lstrip('.')}: {text}" if path else text


def _validate(config: TailraceConfig) -> None:
    for i, entry in enumerate(config.senders):
        if not entry.network and not entry.name:
            raise ConfigError(f"senders[{i}]: needs a network, a name or both")
        try:
            ipaddress.ip_network(entry.network or "::/0")
        except ValueError as error:
            raise ConfigError(f"senders[{i}].network: {error}") from error
    names = [pool.name for pool in config.pools]
    for i, pool in enumerate(config.pools):
        _validate_pool(f"pools[{i}]", pool)
        if pool.name in names[:i]:
            raise ConfigError(f"pools[{i}].name: {pool.name!r} is listed twice")
    listens = (config.receive.listen, config.receive.http.listen)
    if not names and not all(is_loopback(listen) for listen in listens if listen):
        raise ConfigError(
            "pools: off loopback the source of membership must be chosen; list the pools, or "
            'name one "*" with membership telemetry to take in all that report'
        )
    check_config(config.receive)
    check_fingerprint(config.fingerprint)
    _validate_metrics(config.telemetry)


def _validate_metrics(config: TelemetryConfig) -> None:
    if not config.metrics_listen:
        return
    split_listen("telemetry.metrics_listen", config.metrics_listen)
    if not (config.plaintext_off_loopback or is_loopback(config.metrics_listen)):
        raise ConfigError(
            f"telemetry.metrics_listen: {config.metrics_listen} is reachable from other machines "
            "without authentication; set telemetry.plaintext_off_loopback to allow it"
        )


def _validate_pool(path: str, pool: PoolConfig) -> None:
    if not pool.name or not is_name(pool.name):
        raise ConfigError(f"{path}.name: must be 1 to {MAX_NAME} printable characters")
    if pool.membership == "file" and not pool.file:
        raise ConfigError(f"{path}.file: membership file needs a file_sd file")
    if pool.membership != "static" and pool.members:
        raise ConfigError(f"{path}.members: only membership static takes members")
    if pool.membership != "file" and pool.file:
        raise ConfigError(f"{path}.file: only membership file takes a file")
    if pool.name == "*" and (pool.membership == "file" or pool.members):
        raise ConfigError(
            f'{path}.membership: the pool "*" has no list of its own; telemetry takes in all that '
            "report, static nobody"
        )
    for i, member in enumerate(pool.members):
        if not parse_address(member.address).is_ip_and_port:
            raise ConfigError(
                f"{path}.members[{i}].address: {member.address!r} is not ip:port "
                "(host names are refused, as receivers refuse them)"
            )
    check_members(pool.members, f"{path}.members")


class Setting(NamedTuple):
    """One row of the table of settings."""

    path: str
    default: str
    text: str


def settings(kind: type[msgspec.Struct] = TailraceConfig, prefix: str = "") -> Iterator[Setting]:
    """Every setting with its default and the docstring beside it, depth first."""
    texts = _field_texts(kind)
    for item in msgspec.structs.fields(kind):
        path = f"{prefix}{item.encode_name}"
        nested = _nested_config(item.type)
        if nested is not None and nested[1]:
            yield Setting(f"{path}[]", "-", texts.get(item.name, ""))
            yield from settings(nested[0], f"{path}[].")
        elif nested is not None:
            yield from settings(nested[0], f"{path}.")
        else:
            default = (
                "-" if item.default is msgspec.NODEFAULT else msgspec.to_builtins(item.default)
            )
            yield Setting(path, _yaml(default), texts.get(item.name, ""))


def _yaml(value: Any) -> str:
    return value if value == "-" else yaml.safe_dump(value, default_flow_style=True).split("\n")[0]


def _nested_config(kind: Any) -> tuple[type[msgspec.Struct], bool] | None:
    """The configuration type of a field, and whether the field is a list of them."""
    if isinstance(kind, type) and issubclass(kind, Config):
        return kind, False
    inner = getattr(kind, "__args__", ())
    if inner and isinstance(inner[0], type) and issubclass(inner[0], Config):
        return inner[0], True
    return None


def _field_texts(kind: type[msgspec.Struct]) -> dict[str, str]:
    body = ast.parse(textwrap.dedent(inspect.getsource(kind))).body[0]
    assert isinstance(body, ast.ClassDef)
    texts: dict[str, str] = {}
    for field, after in zip(body.body, body.body[1:], strict=False):
        if (
            isinstance(field, ast.AnnAssign)
            and isinstance(field.target, ast.Name)
            and isinstance(after, ast.Expr)
            and isinstance(after.value, ast.Constant)
        ):
            texts[field.target.id] = " ".join(str(after.value.value).split())
    return texts
