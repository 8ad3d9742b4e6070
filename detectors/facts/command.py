"""The end of the command that started a job, as whoever ran it reports: without a hook it is all that is known."""

from __future__ import annotations

import re
import signal
from typing import Final

import msgspec

from trainwarden.detectors.facts.exceptions import exception_rule, interrupts
from trainwarden.detectors.facts.output import NEAR_S, Output, Raised
from trainwarden.detectors.logs.rules import LogRule, LogRules
from trainwarden.records import EventRecord

LIFE: Final = "command"
HOLD_S: Final = 0.6  # agents read output, ends of ranks and this fact every 0.2 to 0.4 s, in any order
_BY_SIGNAL: Final = 128  # a shell's exit code for a command ended by signal n is 128 + n
NOT_FOUND: Final = frozenset({126, 127})  # POSIX shells: a command that may not be run, or is not there
_STOPS: Final = frozenset({1, 2, 15})  # SIGHUP, SIGINT, SIGTERM
_STOPPED: Final = frozenset({"slurm.time_limit", "slurm.cancelled", "user.signal"})
# One Python that runs a script, not a launcher as a module.
_SCRIPT: Final = re.compile(
    r"(?:\S{0,400}/)?python[0-9.]{0,6}(?: -[A-Zbdiqsuvx]{1,8}){0,8} [^\s-]\S{0,400}\.py(?:\s|$)"
)
_SIGNALS: Final = {number.value: number.name for number in signal.Signals}


class Ended(msgspec.Struct, frozen=True):
    """An end that was no good one, nor asked for."""

    code: int
    time_s: float
    seen_s: float
    node: str

    @property
    def signal(self) -> int | None:
        """The number of the signal that ended the command; None if it ended by itself."""
        number = -self.code if self.code < 0 else self.code - _BY_SIGNAL
        return number if number in _SIGNALS else None

    @property
    def how(self) -> str:
        """In words.

        Examples
        --------
        >>> Ended(3, 0.0, 0.0, "n").how, Ended(137, 0.0, 0.0, "n").how
        ('the command ended with exit code 3', 'the command was killed by SIGKILL')
        """
        number = self.signal
        return f"the command ended with exit code {self.code}" if number is None else (
            f"the command was killed by {_SIGNALS[number]}"
        )  # fmt: skip


class CommandEnd:
    """How the command of a job's present life has ended.

    Examples
    --------
    >>> end = CommandEnd()
    >>> end.apply(EventRecord(id="e", job="j", node="n", time_s=5.0, kind="job_end", fields={"exit_code": 1}), 5.0)
    >>> end.failed(5.1, Output(), LogRules()) is None, end.failed(6.0, Output(), LogRules()).code
    (True, 1)
    """

    def __init__(self) -> None:
        self._ended: Ended | None = None
        self.runs_script = False
        """Whether the command is one Python process that runs a script, so that it is rank 0 where it has no peers."""
        self.has_ended_on_purpose = False
        """Whether the command has ended well, or because somebody stopped it."""

    def apply(self, event: EventRecord, now_s: float) -> None:
        """Apply an event of the job's."""
        code = event.fields.get("exit_code")
        if event.kind in {"job_start", "restart"}:
            self._ended, self.has_ended_on_purpose = None, False
            if "command" in event.fields:
                self.runs_script = _SCRIPT.match(str(event.fields["command"])) is not None
        elif event.kind == "job_end" and isinstance(code, int):
            ended = Ended(code, event.time_s, now_s, event.node)
            self.has_ended_on_purpose = not code or bool(event.fields.get("interrupted")) or ended.signal in _STOPS
            self._ended = None if self.has_ended_on_purpose else ended

    def failed(self, now_s: float, output: Output, rules: LogRules) -> Ended | None:
        """The end, once what came with it has been read; None if there is none, or a scheduler or a person asked."""
        ended = self._ended
        if ended is None or now_s - ended.seen_s < HOLD_S:
            return None
        # Who fails first is ended by srun in the scheduler's words; who is told of after them was stopped.
        word = output.word(ended.time_s)
        said = (rules.match(text) for text in (output.tails() if word is None else word.before))
        return None if any(rule is not None and rule.id in _STOPPED for rule in said) else ended


def cause_of(ended: Ended, output: Output, rules: LogRules) -> EventRecord | None:
    """The exception that ended the command, of those that were printed; None if there was none.

    The newest that names its own cause; that of the rank which torchrun calls the root goes before others.
    """
    found = output.raised(since_s=ended.time_s - NEAR_S)
    word = output.word(ended.time_s)
    root = word.rank if word is not None else None
    of_root = [one for one in found if one.rank is not None and one.rank == root]
    events = [exception_event(one, ended.node, LIFE, root) for one in (*of_root, *found)]
    known = [one for one in events if not interrupts(one)]
    named = [
        one for one in known if (rule := exception_rule(rules, one)) is None or rule.role not in {"cascade", "phase"}
    ]
    return next(iter(named or known), None)


def exception_event(raised: Raised, node: str, incarnation: str, rank: int | None) -> EventRecord:
    """What a hook would have told of `raised`; `rank` is whose it is where its line does not name one."""
    whose = raised.rank if raised.rank is not None else rank
    return EventRecord(
        id=f"output/{raised.node}/{whose}/{raised.time_s!r}", job="", node=node, time_s=raised.time_s, kind="exception",
        rank=whose, message=raised.text, fields={"incarnation": incarnation, "frame": raised.frame},
    )  # fmt: skip


def last_cause(rules: LogRules, lines: list[str]) -> tuple[str, LogRule] | None:
    """The last of `lines` that names a cause, and the rule that says which."""
    for text in reversed(lines):
        rule = rules.match(text)
        if rule is not None and rule.role == "root" and rule.kind is not None:
            return text, rule
    return None
