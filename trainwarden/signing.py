"""Secrets, keys and settings that are held in files, read within bounds; requests that are signed: HMAC-SHA256."""

from __future__ import annotations

import hashlib
import hmac
import os
import stat
from pathlib import Path
from typing import Final

from trainwarden.errors import ConfigError

STAMP_HEADER: Final = "X-Trainwarden-Timestamp"
SIGNATURE_HEADER: Final = "X-Trainwarden-Signature"
LEAST_BYTES: Final = 16
MAX_BYTES: Final = 4_096
_OTHERS: Final = {
    stat.S_IFDIR: "a folder", stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device", stat.S_IFBLK: "a device",
}  # fmt: skip


def read_held(path: str | Path, setting: str, most_bytes: int) -> tuple[bytes, int]:
    """All that the file at `path` holds, and its mode. A part of it would be other keys than those that were meant.

    Raises
    ------
    ConfigError
        If it cannot be read or has more than `most_bytes`; it names `setting`.
    """
    try:
        with Path(path).open("rb") as file:
            held, mode = file.read(most_bytes + 1), os.fstat(file.fileno()).st_mode
    except (OSError, ValueError) as error:
        said = getattr(error, "strerror", None) or error
        raise ConfigError(f"{setting}: {path} cannot be read ({said})") from error
    if len(held) > most_bytes:
        raise ConfigError(f"{setting}: {path} has more than {most_bytes} bytes")
    return held, mode


def read_file(path: Path, most_bytes: int) -> bytes:
    """All that the file at `path` holds.

    Raises
    ------
    ConfigError
        If it cannot be read, is no file (devices and pipes may have no end), or has more than `most_bytes`.
    """
    look_at(path)
    try:
        with path.open("rb") as file:
            held = file.read(most_bytes + 1)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: cannot be read ({getattr(error, 'strerror', None) or error})") from error
    if len(held) > most_bytes:
        raise ConfigError(f"{path}: has more than {most_bytes} bytes")
    return held


def look_at(path: Path, setting: str | None = None) -> None:
    """That there is a file at `path`, without opening it: that alone would wait for ever at a pipe.

    Raises
    ------
    ConfigError
        If there is none; it names `setting`, where there is one.
    """
    said = str(path) if setting is None else f"{setting}: {path}"
    colon = ":" if setting is None else ""
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError) as error:
        raise ConfigError(f"{said}{colon} cannot be read ({getattr(error, 'strerror', None) or error})") from error
    if not stat.S_ISREG(mode):
        raise ConfigError(f"{said}{colon} is {_OTHERS.get(stat.S_IFMT(mode), 'something else')}, not a file")


def read_secret(path: str, setting: str) -> bytes:
    """The secret that the file at `path` holds, without the newline at its end.

    Raises
    ------
    ConfigError
        If it cannot be read or is too short to be one; it names `setting`.
    """
    secret = read_held(path, setting, MAX_BYTES)[0].strip()
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
