"""Keys by which people and services sign their words to the engine: Ed25519 (RFC 8032), one line each.

A key file holds ``NAME ed25519-private:BASE64`` and is its owner's alone. A file of trusted keys has a line
``NAME RIGHTS ed25519:BASE64 [until:TIME]`` for each, the rights with commas between; ``#`` begins a line that says
nothing. Who holds the trusted file can judge words, and say none.
"""

from __future__ import annotations

import base64
import binascii
import os
import re
import secrets
import stat
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Literal, cast, get_args

import msgspec

from trainwarden.errors import ConfigError
from trainwarden.records import CommandRecord, Signature
from trainwarden.settings import CommandsSettings
from trainwarden.signing import read_held

Right = Literal["approve", "act", "stop", "latch", "relay"]
NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}")
MAX_BYTES: Final = 1_048_576
SEED_BYTES: Final = 32  # RFC 8032, section 5.1.5; a public key has as many
_PRIVATE: Final = "ed25519-private:"
_PUBLIC: Final = "ed25519:"
_UNTIL: Final = "until:"
_PURPOSE: Final = b"trainwarden command 1\n"  # so that no signature of anything else is one of a command
_OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO


class Trusted(msgspec.Struct, frozen=True):
    """One trusted key: whose, what it may say, and until when (Unix seconds; None: no end)."""

    name: str
    rights: frozenset[Right]
    public: bytes
    until_s: float | None = None


class Signer:
    """A private key with the name of its owner.

    Examples
    --------
    >>> ann = Signer("ann", bytes(32))
    >>> ann.public_line("approve,stop")
    'ann approve,stop ed25519:O2onvM62pC1io6jQKm8Nc2UyFXcd4kOmOsBIoYtZ2ik='
    >>> said = ann.sign(CommandRecord(id="c", job="j", at_s=1.0, kind="stop", by="ann"), 2.0)
    >>> is_signed_by(said, ann.public), said.signature.by, said.signature.at_s
    (True, 'ann', 2.0)
    """

    def __init__(self, name: str, seed: bytes) -> None:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        self.name, self._seed = name, seed
        self._key = Ed25519PrivateKey.from_private_bytes(seed)
        self.public = self._key.public_key().public_bytes_raw()

    @classmethod
    def of_file(cls, path: str | Path, setting: str = "commands.key") -> Signer:
        """The key that the file at `path` holds.

        Raises
        ------
        ConfigError
            If it cannot be read or holds no key, others may read it, or the extra ``signing`` is missing; it names
            `setting`.
        """
        text, mode = _read(path, setting)
        if mode & _OTHERS:
            raise ConfigError(f"{setting}: others may read {path}; chmod 600 it, and make a new key if they have")
        words = text.split()
        if len(words) != 2 or not NAME.fullmatch(words[0]) or not words[1].startswith(_PRIVATE):
            raise ConfigError(f"{setting}: {path} holds no key; `trainwarden key make NAME --file FILE` makes one")
        need_cryptography(setting)
        return cls(words[0], _bytes_of(words[1].removeprefix(_PRIVATE), f"{setting}: {path}"))

    def write(self, path: Path) -> None:
        """Keep it in a new file at `path`, for its owner alone.

        Raises
        ------
        ConfigError
            If there is a file already, or none can be made.
        """
        try:
            place = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            try:
                with os.fdopen(place, "w") as file:
                    file.write(f"{self.name} {_PRIVATE}{base64.b64encode(self._seed).decode()}\n")
            except OSError:
                path.unlink()  # or the next try would find a file already
                raise
        except OSError as error:
            raise ConfigError(f"key: {path} cannot be made ({error.strerror})") from error

    def public_line(self, rights: str) -> str:
        """Its line in a file of trusted keys."""
        return f"{self.name} {rights} {_PUBLIC}{base64.b64encode(self.public).decode()}"

    def sign(self, command: CommandRecord, now_s: float) -> CommandRecord:
        """`command` with our word for it, given at `now_s` (Unix seconds); each time with another number."""
        blank = Signature(by=self.name, at_s=round(now_s, 3), nonce=secrets.token_hex(16), value="")
        # As a reader will decode it: 7 and 7.0 are one number, but not the same text.
        sent = msgspec.structs.replace(command, signature=blank)
        plain = msgspec.json.decode(msgspec.json.encode(sent), type=CommandRecord)
        value = self._key.sign(_said(plain, blank)).hex()
        return msgspec.structs.replace(plain, signature=msgspec.structs.replace(blank, value=value))


