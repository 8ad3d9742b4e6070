"""Which of the three answers `detect` gives about one job, with the reason and the remedy where nothing was judged."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec

from trainwarden.cli.shared.answers import HEALTHY, INCIDENT, NOT_JUDGED, Answer, Blind, worst
from trainwarden.cli.shared.formatting import counted
from trainwarden.formats.unjudged import PLAIN

if TYPE_CHECKING:
    from trainwarden.detectors.logs.unknown_ends import UnknownEnd

MOST_REASONS: Final = 3
_LOG: Final = re.compile(
    r"\.(?:log|out|err)(?:\.[0-9]{1,4})?$|\bslurm-[0-9]"
)  # files that tell of a training themselves
AMOUNTS: Final = ("iterations", "metrics_rows", "log_lines", "collectives", "nodes", "entities", "dumps", "events")
NORMAL: Final = "nothing says what is normal"
_REMEDIES: Final = (
    (NORMAL, "name normal rows (--normal-until T), a normal recording (--normal DIR) or models (--models URI)"),
    ("no iterations", "record iterations (docs/data.md)"),
    ("no metrics", "record metrics (docs/data.md)"),
    ("no log lines", "record logs (docs/data.md)"),
)


def judges(detectors: Mapping[str, Any], abstained: Mapping[str, str], *, facts: bool, lines: bool = True) -> list[str]:
    """The detectors that had something to judge: neither an absent fact nor a clock that ticks is input.

    Parameters
    ----------
    detectors : mapping of str to Detector
    facts : bool
        Whether the recording holds any fact, such as the end of a process.
    lines : bool
        Whether it holds any log line: an empty file is no input.
    """
    found = []
    for name, detector in detectors.items():
        role = detector.role
        idle = (role.reads == "events" and not facts) or (role.reads == "logs" and not lines)
        only_moves = role.reads == "samples" and not role.past  # sees whether values change at all
        if name not in abstained and not idle and not only_moves:
            found.append(name)
    return found


STEPLESS: Final = Blind(
    "ranks were seen, but no training step of them", "record iterations, or let the job run longer (docs/data.md)"
)
WORDLESS: Final = Blind(
    "no line of the log tells of a training step, a loss or a rank's end, nor does a machine speak there",
    "give the training's own log, whole (docs/data.md)",
)
RAS_ONCE: Final = Blind(
    "every rank answers NCCL's RAS service, and counts of calls differ while a job runs as well",
    "give a second answer, some seconds later",
)


def answered(
    job: Mapping[str, Any],
    judged_by: list[str],
    *,
    stepless: bool = False,
    ends: Sequence[UnknownEnd] = (),
    wordless: bool = False,
) -> dict[str, Any]:
    """What is added to a job's object: the answer, who judged, and what was not judged.

    Parameters
    ----------
    ends : sequence of UnknownEnd
        Lines of a failure by which logs end, of which no incident came.
    stepless : bool
        Whether heartbeats of ranks are all that is known of a job's progress: it may hang before its first step.
    wordless : bool
        Whether logs are all that was read, and no line of them is of a training or of a machine.

    Examples
    --------
    >>> job = {"incidents": [], "abstained": {"lof": "nothing says what is normal: give --normal"}}
    >>> answered(job, [])["answer"]
    'not judged'
    """
    blind = [_unknown(one) for one in ends[:MOST_REASONS]]
    blind = blind or ([STEPLESS] if stepless else [WORDLESS] if wordless else [] if judged_by else _blind(job))
    answer: Answer = INCIDENT if job["incidents"] else NOT_JUDGED if blind else HEALTHY
    return {"answer": answer, "judged_by": judged_by, "not_judged": msgspec.to_builtins(blind)}


def answer_of_all(jobs: list[dict[str, Any]]) -> Answer:
    """The answer about all jobs; one that could not be read was not judged."""
    return worst([job.get("answer", NOT_JUDGED) for job in jobs])


def answer_words(job: Mapping[str, Any]) -> str:
    """The answer of a job without an incident, in words."""
    if job.get("answer") == NOT_JUDGED:
        return "NOT JUDGED: " + "; ".join(str(msgspec.convert(one, Blind)) for one in job["not_judged"])
    logs = [one["path"] for one in job.get("judged", {}).get("unread", ()) if _LOG.search(one["path"])]
    but = f"; BUT NOT READ: {', '.join(logs[:3])}" if logs else ""
    by = ", ".join(job.get("judged_by", ())) or "no detector"
    return f"healthy: no incident in {_watched(job['input'])} by {by}{but}"


def _watched(amounts: Mapping[str, Any]) -> str:
    named = (("iterations", "iteration row"), ("metrics_rows", "row of metrics"), ("log_lines", "log line"),
             ("collectives", "collective"), ("nodes", "node"))  # fmt: skip
    parts = [
        counted(number, word, "rows of metrics" if key == "metrics_rows" else None)
        for key, word in named
        if (number := amounts.get(key))
    ]
    span_s = amounts.get("span_s")
    return ", ".join([*parts, *([f"{span_s:,.0f} s"] if span_s else [])]) or "what was read"


def of_no_form(job: Mapping[str, Any]) -> bool:
    """Whether all that was read are texts of which no format is known: that rules know no line says nothing of a job.

    Examples
    --------
    >>> of_no_form({"judged": {"files": [{"path": "a.txt", "format": "plain text"}]}}), of_no_form({})
    (True, False)
    """
    files = job.get("judged", {}).get("files", ())
    return bool(files) and all(one["format"] == PLAIN for one in files)


def _blind(job: Mapping[str, Any]) -> list[Blind]:
    """The most frequent reasons of abstention, those about input that is there first."""
    if of_no_form(job):
        return [
            Blind(f"{note}; no line of it tells of a failure", "docs/data.md lists what is read")
            for note in job["judged"]["notes"][:MOST_REASONS]
        ]
    amounts = job.get("input")
    if amounts is not None and not any(amounts.get(key) for key in AMOUNTS):
        if unread := job.get("judged", {}).get("unread"):
            return [_unread(one) for one in unread[:MOST_REASONS]]
        files = [one for one in job.get("judged", {}).get("files", ()) if one["rows"]]
        if any(one["format"] == "nccl ras" for one in files):
            return [RAS_ONCE]
        if files:
            said = job["judged"].get("notes") or [f"{files[0]['path']}: nothing of it can be judged"]
            return [Blind(note, "docs/data.md lists what is judged") for note in said[:MOST_REASONS]]
        return [Blind("everything that was read is empty", "record metrics, iterations or logs (docs/data.md)")]
    reasons = Counter(reason.partition(": give")[0] for reason in job["abstained"].values())
    present = [(one, count) for one, count in reasons.items() if not one.endswith("were recorded")]
    ordered = sorted(present or reasons.items(), key=lambda pair: (not pair[0].startswith(NORMAL), -pair[1]))
    found = [Blind(reason, _remedy(reason)) for reason, _ in ordered[:MOST_REASONS]]
    return found or [Blind("no detector had anything to judge", "record more (docs/data.md)")]


def _unknown(one: UnknownEnd) -> Blind:
    said = f"{one.file} ends with words of a failure that no rule knows, line {one.number}: {one.line}"
    if one.buffered:
        said = (
            f"{one.file}: the steps behind this exception may have been made before it, line {one.number}: {one.line}"
        )
    return Blind(said, "set PYTHONUNBUFFERED=1, or give a log with times" if one.buffered else "read what stands there")


def _unread(one: Mapping[str, str]) -> Blind:
    what, _, remedy = one["why"].partition("; ")
    return Blind(f"{one['path']}: {what}", remedy or "docs/data.md says what can be read")


def _remedy(reason: str) -> str:
    return next((remedy for start, remedy in _REMEDIES if reason.startswith(start)), "")
