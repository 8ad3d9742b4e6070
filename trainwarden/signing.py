"""Requests that are signed by a secret which both sides hold in a file: HMAC-SHA256."""

from __future__ import annotations

import hashlib
import hmac
from pathlib import Path
from typing import Final

from trainwarden.errors import ConfigError

STAMP_HEADER: Final = "X-Trainwarden-Timestamp"
SIGNATURE_HEADER: Final = "X-Trainwarden-Signature"
LEAST_BYTES: Final = 16
MAX_BYTES: Final = 4_096


def read_secret(path: str, setting: str) -> bytes:
    """The secret that the file at `path` holds, without the newline at its end.

    Raises
    ------
    ConfigError
        If it cannot be read or is too short to be one; it names `setting`.
    """
    try:
        with Path(path).open("rb") as file:
            secret = file.read(MAX_BYTES).strip()
    except OSError as error:
        raise ConfigError(f"{setting}: {path} cannot be read ({error.strerror})") from error
    if len(secret) < LEAST_BYTES:
        raise ConfigError(f"{setting}: {path} holds fewer than {LEAST_BYTES} bytes; that can be guessed")
    return secret


def signature(secret: bytes, text: bytes) -> str:
    """What `secret` makes of `text`, in hexadecimal digits."""
    return hmac.new(secret, text, hashlib.sha256).hexdigest()


def signed_headers(secret: bytes, body: bytes, now_s: float) -> dict[str, str]:
    """The headers by which whoever holds `secret` knows that `body` is ours and was sent at `now_s` (Unix seconds).

    Examples
    --------
    >>> headers = signed_headers(b"0123456789abcdef", b"{}", 7.9)
    >>> headers[STAMP_HEADER], headers[SIGNATURE_HEADER] == signature(b"0123456789abcdef", b"7:{}")
    ('7', True)
    """
    stamp = str(int(now_s))
    return {STAMP_HEADER: stamp, SIGNATURE_HEADER: signature(secret, stamp.encode() + b":" + body)}
