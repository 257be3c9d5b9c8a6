"""Bearer tokens from a file: several, named, with an expiry, replaced while the service runs.

What is kept are digests, what is compared are digests, all of them each time; no token, whole or in
part, is in any message, whatever is wrong with the file.
"""

import datetime as dt
import hashlib
import hmac
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Final, NamedTuple

import msgspec
import structlog
import yaml

from pipeline.clock import NS_PER_S, Instant
from pipeline.errors import ConfigError, Unauthenticated
from pipeline.model import Config
from pipeline.yaml_text import NOT_YAML

MAX_FILE_BYTES: Final = 256 << 10
MAX_TOKENS: Final = 256
"""All are compared for every request."""
MIN_TOKEN_CHARS: Final = 16
"""A shorter one can be guessed."""
MAX_TOKEN_CHARS: Final = 8192
CHECK_EVERY_NS: Final = NS_PER_S

_SCHEME: Final = "bearer "
_FIELD: Final = "receive.tokens_file"

log = structlog.get_logger()


class TokenConfig(Config, frozen=True, kw_only=True):
    """One entry of the tokens file."""

    name: Annotated[str, msgspec.Meta(min_length=1, max_length=128, pattern=r"^[!-~]+$")]
    """What the sender is called in rights, limits and messages; several tokens may share it."""
    token: str = ""
    """The token itself, or instead:"""
    sha256: Annotated[str, msgspec.Meta(pattern="^([0-9a-fA-F]{64})?$")] = ""
    """its SHA-256 in hexadecimal."""
    expires: dt.datetime | None = None
    """After this the token is refused; with an offset, such as 2030-01-01T00:00:00Z."""


class _Token(NamedTuple):
    digest: bytes
    name: str
    expires_ns: int


class Tokens:
    """The tokens of a file. One thread at a time."""

    def __init__(self, path: str, now: Instant, reloaded: Callable[[str], None]) -> None:
        """Read the file; `ConfigError` when it cannot be used.

        `reloaded` is told "ok" or "failed" whenever the file changed and was read again.
        """
        self._path = Path(path).expanduser()
        self._reloaded = reloaded
        self._checked_ns = now.mono_ns
        self._stamp = _stamp(self._path)
        self._tokens = _read(self._path)

    def name_of(self, authorization: str, now: Instant) -> str:
        """The name of the token in an `Authorization` header's value.

        `Unauthenticated`, whose text is the reason, when there is no token, or an unknown or an
        expired one. The file is looked at once a second at most.
        """
        if now.mono_ns - self._checked_ns >= CHECK_EVERY_NS:
            self._checked_ns = now.mono_ns
            self._refresh()
        if authorization[: len(_SCHEME)].lower() != _SCHEME:
            raise Unauthenticated("missing")
        token = authorization[len(_SCHEME) :].strip()
        if len(token) > MAX_TOKEN_CHARS:
            raise Unauthenticated("unknown")
        found = self._find(hashlib.sha256(token.encode("utf-8", "replace")).digest())
        if found is None:
            raise Unauthenticated("unknown")
        if now.wall_ns >= found.expires_ns:
            raise Unauthenticated("expired")
        return found.name

    def _find(self, digest: bytes) -> _Token | None:
        """The entry of that digest; takes the same time wherever it is, and if it is not."""
        found = None
        for token in self._tokens:
            if hmac.compare_digest(token.digest, digest):
                found = token
        return found

    def _refresh(self) -> None:
        stamp = _stamp(self._path)
        if stamp == self._stamp:
            return
        self._stamp = stamp
        try:
            self._tokens = _read(self._path)
        except ConfigError as error:
            self._reloaded("failed")
            log.error("the tokens file cannot be used; the tokens of before stay", why=str(error))
        else:
            self._reloaded("ok")
            log.info("tokens read again", tokens=len(self._tokens))


def _stamp(path: Path) -> tuple[int, ...]:
    """What changes with a file; () where there is none."""
    try:
        found = path.stat()
    except OSError:
        return ()
    return (found.st_mtime_ns, found.st_size, found.st_ino, found.st_dev)


def _read(path: Path) -> tuple[_Token, ...]:
    try:
        entries = msgspec.convert(_parse(path), tuple[TokenConfig, ...])
    except msgspec.ValidationError as error:
        raise ConfigError(f"{_FIELD}: {path}: {_without_content(str(error))}") from None
    if not 0 < len(entries) <= MAX_TOKENS:
        raise ConfigError(f"{_FIELD}: {path}: has to list 1 to {MAX_TOKENS} tokens")
    tokens = tuple(_token(f"{_FIELD}: {path}: [{i}]", entry) for i, entry in enumerate(entries))
    if len({token.digest for token in tokens}) != len(tokens):
        raise ConfigError(f"{_FIELD}: {path}: a token is listed twice")
    return tokens


def _without_content(message: str) -> str:
    """Msgspec tells types and paths, never values, but it tells keys that it does not know."""
    if "unknown field" in message:
        return "an entry has a field other than name, token, sha256, expires"
    return message


def _parse(path: Path) -> object:
    try:
        text = _text(path)
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "not UTF-8"
        raise ConfigError(f"{_FIELD}: {path}: cannot be read: {why}") from None
    try:
        return yaml.safe_load(text)
    except yaml.MarkedYAMLError as error:  # its own text quotes the file
        line = 0 if error.problem_mark is None else error.problem_mark.line + 1
        raise ConfigError(f"{_FIELD}: {path}: line {line}: not YAML") from None
    except NOT_YAML:
        raise ConfigError(f"{_FIELD}: {path}: not YAML") from None


def _text(path: Path) -> str:
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # a pipe without a writer: no wait
    with os.fdopen(descriptor, "rb") as file:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_size > MAX_FILE_BYTES:
            raise ConfigError(f"{_FIELD}: {path}: no file of at most {MAX_FILE_BYTES} bytes")
        return file.read(MAX_FILE_BYTES).decode()


def _token(where: str, entry: TokenConfig) -> _Token:
    if bool(entry.token) == bool(entry.sha256):
        raise ConfigError(f"{where}: needs either token or sha256")
    if entry.token and not MIN_TOKEN_CHARS <= len(entry.token) <= MAX_TOKEN_CHARS:
        raise ConfigError(f"{where}.token: has to have {MIN_TOKEN_CHARS} characters or more")
    if entry.token and not (entry.token.isascii() and entry.token.isprintable()):
        raise ConfigError(f"{where}.token: has to be printable ASCII, as headers are")
    if entry.expires is not None and entry.expires.tzinfo is None:
        raise ConfigError(f"{where}.expires: needs an offset, such as a Z at its end")
    digest = bytes.fromhex(entry.sha256) or hashlib.sha256(entry.token.encode()).digest()
    return _Token(digest, entry.name, _expires_ns(entry.expires))


def _expires_ns(expires: dt.datetime | None) -> int:
    return 1 << 63 if expires is None else int(expires.timestamp()) * NS_PER_S
