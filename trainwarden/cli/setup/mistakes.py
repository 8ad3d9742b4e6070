"""Every mistake of a settings file, each with its place: what is wrong is taken out and the rest is checked again."""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from trainwarden.settings import sentence_of

MOST: Final = 100  # mistakes of one table: who has more has another kind of file
Path_ = tuple[str, ...]
_UNKNOWN: Final = re.compile(r"unknown field `([^`]+)`")
_PLACE: Final = re.compile(r" - at `\$(?P<place>[^`]*)`$")
_HEADER: Final = re.compile(r"^\s*\[\[?\s*(?P<table>[^\[\]]+?)\s*\]\]?\s*(#.*)?$")
_KEY: Final = re.compile(r"""^\s*(?P<key>[\w.\-"']+)\s*=""")


@dataclass(frozen=True)
class Mistake:
    """One sentence about the value at `place`."""

    place: Path_
    sentence: str


def mistakes(kind: type[Any], raw: Mapping[str, Any], at: Path_ = ()) -> tuple[list[Mistake], dict[str, Any]]:
    """All mistakes of `raw` as a `kind`, and what is left of it without them.

    Examples
    --------
    >>> from trainwarden.settings import EngineSettings
    >>> found, left = mistakes(EngineSettings, {"mode": "yolo", "modus": 1, "launcher": "slurm"}, ("engine",))
    >>> [(one.place, one.sentence) for one in found]
    [(('engine', 'mode'), "invalid enum value 'yolo' at mode"), (('engine', 'modus'), 'unknown key `modus`')]
    >>> left
    {'launcher': 'slurm'}
    """
    left = copy.deepcopy(dict(raw))
    found: list[Mistake] = []
    while len(found) < MOST:
        try:
            msgspec.convert(left, kind, strict=True)
            break
        except msgspec.ValidationError as error:
            keys = _keys(str(error))
            found.append(Mistake((*at, *keys), sentence_of(str(error))))
            if not _remove(left, keys):
                left = {}
                break
    return sorted(found, key=lambda one: one.place), left


def line_of(text: str, place: Path_) -> int | None:
    """Number of the line (from 1) that says `place`, or the table that it is in; None if there is neither.

    Examples
    --------
    >>> text = "job = 'a'" + chr(10) + "[engine]" + chr(10) + "mode = 'yolo'"
    >>> line_of(text, ("engine", "mode")), line_of(text, ("engine", "policy", "stale_s")), line_of(text, ("agent",))
    (3, 2, None)
    """
    table: Path_ = ()
    best: tuple[int, int] | None = None
    for number, line in enumerate(text.split("\n"), 1):
        if header := _HEADER.match(line):
            table = here = _parts(header["table"])
        elif key := _KEY.match(line):
            here = (*table, *_parts(key["key"]))
        else:
            continue
        if place[: len(here)] == here and (best is None or len(here) > best[0]):
            best = (len(here), number)
    return None if best is None else best[1]


def _parts(dotted: str) -> Path_:
    return tuple(part.strip().strip("\"'") for part in dotted.split("."))


def _keys(message: str) -> Path_:
    """The keys down to what a message of msgspec is about; into a list or a free table it does not say the way."""
    place = _PLACE.search(message)
    keys = [] if place is None else place["place"].partition("[")[0].strip(".").split(".")
    if (unknown := _UNKNOWN.search(message)) and "[" not in (place["place"] if place else ""):
        keys.append(unknown[1])
    return tuple(key for key in keys if key)


def _remove(raw: dict[str, Any], keys: Path_) -> bool:
    """Take out what `keys` lead to; False if it is not there."""
    inner: Any = raw
    for key in keys[:-1]:
        inner = inner.get(key) if isinstance(inner, dict) else None
    if not keys or not isinstance(inner, dict) or keys[-1] not in inner:
        return False
    del inner[keys[-1]]
    return True
