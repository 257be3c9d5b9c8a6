"""Membership lists: which endpoints may receive requests, from configuration or a file.

Files are Prometheus file_sd, JSON or YAML: a list of `{targets: [ip:port, ..], labels: {..}}`. The
labels id, node, zone, role and draining are understood, `__meta_*` and others ignored. An unusable
file is a `MembershipError` that names the entry, and the caller keeps the list it has.
"""

from collections.abc import Iterable
from typing import Final, Literal

import msgspec

from pipeline.address import Address, is_ip, parse_address
from pipeline.errors import ConfigError
from pipeline.model import Member
from pipeline.normalise.endpoint import is_name
from pipeline.yaml_text import parse_yaml

MAX_FILE_BYTES: Final = 16 * 1024 * 1024
"""Far above 16,384 endpoints; a runaway file must not take the memory."""

RoleName = Literal["both", "prefill", "decode"]
_ROLES: Final[dict[str, RoleName]] = {"both": "both", "prefill": "prefill", "decode": "decode"}


class MembershipError(ConfigError):
    """A membership list that cannot be used; the message says where and why."""


class _Group(msgspec.Struct):
    targets: list[str]
    labels: dict[str, str] = {}


def serving_address(text: str) -> Address:
    """The address of a member; `MembershipError` unless it is `ip:port`."""
    address = parse_address(text)
    if not address.port:
        raise MembershipError(f"{text!r} is not an ip:port")
    if not is_ip(address.host):
        raise MembershipError(
            f"{text!r} is a host name; only IP addresses are served, since receivers take no others"
        )
    return address


def parse_members(data: bytes, path: str) -> tuple[Member, ...]:
    """The members listed in a file_sd document; `path` is named in errors and tells YAML apart."""
    if len(data) > MAX_FILE_BYTES:
        raise MembershipError(f"{path}: larger than {MAX_FILE_BYTES} bytes")
    members = tuple(_members(_groups(data, path), path))
    check_members(members, path)
    return members


def check_members(members: Iterable[Member], where: str) -> None:
    """Raise `MembershipError` for a bad address or an id or address that occurs twice."""
    seen: dict[str, int] = {}
    for i, member in enumerate(members):
        try:
            address = str(serving_address(member.address))
        except MembershipError as error:
            raise MembershipError(f"{where}: member {i}: {error}") from None
        for label in ("id", "node", "zone"):
            if not is_name(getattr(member, label)):
                raise MembershipError(f"{where}: member {i}: {label} is too long or not printable")
        for name in {address, member.id} - {""}:
            if seen.setdefault(name, i) != i:
                raise MembershipError(f"{where}: member {i}: {name!r} is listed twice")


def _groups(data: bytes, path: str) -> list[_Group]:
    try:
        if path.endswith(".json"):
            return msgspec.json.decode(data, type=list[_Group])
        document = parse_yaml(data.decode("utf-8"))
        if document is None:  # perhaps caught while it is being written
            raise MembershipError("is empty; a list of nobody is []")
        return msgspec.convert(document, type=list[_Group])
    except (msgspec.MsgspecError, ConfigError, UnicodeDecodeError, RecursionError) as error:
        reason = str(error).splitlines()[0]
        raise MembershipError(f"{path}: {reason}") from None


def _members(groups: list[_Group], path: str) -> Iterable[Member]:
    for g, group in enumerate(groups):
        labels = group.labels
        if labels.get("id") and len(group.targets) > 1:
            raise MembershipError(f"{path}: [{g}].labels.id names {len(group.targets)} targets")
        for t, target in enumerate(group.targets):
            try:
                address = str(serving_address(target))
            except MembershipError as error:
                raise MembershipError(f"{path}: [{g}].targets[{t}]: {error}") from None
            yield Member(
                address=address,
                id=labels.get("id", ""),
                node=labels.get("node", ""),
                zone=labels.get("zone", ""),
                role=_role(labels.get("role", "both"), f"{path}: [{g}].labels.role"),
                draining=_flag(labels.get("draining", "false"), f"{path}: [{g}].labels.draining"),
            )


def _flag(text: str, where: str) -> bool:
    if text not in {"true", "false"}:
        raise MembershipError(f"{where}: {text!r} is neither true nor false")
    return text == "true"


def _role(name: str, where: str) -> RoleName:
    if name not in _ROLES:
        raise MembershipError(f"{where}: {name!r} is none of both, prefill, decode")
    return _ROLES[name]
