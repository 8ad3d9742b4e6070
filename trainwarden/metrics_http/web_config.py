"""The exporter toolkit's web configuration file: TLS and passwords, as node_exporter and Prometheus itself take them.

Read here: ``tls_server_config`` (cert_file, key_file, client_auth_type, client_ca_file, client_allowed_sans,
min_version), ``http_server_config`` (headers; http2 is taken and we speak HTTP/1) and ``basic_auth_users`` (bcrypt
hashes by name). Any other key is refused, and so are the kinds of client authentication that let everybody in. PyYAML
and bcrypt come with the extra ``web``.
"""

from __future__ import annotations

import base64
import hashlib
import logging
import re
import secrets
import ssl
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import msgspec

from trainwarden.errors import ConfigError
from trainwarden.metrics_http.tls import server_context
from trainwarden.settings import sentence_of
from trainwarden.signing import read_file

log = logging.getLogger("trainwarden.metrics")

MAX_BYTES: Final = 1_048_576
_REMEMBERED: Final = 64
_TRIED_BYTES: Final = 72  # bcrypt looks at no more, and refuses what is longer
_NOBODY: Final = "$2b$10$CwTycUXWue0Thq9StjUM0uJ8Y0L7ZpJ0T1tq6bQm3w9sY5y1m8u6e"  # costs what a real one does
_HASH: Final = re.compile(r"\$2[abxy]\$(0[4-9]|1[0-9]|2[0-9]|3[01])\$[./A-Za-z0-9]{53}")
_VERSIONS: Final = {"TLS12": ssl.TLSVersion.TLSv1_2, "TLS13": ssl.TLSVersion.TLSv1_3}


class _Table(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    pass


class TlsConfig(_Table, frozen=True, kw_only=True):
    """``tls_server_config``; paths are relative to the file."""

    cert_file: str
    key_file: str
    client_auth_type: Literal["NoClientCert", "RequireAndVerifyClientCert"] = "NoClientCert"
    client_ca_file: str | None = None
    client_allowed_sans: tuple[str, ...] = ()
    min_version: Literal["TLS12", "TLS13"] = "TLS12"


class HttpConfig(_Table, frozen=True, kw_only=True):
    """``http_server_config``."""

    http2: bool = True
    headers: dict[
        Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9-]{1,64}$")],
        Annotated[str, msgspec.Meta(pattern=r"^[\x20-\x7e]{0,1024}$")],
    ] = msgspec.field(default_factory=dict)


class WebConfig(_Table, frozen=True, kw_only=True):
    """The whole file."""

    tls_server_config: TlsConfig | None = None
    http_server_config: HttpConfig = msgspec.field(default_factory=HttpConfig)
    basic_auth_users: dict[Annotated[str, msgspec.Meta(min_length=1, max_length=128)], str] = msgspec.field(
        default_factory=dict
    )