def new_signer(name: str) -> Signer:
    """A new key for `name`.

    Raises
    ------
    ConfigError
        If that is no name of a key, or the extra ``signing`` is missing.
    """
    if not NAME.fullmatch(name):
        raise ConfigError(f"key: '{name[:80]}' is no name; it has letters, digits and . _ @ -, 64 at most")
    need_cryptography("key")
    return Signer(name, secrets.token_bytes(SEED_BYTES))


def signer_of(settings: CommandsSettings) -> Signer | None:
    """The key that `settings` name; None if they name none.

    Raises
    ------
    ConfigError
        If it cannot be used.
    """
    return None if settings.key is None else Signer.of_file(settings.key)


def is_signed_by(command: CommandRecord, public: bytes) -> bool:
    """Whether the private half of the key `public` has signed all of `command`."""
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    signature = command.signature
    if signature is None:
        return False
    try:
        Ed25519PublicKey.from_public_bytes(public).verify(bytes.fromhex(signature.value), _said(command, signature))
    except (InvalidSignature, ValueError):
        return False
    return True


def trusted_of(path: str | Path, setting: str = "commands.trusted") -> tuple[Trusted, ...]:
    """The trusted keys in the file at `path`.

    Raises
    ------
    ConfigError
        If it cannot be read, others may write to it, it holds no key, or a line is wrong; it names `setting`.
    """
    text, mode = _read(path, setting)
    if mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise ConfigError(f"{setting}: others may write to {path}; chmod 644 it")
    need_cryptography(setting)
    lines = [(number, line) for number, line in enumerate(text.splitlines(), 1) if line.strip() and line[0] != "#"]
    if not lines:
        raise ConfigError(f"{setting}: {path} holds no key; a line is NAME RIGHTS ed25519:KEY")
    return tuple(_trusted(line, f"{setting}: {path}, line {number}") for number, line in lines)


def rights_of(text: str, where: str) -> frozenset[Right]:
    """The rights that `text` names, with commas between.

    Raises
    ------
    ConfigError
        If one of them is none; it names `where`.
    """
    rights = frozenset(text.split(","))
    if not rights <= set(get_args(Right)):
        raise ConfigError(f"{where}: rights are {', '.join(get_args(Right))}, with commas between; not '{text[:80]}'")
    return cast("frozenset[Right]", rights)


def need_cryptography(setting: str) -> None:
    """Raises `ConfigError`, naming `setting`, where the extra ``signing`` is missing."""
    try:
        import cryptography  # noqa: F401
    except ImportError as error:
        raise ConfigError(f"{setting}: cryptography is not installed; pip install 'trainwarden[signing]'") from error


def _trusted(line: str, where: str) -> Trusted:
    words = line.split()
    if len(words) not in (3, 4) or not NAME.fullmatch(words[0]) or not words[2].startswith(_PUBLIC):
        raise ConfigError(f"{where}: a line is NAME RIGHTS ed25519:KEY [until:TIME]")
    until_s = None
    if len(words) == 4:
        try:
            until = datetime.fromisoformat(words[3].removeprefix(_UNTIL))
        except ValueError as error:
            raise ConfigError(f"{where}: '{words[3][:80]}' is not like until:2027-01-31T12:00Z") from error
        until_s = (until if until.tzinfo else until.replace(tzinfo=UTC)).timestamp()
    rights = rights_of(words[1], where)
    return Trusted(words[0], rights, _bytes_of(words[2].removeprefix(_PUBLIC), where), until_s)


def _bytes_of(text: str, where: str) -> bytes:
    try:
        found = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        found = b""
    if len(found) != SEED_BYTES:
        raise ConfigError(f"{where}: a key is {SEED_BYTES} bytes in base64")
    return found


def _read(path: str | Path, setting: str) -> tuple[str, int]:
    held, mode = read_held(path, setting, MAX_BYTES)
    try:
        return held.decode(), mode
    except UnicodeDecodeError as error:
        raise ConfigError(f"{setting}: {path} cannot be read ({error})") from error


def _said(command: CommandRecord, signature: Signature) -> bytes:
    """What is signed: every field of `command` and of the signature itself, but its value."""
    blank = msgspec.structs.replace(signature, value="")
    return _PURPOSE + msgspec.json.encode(msgspec.structs.replace(command, signature=blank), order="sorted")
