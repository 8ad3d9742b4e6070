"""Vote: the logs say so. A root-class line, or far more errors from one source than is normal there.

Sliding event-time windows per source (Wu et al., TRANSOM, 2023, section IV-B). Advice text and known noise are skipped,
copies of one finding are one finding, and an application's error line that the rank survives is no anomaly.
"""

from __future__ import annotations

import re
from collections import deque
from pathlib import Path
from typing import Annotated, Final

import msgspec
import numpy as np

from trainwarden.detectors.job.common_mode import quiet_median
from trainwarden.detectors.job.object_codec import WholeMemory
from trainwarden.detectors.job.window import LogLine, Window, job_duration_s
from trainwarden.detectors.logs.complaints import Complaints
from trainwarden.detectors.logs.device_lines import Tasks, as_said, device_of, node_said, of_previous, of_program
from trainwarden.detectors.logs.findings import EVENT_KIND, Consequences, Finding, finding_vote, moved_on, told_finding
from trainwarden.detectors.logs.rules import LogRule, LogRules, shipped_rules
from trainwarden.detectors.logs.storms import LogStorms, Source, StormConfig
from trainwarden.detectors.protocol import Role
from trainwarden.log_text import behind_prefixes
from trainwarden.records import EventRecord, IncidentKind, Vote

_BLOCKED_S: Final = 900.0  # tasks that wait for storage are called blocked every two minutes, ten times at most
MAX_FINDINGS: Final = 10_000
MAX_LINE_NUMBERS: Final = 100
_TYPICAL_STEPS: Final = 20
_ANY_ERROR: Final = "generic.error"
_BUS: Final = "kernel.pcie_aer"
_HANGS_OF_CARDS: Final = "amdgpu.reset"
_PINGED: Final = "slurm.not_responding"
# What the kernel says as it waits for a server: it counts where steps stop or slow.
_WAITS: Final = re.compile(
    r"nfs: server \S{1,253} not responding, still trying|will wait for recovery to complete"
    r"|CIFS: .{0,80}has not responded in [0-9]{1,6} seconds"
)
_WAITED_S: Final = 300.0  # so long it may still slow steps: data is read ahead
_SLOWED: Final = 2.0  # times the usual step
_KILLED: Final = "Killed process"
_FORERUN_S: Final = 5.0  # so long a bus or card that complains may be the first sign of a device or port that is lost
ENDED: Final = frozenset({"slurm.time_limit", "slurm.cancelled", "user.signal"})
# Each rank says it once as it gives up, in ten lines and more.
_GIVEN_UP: Final = frozenset(
    {"torch.watchdog_timeout", "torch.heartbeat_stuck", "nccl.error_in_watchdog", "process.terminate_called"}
)


