"""What an uncaught exception says: by all its lines, by what its type derives from, and by what it was raised from."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from trainwarden.detectors.logs.rules import LogRule, LogRules
from trainwarden.records import EventRecord

DURING: Final = "during "  # in front of a cause that was only being handled when the next one was raised
MAX_NAME: Final = 300
_INTERRUPTS: Final = frozenset({"KeyboardInterrupt", "SystemExit", "SignalException"})
_NO_PROGRAM_AT_FAULT: Final = frozenset({"H", "N", "S"})
_RANK: Final = {"root": 0, "phase": 1, "cascade": 2}


def text_of(event: EventRecord) -> str:
    """The exception as it was printed: type and words."""
    return event.message.strip() or str(event.fields.get("type", "exception"))


def exception_rule(rules: LogRules, event: EventRecord) -> LogRule | None:
    """The rule that says why the exception was raised; None if nothing is known of it.

    A device, network or file system that is named anywhere in the chain outranks an application's own words for what
    it broke. Otherwise the exception's own words and types come first, then what it was raised from, innermost first.
    """
    own = rules.match_text(_own_text(event))
    if own is not None and own.role == "phase":
        return own
    found = [own, *_causes(rules, str(event.fields.get("causes") or ""))]
    known = [rule for rule in found if rule is not None]
    return min(
        known,
        key=lambda rule: (_RANK.get(rule.role, len(_RANK)), rule.class_ not in _NO_PROGRAM_AT_FAULT),
        default=None,
    )


def nearest_cause(event: EventRecord) -> str:
    """What the exception was raised from on purpose, in one line; empty if from nothing."""
    cause = str(event.fields.get("causes") or "").partition("\n")[0]
    return "" if cause.startswith(DURING) else cause.partition("\v")[0]


def full_disk(event: EventRecord) -> str:
    """Which file system had no space for what, and how many bytes are free; empty where that is not known.

    Examples
    --------
    >>> fields = {"path": "/ckpt/last.pt", "mount": "/ckpt", "file_system": "ext4", "free_bytes": 0, "size_bytes": 8e9}
    >>> event = EventRecord(id="e", job="j", node="n", time_s=1.0, kind="exception", fields=fields)
    >>> full_disk(event)
    '/ckpt/last.pt is on /ckpt (ext4), where 0 B of 8.0 GB are free'
    """
    path, mount, kind = (_plain(event.fields.get(name)) for name in ("path", "mount", "file_system"))
    free, size = event.fields.get("free_bytes"), event.fields.get("size_bytes")
    if not path or not mount or not isinstance(free, int | float) or not isinstance(size, int | float):
        return ""
    return f"{path} is on {mount}{f' ({kind})' if kind else ''}, where {_bytes(free)} of {_bytes(size)} are free"


def _plain(value: object) -> str:
    """A name from another process as words of one line."""
    return "".join(sign if sign.isprintable() else "?" for sign in value[:MAX_NAME]) if isinstance(value, str) else ""


def _bytes(count: float) -> str:
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count:.0f} B"


def interrupts(event: EventRecord) -> bool:
    """True if the exception only tells that somebody stopped the program."""
    names = [text_of(event).partition(":")[0], *str(event.fields.get("types") or "").split()]
    return any(name.rpartition(".")[2] in _INTERRUPTS for name in names)


def _own_text(event: EventRecord) -> str:
    """All lines, and the first again under the name of every type that the exception's own derives from."""
    text = text_of(event)
    words = text.partition(": ")[2].partition("\n")[0]
    return "\n".join([text, *(f"{base}: {words}" for base in str(event.fields.get("types") or "").split())])


def _causes(rules: LogRules, causes: str) -> Iterator[LogRule | None]:
    for cause in reversed(causes.split("\n")):
        rule = rules.match_text(cause.removeprefix(DURING))  # lines of one cause are parted by vertical tabs
        # Whoever falls back on something else has caught a missing file or module on purpose.
        tried = cause.startswith(DURING) and rule is not None and rule.kind == "user_error"
        yield None if tried else rule
