"""Lines of a node's kernel and scheduler about other jobs than the recorded one: of that they say nothing."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from trainwarden.recorded.job import LogTable
from trainwarden.recorded.stored_lines import stored

MOST_JOBS: Final = 1_024  # that the lines of one node name
_BLOCK: Final = 400  # lines that the kernel writes at most between the call of its killer and what it killed
_FEWEST_USER: Final = 1000  # smaller numbers are the system's own users (UID_MIN of login.defs)


class _Scheduler(NamedTuple):
    """How a job's own output names it, and how the node's lines name a job."""

    own: re.Pattern[str]
    said: re.Pattern[str]


# Bounded repeats, none inside another: linear time.
_SCHEDULERS: Final = (
    _Scheduler(
        re.compile(
            r"\bSLURM_(?:ARRAY_)?JOB_?ID['\"]?\s{0,3}[=:]\s{0,3}['\"]?([0-9]{1,10})\b"
            r"|^(?:srun|salloc): (?:job|Granted job allocation) ([0-9]{1,10})\b"
            r"|^\s{0,4}JobId=([0-9]{1,10}) JobName="
        ),
        # slurmstepd begins with its step in brackets; a kernel's time there has six digits behind the point.
        re.compile(
            r"(?:\b(?:StepId|JobId|jobid)=|/job_)([0-9]{1,10})(?=[\]_.+\s,/]|$)"
            r"|(?:^|\] )\[([0-9]{1,10})\.(?:[0-9]{1,4}|batch|extern|interactive)\]"
        ),
    ),
    _Scheduler(
        re.compile(r"\bPBS_JOBID['\"]?\s{0,3}[=:]\s{0,3}['\"]?([0-9]{1,10})\b"),
        re.compile(r"(?:/jobid/|/pbs_jobs\.service/\w{0,20}/?|\bJob;)([0-9]{1,10})\."),
    ),
    _Scheduler(
        re.compile(r"\bLSB_JOBID['\"]?\s{0,3}[=:]\s{0,3}['\"]?([0-9]{1,10})\b"),
        re.compile(r"/lsf/[A-Za-z0-9_.-]{1,64}/job\.([0-9]{1,10})\."),
    ),
    _Scheduler(
        re.compile(r"\bPOD_UID['\"]?\s{0,3}[=:]\s{0,3}['\"]?([0-9a-f]{8}-[0-9a-f-]{27})\b"),
        re.compile(r"\bpod([0-9a-f]{8}[-_][0-9a-f_-]{27})\b"),
    ),
    _Scheduler(
        re.compile(r"\bSLURM_JOB_UID=([0-9]{4,10})\b|\buid=([0-9]{4,10})\("),  # the last as `id` says it
        re.compile(r"(?:\b(?:UID[:=]|uid=)|/uid_)([0-9]{4,10})\b"),
    ),
)
_NAMED: Final = re.compile(r"(?:^|/)slurm-([0-9]{1,10})\.(?:out|err|log|txt)")
# Who speaks of all jobs of a node: its kernel, its daemons.
_OF_NODE: Final = re.compile(
    r"\bkernel: |\bslurm(?:d|stepd|ctld)(?:\[[0-9]{1,10}\])?: |\bkubelet|oom-kill|\boom_kill|Killed process [0-9]|"
    r"NVRM: |\bpbs_mom\b|\bsbatchd\b|^\[[0-9]{1,10}(?:\.[0-9a-z]{1,8})?\] "
)
_OWN_WORDS: Final = ("JOB", "job", "Job", "POD_UID", "UID", "uid")
_PID: Final = re.compile(r"\bpid[=: ]{1,2}([0-9]{1,10})\b|Killed process ([0-9]{1,10})\b|\bPID: ([0-9]{1,10})\b")
_KILLER: Final = "invoked oom-killer"
_KILLED: Final = ("Killed process ", "oom-kill:")


def without_other_jobs(tables: Sequence[LogTable]) -> tuple[LogTable, ...]:
    """The logs with blanks for what a node says of jobs, users and processes that the logs show to be others'.

    A job's own number is known by its environment, its scheduler's client or the name of its output. Where that is not
    known, or a line names several, every line counts.

    Examples
    --------
    >>> import numpy as np
    >>> def log(file, *lines): return LogTable(file, np.zeros(len(lines)), (None,) * len(lines), (None,) * len(lines), lines)
    >>> kernel = "n1 kernel: oom-kill:constraint=CONSTRAINT_MEMCG,oom_memcg=/slurm/uid_5002/job_70010,pid=7"
    >>> [list(one.lines) for one in without_other_jobs([log("slurm-70001.out", "step 1"), log("syslog", kernel)])]
    [['step 1'], ['']]
    >>> without_other_jobs([log("slurm-70010.out", "step 1"), log("syslog", kernel)])[1].lines[0] == kernel
    True
    """  # noqa: E501
    own = _own(tables)
    if not any(own):
        return tuple(tables)
    return tuple(_without(table, own) for table in tables)


def _own(tables: Sequence[LogTable]) -> tuple[set[str], ...]:
    """By scheduler: how the job is called in its own output."""
    found: tuple[set[str], ...] = tuple(set() for _ in _SCHEDULERS)
    for table in tables:
        if (named := _NAMED.search(table.file)) is not None:
            found[0].add(named[1])
        for line in table.lines:
            if not any(word in line for word in _OWN_WORDS) or _OF_NODE.search(line):
                continue
            for names, scheduler in zip(found, _SCHEDULERS, strict=True):
                names.update(_key(one) for match in scheduler.own.finditer(line) for one in match.groups() if one)
    return found


def _without(table: LogTable, own: tuple[set[str], ...]) -> LogTable:
    others = set(_of_others(table.lines, own))
    if not others:
        return table
    lines = stored("" if place in others else line for place, line in enumerate(table.lines))
    return replace(table, lines=lines)


def _of_others(lines: Sequence[str], own: tuple[set[str], ...]) -> Iterator[int]:
    """Places of the lines about others; of the kernel's killer all that it says until it names whom it killed."""
    pids: set[str] = set()
    called: int | None = None
    for place, line in enumerate(lines):
        if _KILLER in line:
            called = place
        if not _OF_NODE.search(line):
            continue
        processes = {one for match in _PID.finditer(line) for one in match.groups() if one}
        if not (_is_other(line, own) or (processes and processes <= pids)):
            if any(word in line for word in _KILLED):
                called = None
            continue
        if len(pids) < MOST_JOBS:
            pids |= processes
        if called is not None and place - called <= _BLOCK:
            yield from range(called, place)
        called = None
        yield place


def _is_other(line: str, own: tuple[set[str], ...]) -> bool:
    """Whether a line names a job or user, and none that is the recorded job's."""
    for names, scheduler in zip(own, _SCHEDULERS, strict=True):
        found = (one for match in scheduler.said.finditer(line) for one in match.groups() if one) if names else ()
        said = {_key(one) for one in found}
        said = {one for one in said if scheduler is not _SCHEDULERS[-1] or int(one) >= _FEWEST_USER}
        if said:
            return not said & names
    return False


def _key(name: str) -> str:
    return name.replace("_", "-")
