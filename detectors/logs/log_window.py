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

from detectors.job.common_mode import quiet_median
from detectors.job.packed import pack, unpack
from detectors.job.window import LogLine, Window, job_duration_s
from detectors.logs.findings import Consequences, Finding, finding_vote, moved_on
from detectors.logs.rules import LogRule, LogRules, Xid, load_xids, shipped_rules
from detectors.logs.storms import LogStorms, Source, StormConfig
from detectors.protocol import Role
from trainwarden.errors import DetectorError
from trainwarden.records import IncidentKind, Vote

MAX_FINDINGS: Final = 10_000
MAX_LINE_NUMBERS: Final = 100
_TYPICAL_STEPS: Final = 20
ENDED: Final = frozenset({"slurm.time_limit", "slurm.cancelled", "user.signal"})
_OF_PROGRAMS: Final = frozenset({"APP", "FOLLOW", "IGNORE"})  # Xids of one end of a program: a line for each channel
_XID: Final = re.compile(r"Xid \(PCI:([0-9a-fA-F:.]{1,32})\): ([0-9]{1,4})")


class LogWindowConfig(StormConfig, frozen=True, kw_only=True):
    """How many lines are too many, and how long a line counts.

    Attributes
    ----------
    window_s, storm_lines, storm_factor, same_lines, same_factor, settle_s
        See `detectors.logs.storms.StormConfig`.
    survive_s : float
        An application's error is told if its rank has not moved on this long after it; where the rank lives and its
        steps take longer, by its next step.
    survive_steps : float
        So many typical steps a living rank may take to move on.
    unknown_step_s : float
        How long a living rank may take of which no step has ended yet.
    same_finding_s : float
        Copies of one rule from one source within this time are one finding.
    stopped_s : float
        A job of which nothing but logs is known has stopped after so much silence.
    rules : str, optional
        Path of a rules file to use instead of the shipped one.
    """

    survive_s: Annotated[float, msgspec.Meta(ge=0.0)] = 1.0
    survive_steps: Annotated[float, msgspec.Meta(ge=0.0)] = 3.0
    unknown_step_s: Annotated[float, msgspec.Meta(ge=0.0)] = 60.0
    same_finding_s: Annotated[float, msgspec.Meta(ge=0.0)] = 60.0
    told_s: Annotated[float, msgspec.Meta(ge=0.0)] = 10.0
    stopped_s: Annotated[float, msgspec.Meta(gt=0.0)] = 300.0
    rules: str | None = None


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
    role = Role(reads="logs", opens=("any",), weight=0.0, transom=True)

    def __init__(self, config: LogWindowConfig) -> None:
        self._config = config
        self._rules = LogRules(Path(config.rules)) if config.rules else shipped_rules()
        self._xids = load_xids()
        self._storms = LogStorms(config)
        self._consequences = Consequences()
        self._recent: dict[str, Finding] = {}
        self._shown = 0
        self._now_s = 0.0
        self._line_s = 0.0  # newest line
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
        self._consequences.settle(window, self._config.same_finding_s)
        self._storms.judge(self._now_s)

    def score(self, window: Window) -> Vote:
        """The kind of finding whose turn it is."""
        groups = self._groups()
        if not groups:
            return self._last_words(window) or Vote(opinion="normal", score=self._storms.calm_score())
        kind, findings, storms = groups[min(self._shown, len(groups) - 1)]
        return self._storms.vote(storms) if storms else finding_vote(kind, findings)

    def _last_words(self, window: Window) -> Vote | None:
        """The vote on a job that has stopped and left only lines that follow from a failure."""
        near_s = self._config.same_finding_s
        if self._ended_s >= 0.0 and self._ended_s >= self._consequences.last_s - near_s:
            return None  # what the scheduler ends dies in many ways
        return self._consequences.vote(
            window, now_s=self._now_s, line_s=self._line_s, near_s=near_s, stopped_s=self._config.stopped_s
        )

    def state(self) -> bytes:
        """See `detectors.protocol.Detector`."""
        plain: dict[str, Any] = {"recent": self._recent, "now_s": self._now_s, "line_s": self._line_s}
        plain |= {"ended_s": self._ended_s, "consequences": self._consequences, "findings": list(self.findings)}
        return pack("log_window", plain | self._storms.state())

    def restore(self, state: bytes) -> None:
        """See `detectors.protocol.Detector`."""
        plain, _ = unpack("log_window", state)
        try:
            self._storms.restore(plain)
            self._consequences = msgspec.convert(plain.get("consequences", {}), Consequences)
            self._recent = msgspec.convert(plain["recent"], dict[str, Finding])
            kept = {_identity(finding): finding for finding in self._recent.values()}
            found = msgspec.convert(plain["findings"], list[Finding])
            self.findings = deque((kept.get(_identity(one), one) for one in found), maxlen=MAX_FINDINGS)
        except (KeyError, msgspec.ValidationError) as error:
            raise DetectorError(f"state of log_window is damaged: {error}") from error
        self._now_s, self._shown, self._ended_s = plain["now_s"], 0, float(plain.get("ended_s", -1.0))
        self._line_s = float(plain.get("line_s", 0.0))

    # -- reading ---------------------------------------------------------------------------------------------

    def _read(self, line: LogLine) -> None:
        self._now_s = max(self._now_s, line.time_s)
        self._line_s = max(self._line_s, line.time_s)
        rule = self._rules.match(line.line)
        found = _XID.search(line.line) if rule is not None and rule.id == "nvidia.xid" else None
        xid = self._xids.get(int(found.group(2))) if found else None
        followed = self._just_ended(line) or (xid is not None and xid.class_ in _OF_PROGRAMS)
        source = None if followed else self._storms.take(line)
        if rule is None or rule.role == "benign":
            return
        if rule.id in ENDED:
            self._ended_s = line.time_s
        # How the network is chosen is said once a channel.
        if source is not None and rule.role != "phase" and rule.kind != "slow_link":
            source.errors.append((line.time_s, line.count))
            source.sample = line.line[:200]
        if rule.id != "generic.error":
            self._note(rule, xid, line)

    def _just_ended(self, line: LogLine) -> bool:
        """Whether the scheduler has just ended the job: what it ends dies in many ways."""
        return self._ended_s >= 0.0 and 0.0 <= line.time_s - self._ended_s <= self._config.same_finding_s

    def _note(self, rule: LogRule, xid: Xid | None, line: LogLine) -> None:
        kind, severity, class_, role = rule.kind, rule.severity, rule.class_, rule.role
        key = f"{line.node}/{line.source}"
        if rule.id == "nvidia.xid":
            if xid is None or not xid.device_at_fault:
                role = "app"
                class_ = "A" if xid is not None and xid.class_ == "APP" else "H"
            if xid is not None:
                kind, severity = xid.kind, xid.severity
        if role == "root" and class_ == "A" and self._just_ended(line):
            role = "cascade"
        finding = Finding(
            rule=rule.id, class_=class_, role=role, kind=kind, severity=severity, node=line.node, source=line.source,
            rank=line.rank, time_s=line.time_s, last_s=line.time_s, since_s=line.time_s, since_read_s=self._now_s,
            read_s=self._now_s, line=line.line[:300], count=line.count, line_numbers=[line.end],
        )  # fmt: skip
        self._consequences.note(finding, f"{key}/{line.rank}")
        known = self._recent.get(f"{rule.id}/{key}")
        if known is not None and line.time_s - known.last_s <= self._config.same_finding_s:
            known.count += line.count
            known.last_s, known.read_s = max(known.last_s, line.time_s), self._now_s
            if known.dropped:  # what was survived once may be the end the next time
                known.dropped, known.since_s, known.since_read_s = False, line.time_s, self._now_s
            if len(known.line_numbers) < MAX_LINE_NUMBERS:
                known.line_numbers.append(line.end)
            return
        self._recent[f"{rule.id}/{key}"] = finding
        self.findings.append(finding)

    # -- judging ---------------------------------------------------------------------------------------------

    def _judge_findings(self, window: Window) -> None:
        """Tell root-class lines; an application's own error only once its rank has failed to move on."""
        column_of = {int(rank): column for column, rank in enumerate(window.ranks)} if self._recent else {}
        for key, finding in list(self._recent.items()):
            if finding.role == "root" and finding.kind is not None and not (finding.told or finding.dropped):
                self._decide(finding, window, None if finding.rank is None else column_of.get(finding.rank))
                if not (finding.told or finding.dropped):
                    continue
            if self._now_s - finding.news_s > max(self._config.same_finding_s, self._config.told_s):
                del self._recent[key]

    def _decide(self, finding: Finding, window: Window, column: int | None) -> None:
        """Whether to tell `finding`: at once where no program can survive it, else by its rank's next step."""
        outlived = None
        if finding.class_ not in {"H", "N", "S"}:
            outlived = moved_on(window, column, finding.since_s)
            finding.dropped = outlived is True
            waited_s = self._now_s - finding.since_read_s
            if finding.dropped or not (window.last or waited_s >= self._patience_s(window, column)):
                return
        # What nothing has gone on after when the recording ends was the last word.
        if finding.class_ in {"H", "N", "S"} or outlived is False or window.last:
            finding.told, finding.told_at_s = True, self._now_s
        else:
            finding.dropped = self._now_s - finding.read_s > self._config.same_finding_s  # nothing will tell

    def _patience_s(self, window: Window, column: int | None) -> float:
        """How long a rank may take to show that it has survived: until its next step, if it is there to make one."""
        least_s = self._config.survive_s
        if column is None or not window.live[column] or not np.isfinite(window.beats.progress_s[column]):
            return least_s
        typical_s = float(quiet_median(job_duration_s(window, slice(-_TYPICAL_STEPS, None))))
        if not np.isfinite(typical_s):
            return max(least_s, self._config.unknown_step_s)
        return max(least_s, self._config.survive_steps * typical_s)

    def _groups(self) -> list[tuple[IncidentKind, list[Finding], list[Source]]]:
        groups: dict[IncidentKind, list[Finding]] = {}
        for finding in self._recent.values():
            if finding.told and finding.kind and self._now_s - finding.news_s <= self._config.told_s:
                groups.setdefault(finding.kind, []).append(finding)
        out: list[tuple[IncidentKind, list[Finding], list[Source]]] = [
            (kind, sorted(found, key=lambda one: one.time_s), []) for kind, found in groups.items()
        ]
        out.sort(key=lambda group: min(finding.severity for finding in group[1]))
        storms = self._storms.storming()
        return [*out, ("log_storm", [], storms)] if storms else out


def _identity(finding: Finding) -> tuple[str, str, str, float]:
    return (finding.rule, finding.node, finding.source, finding.time_s)
