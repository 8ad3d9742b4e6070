"""The rules about log lines, and one matcher for all of them in linear time.

The rules are data (`rules.toml`, `xid.toml` beside this file) that an operator may replace. Matching is by RE2's
set automaton: no backtracking, whatever the line holds.
"""

from __future__ import annotations

import re
import tomllib
from functools import cache
from pathlib import Path
from typing import Any, Final, Literal

import msgspec
import re2

from trainwarden.errors import ConfigError
from trainwarden.log_shapes import may_fit
from trainwarden.records import MAX_LINE_CHARS, IncidentKind, Severity

RULES_FILE: Final = Path(__file__).with_name("rules.toml")
XID_FILE: Final = Path(__file__).with_name("xid.toml")
_OUTRANKS_ADVICE: Final = frozenset({"root", "cascade", "phase"})
_RANK: Final = {"root": 0, "phase": 1, "cascade": 2, "app": 3}
_SENTENCE_END: Final = r"[^\n]*?(?:[.;!?](?:\s|$)|\n|$)"
_ESCAPES: Final = re.compile(r"\x1b\[[0-9;]{0,16}[A-Za-z]")  # terminal colours; linear: bounded repetition


class LogRule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename={"class_": "class"}):
    """What one pattern means; `class_` by faults.md A.5.

    `speaks_for` says how much of the line a benign rule explains: all of it (``line``), from its match to the end of
    that sentence (``sentence``: advice behind a cause), or the matched words alone (``match``: a count of zero).
    """

    id: str
    pattern: str
    class_: Literal["A", "H", "N", "S", "C"]
    role: Literal["root", "cascade", "app", "benign", "phase"]
    kind: IncidentKind | None = None
    severity: Severity = "sev3"
    speaks_for: Literal["line", "sentence", "match"] = "line"


class Xid(msgspec.Struct, frozen=True, kw_only=True):
    """What one Xid code means for whoever acts on it."""

    code: int
    class_: str
    kind: IncidentKind
    severity: Severity
    advice: str

    @property
    def device_at_fault(self) -> bool:
        """True if the device or node needs something done, not the application."""
        return self.class_ in {"RESET", "REBOOT", "REPLACE"}


class LogRules:
    """All rules as one automaton.

    Parameters
    ----------
    path : Path, optional
        The rules; default those shipped.

    Raises
    ------
    ConfigError
        If the file cannot be read or a rule is wrong; the message names the rule.

    Examples
    --------
    >>> rules = LogRules()
    >>> rule = rules.match("RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB")
    >>> rule.id, rule.kind, rule.role
    ('cuda.out_of_memory', 'cuda_out_of_memory', 'root')
    >>> rules.match("step 12 loss 3.21") is None
    True
    """

    def __init__(self, path: Path | None = None) -> None:
        raw = _read(path or RULES_FILE).get("rule", [])
        self.rules: list[LogRule] = []
        self._explained: dict[int, Any] = {}  # benign rules that speak for a part of their line, by place
        options = re2.Options()
        options.log_errors = False
        options.max_mem = 256 << 20  # the automaton of all rules needs more than RE2's default of 8 MiB to stay fast
        self._set = re2.Set.SearchSet(options)
        for entry in raw:
            try:
                rule = msgspec.convert(entry, LogRule)
                self._set.Add(rule.pattern)
            except (msgspec.ValidationError, re2.error) as error:
                name = entry.get("id", "?") if isinstance(entry, dict) else "?"
                raise ConfigError(f"{path or RULES_FILE}: rule {name}: {error}") from error
            if rule.role == "benign" and rule.speaks_for != "line":
                rest = _SENTENCE_END if rule.speaks_for == "sentence" else ""
                self._explained[len(self.rules)] = re2.compile(f"(?:{rule.pattern}){rest}".encode(), options)
            self.rules.append(rule)
        if not self.rules:
            raise ConfigError(f"{path or RULES_FILE}: holds no rule")
        self._set.Compile()
        self._may_fit = may_fit([rule.pattern for rule in self.rules], options)

    def match(self, line: str) -> LogRule | None:
        """The first rule of the file that `line` fits; only the first 8,192 characters are looked at.

        A cause outranks advice that stands in the same line: what a benign rule speaks for is taken out, and if the
        rest names a cause, that counts.

        Examples
        --------
        >>> LogRules().match("OSError: [Errno 28] No space left on device (0 failed retries)").kind
        'storage'
        """
        line = line[:MAX_LINE_CHARS]
        if "\x1b" in line:
            line = _ESCAPES.sub("", line)
        if not self._may_fit(line):
            return None
        plain = line.encode(errors="replace")
        found = self._set.Match(plain)
        if not found:
            return None
        first: int = min(found)
        if first in self._explained and len(found) > 1:
            return self._behind_advice(plain, found) or self.rules[first]
        return self.rules[first]

    def match_text(self, text: str) -> LogRule | None:
        """What a text of several lines says: the first line that names a cause, else the first that says anything.

        Lines that only say that others failed come after those that name a cause, whatever their order.
        """
        found = [rule for rule in map(self.match, text.splitlines()) if rule is not None and rule.role != "benign"]
        return min(found, key=lambda rule: _RANK.get(rule.role, len(_RANK)), default=None)

    def _behind_advice(self, line: bytes, found: list[int]) -> LogRule | None:
        """What `line` says without the words that its benign rules speak for, if that is a cause."""
        if not any(self.rules[place].role in _OUTRANKS_ADVICE for place in found):
            return None
        for place in found:
            if place in self._explained:
                line = bytes(self._explained[place].sub(b" ", line))
        left: list[int] = [place for place in self._set.Match(line) or () if place not in self._explained]
        rule = self.rules[min(left)] if left else None
        return rule if rule is not None and rule.role in _OUTRANKS_ADVICE else None


@cache
def shipped_rules() -> LogRules:
    """The rules shipped, read once: detectors of all jobs share the automaton, which never changes.

    Examples
    --------
    >>> shipped_rules().match("RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB").id
    'cuda.out_of_memory'
    """
    return LogRules()


def load_xids(path: Path | None = None) -> dict[int, Xid]:
    """The table of Xid codes.

    Raises
    ------
    ConfigError
        If the file cannot be read or an entry is wrong.

    Examples
    --------
    >>> load_xids()[79].kind, load_xids()[31].device_at_fault
    ('gpu_lost', False)
    """
    table: dict[int, Xid] = {}
    for entry in _read(path or XID_FILE).get("xid", []):
        try:
            for code in _codes(entry["codes"]):
                rest = {"kind": entry["kind"], "severity": entry["severity"], "advice": entry["advice"]}
                table[code] = msgspec.convert({"code": code, "class_": entry["class"], **rest}, Xid)
        except (KeyError, TypeError, ValueError, msgspec.ValidationError) as error:
            raise ConfigError(f"{path or XID_FILE}: entry {entry!r}: {error}") from error
    return table


def _codes(raw: list[int | str]) -> list[int]:
    codes: list[int] = []
    for entry in raw:
        low, _, high = str(entry).partition("-")
        codes.extend(range(int(low), int(high or low) + 1))
    return codes


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror})") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: is not valid TOML ({error})") from error
