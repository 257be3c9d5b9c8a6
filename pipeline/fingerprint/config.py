"""Settings of the fingerprint stage: what tells kinds of requests apart, how many there may be."""

from itertools import pairwise
from typing import Annotated, Final, TypeAlias

import msgspec

from pipeline.errors import ConfigError
from pipeline.keys import CLASS_KEYS, LOG_KEYS, RESOURCE_KEYS, SPAN_KEYS, TENANT_KEYS, KeyKind
from pipeline.model import Config

Limit: TypeAlias = Annotated[int, msgspec.Meta(ge=1, le=65_536)]
Seconds: TypeAlias = Annotated[float, msgspec.Meta(gt=0.0)]

_KNOWN: Final = frozenset(
    key.name for key in (*SPAN_KEYS, *LOG_KEYS, *RESOURCE_KEYS) if key.kind is KeyKind.TEXT
)
MAX_BOUNDS: Final = 16
"""Every bucket multiplies the kinds of a pool."""


class RouteConfig(Config, frozen=True, kw_only=True):
    """How paths become route templates where senders name none."""

    max_children: Annotated[int, msgspec.Meta(ge=2, le=1024)] = 32
    """Different words in one place of a path after which the place is a parameter, `{}`."""
    max_nodes: Annotated[int, msgspec.Meta(ge=16)] = 1024
    """Words remembered per pool; words beyond are parameters too."""
    dry_run: bool = False
    """Learn and show which places would become parameters, but let only known shapes of ids be
    some."""


class PrefixConfig(Config, frozen=True, kw_only=True):
    """The keyed hash that tells prompts with a common beginning from others."""

    secret_file: str = ""
    """File with the secret, at least 32 bytes: the same for every process that is to make the same
    keys. "" = a secret of this process alone, gone with it."""
    rotate_s: Annotated[float, msgspec.Meta(ge=60.0)] = 86_400.0
    """Keys change this often: what leaked is worthless afterwards."""
    overlap_s: Annotated[float, msgspec.Meta(ge=0.0)] = 900.0
    """For this long after a change the keys of before are known too."""


class FingerprintConfig(Config, frozen=True, kw_only=True):
    """What kinds of requests there are, and whose they are."""

    class_attributes: tuple[str, ...] = CLASS_KEYS
    """Attributes of requests, else of their resource, that name a request class; the first that is
    there. Keys that decoding keeps: see `pipeline/keys.py`."""
    tenant_attributes: tuple[str, ...] = TENANT_KEYS
    """Likewise the tenant."""
    length_bounds: tuple[Annotated[int, msgspec.Meta(ge=1)], ...] = (512, 2_048, 8_192, 32_768)
    """Upper bounds of prompt lengths, in tokens, that make different kinds; ascending."""
    bytes_per_token: Annotated[float, msgspec.Meta(gt=0.0)] = 4.0
    """A prompt's length is told from the size of the request body where that is known, so that a
    failed request is of the same kind as one that succeeded; else from its tokens."""
    max_kinds: Limit = 4_096
    """Kinds of requests in all; requests of further kinds count without one."""
    max_kinds_per_pool: Limit = 1_024
    """Kinds of one pool, so that one pool's variety takes nobody else's place."""
    max_routes: Limit = 128
    """Different routes of a pool; further ones are `_other`."""
    max_models: Limit = 64
    """Different models that the requests of a pool name; further ones are `_other`."""
    max_classes: Limit = 32
    """Different request classes of a pool; further ones are `_other`."""
    max_tenants: Limit = 4_096
    """Tenants in all; requests of further ones count without one."""
    forget_after_s: Seconds = 3_600.0
    """Kinds and tenants without a request for this long are forgotten."""
    routes: RouteConfig = RouteConfig()
    prefix: PrefixConfig = PrefixConfig()


def check_fingerprint(config: FingerprintConfig) -> None:
    """Refuse what could not work; `ConfigError` with the path of the field."""
    for field in ("class_attributes", "tenant_attributes"):
        for name in getattr(config, field):
            if name not in _KNOWN:
                raise ConfigError(
                    f"fingerprint.{field}: {name!r} is not among the keys that decoding keeps as "
                    "text (pipeline/keys.py)"
                )
    bounds = config.length_bounds
    if len(bounds) > MAX_BOUNDS or any(low >= high for low, high in pairwise(bounds)):
        raise ConfigError(
            f"fingerprint.length_bounds: must be at most {MAX_BOUNDS} ascending numbers"
        )
    if config.prefix.overlap_s > config.prefix.rotate_s:
        raise ConfigError("fingerprint.prefix.overlap_s: must not be longer than rotate_s")
