"""Vote: the logs say so. A root-class line, or far more errors from one source than is normal there.

Sliding event-time windows per source (Wu et al., TRANSOM, 2023, section IV-B). Advice text and known noise are skipped,
copies of one finding are one finding, and an application's error line that the rank survives is no anomaly.
"""

from __future__ import annotations

import re
from collections import deque
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
import numpy as np

from detectors.log_rules import LogRule, LogRules, load_xids
from detectors.protocol import pack, unpack
from detectors.window import LogLine, Window
from trainwarden.errors import DetectorError
from trainwarden.records import IncidentKind, Severity, Suspect, Vote
from trainwarden.settings import Config

MAX_SUSPECTS: Final = 16
MAX_FINDINGS: Final = 10_000
MAX_SOURCES: Final = 100_000
MAX_LINE_NUMBERS: Final = 100
ENDED: Final = frozenset({"slurm.time_limit", "slurm.cancelled"})
_DIGITS: Final = re.compile(r"[0-9]+(?:\.[0-9]+)?")  # linear: no nested repetition
_XID: Final = re.compile(r"Xid \(PCI:([0-9a-fA-F:.]{1,32})\): ([0-9]{1,4})")


class LogWindowConfig(Config, frozen=True, kw_only=True):
    """How many lines are too many.

    Attributes
    ----------
    window_s : float
        Length of the sliding window.
    storm_lines, storm_factor
        Error lines of one source within the window that make a storm, and how many times its normal number.
    same_lines, same_factor
        Like lines of one source within the window, and how many times its busiest window so far.
    survive_s : float
        An application's error is told if its rank has not moved on this long after it.
    same_finding_s : float
        Copies of one rule from one source within this time are one finding.
    rules : str, optional
        Path of a rules file to use instead of the shipped one.
    """

    window_s: Annotated[float, msgspec.Meta(gt=0.0, le=3600.0)] = 5.0
    storm_lines: Annotated[int, msgspec.Meta(ge=1)] = 30
    storm_factor: Annotated[float, msgspec.Meta(ge=1.0)] = 8.0
    same_lines: Annotated[int, msgspec.Meta(ge=1)] = 200
    same_factor: Annotated[float, msgspec.Meta(ge=1.0)] = 10.0
    settle_s: Annotated[float, msgspec.Meta(ge=0.0)] = 10.0
    survive_s: Annotated[float, msgspec.Meta(ge=0.0)] = 1.0
    same_finding_s: Annotated[float, msgspec.Meta(ge=0.0)] = 60.0
    told_s: Annotated[float, msgspec.Meta(ge=0.0)] = 10.0
    rules: str | None = None


class Finding(msgspec.Struct):
    """One or more like lines that mean something; `line_numbers` are the first positions in the source."""

    rule: str
    class_: str
    role: str
    kind: IncidentKind | None
    severity: Severity
    node: str
    source: str
    rank: int | None
    time_s: float
    last_s: float
    line: str
    count: int = 1
    line_numbers: list[int] = msgspec.field(default_factory=list)
    told: bool = False
    dropped: bool = False


class _Source(msgspec.Struct):
    """The sliding window of one source."""

    node: str
    rank: int | None
    first_s: float
    errors: deque[tuple[float, int]] = msgspec.field(default_factory=deque)
    lines: deque[tuple[float, int, str]] = msgspec.field(default_factory=deque)
    norm: float = 0.0
    busiest: int = 0
    storm_s: float | None = None
    sample: str = ""


