"""Who is told, how and of what: the tables ``[[serve.notices]]``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Final, Literal
from urllib.parse import urlsplit

import msgspec

from trainwarden.errors import ConfigError
from trainwarden.records import IncidentKind, IncidentRecord, Severity
from trainwarden.settings import Config, parse
from trainwarden.signing import read_held

MAX_BYTES: Final = 4_096
GRAVEST: Final = ("sev1", "sev2", "sev3")


class NoticeSettings(Config, frozen=True, kw_only=True):
    """One who is told: by `url`, or the one that `url_file` holds (a chat's address is a secret).

    `kinds` (empty: all) and `severity` (that grave or graver) say of which incidents. `token_file` holds a bearer
    token, `secret_file` what signs ``timestamp:body`` (HMAC-SHA256 in ``X-Trainwarden-Signature``).
    """

    url: str | None = None
    url_file: str | None = None
    style: Literal["json", "slack", "otlp"] = "json"
    token_file: str | None = None
    secret_file: str | None = None
    kinds: tuple[IncidentKind, ...] = ()
    severity: Severity = "sev3"
    timeout_s: Annotated[float, msgspec.Meta(gt=0.0, le=60.0)] = 10.0


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """One who is told, with what their files held; `host` is what may be shown of the address."""

    url: str
    host: str
    settings: NoticeSettings
    token: str | None = None
    secret: bytes | None = None

    def wants(self, incident: IncidentRecord | None) -> bool:
        """Whether news of `incident` is for them; of one that is not known, all is."""
        if incident is None:
            return True
        grave = GRAVEST.index(incident.severity) <= GRAVEST.index(self.settings.severity)
        return grave and (not self.settings.kinds or incident.kind in self.settings.kinds)


def targets_of(tables: Sequence[dict[str, Any]]) -> list[Target]:
    """What ``serve.notices`` says.

    Raises
    ------
    ConfigError
        One sentence about the first mistake.
    """
    places = (f"serve.notices: number {number}" for number in range(1, len(tables) + 1))
    return [_target(parse(NoticeSettings, raw, where), where) for raw, where in zip(tables, places, strict=True)]


def _target(settings: NoticeSettings, where: str) -> Target:
    if (settings.url is None) == (settings.url_file is None):
        raise ConfigError(f"{where}: name either url or url_file")
    url = settings.url or _held(settings.url_file, f"{where}: url_file")
    assert url is not None
    try:
        parts = urlsplit(url)
        named = parts.scheme in ("http", "https") and parts.hostname
        (named or "").encode("idna")
    except ValueError:
        named = None
    if not named:
        raise ConfigError(f"{where}: the url is not http:// or https:// and a host")
    secret = _held(settings.secret_file, f"{where}: secret_file")
    token = _held(settings.token_file, f"{where}: token_file")
    if token is not None and not token.isascii():
        raise ConfigError(f"{where}: {settings.token_file} holds no ASCII characters alone; a header carries no others")
    return Target(
        url=url,
        host=named,
        settings=settings,
        token=token,
        secret=secret.encode() if secret is not None else None,
    )


def _held(path: str | None, where: str) -> str | None:
    """The one line that a file holds."""
    if path is None:
        return None
    held, _ = read_held(path, where, MAX_BYTES)
    try:
        text = held.decode().strip()
    except UnicodeDecodeError as error:
        raise ConfigError(f"{where}: {path} cannot be read ({error})") from error
    if not text or "\n" in text:
        raise ConfigError(f"{where}: {path} holds not one line")
    return text