class LogWindowConfig(StormConfig, frozen=True, kw_only=True):
    """How many lines are too many, and how long a line counts.

    Attributes
    ----------
    window_s, storm_lines, storm_factor, same_lines, same_factor, settle_s
        See `trainwarden.detectors.logs.storms.StormConfig`.
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


class LogWindow(WholeMemory):
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
    HELD = (Complaints, Consequences, Finding, Source, Tasks)
    NOT_KEPT = ("_rules", "_shown")

    def __init__(self, config: LogWindowConfig) -> None:
        self._config = config
        self._rules = LogRules(Path(config.rules)) if config.rules else shipped_rules()
        self._storms = LogStorms(config)
        self._consequences = Consequences()
        self._recent: dict[str, Finding] = {}
        self._shown = 0
        self._now_s = 0.0
        self._line_s = 0.0  # newest line
        self._complaints = Complaints()
        self._failed_s = float("-inf")  # when something last failed that no program survives
        self._tasks = Tasks()
        self._judged = False  # by all logs of a recording together
        self._only: tuple[int, str] | None = None  # process that ended, where a full disk ended the job
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
        self._tasks.observe(window)
        for line in window.logs:
            self._read(line)
        self._now_s = max(self._now_s, window.end_s)
        for event in window.events:
            if event.kind == EVENT_KIND:
                self._read_last_words(event)
        self._judge_findings(window)
        self._consequences.expire(window, self._config.same_finding_s)
        self._storms.judge(self._now_s)

    def score(self, window: Window) -> Vote:
        """The kind of finding whose turn it is."""
        groups = self._groups()
        if not groups:
            return self._last_words(window) or Vote(opinion="normal", score=self._storms.calm_score())
        kind, findings, storms = groups[min(self._shown, len(groups) - 1)]
        if storms:
            return self._storms.vote(storms)
        vote = finding_vote(kind, findings)
        accused = self._complaints.suspects() if kind == "nic_error" else ()
        if not accused:
            return vote
        reason = f"{accused[0].node}: {accused[0].reason}; {vote.reason}"
        return msgspec.structs.replace(vote, suspects=accused, reason=reason)

    def _restored(self) -> None:
        kept = {_identity(finding): finding for finding in self._recent.values()}
        self.findings = deque((kept.get(_identity(one), one) for one in self.findings), maxlen=MAX_FINDINGS)

    def _last_words(self, window: Window) -> Vote | None:
        """The vote on a job that has stopped and left only lines that follow from a failure."""
        near_s = self._config.same_finding_s
        if self._ended_s >= 0.0 and self._ended_s >= self._consequences.last_s - near_s:
            return None  # what the scheduler ends dies in many ways
        return self._consequences.vote(
            window, now_s=self._now_s, line_s=self._line_s, near_s=near_s, stopped_s=self._config.stopped_s
        )

    # -- reading ---------------------------------------------------------------------------------------------

    def _read(self, line: LogLine) -> None:
        self._now_s = max(self._now_s, line.time_s)
        self._line_s = max(self._line_s, line.time_s)
        self._complaints.read(line)
        self._tasks.read(line.line)
        self._tasks.hear(line.rank, line.node)
        rule = self._rule_of(line)
        followed = self._just_ended(line) or (rule is not None and rule.id == "nvidia.xid" and of_program(line.line))
        source = None if followed else self._storms.observe(line)
        if rule is None or rule.role == "benign":
            return
        if rule.id in ENDED:
            self._ended_s = line.time_s
        # How the network is chosen is said once a channel, a loss that is no number once a step.
        quiet = rule.role == "phase" or rule.kind in {"slow_link", "silent_corruption"} or rule.id in _GIVEN_UP
        if source is not None and not quiet:
            source.errors.append((line.time_s, line.count))
            source.sample = line.line[:200]
        if rule.id != _ANY_ERROR:
            self._note(rule, line)

    def _rule_of(self, line: LogLine) -> LogRule | None:
        """What the line means; an exception is known by how its line begins, behind any launcher's prefix."""
        rule = self._rules.match(line.line)
        if rule is None or rule.id == _ANY_ERROR:
            rest = behind_prefixes(line.line, line.rank)
            if rest != line.line:
                rule = self._rules.match(rest) or rule
        return None if rule is None else as_said(rule, line.line)

    def _just_ended(self, line: LogLine) -> bool:
        """Whether the scheduler has just ended the job: what it ends dies in many ways."""
        return self._ended_s >= 0.0 and 0.0 <= line.time_s - self._ended_s <= self._config.same_finding_s

    def _note(self, rule: LogRule, line: LogLine) -> None:
        kind, severity, class_, role = rule.kind, rule.severity, rule.class_, rule.role
        node, rank = self._whose(rule, line)
        key = f"{node}/{line.source}"
        device = device_of(line.line) if class_ in {"H", "N"} or rule.id == "kernel.storage" else None
        if rule.id == "nvidia.xid" and of_previous(line.line):
            device = rank = None
        if role == "root" and ((class_ == "A" and self._just_ended(line)) or self._of_own_port(rule, line)):
            role = "cascade"
        finding = Finding(
            rule=rule.id, class_=class_, role=role, kind=kind, severity=severity, node=node, source=line.source,
            rank=rank, time_s=line.time_s, last_s=line.time_s, since_s=line.time_s, since_read_s=self._now_s,
            read_s=self._now_s, line=line.line[:300], count=line.count, line_numbers=[line.end], device=device,
        )  # fmt: skip
        self._consequences.note(finding, f"{line.node}/{line.source}/{line.rank}")
        if kind == "nic_error" and role == "root":
            self._complaints.complain(line.node, line.line)
        # Each device has findings of its own, and what is grave is no copy of what is not.
        of_kind = f"{rule.id}/{key}/{device}/{role}/{kind}" if device else f"{rule.id}/{key}"
        of_kind += "/waits" if _WAITS.search(line.line) else ""
        lost = (one for one in self._recent.values() if finding.rule == _BUS and _lost_beside(one, finding))
        known = next(lost, None) or self._recent.get(of_kind) or self._of_same_device(finding) or self._of_card(finding)
        if known is not None and line.time_s - known.last_s <= self._config.same_finding_s:
            known.count += line.count
            known.last_s, known.read_s = max(known.last_s, line.time_s), self._now_s
            if known.dropped:  # what was survived once may be the end the next time
                known.dropped, known.since_s, known.since_read_s = False, line.time_s, self._now_s
            if len(known.line_numbers) < MAX_LINE_NUMBERS:
                known.line_numbers.append(line.end)
            if _names_killed(finding, known):
                known.line, known.rank = finding.line, finding.rank
            return
        self._take_over(finding)
        self._recent[of_kind] = finding
        self.findings.append(finding)

    def _of_own_port(self, rule: LogRule, line: LogLine) -> bool:
        """Whether a host complains of a peer while a port of its own has just been lost: one cause."""
        return rule.id == "nccl.ib_retry_exceeded" and any(
            one.kind == "nic_down" and one.node == line.node and one.role == "root"
            and abs(line.time_s - one.last_s) <= self._config.same_finding_s
            for one in self._recent.values()
        )  # fmt: skip

    def _whose(self, rule: LogRule, line: LogLine) -> tuple[str, int | None]:
        """Node and rank that the line tells of: a scheduler's word counts more than where it was read."""
        if rule.role != "root" or rule.class_ == "A":
            return line.node, line.rank
        rank = line.rank if line.rank is not None else self._tasks.rank_of(line.line)
        return node_said(line.line) or line.node, rank

    def _of_same_device(self, finding: Finding) -> Finding | None:
        """The fault of the same device that `finding` is a further line of, and no graver one.

        A driver says the cause first, then what has to be done (Xid 154) and what else failed by it.
        """
        if finding.device is None or finding.role != "root" or finding.class_ != "H":
            return None
        same = (
            one
            for one in self._recent.values()
            if one.device == finding.device and one.node == finding.node and one.role == "root" and one.class_ == "H"
        )
        return next((one for one in same if one.severity <= finding.severity), None)

    def _of_card(self, finding: Finding) -> Finding | None:
        """The fault of the only AMD device that complains, where its runtime says of no device that it hangs."""
        if finding.rule != _HANGS_OF_CARDS or finding.device is not None:
            return None
        cards = [
            one for one in self._recent.values()
            if one.rule.startswith("amdgpu.") and one.device is not None and one.class_ == "H" and one.role == "root"
            and (not one.node or not finding.node or one.node == finding.node)
        ]  # fmt: skip
        return cards[0] if len({(one.node, one.device) for one in cards}) == 1 else None

    def _take_over(self, finding: Finding) -> None:
        """A lost GPU is why its bus complained, and a lost port why its card did, if that is not reported yet."""
        for one in self._recent.values():
            bus = one.rule == _BUS and _lost_beside(finding, one)
            if (bus or _port_of(finding, one)) and not one.told:
                one.dropped = finding.time_s - one.last_s <= self._config.same_finding_s

    def _read_last_words(self, event: EventRecord) -> None:
        """What all logs of a recording together say of its end: it counts instead of the lines of programs."""
        self._judged = True
        if "kind" in event.fields:
            self._recent[f"{EVENT_KIND}/{event.id}"] = told_finding(event, self._now_s)
        elif event.rank is not None:
            self._only = event.rank, event.node

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
        if finding.rule == _PINGED and self._steps_on(window):
            finding.dropped = moved_on(window, None, finding.since_s) is True
            return
        if _WAITS.search(finding.line) and self._steps_on(window) and not self._slowed(window, finding.since_s):
            finding.dropped = self._now_s - finding.last_s > _WAITED_S
            return
        early = finding.rule == _BUS or (finding.kind == "nic_error" and finding.severity == "sev3")
        if early and not window.last and self._now_s - finding.since_read_s < _FORERUN_S:
            return
        at_once = finding.class_ in {"H", "N", "S"} and finding.kind != "host_contention"  # a stalled kernel goes on
        if not at_once:
            # What hangs in the kernel waits for what has failed, if that is known.
            waits = finding.kind == "host_contention" and finding.time_s - self._failed_s <= _BLOCKED_S
            if self._judged or waits:
                finding.dropped = True
                return
            outlived = moved_on(window, column, finding.since_s)
            finding.dropped = outlived is True
            waited_s = self._now_s - finding.since_read_s
            if finding.dropped or not (window.last or waited_s >= self._patience_s(window, column)):
                return
        # What nothing has gone on after when the recording ends was the last word.
        if at_once or outlived is False or window.last:
            finding.told, finding.told_at_s = True, self._now_s
            self._failed_s = max(self._failed_s, finding.last_s) if at_once else self._failed_s
        else:
            finding.dropped = self._now_s - finding.read_s > self._config.same_finding_s  # nothing will tell

    def _steps_on(self, window: Window) -> bool:
        """Whether the job's newest step has just ended, or no longer ago than the next ones may take."""
        ends_s = window.own_end_s[np.isfinite(window.own_end_s)]
        typical_s = float(quiet_median(job_duration_s(window, slice(-_TYPICAL_STEPS, None))))
        patience_s = max(self._config.unknown_step_s, self._config.survive_steps * typical_s)
        return bool(ends_s.size) and self._now_s - float(ends_s.max()) <= patience_s

    def _slowed(self, window: Window, since_s: float) -> bool:
        """Whether a step that ended after `since_s` took far longer than those before it."""
        last = slice(-_TYPICAL_STEPS, None)
        durations_s, later = job_duration_s(window, last), window.ends_s[last] > since_s
        usual_s = float(quiet_median(durations_s[~later]))
        return bool((durations_s[later] > _SLOWED * usual_s).any())

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
            if self._only and finding.kind == "storage" and finding.rank is None:  # no line says whose it is
                finding.rank, finding.node = self._only[0], self._only[1] or finding.node
            if finding.told and finding.kind and self._now_s - finding.news_s <= self._config.told_s:
                groups.setdefault(finding.kind, []).append(finding)
        out: list[tuple[IncidentKind, list[Finding], list[Source]]] = [
            (kind, sorted(found, key=lambda one: one.time_s), []) for kind, found in groups.items()
        ]
        out.sort(key=lambda group: min(finding.severity for finding in group[1]))
        storms = self._storms.storming()
        return [*out, ("log_storm", [], storms)] if storms else out


def _lost_beside(gpu: Finding, bus: Finding) -> bool:
    """Whether `gpu` tells of a device that is lost on the node of whose bus `bus` tells."""
    return gpu.kind == "gpu_lost" and gpu.class_ == "H" and gpu.role == "root" and gpu.node == bus.node


def _names_killed(finding: Finding, known: Finding) -> bool:
    """Whether `finding` says which process has been killed for its memory, of which `known` does not."""
    words = finding.rule == "kernel.oom" == known.rule and _KILLED in finding.line and _KILLED not in known.line
    return words and known.rank in {None, finding.rank}


def _port_of(port: Finding, card: Finding) -> bool:
    """Whether `port` tells of a lost port of the device that `card` complains of: one cable, one incident."""
    of_one = card.device is not None and port.device == card.device and port.node == card.node
    return of_one and port.kind == "nic_down" and port.role == "root" and card.kind == "nic_error"


def _identity(finding: Finding) -> tuple[str, str, str, float]:
    return (finding.rule, finding.node, finding.source, finding.time_s)