class LogWindow:
    """What the log lines of a job say.

    Parameters
    ----------
    config : LogWindow.Config

    Notes
    -----
    `findings` holds what every rule but the benign found, newest last.
    """

    Config = LogWindowConfig

    def __init__(self, config: LogWindowConfig) -> None:
        self._config = config
        self._rules = LogRules(Path(config.rules) if config.rules else None)
        self._xids = load_xids()
        self._sources: dict[str, _Source] = {}
        self._recent: dict[str, Finding] = {}
        self._shown = 0
        self._now_s = 0.0
        self._ended_s = -1.0  # when the scheduler last ended the job
        self.findings: deque[Finding] = deque(maxlen=MAX_FINDINGS)

    @property
    def more(self) -> bool:
        """True while findings of another kind wait behind the one shown."""
        return self._shown + 1 < len(self._groups())

    def update(self, window: Window) -> None:
        """Read new lines; with ``more`` a further call on the same window turns to the next kind of finding."""
        if window.logs or not self.more:
            self._shown = 0
        else:
            self._shown += 1
        for line in window.logs:
            self._read(line)
        self._now_s = max(self._now_s, window.end_s)
        self._judge_findings(window)
        self._judge_storms()

    def score(self, window: Window) -> Vote:
        """The kind of finding whose turn it is."""
        groups = self._groups()
        if not groups:
            return Vote(opinion="normal", score=self._calm_score())
        kind, findings, storms = groups[min(self._shown, len(groups) - 1)]
        return self._storm_vote(storms) if storms else _finding_vote(kind, findings)

    def state(self) -> bytes:
        """See `detectors.protocol.Detector`."""
        plain: dict[str, Any] = {"sources": self._sources, "recent": self._recent, "now_s": self._now_s}
        plain["ended_s"] = self._ended_s
        return pack("log_window", plain | {"findings": list(self.findings)})

    def restore(self, state: bytes) -> None:
        """See `detectors.protocol.Detector`."""
        plain, _ = unpack("log_window", state)
        try:
            self._sources = msgspec.convert(plain["sources"], dict[str, _Source], dec_hook=_as_deque)
            self._recent = msgspec.convert(plain["recent"], dict[str, Finding])
            kept = {_identity(finding): finding for finding in self._recent.values()}
            found = msgspec.convert(plain["findings"], list[Finding])
            self.findings = deque((kept.get(_identity(one), one) for one in found), maxlen=MAX_FINDINGS)
        except (KeyError, msgspec.ValidationError) as error:
            raise DetectorError(f"state of log_window is damaged: {error}") from error
        self._now_s, self._shown, self._ended_s = plain["now_s"], 0, float(plain.get("ended_s", -1.0))

    # -- reading ---------------------------------------------------------------------------------------------

    def _read(self, line: LogLine) -> None:
        self._now_s = max(self._now_s, line.time_s)
        key = f"{line.node}/{line.source}"
        speaker = f"{key}/{line.rank}"  # one file may hold the lines of all ranks
        source = self._sources.get(speaker)
        if source is None:
            if len(self._sources) >= MAX_SOURCES:
                del self._sources[next(iter(self._sources))]
            source = self._sources[speaker] = _Source(line.node, line.rank, line.time_s)
        source.lines.append((line.time_s, line.count, _DIGITS.sub("0", line.line[:200])))
        rule = self._rules.match(line.line)
        if rule is None or rule.role == "benign":
            return
        if rule.id in ENDED:
            self._ended_s = line.time_s
        if rule.role != "phase" and rule.kind != "slow_link":  # how the network is chosen is said once a channel
            source.errors.append((line.time_s, line.count))
            source.sample = line.line[:200]
        if rule.id != "generic.error":
            self._note(rule, line, key)

    def _note(self, rule: LogRule, line: LogLine, key: str) -> None:
        kind, severity, class_, role = rule.kind, rule.severity, rule.class_, rule.role
        if rule.id == "nvidia.xid":
            found = _XID.search(line.line)
            xid = self._xids.get(int(found.group(2))) if found else None
            if xid is None or not xid.device_at_fault:
                role = "app"
                class_ = "A" if xid is not None and xid.class_ == "APP" else "H"
            if xid is not None:
                kind, severity = xid.kind, xid.severity
        if role == "root" and class_ == "A" and 0.0 <= line.time_s - self._ended_s <= self._config.same_finding_s:
            role = "cascade"  # what the scheduler ends dies in many ways
        known = self._recent.get(f"{rule.id}/{key}")
        if known is not None and line.time_s - known.last_s <= self._config.same_finding_s:
            known.count += line.count
            known.last_s = max(known.last_s, line.time_s)
            if len(known.line_numbers) < MAX_LINE_NUMBERS:
                known.line_numbers.append(line.end)
            return
        finding = Finding(
            rule=rule.id, class_=class_, role=role, kind=kind, severity=severity, node=line.node, source=line.source,
            rank=line.rank, time_s=line.time_s, last_s=line.time_s, line=line.line[:300], count=line.count,
            line_numbers=[line.end],
        )  # fmt: skip
        self._recent[f"{rule.id}/{key}"] = finding
        self.findings.append(finding)

    # -- judging ---------------------------------------------------------------------------------------------

    def _judge_findings(self, window: Window) -> None:
        """Tell root-class lines; an application's own error only once its rank has failed to move on."""
        column_of = {int(rank): column for column, rank in enumerate(window.ranks)} if self._recent else {}
        for key, finding in list(self._recent.items()):
            if self._now_s - finding.last_s > max(self._config.same_finding_s, self._config.told_s):
                del self._recent[key]
                continue
            if finding.told or finding.dropped or finding.role != "root" or finding.kind is None:
                continue
            if finding.class_ in {"H", "N", "S"}:
                finding.told = True
            elif window.last or self._now_s - finding.time_s >= self._config.survive_s:
                column = column_of.get(finding.rank) if finding.rank is not None else None
                moved_on = _moved_on(window, column, finding.time_s)
                # What nothing has gone on after when the recording ends was the last word.
                finding.told, finding.dropped = moved_on is False or window.last, moved_on is True

    def _judge_storms(self) -> None:
        config = self._config
        bursting = []
        for source in self._sources.values():
            errors = _within(source.errors, self._now_s - config.window_s)
            lines = _within(source.lines, self._now_s - config.window_s)
            if source.storm_s is not None:
                over = errors < max(config.storm_lines, config.storm_factor * source.norm) / 2
                if over and lines < max(config.same_lines, config.same_factor * source.busiest) / 2:
                    source.storm_s = None
                continue
            if errors >= config.storm_lines and errors > config.storm_factor * source.norm:
                source.storm_s = source.errors[0][0]
                continue
            old_enough = self._now_s - source.first_s > config.settle_s
            if old_enough and lines >= config.same_lines and lines > config.same_factor * source.busiest:
                bursting.append(source)
                continue
            source.norm += 0.02 * (errors - source.norm)  # a minute or so of half-second windows
            source.norm = max(source.norm, float(errors) if not old_enough else 0.0)
            source.busiest = max(source.busiest, lines)
        talking = sum(source.rank is not None for source in self._sources.values())
        for source in bursting:
            alike = _most_common(source)
            # When everybody talks, that is the program's way; one that talks alone is the storm.
            if alike[0] >= 0.5 * config.same_lines and (talking < 2 or len(bursting) <= max(1, talking // 2)):
                source.storm_s, source.sample = source.lines[0][0], alike[1]

    def _groups(self) -> list[tuple[IncidentKind, list[Finding], list[_Source]]]:
        groups: dict[IncidentKind, list[Finding]] = {}
        for finding in self._recent.values():
            if finding.told and finding.kind and self._now_s - finding.last_s <= self._config.told_s:
                groups.setdefault(finding.kind, []).append(finding)
        out: list[tuple[IncidentKind, list[Finding], list[_Source]]] = [
            (kind, sorted(found, key=lambda one: one.time_s), []) for kind, found in groups.items()
        ]
        out.sort(key=lambda group: min(finding.severity for finding in group[1]))
        storms = [source for source in self._sources.values() if source.storm_s is not None]
        return [*out, ("log_storm", [], storms)] if storms else out

    def _storm_vote(self, storms: list[_Source]) -> Vote:
        storms = sorted(storms, key=lambda source: source.storm_s or 0.0)
        suspects = tuple(
            Suspect(score=1.0, reason=f"logs far more than it normally does: {source.sample[:120]}", rank=source.rank,
                    node=source.node)
            for source in storms[:MAX_SUSPECTS]
        )  # fmt: skip
        first = storms[0]
        number = max(sum(count for _, count in first.errors), sum(count for _, count, _ in first.lines) // 10)
        excess = number / self._config.storm_lines
        who = f"rank {first.rank}" if first.rank is not None else f"a log of {first.node}"
        return Vote(
            opinion="anomalous", score=excess / (1.0 + excess), kind="log_storm", severity="sev3", suspects=suspects,
            reason=f"{who} logs far more than it normally does: {first.sample[:120]}", onset_s=first.storm_s,
        )  # fmt: skip

    def _calm_score(self) -> float:
        worst = max((sum(n for _, n in source.errors) for source in self._sources.values()), default=0)
        excess = worst / self._config.storm_lines
        return min(0.499, excess / (1.0 + excess))


def _finding_vote(kind: IncidentKind, findings: list[Finding]) -> Vote:
    first = findings[0]
    suspects = tuple(
        Suspect(score=1.0 if place == 0 else 0.5, reason=finding.line[:200], rank=finding.rank, node=finding.node)
        for place, finding in enumerate(findings[:MAX_SUSPECTS])
    )
    who = f"rank {first.rank}" if first.rank is not None else first.node
    return Vote(
        opinion="anomalous", score=0.95, reason=f"{who} logged ({first.rule}): {first.line[:200]}", kind=kind,
        severity=min(finding.severity for finding in findings), suspects=suspects, onset_s=first.time_s,
    )  # fmt: skip


def _moved_on(window: Window, column: int | None, since_s: float) -> bool | None:
    """Whether the rank (if it is not known, the job) has gone on well after `since_s`; None if nothing tells yet."""
    late_s = since_s + 0.3
    ranks = slice(None) if column is None else slice(column, column + 1)
    if (np.isfinite(window.duration_s[:, ranks]).any(axis=1) & (window.ends_s > late_s)).any():
        return True
    if column is None:
        return None
    progress_s = float(window.beats.progress_s[column])
    if bool(window.live[column]) and progress_s > late_s:
        return True
    return False if np.isfinite(progress_s) else None


def _identity(finding: Finding) -> tuple[str, str, str, float]:
    return (finding.rule, finding.node, finding.source, finding.time_s)


def _as_deque(kind: type, value: Any) -> Any:
    return deque(tuple(entry) for entry in value)


def _within(entries: deque[Any], since_s: float) -> int:
    """Drop what is older than `since_s`; the number of lines that remain."""
    while entries and entries[0][0] < since_s:
        entries.popleft()
    return sum(entry[1] for entry in entries)


def _most_common(source: _Source) -> tuple[int, str]:
    counts: dict[str, int] = {}
    for _, count, template in source.lines:
        counts[template] = counts.get(template, 0) + count
    template = max(counts, key=lambda one: counts[one])
    return counts[template], template
