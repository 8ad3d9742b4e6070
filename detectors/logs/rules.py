"""The rules about log lines, and one matcher for all of them in linear time.

The rules are data (`rules.toml`, `xid.toml` beside this file) that an operator may replace. Matching is by RE2's
set automaton: no backtracking, whatever the line holds.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any, Final, Literal

import msgspec
import re2

from trainwarden.errors import ConfigError
from trainwarden.records import MAX_LINE_CHARS, IncidentKind, Severity

RULES_FILE: Final = Path(__file__).with_name("rules.toml")
XID_FILE: Final = Path(__file__).with_name("xid.toml")
_ESCAPES: Final = re.compile(r"\x1b\[[0-9;]{0,16}[A-Za-z]")  # terminal colours; linear: bounded repetition


class LogRule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename={"class_": "class"}):
    """What one pattern means; `class_` by faults.md A.5."""

    id: str
    pattern: str
    class_: Literal["A", "H", "N", "S", "C"]
    role: Literal["root", "cascade", "app", "benign", "phase"]
    kind: IncidentKind | None = None
    severity: Severity = "sev3"


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
            self.rules.append(rule)
        if not self.rules:
            raise ConfigError(f"{path or RULES_FILE}: holds no rule")
        self._set.Compile()

    def match(self, line: str) -> LogRule | None:
        """The first rule of the file that `line` fits; only the first 8,192 characters are looked at."""
        line = line[:MAX_LINE_CHARS]
        if "\x1b" in line:
            line = _ESCAPES.sub("", line)
        found = self._set.Match(line.encode(errors="replace"))
        return self.rules[min(found)] if found else None


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
