"""Processes that failed: which of them is the root, and which only followed.

When one rank of a synchronous job dies, all others die within a second or so of broken connections, and the launcher
ends what is left. The first failure that names its own cause is the root; the others are its cascade. What looks like
a cascade waits a moment for its root; if none comes, it is told all the same, and corrected when the root arrives.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec
import numpy as np

from trainwarden.detectors.facts.command import (
    LIFE,
    NOT_FOUND,
    CommandEnd,
    Ended,
    cause_of,
    exception_event,
    last_cause,
)
from trainwarden.detectors.facts.exceptions import exception_rule, full_disk, interrupts, nearest_cause, text_of
from trainwarden.detectors.facts.failure import Failure, Role, one_was_killed
from trainwarden.detectors.facts.given_up import GivenUp
from trainwarden.detectors.facts.output import NEAR_S, Output
from trainwarden.detectors.job.window import Window
from trainwarden.detectors.logs.device_lines import node_said
from trainwarden.detectors.logs.rules import LogRules
from trainwarden.detectors.protocol import WENT_ON, abstain
from trainwarden.records import EventRecord, IncidentKind, Severity, Suspect, Vote

STOP_SIGNALS: Final = frozenset({"SIGTERM", "SIGINT", "SIGHUP"})
ABORTS: Final = frozenset({"SIGABRT", -6, 134})
UNKNOWN_HOLD_S: Final = 1.5  # the end of the command tells whether it was stopped, or ended well
ABORT_HOLD_S: Final = 0.5  # its log may tell that it only waited: agents read both within a fifth of a second
MAX_SUSPECTS: Final = 16


class Failures:
    """Failed processes of the present life of a job.

    Parameters
    ----------
    root_patience_s : float
        How long a cascade waits for the failure that caused it.
    words_patience_s : float
        How long a plain exit code waits for the exception that it may follow from.
    outlived_s : float
        A failure is over once the job has finished a step this long after it.
    rules : LogRules
        How the text of an exception is understood.
    """

    NOT_KEPT = ("_root_patience_s", "_words_patience_s", "_outlived_s", "_rules")

    def __init__(self, *, root_patience_s: float, words_patience_s: float, outlived_s: float, rules: LogRules) -> None:
        self._root_patience_s = root_patience_s
        self._words_patience_s = words_patience_s
        self._outlived_s = outlived_s
        self._rules = rules
        self._failures: dict[str, Failure] = {}
        self._given_up = GivenUp()
        self._output, self._command = Output(), CommandEnd()
        self._restarting = False
        self._planned_from_s, self._planned_until_s = float("inf"), float("inf")

    def __bool__(self) -> bool:
        return bool(self._failures)

    @property
    def restarting(self) -> bool:
        """True while the launcher restarts the job."""
        return self._restarting

    def apply(self, event: EventRecord, window: Window) -> None:
        """Apply an event about a process, or about the command as a whole; others are left alone."""
        self._command.apply(event, window.now_s)
        if event.kind == "restart":
            self._take_restart(event)
        elif event.kind in {"job_start", "process_start"}:
            # A launcher starts new processes when the old ones are gone: what failed before is over.
            # One that takes the place of a rank alone has yet to join the others.
            alone = event.kind == "process_start" and self._waits_for(event.rank)
            self._forget_before(event.time_s, alone=alone)
        elif event.kind == "transition":
            for one in self._failures.values():
                one.survive(event)
        elif event.kind == "fatal_signal":
            signal = str(event.fields.get("signal", "a fatal signal"))
            self._fail(event, window, "root", f"{_who(event)} died of {signal}")
        elif self._was_planned(event) or event.fields.get("excused"):
            return
        if isinstance(began_s := event.fields.get("began_s"), int | float):  # of a process that has never trained
            self._forget_before(began_s)
        if event.kind == "process_exit":
            self._apply_exit(event, window)
        elif event.kind == "exception":
            self._apply_exception(event, window)

    def update(self, window: Window) -> None:
        """Forget failures that the job has outlived, and a restart whose end nobody told; see who only waited."""
        self._failures = {life: one for life, one in self._failures.items() if not self._is_over(one, window)}
        self._given_up.observe(window.logs)
        self._given_up.explain(self._failures.values())
        self._output.tasks.observe(window)
        self._output.read(window.logs)
        self._find_words(window)
        self._end_of_command(window)
        if self._restarting and window.phase != "restart":
            self._restarting, self._planned_until_s = False, window.end_s
        if self._failures and len(window.ends_s):
            newest_s = max(failure.time_s for failure in self._failures.values())
            if float(window.ends_s[-1]) > newest_s + self._outlived_s:
                self._failures = {life: one for life, one in self._failures.items() if one.waits}

    def vote(self, window: Window) -> Vote:
        """The failure to be told now, or why none is."""
        told = self._reported(window.now_s)
        if not told:
            waiting = sum(failure.role == "cascade" for failure in self._failures.values())
            if waiting:
                return abstain("waiting for the failure that others follow from")
            return Vote(opinion="normal", reason="ended from outside")
        first = told[0]
        for one in told:
            one.reported = True
        certain = first.role != "cascade"
        suspects = tuple(
            Suspect(
                score=(1.0 if place == 0 else 0.5) * (1.0 if certain else 0.3), reason=failure.reason,
                rank=failure.rank, node=failure.node,
            )
            for place, failure in enumerate(told[:MAX_SUSPECTS])
            if not failure.waited
        )  # fmt: skip
        others = sum(failure.role == "cascade" for failure in self._failures.values()) - (not certain)
        reason = first.reason + (f"; {others} other{'s' if others > 1 else ''} followed" if others > 0 else "")
        return Vote(
            opinion="anomalous",
            score=1.0 if certain else 0.7,
            reason=reason,
            kind=first.kind,
            severity=first.severity,
            suspects=suspects,
            onset_s=first.time_s,
            onset_step=first.step,
            at_step=first.step,
            hard=True,
            evidence=self._evidence(first),
        )

    # -- internals -------------------------------------------------------------------------------------------

    def _evidence(self, first: Failure) -> dict[str, Any]:
        lines, went_on_s = self._output.tail(first.rank), [one.went_on_s for one in self._failures.values()]
        known_s = [one_s for one_s in went_on_s if one_s is not None]
        went_on = {WENT_ON: max(known_s)} if known_s and len(known_s) == len(went_on_s) else {}
        return {**first.transition, **went_on, **({"output": lines} if lines else {})}

    def _find_words(self, window: Window) -> None:
        """Give each plain exit code the exception that its rank has printed, where no hook has told of it."""
        for life, failure in list(self._failures.items()):
            if not failure.bare or failure.spoken or window.now_s - failure.seen_s < failure.hold_s:
                continue
            found = self._output.raised(since_s=failure.time_s - NEAR_S)
            own = next((one for one in found if failure.rank is not None and one.rank == failure.rank), None)
            if own is not None:
                event = exception_event(own, failure.node, life.removeprefix(f"{failure.node}/"), failure.rank)
                self._apply_exception(event, window)

    def _end_of_command(self, window: Window) -> None:
        """A command that has failed is a failure, also where nothing is known of its ranks; a stopped one is none."""
        if self._command.has_ended_on_purpose:
            self._failures = {life: one for life, one in self._failures.items() if not one.unknown}
        ended = self._command.failed(window.now_s, self._output, self._rules)
        if ended is None or any(one.role != "stop" and not one.of_command for one in self._failures.values()):
            return
        known = self._failures.get(f"{ended.node}/{LIFE}")
        if known is not None and known.spoken:
            return
        cause = cause_of(ended, self._output, self._rules)
        if cause is not None:
            self._apply_exception(self._with_rank(cause, window), window)
        elif known is None:
            self._fail_without_words(ended, window)

    def _with_rank(self, cause: EventRecord, window: Window) -> EventRecord:
        """A process that knows of no others is rank 0."""
        return msgspec.structs.replace(cause, rank=0) if cause.rank is None and self._is_alone(window) else cause

    def _is_alone(self, window: Window) -> bool:
        return not self._output.has_launcher and set(window.ranks.tolist()) <= {0}

    def _fail_without_words(self, ended: Ended, window: Window) -> None:
        stopped = min((one for one in self._failures.values()), key=lambda one: one.time_s, default=None)
        word = self._output.word(ended.time_s) if stopped is None else None
        rank = stopped.rank if stopped is not None else word.rank if word is not None else None
        node = (word.ending.node if word is not None else None) or ended.node
        said = last_cause(self._rules, self._output.tail(rank))
        kind: IncidentKind = "user_error" if ended.code in NOT_FOUND else "crash"
        reason = ended.how if stopped is None else f"{ended.how} after {stopped.reason}"
        reason += f": {word.how}" if word is not None else ""
        if rank is None and self._command.runs_script and self._is_alone(window):
            rank = 0
        event = EventRecord(
            id=LIFE, job=window.job, node=ended.node, time_s=ended.time_s, kind="process_exit", rank=rank,
            fields={"incarnation": LIFE},
        )  # fmt: skip
        if said is None:
            last = next(reversed(self._output.tail(rank)), "") if word is None else ""
            self._fail(event, window, "root", f"{reason}: {last[:200]}" if last else reason, kind=kind)
            self._failures[f"{ended.node}/{LIFE}"].node = node
            return
        text, rule = said
        self._fail(event, window, "root", f"{reason}: {text[:200]}", kind=rule.kind or kind, severity=rule.severity)
        failure = self._failures[f"{ended.node}/{LIFE}"]
        failure.node = node
        if rule.class_ != "A":  # a scheduler or launcher may tell of another node than its own
            failure.node = node_said(text) or failure.node
            if failure.rank is None and not self._output.has_launcher:
                failure.rank = self._output.tasks.rank_of(text)

    def _take_restart(self, event: EventRecord) -> None:
        if event.fields.get("stage") == "done":
            self._planned_until_s = event.time_s
            self._restarting = False
        else:
            self._restarting, self._planned_from_s, self._planned_until_s = True, event.time_s, float("inf")
            self._forget_before(float("inf"))
            self._given_up.forget()

    def _waits_for(self, rank: int | None) -> bool:
        return any(one.waits and one.rank == rank for one in self._failures.values())

    def _is_over(self, failure: Failure, window: Window) -> bool:
        """Whether it has been told that it is over, or its rank has made steps again for a while and nobody says so."""
        if not failure.waits or failure.rank not in window.ranks:
            return failure.over and failure.reported
        made = np.isfinite(window.duration_s[:, window.ranks == failure.rank].ravel())
        again_s = window.ends_s[made & (window.ends_s > failure.time_s + self._outlived_s)]
        return bool(again_s.size) and float(again_s[-1] - again_s[0]) >= self._outlived_s

    def _forget_before(self, time_s: float, *, alone: bool = False) -> None:
        """Forget failures up to then; a root that waited for its words is reported first: a launcher may be quicker.

        Where one process was started `alone`, all that wait are kept.
        """
        for life, one in list(self._failures.items()):
            if alone and one.waits:
                continue
            if one.time_s < time_s and (one.reported or one.role != "root" or one.unknown):
                del self._failures[life]
            elif one.time_s < time_s:
                one.over, one.hold_s = True, 0.0

    def _was_planned(self, event: EventRecord) -> bool:
        """True if the process was ended by a restart that the launcher had announced."""
        return self._planned_from_s <= event.time_s <= self._planned_until_s

    def _apply_exit(self, event: EventRecord, window: Window) -> None:
        self._apply_end(event, window)
        if (one := self._failures.get(_life(event))) is not None and event.fields.get("renewed"):
            one.renewed = True

    def _apply_end(self, event: EventRecord, window: Window) -> None:
        code, signal = event.fields.get("code"), event.fields.get("signal")
        life = _life(event)
        if code == 0 and not signal:
            return
        if self._was_planned(event) or event.fields.get("asked"):  # the launcher ended it itself
            return
        known = self._failures.get(life)
        if signal in STOP_SIGNALS or code in {130, 143}:
            if known is None:
                name = str(signal or f"exit code {code}")
                self._fail(event, window, "stop", f"{_who(event)} was ended by {name}")
            return
        how = f"was killed by {signal}" if signal else f"exited with code {code}" if code is not None else "ended"
        if signal is not None:
            # A process that dies by signal after raising a connection error was ended by someone, or aborted on it.
            role: Role = "cascade" if known is not None and known.role == "cascade" else "root"
            if role == "root" and self._after_failure(event):
                role = "cascade"
            self._fail(event, window, role, f"{_who(event)} {how}")
        elif known is None:
            # An exit code without an exception seen: the exception may still be on its way.
            role = "cascade" if self._after_failure(event) else "root"
            self._fail(event, window, role, f"{_who(event)} {how}")

    def _after_failure(self, event: EventRecord) -> bool:
        """True if another process had failed of its own cause before."""
        life = _life(event)
        return any(
            other.role == "root" and key != life and other.time_s < event.time_s - 0.005
            for key, other in self._failures.items()
        )

    def _apply_exception(self, event: EventRecord, window: Window) -> None:
        text, rule = text_of(event), exception_rule(self._rules, event)
        if interrupts(event) or (rule and rule.role == "phase"):
            self._fail(event, window, "stop", f"{_who(event)} was interrupted")
            return
        frame = event.fields.get("frame")
        reason = f"{_who(event)} raised {text[:200]}" + (f" at {frame}" if frame else "")
        if cause := nearest_cause(event):
            reason += f", from {cause[:120]}"
        if full := full_disk(event):
            reason += f"; {full}"
        if rule is not None and rule.role == "cascade":
            self._fail(event, window, "cascade", reason, kind=rule.kind or "crash")
            return
        kind: IncidentKind = "exception"
        if rule is not None and rule.role == "root" and rule.kind is not None and rule.kind != "crash":
            kind = rule.kind
        severity: Severity = rule.severity if rule is not None and rule.class_ in {"H", "N"} else "sev2"
        self._fail(event, window, "root", reason, kind=kind, severity=severity)

    def _fail(
        self,
        event: EventRecord,
        window: Window,
        role: Role,
        reason: str,
        *,
        kind: IncidentKind = "crash",
        severity: Severity = "sev2",
    ) -> None:
        known = self._failures.get(_life(event))
        spoken = event.kind == "exception" and known is not None and not known.spoken
        if known is not None and known.role == "root" and not spoken:
            return  # the exit that follows an exception says nothing new
        step = _step_of(event, window)
        reason += ", before its first step" if event.fields.get("untrained") else ""
        bare = event.kind == "process_exit" and role == "root" and not event.fields.get("signal")
        unknown = bare and event.fields.get("code") is None and _life(event) != f"{event.node}/{LIFE}"
        aborted = not ABORTS.isdisjoint((event.fields.get("signal"), event.fields.get("code")))
        failure = self._failures[_life(event)] = Failure(
            rank=event.rank,
            node=event.node,
            time_s=event.time_s if known is None else min(event.time_s, known.time_s),
            seen_s=window.now_s,
            role=role,
            kind=kind,
            severity=severity,
            reason=reason,
            step=step,
            spoken=event.kind == "exception",
            hold_s=ABORT_HOLD_S if aborted else UNKNOWN_HOLD_S if unknown else self._words_patience_s if bare else 0.0,
            aborted=aborted,
            bare=bare,
            unknown=unknown,
            of_command=_life(event) == f"{event.node}/{LIFE}",
        )
        if known is not None:
            failure.follow(known)

    def _reported(self, window_now_s: float) -> list[Failure]:
        """Failures to be told now, the most likely root first."""
        failures = sorted(self._failures.values(), key=lambda failure: (failure.time_s, failure.rank or 0))
        roots = [failure for failure in failures if failure.role == "root"]
        if roots:
            return [failure for failure in roots if window_now_s - failure.seen_s >= failure.hold_s]
        cascades = [failure for failure in failures if failure.role == "cascade"]
        stops = [failure for failure in failures if failure.role == "stop"]
        if waited := [failure for failure in cascades if failure.waited]:  # whatever the launcher ended then
            return waited[:1] if window_now_s - waited[0].seen_s >= self._root_patience_s else []
        if cascades and stops and one_was_killed(stops, cascades):
            return stops[:1] if window_now_s - stops[0].seen_s >= self._root_patience_s else []
        if stops:  # the user, the scheduler or a launcher's clean-up
            return []
        if cascades and window_now_s - cascades[0].seen_s >= self._root_patience_s:
            return cascades[:1]
        return []


def _who(event: EventRecord) -> str:
    return f"rank {event.rank} on {event.node}" if event.rank is not None else f"a process on {event.node}"


def _life(event: EventRecord) -> str:
    """Identity of the process that an event is about."""
    incarnation = event.fields.get("incarnation") or event.fields.get("pid") or event.id
    return f"{event.node}/{incarnation}"


def _step_of(event: EventRecord, window: Window) -> int | None:
    step = event.fields.get("step")
    if event.fields.get("untrained"):
        return None
    if isinstance(step, int | float):
        return int(step)
    if event.rank is not None:
        for column, rank in enumerate(window.ranks):
            if rank == event.rank and window.beats.step[column] >= 0:
                return int(window.beats.step[column])
    return int(window.steps[-1]) if len(window.steps) else None
