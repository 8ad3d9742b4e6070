"""Who may ask: tokens with a role each, kept as digests.

A tokens file has one line for each token, ``NAME ROLE TOKEN``; the role is ``observe``, ``approve`` (which may observe,
approve and deny) or ``act`` (which may do all), and the token itself or ``sha256:`` and its digest in hexadecimal
digits. Lines that begin with ``#`` say nothing.
"""

from __future__ import annotations

import hashlib
import re
import stat
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, get_args

from trainwarden.errors import ConfigError
from trainwarden.signing import read_held

Role = Literal["observe", "approve", "act"]
_ROLES: Final[tuple[Role, ...]] = get_args(Role)  # each may what those before it may
LEAST_CHARS: Final = 16  # a token that can be guessed is none
MAX_BYTES: Final = 1_048_576
MAX_TOKEN_BYTES: Final = 16_384  # of a file with one token
_DIGEST: Final = re.compile(r"sha256:([0-9a-f]{64})")


@dataclass(frozen=True, slots=True)
class Person:
    """Who a token stands for."""

    name: str
    role: Role

    def may(self, role: Role) -> bool:
        """Whether what needs `role` is allowed."""
        return _ROLES.index(self.role) >= _ROLES.index(role)


class Tokens:
    """Tokens by digest.

    Examples
    --------
    >>> tokens = Tokens({digest_of("a-long-secret-word"): Person("on-call", "act")})
    >>> tokens.who("a-long-secret-word")
    Person(name='on-call', role='act')
    >>> tokens.who("another") is None
    True
    """

    def __init__(self, people: Mapping[str, Person]) -> None:
        self._people = dict(people)

    @classmethod
    def of_files(cls, paths: Iterable[Path]) -> Tokens:
        """What all of `paths` say.

        Raises
        ------
        ConfigError
            If one cannot be read, others may read it though it holds tokens in clear, a line is wrong, or a token
            stands in two of them: nobody could say what it is for.
        """
        people: dict[str, Person] = {}
        for path in paths:
            for digest, person in cls.of_file(path)._people.items():
                if people.setdefault(digest, person) is not person:
                    raise ConfigError(f"tokens: {path}: the token of {person.name} stands in another file as well")
        return cls(people)

    @classmethod
    def of_file(cls, path: Path) -> Tokens:
        """What `path` says.

        Raises
        ------
        ConfigError
            If it cannot be read, others may read it though it holds tokens in clear, or a line is wrong.
        """
        held, mode = read_held(path, "tokens", MAX_BYTES)
        try:
            text = held.decode()
        except UnicodeDecodeError as error:
            raise ConfigError(f"tokens: {path} cannot be read ({error})") from error
        people: dict[str, Person] = {}
        for number, line in enumerate(text.splitlines(), 1):
            if not line.strip() or line.startswith("#"):
                continue
            digest, person, clear = _parsed(line, f"tokens: {path}, line {number}")
            if clear and mode & (stat.S_IRGRP | stat.S_IROTH | stat.S_IWGRP | stat.S_IWOTH):
                raise ConfigError(f"tokens: others may read {path}; chmod 600 it, or keep digests (sha256:...) in it")
            if digest in people:
                raise ConfigError(f"tokens: {path}, line {number}: the token of {person.name} stands above as well")
            people[digest] = person
        if not people:
            raise ConfigError(f"tokens: {path} holds no token; a line is NAME ROLE TOKEN")
        return cls(people)

    def beside(self, token: str, person: Person) -> Tokens:
        """These, and `token` of `person`."""
        return Tokens({**self._people, digest_of(token): person})

    def who(self, token: str) -> Person | None:
        """Whose `token` is; digests are looked up, so the time that it takes says nothing of the token."""
        return self._people.get(digest_of(token))


def digest_of(token: str) -> str:
    """What is kept of a token."""
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).hexdigest()


def _parsed(line: str, where: str) -> tuple[str, Person, bool]:
    """Digest, person, and whether the token stood there in clear."""
    words = line.split()
    if len(words) != 3:
        raise ConfigError(f"{where}: a line is NAME ROLE TOKEN")
    name, role, token = words
    if role not in _ROLES:
        raise ConfigError(f"{where}: the role is observe, approve or act, not '{role[:40]}'")
    kept = _DIGEST.fullmatch(token)
    if kept is None and len(token) < LEAST_CHARS:
        raise ConfigError(f"{where}: a token has {LEAST_CHARS} characters at least")
    if not token.isascii():
        raise ConfigError(f"{where}: a token is of ASCII characters; headers and cookies carry no others")
    person = Person(name, role)
    return (kept[1] if kept else digest_of(token)), person, kept is None


def read_token(path: Path) -> str:
    """The one token that `path` holds, which the processes of a service share.

    Raises
    ------
    ConfigError
        If it cannot be read, others may read it, or it is too short or not ASCII.
    """
    held, mode = read_held(path, "token", MAX_TOKEN_BYTES)
    try:
        text = held.decode("ascii").strip()
    except UnicodeDecodeError as error:
        raise ConfigError(f"token: {path} cannot be read ({error})") from error
    if mode & (stat.S_IRGRP | stat.S_IROTH | stat.S_IWGRP | stat.S_IWOTH):
        raise ConfigError(f"token: others may read {path}; chmod 600 it")
    if len(text) < LEAST_CHARS or len(text.split()) != 1:
        raise ConfigError(f"token: {path} has to hold one word of {LEAST_CHARS} characters at least")
    return text