class WebConfigFile:
    """The file at `path`, read anew when it or a certificate has changed; what is wrong by then is said and not taken.

    Raises
    ------
    ConfigError
        If it cannot be used now.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._checking = threading.Lock()
        self._stamps: list[tuple[int, int] | None] = []
        self._config = WebConfig()
        self._context: ssl.SSLContext | None = None
        self._trouble = ""
        self._salt = secrets.token_bytes(16)
        self._right: set[bytes] = set()
        self._apply(*_read(path))

    def now(self) -> tuple[WebConfig, ssl.SSLContext | None]:
        """What holds for a connection that comes now."""
        with self._lock:
            if self._stamps != self._stamped(self._config):
                try:
                    self._apply(*_read(self._path))
                    self._trouble = ""
                except ConfigError as error:  # tried again each time: what is missing may come to a new place
                    if str(error) != self._trouble:
                        log.error("web configuration stays as it was", extra={"fields": {"error": str(error)}})
                    self._trouble = str(error)
            return self._config, self._context

    def admits(self, authorization: str | None) -> bool:
        """Whether a request with this header may be answered; costs the same for names that nobody has."""
        users = self.now()[0].basic_auth_users
        if not users:
            return True
        name, password = _credentials(authorization)
        kept = users.get(name, _NOBODY)
        seal = hashlib.blake2b(f"{kept}\0{name}\0{password}".encode(), key=self._salt).digest()
        with self._checking:  # one at a time: guessing must not take all cores
            if seal in self._right:
                return True
            right = _matches(password, kept) and name in users
            if right:
                self._right = {seal, *list(self._right)[: _REMEMBERED - 1]}
            return right

    def _apply(self, config: WebConfig, context: ssl.SSLContext | None) -> None:
        self._config, self._context = config, context
        self._stamps = self._stamped(config)

    def _stamped(self, config: WebConfig) -> list[tuple[int, int] | None]:
        tls = config.tls_server_config
        named = [] if tls is None else [tls.cert_file, tls.key_file, tls.client_ca_file]
        return [_stamp(self._path), *(_stamp(self._path.parent / name) for name in named if name)]


def is_allowed(certificate: Mapping[str, Any] | None, names: Iterable[str]) -> bool:
    """Whether a client's verified certificate has one of the alternative names `names`.

    Examples
    --------
    >>> certificate = {"subjectAltName": (("DNS", "prometheus"), ("IP Address", "10.0.0.1"))}
    >>> is_allowed(certificate, ["prometheus"]), is_allowed(certificate, ["other"]), is_allowed(None, ["prometheus"])
    (True, False, False)
    """
    wanted = set(names)
    return any(value in wanted for _, value in (certificate or {}).get("subjectAltName", ()))


def _read(path: Path) -> tuple[WebConfig, ssl.SSLContext | None]:
    try:
        import bcrypt  # noqa: F401 - needed later; said now
        import yaml
    except ImportError as error:
        raise ConfigError(
            "metrics_web_config: PyYAML and bcrypt are not installed (pip install 'trainwarden[web]')"
        ) from error
    text = read_file(path, MAX_BYTES)
    try:
        config = msgspec.convert(yaml.safe_load(text) or {}, WebConfig, strict=True)
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(f"{path}: is not valid YAML ({' '.join(str(error).split())[:200]})") from error
    except msgspec.ValidationError as error:
        raise ConfigError(f"{path}: {sentence_of(str(error))}") from error
    for name, kept in config.basic_auth_users.items():
        if not _HASH.fullmatch(kept):
            raise ConfigError(f"{path}: what stands for '{name}' in basic_auth_users is no bcrypt hash")
    return config, _context(path, config.tls_server_config)


def _context(path: Path, tls: TlsConfig | None) -> ssl.SSLContext | None:
    if tls is None:
        return None
    verified = tls.client_auth_type == "RequireAndVerifyClientCert"
    if verified != (tls.client_ca_file is not None):
        raise ConfigError(f"{path}: client_ca_file and client_auth_type RequireAndVerifyClientCert need each other")
    if tls.client_allowed_sans and not verified:
        raise ConfigError(f"{path}: client_allowed_sans needs client_auth_type RequireAndVerifyClientCert")
    ca = None if tls.client_ca_file is None else str(path.parent / tls.client_ca_file)
    context = server_context(str(path.parent / tls.cert_file), str(path.parent / tls.key_file), ca, str(path))
    context.minimum_version = _VERSIONS[tls.min_version]
    return context


def _credentials(authorization: str | None) -> tuple[str, str]:
    scheme, _, value = (authorization or "").partition(" ")
    if scheme.lower() != "basic" or len(value) > 4_096:
        return "", ""
    try:
        name, _, password = base64.b64decode(value.strip(), validate=True).decode().partition(":")
    except ValueError:
        return "", ""
    return name, password


def _matches(password: str, kept: str) -> bool:
    import bcrypt

    tried = password.encode()
    try:
        return bcrypt.checkpw(tried[:_TRIED_BYTES], kept.encode()) and len(tried) <= _TRIED_BYTES
    except ValueError:
        return False


def _stamp(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size
